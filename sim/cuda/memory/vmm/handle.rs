//! Handles of memory: created, released, retained.

use super::{Backing, INVALID, Physical, STEP, whole};
use crate::driver::process;
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::exec::take_chunk;
use crate::handles::{Key, Named, Table};
use gpuslice_nvabi::types::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A handle and how often it was given out.
pub struct Handle {
    physical: Physical,
    references: u32,
}

impl Named for Handle {
    const KIND: u8 = 0x42;
}

fn handles() -> MutexGuard<'static, Table<Handle>> {
    static HANDLES: Mutex<Table<Handle>> = Mutex::new(Table::new());
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(handle: CUmemGenericAllocationHandle) -> Result<Key<Handle>, CUresult> {
    Key::from_pointer(handle as usize as *mut c_void).ok_or(INVALID)
}

/// The memory of a handle. A number that names none is refused here and in [`cuMemRelease`]; a card's driver does not
/// check it, and the process ends with SIGSEGV.
pub(super) fn physical(handle: CUmemGenericAllocationHandle) -> Result<Physical, CUresult> {
    let handles = handles();
    handles.get(key(handle)?).map(|one| one.physical.clone()).ok_or(INVALID)
}

/// A handle of memory: the one it has already, counted once more, or a new one.
pub(super) fn hand_out(physical: Physical) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let mut handles = handles();
    let known = handles.iter().find(|(_, one)| one.physical.backing.is(&physical.backing));
    let known = known.map(|(key, _)| key);
    if let Some(key) = known
        && let Some(one) = handles.get_mut(key)
    {
        one.references += 1;
        return Ok(key.to_pointer() as u64);
    }
    let entered = handles.insert(Handle { physical, references: 1 });
    Ok(entered.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.to_pointer() as u64)
}

/// Looks properties through; the machine's index of the GPU they name, or `None` for the host.
pub fn gpu_of(prop: &CUmemAllocationProp) -> Result<Option<usize>, CUresult> {
    refuse_if(prop.kind != CU_MEM_ALLOCATION_TYPE_PINNED)?;
    match prop.location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => Ok(Some(process()?.gpu(prop.location.id)?.index)),
        CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(None),
        // The simulated host has one node.
        CU_MEM_LOCATION_TYPE_HOST_NUMA if prop.location.id == 0 => Ok(None),
        _ => Err(INVALID),
    }
}

pub fn cuMemGetAllocationGranularity(
    granularity: Out<usize>,
    prop: In<CUmemAllocationProp>,
    option: CUmemAllocationGranularity_flags,
) -> Outcome {
    granularity.require()?;
    gpu_of(&prop.get()?)?;
    refuse_if(option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)?;
    granularity.set(STEP as usize)
}

pub fn cuMemCreate(
    handle: Out<CUmemGenericAllocationHandle>,
    size: usize,
    prop: In<CUmemAllocationProp>,
    flags: u64,
) -> Outcome {
    handle.require()?;
    let prop = prop.get()?;
    let gpu = gpu_of(&prop)?;
    whole(&[size as u64])?;
    let exportable = CU_MEM_HANDLE_TYPE_NONE | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    refuse_if(flags != 0)?;
    if prop.requested_handle_types & !exportable != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let backing = match gpu {
        Some(gpu) => Backing::Device(take_chunk(gpu, size as u64)?),
        // Memory of the host has no descriptors here.
        None if prop.requested_handle_types != CU_MEM_HANDLE_TYPE_NONE => {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        None => Backing::of_host(size as u64)?,
    };
    let prop = CUmemAllocationProp { win32_handle_meta_data: std::ptr::null_mut(), ..prop };
    let entered = handles().insert(Handle { physical: Physical { backing, prop }, references: 1 });
    handle.set(entered.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.to_pointer() as u64)
}

pub fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> Outcome {
    let mut handles = handles();
    let key = key(handle)?;
    let one = handles.get_mut(key).ok_or(INVALID)?;
    one.references -= 1;
    if one.references == 0 {
        let gone = handles.remove(key);
        drop(handles);
        drop(gone);
    }
    Ok(())
}

pub fn cuMemGetAllocationPropertiesFromHandle(
    prop: Out<CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
) -> Outcome {
    prop.require()?;
    prop.set(physical(handle)?.prop)
}
