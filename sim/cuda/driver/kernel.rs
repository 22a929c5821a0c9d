//! Calls to the driver's kernel side, as the real driver library makes them: `ioctl` on a descriptor of
//! this process's own makes and ends objects.
//!
//! The pointer below is the library's reference to libc's `ioctl`, which the loader fills in like any
//! other. There is no kernel driver behind a simulated device, so a constructor redirects it to the
//! simulated one. A shim that observes the driver later redirects it to itself and calls the earlier
//! target, as it does with the real library.

use gpuslice_nvabi::control::*;
use gpuslice_sim_device::{ContextId, Machine};
use std::ffi::{c_int, c_ulong, c_void};
use std::fs::File;
use std::mem::transmute;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicPtr, Ordering};

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

static IOCTL: AtomicPtr<c_void> = AtomicPtr::new(libc::ioctl as *mut c_void);

#[used]
#[unsafe(link_section = ".init_array")]
static TURN: extern "C" fn() = turn;

extern "C" fn turn() {
    IOCTL.store(simulated as Ioctl as *mut c_void, Ordering::Release);
}

/// What stands where the real driver's kernel side would be.
unsafe extern "C" fn simulated(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let answer = Machine::attach().map_err(|_| libc::ENODEV);
    // SAFETY: the descriptor is this file's own, and so are the arguments, see `call`.
    let answer = answer.and_then(|machine| unsafe {
        machine.ioctl(BorrowedFd::borrow_raw(fd), request, argument)
    });
    match answer {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: the calling thread's own errno.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

fn call<T>(file: &File, request: u64, argument: &mut T) -> bool {
    // SAFETY: libc's function or one of the same form put in its place.
    let ioctl = unsafe { transmute::<*mut c_void, Ioctl>(IOCTL.load(Ordering::Acquire)) };
    let argument: *mut T = argument;
    // SAFETY: the structure of this request, and what it points to lives as long as the call.
    unsafe { ioctl(file.as_raw_fd(), request, argument.cast()) == 0 }
}

/// The objects of one context, by the distance of their handles from the first.
const DEVICE: u32 = 0;
const SUBDEVICE: u32 = 1;
const GROUP: u32 = 2;
const CHANNEL: u32 = 3;
const COMPUTE: u32 = 4;
const EACH: u32 = 8;

/// The engine of compute work, as groups name it.
const GRAPHICS_ENGINE: u32 = 1;

/// This process's client.
pub struct Client {
    file: File,
    handle: u32,
}

impl Client {
    /// A client; without one, contexts have no channel groups to control.
    pub fn new(machine: &Machine) -> Option<Self> {
        let mut client = Self { file: machine.open_control().ok()?, handle: 0 };
        client.handle = client.alloc(0, 0, class::ROOTS[1], None)?;
        Some(client)
    }

    fn alloc(
        &self,
        parent: u32,
        object: u32,
        class: u32,
        params: Option<&GroupParams>,
    ) -> Option<u32> {
        let mut it = Alloc {
            client: self.handle,
            parent,
            object,
            class,
            params: params.map_or(0, |params| std::ptr::from_ref(params) as u64),
            params_bytes: params.map_or(0, |_| size_of::<GroupParams>() as u32),
            ..Alloc::default()
        };
        let done = call(&self.file, ALLOC, &mut it) && it.status == status::OK;
        done.then_some(it.object)
    }

    fn first(serial: u64) -> u32 {
        0x5c00_0000 | (serial as u32 * EACH) & 0x00ff_ffff
    }

    /// The objects of a new context.
    pub fn context_begins(&self, machine: &Machine, id: ContextId, serial: u64) {
        let first = Self::first(serial);
        let group = GroupParams {
            address_space: machine.address_space(id),
            engine: GRAPHICS_ENGINE,
            ..GroupParams::default()
        };
        let objects = [
            (self.handle, DEVICE, class::DEVICE, None),
            (first + DEVICE, SUBDEVICE, class::SUBDEVICE, None),
            (first + DEVICE, GROUP, class::GROUP, Some(&group)),
            (first + GROUP, CHANNEL, class::CHANNELS[2], None),
            (first + CHANNEL, COMPUTE, class::COMPUTE[4], None),
        ];
        for (parent, object, class, params) in objects {
            self.alloc(parent, first + object, class, params);
        }
    }

    /// Ends them, all that is below the device with it.
    pub fn context_ends(&self, serial: u64) {
        let first = Self::first(serial);
        for (parent, object) in [(first, first + GROUP), (self.handle, first)] {
            let mut it = Free { client: self.handle, parent, object, status: 0 };
            call(&self.file, FREE, &mut it);
        }
    }
}
