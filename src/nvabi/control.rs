//! The driver's kernel interface to channel groups.
//!
//! A CUDA context's work runs in a *channel group*, an object of the driver's resource manager. The
//! driver library creates it by ioctls on `/dev/nvidiactl`: it allocates a *client* (the root of its
//! objects, which belongs to the open file) and, below it, devices. Below a device come groups, below a group
//! channels, below a channel compute objects, each under a handle of the library's choice. A process with
//! access to that open file can name a group by client and handle and control it: preempt it, resume it, set
//! its time slice. The numbers are those of NVIDIA's open kernel modules, versions 535 to 595.

/// The encoding of every ioctl of the driver: `_IOWR('F', escape, structure)`.
#[must_use]
pub const fn request(escape: u8, bytes: usize) -> u64 {
    const READ_WRITE: u64 = 3 << 30;
    READ_WRITE | (bytes as u64) << 16 | (b'F' as u64) << 8 | escape as u64
}

/// Creates an object.
pub const ALLOC: u64 = request(0x2b, size_of::<Alloc>());
/// Creates an object, in the older form.
pub const ALLOC_SHORT: u64 = request(0x2b, size_of::<AllocShort>());
/// Ends an object and all objects below it.
pub const FREE: u64 = request(0x29, size_of::<Free>());
/// Controls an object.
pub const CONTROL: u64 = request(0x2a, size_of::<Control>());

/// Arguments of [`ALLOC`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Alloc {
    pub client: u32,
    pub parent: u32,
    /// Chosen by the caller, or by the driver if it is 0.
    pub object: u32,
    pub class: u32,
    pub params: u64,
    pub rights: u64,
    pub params_bytes: u32,
    pub flags: u32,
    pub status: u32,
    pub reserved: u32,
}

/// Arguments of [`ALLOC_SHORT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocShort {
    pub client: u32,
    pub parent: u32,
    pub object: u32,
    pub class: u32,
    pub params: u64,
    pub params_bytes: u32,
    pub status: u32,
}

/// Arguments of [`FREE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Free {
    pub client: u32,
    pub parent: u32,
    pub object: u32,
    pub status: u32,
}

/// Arguments of [`CONTROL`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Control {
    pub client: u32,
    pub object: u32,
    pub command: u32,
    pub flags: u32,
    pub params: u64,
    pub params_bytes: u32,
    pub status: u32,
}

const _: () = {
    assert!(size_of::<Alloc>() == 48 && size_of::<AllocShort>() == 32);
    assert!(size_of::<Free>() == 16 && CONTROL == 0xc020_462a && ALLOC == 0xc030_462b);
    assert!(size_of::<Preempt>() == 8 && size_of::<SwitchStats>() == 32);
    assert!(size_of::<DisableChannels>() == 536 && size_of::<GroupParams>() == 20);
};

/// Classes of objects.
pub mod class {
    /// A client, in its two forms.
    pub const ROOTS: [u32; 2] = [0x0, 0x41];
    pub const DEVICE: u32 = 0x80;
    pub const SUBDEVICE: u32 = 0x2080;
    pub const GROUP: u32 = 0xa06c;
    /// Channels: Turing, Ampere (and Ada), Hopper, Blackwell.
    pub const CHANNELS: [u32; 4] = [0xc46f, 0xc56f, 0xc86f, 0xc96f];
    /// Compute objects: Turing, Ampere in two forms, Ada, Hopper, Blackwell.
    pub const COMPUTE: [u32; 6] = [0xc5c0, 0xc6c0, 0xc7c0, 0xc9c0, 0xcbc0, 0xcdc0];
}

/// Parameters of a new group.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupParams {
    pub error: u32,
    pub ecc_error: u32,
    pub address_space: u32,
    pub engine: u32,
    pub plugin: u8,
    pub reserved: [u8; 3],
}

/// Commands of [`Control`], each with the structure of its parameters.
pub mod command {
    /// On a group: put it on the run list or remove it ([`super::Schedule`]).
    pub const SCHEDULE: u32 = 0xa06c_0101;
    /// On a group: set the length of its time slice ([`super::TimeSlice`]).
    pub const SET_TIME_SLICE: u32 = 0xa06c_0103;
    /// On a group: read the length of its time slice.
    pub const GET_TIME_SLICE: u32 = 0xa06c_0104;
    /// On a group: preempt it now ([`super::Preempt`]).
    pub const PREEMPT: u32 = 0xa06c_0105;
    /// On a channel: put it on the run list or remove it ([`super::Schedule`]).
    pub const SCHEDULE_CHANNEL: u32 = 0xa06f_0103;
    /// On a subdevice: disable channels, or enable them again ([`super::DisableChannels`]).
    pub const DISABLE_CHANNELS: u32 = 0x2080_110b;
    /// On a subdevice: read how often a group was preempted ([`super::SwitchStats`]).
    pub const SWITCH_STATS: u32 = 0x2080_1215;
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Schedule {
    pub enable: u8,
    pub skip_submit: u8,
    pub skip_enable: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeSlice {
    pub us: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Preempt {
    pub wait: u8,
    pub manual_timeout: u8,
    pub reserved: [u8; 2],
    /// At most a second.
    pub timeout_us: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DisableChannels {
    pub disable: u8,
    pub count: u32,
    pub only_scheduling: u8,
    pub rewind: u8,
    /// 0; other values are reserved for the kernel.
    pub event: u64,
    pub clients: [u32; 64],
    pub channels: [u32; 64],
}

impl DisableChannels {
    /// Disables these channels of one client, or enables them; at most 64.
    #[must_use]
    pub fn of(client: u32, names: impl IntoIterator<Item = u32>, disable: bool) -> DisableChannels {
        let mut it = DisableChannels {
            disable: u8::from(disable),
            count: 0,
            only_scheduling: 0,
            rewind: 0,
            event: 0,
            clients: [0; 64],
            channels: [0; 64],
        };
        for ((to, channel), name) in it.clients.iter_mut().zip(&mut it.channels).zip(names) {
            (*to, *channel) = (client, name);
            it.count += 1;
        }
        it
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SwitchStats {
    /// A group or one of its channels.
    pub channel: u32,
    pub flags: u32,
    pub saves: u32,
    pub restores: u32,
    /// Number of saves by kind: when idle, between blocks, within an instruction stream.
    pub kinds: [u32; 4],
}

/// Status codes of the driver.
pub mod status {
    pub const OK: u32 = 0;
    pub const INSUFFICIENT_PERMISSIONS: u32 = 0x1b;
    pub const INVALID_CHANNEL: u32 = 0x21;
    pub const INVALID_CLASS: u32 = 0x22;
    pub const INVALID_CLIENT: u32 = 0x23;
    pub const INVALID_PARAM_STRUCT: u32 = 0x3c;
    pub const NOT_SUPPORTED: u32 = 0x56;
    pub const OBJECT_NOT_FOUND: u32 = 0x57;
    pub const TIMEOUT: u32 = 0x65;
}

/// What the simulated driver's library exports in place of a kernel side, which it does not have.
pub mod simulated {
    use core::ffi::{c_char, c_int, c_void};

    /// The ioctl on the control node: descriptor, request, argument; returns an errno, 0 for success.
    pub type ControlFn = unsafe extern "C" fn(c_int, u64, *mut c_void) -> c_int;
    /// Name of the [`ControlFn`].
    pub const CONTROL: &str = "gpuslice_sim_control";

    /// Makes the device's files, if they are not there. Writes their directory, or the error, as a C string into a
    /// buffer of this many bytes; returns [`PREPARED`] or another status.
    pub type PrepareFn = unsafe extern "C" fn(*mut c_char, usize) -> c_int;
    /// Name of the [`PrepareFn`].
    pub const PREPARE: &str = "gpuslice_sim_prepare";
    /// The files are there.
    pub const PREPARED: c_int = 0;
    /// `GPUSLICE_SIM` or a related variable is invalid.
    pub const INVALID: c_int = 1;
    /// The files cannot be made or used.
    pub const UNUSABLE: c_int = 2;
}
