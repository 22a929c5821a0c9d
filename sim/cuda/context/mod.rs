//! Contexts: the owners of all work and memory of a program on a GPU.
//!
//! A context lives on the shared device as well: it takes memory there, and the device's time is
//! divided between contexts. Each thread has a stack of contexts whose top is the current one.
//! Contexts are never freed, only ended: they are few and small, and so a call finds the current
//! one with one load, whatever other threads do meanwhile.

mod current;
mod green;
mod lifetime;
mod limits;
mod peer;
mod primary;
mod table;

pub use current::{current, working};
pub use table::{find, living};

use crate::driver::{Gpu, process};
use gpuslice_nvabi::types::{CUcontext, CUdevice, CUresult};
use gpuslice_sim_device::ContextId;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A context of this process.
pub struct Context {
    /// Different for every context of the process's life.
    pub serial: u64,
    /// The CUDA ordinal of its GPU.
    pub device: CUdevice,
    /// Its name on the shared device.
    pub id: ContextId,
    peers: peer::Peers,
    pub(crate) heap: crate::vram::Heap,
    primary: bool,
    flags: AtomicU32,
    alive: AtomicBool,
    /// References by the oldest form of counting (`cuCtxAttach`).
    attached: AtomicU32,
    settings: limits::Settings,
}

impl Context {
    /// Whether it has not been destroyed.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// The GPU it is on.
    pub fn gpu(&self) -> &'static Gpu {
        let gpus = process().map(|process| &process.gpus);
        &gpus.expect("a context exists after cuInit only")[self.device as usize]
    }

    /// The scheduling flags it was made with (CU_CTX_*).
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// The handle the program knows it by.
    pub fn handle(&self) -> CUcontext {
        table::handle(self.serial)
    }
}

/// The context a call means that names one or, with null, the current one.
pub fn named_or_current(handle: CUcontext) -> Result<&'static Context, CUresult> {
    if handle.0.is_null() {
        current()
    } else {
        find(handle)
    }
}

/// Entry points of this room.
pub mod imp {
    pub use super::current::imp::*;
    pub use super::green::imp::*;
    pub use super::lifetime::imp::*;
    pub use super::limits::imp::*;
    pub use super::peer::imp::*;
    pub use super::primary::imp::*;
}
