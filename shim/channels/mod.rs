//! The channel groups in which this process's work runs.
//!
//! # Problem
//! A daemon with access to the driver's open file can stop a process's work on the GPU, even within a
//! kernel. For that it needs the handles of the work's *channel group* and its channels
//! ([`gpuslice_nvabi::control`]). The driver library chooses those handles and does not publish them.
//!
//! # Idea
//! The driver library passes them to the kernel: objects are created and ended by `ioctl`, which the library
//! calls like any other function of libc, through a pointer that the loader filled in. If the daemon uses
//! channel groups, that pointer is redirected (`got.rs`) before the driver is initialised. The replacement
//! calls the original function and records created and ended objects ([`objects`]). The symbol `ioctl` is
//! not replaced for other callers.
//!
//! An ioctl of unknown form (a structure of another size, too many objects, an undetermined GPU) only makes
//! the process's work impossible to stop. The daemon is not notified from here, where the driver may hold
//! its locks, but when a context was created or ended. A card's driver made no channels later, for 48
//! streams of two priorities (H200, driver 580).

mod got;
pub mod objects;

use crate::guard::guarded;
use core::cell::Cell;
use core::ffi::{c_int, c_ulong, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicPtr};
use gpuslice_nvabi::control::{
    self, Alloc, AllocShort, Control, DisableChannels, Free, command, request,
};
use gpuslice_wire::ids::Lane;
use objects::{ChannelGroup, DriverObject, Objects};
use std::sync::{Mutex, MutexGuard, TryLockError};

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// Largest number of pointers of one library to one function; mostly there is one.
const GOT_SLOTS: usize = 4;
/// Number of attempts to take a lock that another thread holds for a few instructions, or for ever in a
/// forked child.
const TRIES: u32 = 10_000;

static PREVIOUS: [AtomicPtr<c_void>; GOT_SLOTS] = [const { AtomicPtr::new(null_mut()) }; GOT_SLOTS];
static OBJECTS: Mutex<Objects> = Mutex::new(Objects::new());
static WATCHING: AtomicBool = AtomicBool::new(false);
static LOST: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The GPU on which this thread creates a context.
    static MAKING: Cell<Option<Lane>> = const { Cell::new(None) };
}

/// Starts observing the objects of the library that contains the function `driver`; once.
pub fn look(driver: *const c_void) {
    if WATCHING.swap(true, AcqRel) {
        return;
    }
    let observers: [Ioctl; GOT_SLOTS] =
        [observed::<0>, observed::<1>, observed::<2>, observed::<3>];
    let entries = got::find(driver, c"ioctl");
    if entries.len() > GOT_SLOTS {
        return;
    }
    for ((entry, previous), observer) in entries.iter().zip(&PREVIOUS).zip(observers) {
        entry.turn(observer as *mut c_void, previous);
    }
}

/// Creates a context on the GPU of `lane` by `call`.
pub fn on<T>(lane: Lane, call: impl FnOnce() -> T) -> T {
    let before = MAKING.try_with(|making| making.replace(Some(lane)));
    let result = call();
    let _ = MAKING.try_with(|making| making.set(before.ok().flatten()));
    result
}

/// The channel groups; none if some are unknown. `lanes` is the number of GPUs of the slice: with a single
/// GPU, a group created outside a context creation belongs to it.
pub fn groups(lanes: u8) -> Vec<ChannelGroup> {
    if LOST.load(Relaxed) {
        return Vec::new();
    }
    let only = (lanes == 1).then_some(Lane(0));
    objects().map_or_else(Vec::new, |objects| objects.groups(only))
}

/// The known objects that lead to a group.
pub fn seen() -> Vec<DriverObject> {
    objects().map_or_else(Vec::new, |objects| objects.all().to_vec())
}

/// Controls an object in the tree of one of this process's groups. Returns the driver's status.
///
/// # Safety
/// `T` is the structure of the command's parameters, and `group` one of [`groups`].
///
/// # Errors
/// Of `ioctl`.
pub unsafe fn control<T>(
    group: &ChannelGroup,
    object: u32,
    command: u32,
    params: &mut T,
) -> std::io::Result<u32> {
    let mut it = Control {
        client: group.client,
        object,
        command,
        params: core::ptr::from_mut(params) as u64,
        params_bytes: size_of::<T>() as u32,
        ..Control::default()
    };
    let argument = (&raw mut it).cast();
    // SAFETY: the driver's own descriptor, and the structures of this control, alive during the call.
    match unsafe { previous(group.got_slot)(group.fd, control::CONTROL, argument) } {
        0 => Ok(it.status),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Resumes this process's work, which a daemon may have stopped before it died.
pub fn resume() {
    for group in groups(1) {
        let channels = group.channels.into_iter().take_while(|channel| *channel != 0);
        let mut enable = DisableChannels::of(group.client, channels, false);
        // SAFETY: the structure of this command, and a group there is.
        let _ = unsafe { control(&group, group.subdevice, command::DISABLE_CHANNELS, &mut enable) };
    }
}

fn objects() -> Option<MutexGuard<'static, Objects>> {
    for _ in 0..TRIES {
        match OBJECTS.try_lock() {
            Ok(objects) => return Some(objects),
            Err(TryLockError::Poisoned(_)) => break,
            Err(TryLockError::WouldBlock) => core::hint::spin_loop(),
        }
    }
    LOST.store(true, Relaxed);
    None
}

fn previous(got_slot: u8) -> Ioctl {
    let address = PREVIOUS[usize::from(got_slot) % GOT_SLOTS].load(Acquire);
    let address = if address.is_null() { libc::ioctl as *mut c_void } else { address };
    // SAFETY: libc's function, or what the library's pointer to it pointed to.
    unsafe { transmute::<*mut c_void, Ioctl>(address) }
}

/// Replaces `ioctl` in the driver's pointer.
unsafe extern "C" fn observed<const SLOT: u8>(
    fd: c_int,
    asked: c_ulong,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the driver's own call.
    let result = unsafe { previous(SLOT)(fd, asked, argument) };
    if result == 0 && (asked >> 8) & 0xff == u64::from(b'F') {
        // SAFETY: the driver's kernel side has just read and written the argument.
        let known = guarded(false, || unsafe { note(SLOT, fd, asked, argument) });
        if !known {
            LOST.store(true, Relaxed);
        }
    }
    result
}

/// Records the effect of a successful ioctl; `false` if it has an unknown form.
///
/// # Safety
/// `argument` is the argument of such an ioctl of the driver's.
unsafe fn note(got_slot: u8, fd: c_int, asked: u64, argument: *mut c_void) -> bool {
    /// The wrapper of any other request: its escape, its size, its argument.
    const COAT: u64 = request(211, 16);
    let made = match asked {
        control::ALLOC => {
            // SAFETY: the structure of this request, whole.
            let it = unsafe { argument.cast::<Alloc>().read_unaligned() };
            (it.status == 0).then_some((it.client, it.parent, it.object, it.class))
        }
        control::ALLOC_SHORT => {
            // SAFETY: the same.
            let it = unsafe { argument.cast::<AllocShort>().read_unaligned() };
            (it.status == 0).then_some((it.client, it.parent, it.object, it.class))
        }
        control::FREE => {
            // SAFETY: the same.
            let it = unsafe { argument.cast::<Free>().read_unaligned() };
            return it.status != 0
                || objects().is_some_and(|mut objects| {
                    objects.freed(it.client, it.object);
                    true
                });
        }
        COAT => {
            // SAFETY: the same.
            let [word, inner] = unsafe { argument.cast::<[u64; 2]>().read_unaligned() };
            let (escape, bytes) = (word as u32, (word >> 32) as usize);
            let asked = request(escape as u8, bytes);
            // SAFETY: the inner request's argument, as the driver's kernel side has just used it.
            return asked == COAT || unsafe { note(got_slot, fd, asked, inner as *mut c_void) };
        }
        // An allocation or a release of an unknown size.
        other => return !matches!(other & 0xff, 0x29 | 0x2b),
    };
    let Some((client, parent, handle, class)) = made else {
        return true;
    };
    let lane = MAKING.try_with(Cell::get).ok().flatten();
    let made = DriverObject { client, parent, handle, class, lane, fd, got_slot };
    objects().is_some_and(|mut objects| objects.made(made))
}
