//! The memory behind a handle: memory of a GPU, or pinned memory of the host.

use super::INVALID;
use crate::vram::{Chunk, map, map_part};
use gpuslice_nvabi::types::CUresult;
use std::fs::File;
use std::sync::Arc;

/// Memory of the host, in a file of its own so that it can be mapped more than once.
pub struct HostMemory {
    file: File,
    bytes: u64,
}

/// Memory with a handle; gone with its last reference.
#[derive(Clone)]
pub enum Backing {
    Device(Arc<Chunk>),
    Host(Arc<HostMemory>),
}

impl Backing {
    /// New memory of the host.
    pub fn of_host(bytes: u64) -> Result<Self, CUresult> {
        if bytes > map::host_bytes() as u64 {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let file = map::memory_file(c"gpuslice-sim-host");
        let file = file.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        let sized = file.set_len(bytes);
        sized.map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        Ok(Self::Host(Arc::new(HostMemory { file, bytes })))
    }

    pub fn bytes(&self) -> u64 {
        match self {
            Self::Device(chunk) => chunk.bytes(),
            Self::Host(memory) => memory.bytes,
        }
    }

    /// Whether it is the same memory.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Device(one), Self::Device(other)) => one.memory.key == other.memory.key,
            (Self::Host(one), Self::Host(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Its memory on a GPU, for callers that cannot use host memory.
    pub fn chunk(&self) -> Result<&Arc<Chunk>, CUresult> {
        match self {
            Self::Device(chunk) => Ok(chunk),
            Self::Host(_) => Err(INVALID),
        }
    }

    /// Maps `len` bytes from `offset` on at an address taken from `space`, without access.
    pub fn map(&self, offset: u64, len: u64, address: u64) -> Result<(), CUresult> {
        match self {
            Self::Device(chunk) => map_part(chunk, offset, len, address, false),
            Self::Host(memory) => {
                // SAFETY: the addresses were taken from the reserved range for this mapping alone.
                let mapped = unsafe { map::over(address, &memory.file, offset, len, false) };
                mapped.map_err(|_| CUresult::ERROR_MAP_FAILED)
            }
        }
    }
}
