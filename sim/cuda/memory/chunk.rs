//! Physical memory of a GPU as this process holds it.
//!
//! The device counts a process as one holder of a piece of memory however often it has opened it,
//! so the counting within the process happens here: a piece is let go when its last [`Chunk`] is.

use crate::driver::{device_error, process};
use crate::entry::is_forked;
use gpuslice_nvabi::types::CUresult;
use gpuslice_sim_device::{Memory, MemoryKey};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// A piece of physical memory; gone with the last reference.
pub struct Chunk {
    pub memory: Memory,
}

type Open = HashMap<MemoryKey, Weak<Chunk>>;

fn open() -> MutexGuard<'static, Open> {
    static OPEN: LazyLock<Mutex<Open>> = LazyLock::new(Mutex::default);
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Chunk {
    /// New memory of a GPU (by the machine's index), zeroed.
    pub fn new(gpu: usize, bytes: u64) -> Result<Arc<Self>, CUresult> {
        let memory = process()?
            .machine
            .mem_alloc(gpu, bytes)
            .map_err(device_error)?;
        let key = memory.key;
        let chunk = Arc::new(Self { memory });
        open().insert(key, Arc::downgrade(&chunk));
        Ok(chunk)
    }

    /// Memory that exists, of this process or another.
    pub fn import(key: MemoryKey) -> Result<Arc<Self>, CUresult> {
        let mut open = open();
        if let Some(chunk) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(chunk);
        }
        let memory = process()?.machine.mem_import(key).map_err(device_error)?;
        let chunk = Arc::new(Self { memory });
        open.insert(key, Arc::downgrade(&chunk));
        Ok(chunk)
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
        if is_forked() {
            return;
        }
        let key = self.memory.key;
        let mut open = open();
        // Another thread may have opened the same memory again since the last reference went.
        if open.get(&key).is_some_and(|chunk| chunk.strong_count() > 0) {
            return;
        }
        open.remove(&key);
        if let Ok(process) = process() {
            // The only refusal is that the memory is not ours, and then there is nothing to do.
            let _ = process.machine.mem_free(key);
        }
    }
}
