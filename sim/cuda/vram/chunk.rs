//! Physical memory of a GPU as this process holds it.
//!
//! The device counts a process as one holder of a piece of memory however often it has opened it,
//! so this module counts within the process: a piece is released with its last [`Chunk`].

use crate::driver::{device_error, process};
use crate::entry::is_forked;
use gpuslice_nvabi::types::CUresult;
use gpuslice_sim_device::{Memory, MemoryKey};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// A piece of physical memory; gone with the last reference.
pub struct Chunk {
    pub memory: Memory,
}

/// Whether memory with this key is open in the process.
enum State {
    Open(Weak<Chunk>),
    /// Being released, which takes long: its bytes are wiped. A thread that opens it waits.
    Closing,
}

type Open = HashMap<MemoryKey, State>;
static CLOSED: Condvar = Condvar::new();

fn open() -> MutexGuard<'static, Open> {
    static OPEN: LazyLock<Mutex<Open>> = LazyLock::new(Mutex::default);
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Chunk {
    /// New memory of a GPU (by the machine's index), zeroed.
    pub fn new(gpu: usize, bytes: u64) -> Result<Arc<Self>, CUresult> {
        let machine = process()?.machine;
        let memory = machine.mem_alloc(gpu, bytes).map_err(device_error)?;
        Ok(Self::enter(&mut open(), memory))
    }

    /// The same for managed memory, which the device charges to no process.
    pub fn managed(gpu: usize, bytes: u64) -> Result<Arc<Self>, CUresult> {
        let machine = process()?.machine;
        let memory = machine.mem_alloc_managed(gpu, bytes).map_err(device_error)?;
        Ok(Self::enter(&mut open(), memory))
    }

    /// Memory that exists, of this process or another.
    pub fn import(key: MemoryKey) -> Result<Arc<Self>, CUresult> {
        let mut open = open();
        while let Some(State::Closing) = open.get(&key) {
            open = CLOSED.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(State::Open(chunk)) = open.get(&key)
            && let Some(chunk) = chunk.upgrade()
        {
            return Ok(chunk);
        }
        let memory = process()?.machine.mem_import(key).map_err(device_error)?;
        Ok(Self::enter(&mut open, memory))
    }

    fn enter(open: &mut Open, memory: Memory) -> Arc<Self> {
        let key = memory.key;
        let chunk = Arc::new(Self { memory });
        open.insert(key, State::Open(Arc::downgrade(&chunk)));
        chunk
    }

    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// The machine's index of its GPU.
    pub fn gpu(&self) -> usize {
        usize::from(self.memory.key.gpu)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let Ok(process) = process() else { return };
        if is_forked() {
            return;
        }
        let key = self.memory.key;
        let mut held = open();
        // Another thread may have opened the same memory again since the last reference went.
        if let Some(State::Open(chunk)) = held.get(&key)
            && chunk.strong_count() > 0
        {
            return;
        }
        held.insert(key, State::Closing);
        drop(held);
        // The only refusal is that the memory is not ours, and then there is nothing to do.
        let _ = process.machine.mem_free(key);
        open().remove(&key);
        CLOSED.notify_all();
    }
}
