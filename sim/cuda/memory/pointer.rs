//! Attributes of pointers: `cuPointerGetAttribute`.
//!
//! The answers have different sizes, so they are written as bytes to the program's address.

use crate::allocations::{self, Found, Kind};
use crate::driver::process;
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::vram::space;
use gpuslice_nvabi::types::*;
use std::ffi::c_void;

/// An answer, in the size the attribute has.
enum Answer {
    Word(u64),
    Int(u32),
    Flag(bool),
}

impl Answer {
    /// The driver API says what size of place each attribute needs.
    fn put(self, data: Out<c_void>) -> Outcome {
        match self {
            Self::Word(value) => data.cast::<u64>().set(value),
            Self::Int(value) => data.cast::<u32>().set(value),
            Self::Flag(value) => data.cast::<u8>().set(u8::from(value)),
        }
    }
}

/// The answer about a pointer that lies in an allocation.
fn answer(found: &Found, pointer: u64, attribute: u32) -> Result<Answer, CUresult> {
    let host = found.is_host();
    let managed = matches!(found.kind, Kind::Managed { .. });
    Ok(match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => {
            let context = found.context.map_or(CUcontext::NULL, crate::context::Context::handle);
            Answer::Word(context.0 as u64)
        }
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE if host => Answer::Int(CU_MEMORYTYPE_HOST),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Answer::Int(CU_MEMORYTYPE_DEVICE),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Answer::Word(pointer),
        CU_POINTER_ATTRIBUTE_HOST_POINTER if host || managed => Answer::Word(pointer),
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => Answer::Flag(found.sync_memops),
        CU_POINTER_ATTRIBUTE_BUFFER_ID => Answer::Word(found.id),
        CU_POINTER_ATTRIBUTE_IS_MANAGED => Answer::Flag(managed),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Answer::Int(found.device as u32),
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            Answer::Flag(matches!(found.kind, Kind::Device))
        }
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Answer::Word(found.base),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => Answer::Word(found.bytes),
        CU_POINTER_ATTRIBUTE_MAPPED => Answer::Flag(true),
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => Answer::Word(0),
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => Answer::Flag(false),
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Answer::Int(match found.kind {
            Kind::Mapped { read, write } => u32::from(read) | u32::from(write) << 1,
            _ => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }),
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => Answer::Word(match found.kind {
            Kind::Pool { pool } => pool,
            _ => 0,
        }),
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE => Answer::Word(found.bytes),
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => Answer::Word(found.base),
        CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Answer::Word(found.id),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}

/// The allocation a pointer lies in, for a device that exists.
fn locate(pointer: u64) -> Result<Found, CUresult> {
    process()?;
    allocations::find(pointer).ok_or(CUresult::ERROR_INVALID_VALUE)
}

pub fn cuPointerGetAttribute(
    data: Out<c_void>,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> Outcome {
    data.require()?;
    answer(&locate(ptr)?, ptr, attribute)?.put(data)
}

/// Unlike its sister it succeeds for any pointer, and writes zeros where there is no answer.
pub fn cuPointerGetAttributes(
    count: u32,
    attributes: In<CUpointer_attribute>,
    data: Out<*mut c_void>,
    ptr: CUdeviceptr,
) -> Outcome {
    crate::context::current()?;
    let found = allocations::find(ptr);
    refuse_if(count == 0 || data.is_null())?;
    let places = In::from(data);
    for at in 0..count as usize {
        let (attribute, place) = (attributes.at(at)?, Out::vouched(places.at(at)?));
        place.require()?;
        let known = found.as_ref().map(|found| answer(found, ptr, attribute));
        known.and_then(Result::ok).unwrap_or_else(|| nothing(attribute)).put(place)?;
    }
    Ok(())
}

fn nothing(attribute: u32) -> Answer {
    match attribute {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Answer::Int(0),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Answer::Int(-2_i32 as u32),
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | CU_POINTER_ATTRIBUTE_IS_MANAGED
        | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | CU_POINTER_ATTRIBUTE_MAPPED
        | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => Answer::Flag(false),
        _ => Answer::Word(0),
    }
}

pub fn cuPointerSetAttribute(
    value: In<c_void>,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> Outcome {
    let wanted = value.cast::<u32>().get()?;
    let found = locate(ptr)?;
    if attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !space::contains(ptr) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    allocations::change(found.base, |one| one.sync_memops = wanted != 0);
    Ok(())
}
