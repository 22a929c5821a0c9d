//! Contexts: the owners of all work and memory of a program on a GPU.
//!
//! A context lives on the shared device as well: it takes memory there, and the device's time is
//! divided between contexts. Each thread has a stack of contexts whose top is the current one.
//! Contexts are never freed, only ended: they are few and small, and so a call finds the current
//! one with one load, whatever other threads do meanwhile. This module keeps them; `lifetime` begins
//! and ends them, because that needs the work and the memory of a context.

mod current;
mod limits;
mod peer;
mod table;

pub use current::{current, pop_if_top, push};
pub use limits::{LIMITS, check_flags};
pub use table::{enter, find, living};

use crate::driver::{process, strict};
use crate::vram::Heap;
use gpuslice_nvabi::types::{CUcontext, CUdevice, CUresult};
use gpuslice_sim_device::{ContextId, GpuInfo};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A context of this process.
pub struct Context {
    /// Different for every context of the process's life.
    pub serial: u64,
    /// The CUDA ordinal of its GPU.
    pub device: CUdevice,
    /// Its name on the shared device.
    pub id: ContextId,
    peers: peer::Peers,
    pub heap: Heap,
    /// A primary or green context, which `cuCtxDestroy` does not end.
    pub primary: bool,
    flags: AtomicU32,
    alive: AtomicBool,
    /// Held by a call that may block, where that holds up others.
    busy: Mutex<()>,
    /// References by the oldest form of counting (`cuCtxAttach`).
    pub attached: AtomicU32,
    pub settings: limits::Settings,
}

impl Context {
    /// A context of the device, not entered yet.
    pub fn new(device: CUdevice, id: ContextId, flags: u32, primary: bool) -> Self {
        Self {
            serial: table::next_serial(),
            device,
            id,
            peers: Default::default(),
            heap: Default::default(),
            primary,
            flags: AtomicU32::new(flags),
            alive: AtomicBool::new(true),
            busy: Mutex::new(()),
            attached: AtomicU32::new(1),
            settings: Default::default(),
        }
    }

    /// Takes it out of the table; false if it has ended before.
    pub fn leave(&self) -> bool {
        let alive = self.alive.swap(false, Ordering::AcqRel);
        if alive {
            table::leave(self);
        }
        alive
    }

    /// Waits until no other thread's call blocks in the context, and keeps others out until the answer is dropped;
    /// where calls do not hold up each other, nothing happens. No call does this twice.
    pub fn hold(&self) -> Option<MutexGuard<'_, ()>> {
        let locks = strict::properties().lock != 0;
        locks.then(|| self.busy.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it has not been destroyed.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// The GPU it is on.
    pub fn gpu(&self) -> &'static GpuInfo {
        let gpus = process().map(|process| &process.gpus);
        gpus.expect("a context exists after cuInit only")[self.device as usize]
    }

    /// The scheduling flags it was made with (CU_CTX_*).
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// The handle the program knows it by.
    pub fn handle(&self) -> CUcontext {
        table::handle(self.serial)
    }
}

/// The context a call means that names one or, with null, the current one.
pub fn named_or_current(handle: CUcontext) -> Result<&'static Context, CUresult> {
    if handle.0.is_null() { current() } else { find(handle) }
}

/// Entry points of this room.
pub mod imp {
    pub use super::current::*;
    pub use super::limits::*;
    pub use super::peer::*;
}
