//! The simulated GPU, shared by the simulated driver (`sim/cuda`) and the simulated NVML (`sim/nvml`)
//! of every process on the machine.
//!
//! There is no server. The device is a *directory*: a file of plain numbers that every process maps
//! (`state`), two files of byte locks (`locks`, `exports`) and one sparse file per GPU that is its
//! memory (`vram0`, `vram1`, ...). Each access first advances the device to the present. Simulated
//! time is a pure function of the queued work and its times (module `time`), so no process has to
//! run between accesses. The kernel detects dead processes: each process holds a POSIX lock on one
//! byte, which its death releases whatever the cause.
//!
//! Modules: `properties` is what a driver may be strict in, `layout` the plain data, `time` the clockwork, `queues` the
//! work of one context, `memory` the page table, `managed` memory that moves. `quota` has the memory limits of control
//! groups, `high_water` the most memory that slices ever held, `process` the table of processes, `repair` the
//! recovery after a process was killed half-way. All of these are pure
//! functions of the data and a `now`. `machine` puts a lock around them and is the public interface; `machine/kernel`
//! is the driver's kernel side, `machine/checkpoint` moves a process's memory to the host and back.
//! `mapping`, `lock`, `alive`, `cgroup`, `clock`, `exports`, `folder`, `vram`, `machine/attached` and
//! `machine/kernel` are the only modules with unsafe code.

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
mod high_water;
mod layout;
pub mod limits;
mod lock;
mod machine;
mod managed;
mod mapping;
mod memory;
mod process;
pub mod properties;
mod queues;
mod quota;
mod repair;
mod slice;
mod time;
mod types;
mod units;
mod vram;

pub use clock::{now_ns, sleep_until_ns};
pub use config::{Config, Controls, DeviceConfig, Limits, describe, numbers};
pub use directory::{create, default_dir, destroy, prepare, set_mps};
pub use error::{CheckpointError, ConfigError, DeviceError, Error, LimitError};
pub use events::XidEvent;
pub use faults::Faults;
pub use machine::{Machine, ProcessState, Role};
pub use quota::UNLIMITED;
pub use types::{
    ContextId, ContextInfo, Extent, GpuInfo, Kind, Memory, MemoryInfo, MemoryKey, MemoryLimits,
    ProcessInfo, Recalled, Seq, SliceMark, Status, Work,
};
