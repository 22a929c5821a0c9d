//! The software GPU: what the simulated driver (`sim/cuda`) and the simulated NVML (`sim/nvml`) of
//! every process on the machine share.
//!
//! There is no server. The device is a *directory*: a file of plain numbers every process maps
//! (`state`), two files of byte locks (`locks`, `exports`) and one sparse file per GPU that is its
//! memory (`vram0`, `vram1`, ...). Whoever looks at the device first brings it up to the present:
//! simulated time is a pure function of what was queued and when (room `time`), so nobody has to
//! run while nobody looks. The kernel tells who is still alive: each process
//! holds a POSIX lock on one byte, released at its death whatever the cause.
//!
//! Rooms: `layout` is the plain data, `time` the clockwork, `memory` the page table, `quota` the
//! memory limits of control groups, `process` the table of processes, `repair` what a process killed
//! half-way leaves to do; all of these are pure functions of the data and a `now`. `machine` puts a
//! lock around them and is the public face; `machine/kernel` in it is the driver's kernel side.
//! `mapping`, `lock`, `alive`, `cgroup`, `clock`, `exports`, `folder`, `vram`, `machine/attached` and
//! `machine/kernel` are the only rooms with unsafe code.

#![deny(unsafe_code)]

mod alive;
mod cgroup;
mod clock;
mod config;
mod directory;
mod error;
mod events;
mod exports;
mod faults;
mod folder;
mod layout;
pub mod limits;
mod lock;
mod machine;
mod mapping;
mod memory;
mod process;
mod quota;
mod repair;
mod time;
mod types;
mod units;
mod vram;

pub use clock::{now_ns, sleep_until_ns};
pub use config::{Config, Controls, DeviceConfig, Limits, describe};
pub use directory::{create, default_dir, destroy, prepare};
pub use error::{ConfigError, DeviceError, Error, LimitError};
pub use events::XidEvent;
pub use faults::Faults;
pub use machine::{Machine, Role};
pub use quota::UNLIMITED;
pub use types::{
    ContextId, ContextInfo, Extent, GpuInfo, Kind, Memory, MemoryInfo, MemoryKey, MemoryLimits,
    ProcessInfo, Seq, Status, Work,
};
