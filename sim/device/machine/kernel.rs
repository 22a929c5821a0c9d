//! The driver's kernel side: the ioctls by which objects are made, ended and controlled, as far as
//! they concern channel groups.
//!
//! The device is a directory, so an ioctl on a file of it would end at the kernel of the machine; the
//! simulated driver, and a daemon that knows that the driver is simulated, call this instead. As with the
//! real one, rights belong to the *open file*, in whatever process it was opened: it has one client,
//! which cannot be named through another open file. The file position names the client, so that a
//! duplicate of the descriptor, which shares it, names the same one.
//!
//! Of the objects only groups and their channels have a life of their own here: the driver names a
//! new group's context as its address space, and chooses the handles.

#![allow(unsafe_code)]

use super::Machine;
use crate::clock::{now_ns, sleep_until_ns};
use crate::config::Controls;
use crate::directory;
use crate::layout::{Context, Gpu, State};
use crate::limits::{MAX_PROCESSES, STOPS};
use crate::types::ContextId;
use crate::{process, time};
use gpuslice_nvabi::control::*;
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Clients look like this, and their slot.
const CLIENT: u32 = 0xc1d0_0000;
/// Address spaces look like this, and their context's place.
const SPACE: u32 = 0x9000_0000;
/// Duration of a control on a slow driver.
const SLOW_NS: u64 = 5_000_000;
/// Duration of controls on a card: disabling channels with a kernel on them, enabling them, setting a time slice (H200,
/// driver 580).
const STOP_NS: u64 = 345_000;
const RESUME_NS: u64 = 220_000;
const SLICE_NS: u64 = 140_000;
/// Pause between two looks whether a control still hangs.
const HANG_LOOK: Duration = Duration::from_millis(20);
/// Bits of a file position that name a slot; those above are the process's identity. Some file systems
/// have no position from 16 TiB on.
const SLOT_BITS: u32 = 10;
const IDENTITY_BITS: u32 = 30;
const _: () = assert!(MAX_PROCESSES <= 1 << SLOT_BITS);

/// The handle under which the driver names a context as a group's address space.
pub(crate) fn space(id: ContextId) -> u32 {
    SPACE | u32::from(id.index)
}

impl Machine {
    /// Opens what stands for the driver's control node.
    ///
    /// # Errors
    /// The file's.
    pub fn open_control(&self) -> io::Result<File> {
        let path = directory::control_file(&self.dir);
        OpenOptions::new().read(true).write(true).open(path)
    }

    /// The handle that stands for a context's address space.
    pub fn address_space(&self, id: ContextId) -> u32 {
        space(id)
    }

    /// An ioctl on what [`Machine::open_control`] opened, here or elsewhere.
    ///
    /// # Safety
    /// `argument` is what the driver's ioctl of that number takes, pointers in it included.
    ///
    /// # Errors
    /// An errno; refusals of the driver itself are in the argument's status.
    pub unsafe fn ioctl(
        &self,
        fd: BorrowedFd<'_>,
        request: u64,
        argument: *mut c_void,
    ) -> Result<(), i32> {
        // SAFETY: open for the time of the borrow; `ManuallyDrop` keeps it the caller's.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
        let ours = std::fs::metadata(directory::control_file(&self.dir));
        let (ours, theirs) = (ours.map_err(errno)?, file.metadata().map_err(errno)?);
        if (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino()) {
            return Err(libc::ENOTTY);
        }
        match request {
            ALLOC => {
                // SAFETY: the caller's promise.
                let it = unsafe { &mut *argument.cast::<Alloc>() };
                // SAFETY: the same.
                it.status = unsafe { self.alloc(&file, it) }?;
            }
            FREE => {
                // SAFETY: the caller's promise.
                let it = unsafe { &mut *argument.cast::<Free>() };
                it.status = self.free(&file, it)?;
            }
            CONTROL => {
                // SAFETY: the caller's promise.
                let it = unsafe { &mut *argument.cast::<Control>() };
                // SAFETY: the same.
                it.status = unsafe { self.control(&file, it) }?;
            }
            _ => return Err(libc::ENOTTY),
        }
        Ok(())
    }

    /// The slot of the file's client, if that is `client` and its process lives.
    fn client_of(&self, mut file: &File, client: u32) -> Result<Option<usize>, i32> {
        let at = file.stream_position().map_err(errno)?;
        let slot = (at & ((1 << SLOT_BITS) - 1)) as usize;
        let identity = self.mapping.header().identities.get(slot);
        let signed = identity.map_or(0, |it| it.load(Ordering::Relaxed));
        let ours = at != 0 && place(slot, signed) == at && client == CLIENT | slot as u32;
        Ok(ours.then_some(slot))
    }

    /// # Safety
    /// As [`Machine::ioctl`].
    unsafe fn alloc(&self, mut file: &File, it: &mut Alloc) -> Result<u32, i32> {
        if class::ROOTS.contains(&it.class) {
            let at = place(self.slot, self.identity);
            file.seek(SeekFrom::Start(at)).map_err(errno)?;
            it.object = CLIENT | self.slot as u32;
            return Ok(status::OK);
        }
        let Some(slot) = self.client_of(file, it.client)? else {
            return Ok(status::INVALID_CLIENT);
        };
        let (object, parent) = (it.object, it.parent);
        let found = match it.class {
            class::GROUP => {
                if it.params == 0 {
                    return Ok(status::INVALID_PARAM_STRUCT);
                }
                // SAFETY: the caller's promise: the parameters of this class.
                let params = unsafe { (it.params as *const GroupParams).read_unaligned() };
                let index = (params.address_space ^ SPACE) as usize;
                self.with_contexts(slot, |at, _| at == index, |_, c, _| c.group = object)
            }
            channel if class::CHANNELS.contains(&channel) => {
                let in_group = |_: usize, c: &Context| parent != 0 && c.group == parent;
                self.with_contexts(slot, in_group, |_, c, _| c.channel = object)
            }
            class::DEVICE | class::SUBDEVICE => true,
            compute => class::COMPUTE.contains(&compute),
        };
        Ok(if found { status::OK } else { status::INVALID_CLASS })
    }

    fn free(&self, file: &File, it: &Free) -> Result<u32, i32> {
        let Some(slot) = self.client_of(file, it.client)? else {
            return Ok(status::INVALID_CLIENT);
        };
        let all = it.object == it.client;
        let its = |_: usize, c: &Context| c.group != 0 && (all || c.group == it.object);
        self.with_contexts(slot, its, |gpu, context, index| {
            (context.group, context.channel) = (0, 0);
            time::disable(gpu, context, index, false);
        });
        Ok(status::OK)
    }

    /// # Safety
    /// As [`Machine::ioctl`].
    unsafe fn control(&self, file: &File, it: &Control) -> Result<u32, i32> {
        let Some(slot) = self.client_of(file, it.client)? else {
            return Ok(status::INVALID_CLIENT);
        };
        if it.params == 0 {
            return Ok(status::INVALID_PARAM_STRUCT);
        }
        let (group, params) = (it.object, it.params as *mut c_void);
        // SAFETY: the caller's promise: the parameters of this command.
        let name = unsafe { name_of(it.command, params) };
        self.hang_if_asked(name, slot);
        if self.faults().refuses(name) {
            return Ok(status::INSUFFICIENT_PERMISSIONS);
        }
        let named = |handle: u32| {
            move |_: usize, c: &Context| handle != 0 && (c.group == handle || c.channel == handle)
        };
        let found = match it.command {
            command::GET_TIME_SLICE => {
                let mut us = 0;
                let get = |gpu: &mut Gpu, c: &mut Context, _| us = slice_us(gpu, c);
                let found = self.with_contexts(slot, named(group), get);
                // SAFETY: the caller's promise: the parameters of this command.
                unsafe { params.cast::<TimeSlice>().write_unaligned(TimeSlice { us }) };
                found
            }
            command::SWITCH_STATS => {
                // SAFETY: as above.
                let mut stats = unsafe { params.cast::<SwitchStats>().read_unaligned() };
                let which = named(stats.channel);
                let found = self.with_contexts(slot, which, |_, c, _| stats.saves = c.saves);
                // SAFETY: as above.
                unsafe { params.cast::<SwitchStats>().write_unaligned(stats) };
                found
            }
            change => match Controls::from_number(self.mapping.header().controls) {
                Controls::Denied => return Ok(status::INSUFFICIENT_PERMISSIONS),
                Controls::Unsupported => return Ok(status::NOT_SUPPORTED),
                Controls::Void => return Ok(status::OK),
                Controls::Stops if change == command::SET_TIME_SLICE => {
                    return Ok(status::NOT_SUPPORTED);
                }
                way @ (Controls::On | Controls::Stops | Controls::Slow) => {
                    // SAFETY: as above.
                    let took_ns = unsafe { duration_of(change, params) };
                    sleep_until_ns(
                        now_ns() + if way == Controls::Slow { SLOW_NS } else { took_ns },
                    );
                    // SAFETY: as above.
                    return Ok(unsafe { self.change(slot, group, change, params) });
                }
            },
        };
        Ok(found_or_not(found))
    }

    /// Returns from a control of a process that the machine's faults let hang once they no longer do.
    pub(super) fn hang_if_asked(&self, control: &str, slot: usize) {
        let pid = || self.pid_of(slot);
        while self.faults().hangs(control, pid) {
            std::thread::sleep(HANG_LOOK);
        }
    }

    /// # Safety
    /// As [`Machine::ioctl`].
    unsafe fn change(&self, slot: usize, group: u32, change: u32, params: *mut c_void) -> u32 {
        let its = move |_: usize, c: &Context| group != 0 && c.group == group;
        let channel = move |_: usize, c: &Context| group != 0 && c.channel == group;
        found_or_not(match change {
            command::SCHEDULE => {
                // It answers, and what runs goes on (H200, driver 580).
                self.with_contexts(slot, its, |_, _, _| ())
            }
            command::SET_TIME_SLICE => {
                // SAFETY: as above.
                let TimeSlice { us } = unsafe { params.cast::<TimeSlice>().read_unaligned() };
                // 0 is no shorter slice than the device's own.
                let ns = us.min(10_000_000) * 1000;
                self.with_contexts(slot, its, |_, c, _| c.slice_ns = ns)
            }
            command::SCHEDULE_CHANNEL => {
                // SAFETY: as above.
                let schedule = unsafe { params.cast::<Schedule>().read_unaligned() };
                // A card answers so after 4 s, and what runs goes on.
                if schedule.enable == 0 {
                    return status::TIMEOUT;
                }
                self.with_contexts(slot, channel, |_, _, _| ())
            }
            // Its work is put away once, and comes back at once.
            command::PREEMPT => self.with_contexts(slot, its, |_, c, _| {
                c.saves += u32::from(c.is_ready());
            }),
            command::DISABLE_CHANNELS => {
                // SAFETY: as above.
                let it = unsafe { params.cast::<DisableChannels>().read_unaligned() };
                return match self.disable_channels(&it) {
                    true => status::OK,
                    false => status::INVALID_CHANNEL,
                };
            }
            _ => return status::NOT_SUPPORTED,
        })
    }

    /// Each channel is found in the client that the list names, whichever file the control came through: the driver's
    /// kernel side passes the list to the GPU's own processor as it is. Without the preemption nothing that runs stops.
    fn disable_channels(&self, it: &DisableChannels) -> bool {
        let off = it.disable != 0;
        let named = it.clients.iter().zip(&it.channels).take(it.count as usize);
        let mut all = true;
        for (&client, &channel) in named {
            let slot = (client ^ CLIENT) as usize;
            let its = |_: usize, c: &Context| channel != 0 && c.channel == channel;
            all &= slot < MAX_PROCESSES
                && self.with_contexts(slot, its, |gpu, c, at| {
                    if it.only_scheduling == 0 || !off {
                        time::disable(gpu, c, at, off);
                    }
                });
        }
        all
    }

    /// Does `work` with every context of a process of which `which` is true, its GPU and its place;
    /// whether there was one.
    fn with_contexts(
        &self,
        slot: usize,
        which: impl Fn(usize, &Context) -> bool,
        mut work: impl FnMut(&mut Gpu, &mut Context, u16),
    ) -> bool {
        self.with(None, |state: &mut State, _| {
            let State { gpus, contexts, .. } = state;
            let mut found = false;
            for (index, context) in contexts.iter_mut().enumerate() {
                let its = context.live != 0 && context.slot == slot as u32;
                if !its || !which(index, context) {
                    continue;
                }
                found = true;
                let gpu = &mut gpus[context.gpu as usize];
                work(gpu, context, index as u16);
            }
            found
        })
    }

    /// Whether a context's group is off the run list.
    ///
    /// # Errors
    /// It is no context any more.
    pub fn is_disabled(&self, id: ContextId) -> Result<bool, crate::DeviceError> {
        self.with(None, |state, _| Ok(process::context(state, id)?.disabled != 0))
    }

    /// When a context's group was taken off the run list, the last 64 times, the first first.
    ///
    /// # Errors
    /// It is no context any more.
    pub fn stops(&self, id: ContextId) -> Result<Vec<u64>, crate::DeviceError> {
        self.with(None, |state, _| {
            let context = process::context(state, id)?;
            let (all, kept) = (context.stopped, STOPS as u64);
            let last = all.saturating_sub(kept)..all;
            Ok(last.map(|at| context.stops[(at % kept) as usize]).collect())
        })
    }

    /// The time slice of a context's group, µs: the device's own, unless it was given another.
    ///
    /// # Errors
    /// It is no context any more.
    pub fn time_slice(&self, id: ContextId) -> Result<u64, crate::DeviceError> {
        self.with(None, |state, _| {
            let context = process::context(state, id)?;
            Ok(slice_us(&state.gpus[context.gpu as usize], context))
        })
    }

    /// Sets that, as its process could through its own open file.
    ///
    /// # Errors
    /// It is no context any more.
    pub fn set_time_slice(&self, id: ContextId, us: u64) -> Result<(), crate::DeviceError> {
        self.with(None, |state, _| {
            process::context(state, id)?;
            state.contexts[usize::from(id.index)].slice_ns = us * 1000;
            Ok(())
        })
    }
}

/// The file position that stands for a process.
fn place(slot: usize, identity: u64) -> u64 {
    let identity = identity & ((1 << IDENTITY_BITS) - 1);
    identity << SLOT_BITS | slot as u64
}

/// What a fault calls a control; empty for one that no fault names.
///
/// # Safety
/// `params` are the parameters of this command.
unsafe fn name_of(command: u32, params: *const c_void) -> &'static str {
    match command {
        command::SWITCH_STATS => "stats",
        command::GET_TIME_SLICE | command::SET_TIME_SLICE => "slice",
        command::DISABLE_CHANNELS => {
            // SAFETY: the caller's promise.
            match unsafe { params.cast::<DisableChannels>().read_unaligned() }.disable {
                0 => "resume",
                _ => "stop",
            }
        }
        _ => "",
    }
}

/// The time slice that a group has, µs.
fn slice_us(gpu: &Gpu, context: &Context) -> u64 {
    let own = if context.slice_ns == 0 { gpu.slice.least_ns } else { context.slice_ns };
    own / 1000
}

/// How long a card takes for a control, ns.
///
/// # Safety
/// `params` are the parameters of this command.
unsafe fn duration_of(command: u32, params: *const c_void) -> u64 {
    // SAFETY: the caller's promise.
    match unsafe { name_of(command, params) } {
        "stop" => STOP_NS,
        "resume" => RESUME_NS,
        "slice" => SLICE_NS,
        _ => 0,
    }
}

fn found_or_not(found: bool) -> u32 {
    if found { status::OK } else { status::OBJECT_NOT_FOUND }
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
