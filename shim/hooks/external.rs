//! Memory of another API (Vulkan, NvSci, …), imported by `cuImportExternalMemory`.
//!
//! Its size is charged to the GPU of the current context: no other hook has seen it, and the driver lists
//! it for this process too. Memory that this process exported itself is charged already, and an import
//! is one more reference to it. Buffers and mipmapped arrays mapped in it are not charged again,
//! but they hold it: the charge ends when the import is destroyed and all of them are freed.
//!
//! No driver says that it can move such memory to the host and back, so an import counts as memory that is shared.
//!
//! Registering a buffer, image or surface of OpenGL, EGL or VDPAU takes no memory of this process. A CUDA
//! library cannot follow the allocations of those APIs.

use super::shared::shared;
use crate::guard::Outcome;
use crate::memory::contexts::key;
use crate::memory::physical::{Name, PhysicalAllocation};
use crate::slice::{self, Charging, Slice, released};
use gpuslice_nvabi::types::*;
use std::os::fd::RawFd;

/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`: a descriptor's number is in the first bytes.
const OPAQUE_FD: u32 = 1;

/// The memory to import: memory that this process exported itself, with a counted reference, or memory to be
/// charged.
enum ImportSource {
    Own(PhysicalAllocation),
    Other(Charging),
}

fn import_source(
    slice: &Slice,
    desc: &CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> Result<Option<ImportSource>, CUresult> {
    if desc.kind == OPAQUE_FD
        && let Some(allocation) = slice.physical().refer_exported(desc.handle[0] as RawFd)
    {
        return Ok(Some(ImportSource::Own(allocation)));
    }
    Ok(Charging::here(desc.size as usize)?.map(ImportSource::Other))
}

hooks! {
    guard cuImportExternalMemory(
        ext_mem_out: *mut CUexternalMemory,
        mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    ) as |call| {
        // SAFETY: null, or the application's own, which the driver is about to read.
        let (Some(slice), Some(desc)) = (slice::get()?, unsafe { mem_handle_desc.as_ref() }) else {
            return Ok(call());
        };
        let Some(import_source) = import_source(slice, desc)? else {
            return Ok(call());
        };
        // An import of the process's own export counts a second time: the daemon asks only whether the count is 0.
        let result = shared(call);
        let gone = match import_source {
            ImportSource::Own(allocation) if result != CUresult::SUCCESS => vec![allocation],
            ImportSource::Other(_) if result != CUresult::SUCCESS => Vec::new(),
            import_source => {
                // SAFETY: the driver has just written there and answered success.
                let name = Name::External(unsafe { (*ext_mem_out).0 } as u64);
                let context = slice.here().map_or(0, |here| key(here.context));
                let mut table = slice.physical();
                let allocation = match import_source {
                    ImportSource::Own(allocation) => allocation,
                    ImportSource::Other(charging) => table.begin(Some(charging.into_charge())),
                };
                table.create(name, context, allocation)
            }
        };
        slice.drop_references(gone);
        Ok(result)
    };
}

/// Maps an object in external memory by `call`; `within` returns its name after success.
fn mapped(
    memory: CUexternalMemory,
    within: impl FnOnce() -> u64,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let Some(slice) = slice::attached() else {
        return Ok(call());
    };
    let counted = slice.physical().refer(Name::External(memory.0 as u64));
    let result = call();
    let dropped = match counted {
        Some(allocation) if result == CUresult::SUCCESS => {
            let context = slice.here().map_or(0, |here| key(here.context));
            slice.physical().create(Name::Within(within()), context, allocation)
        }
        counted => Vec::from_iter(counted),
    };
    slice.drop_references(dropped);
    Ok(result)
}

hooks! {
    guard cuExternalMemoryGetMappedBuffer(
        dev_ptr: *mut CUdeviceptr, ext_mem: CUexternalMemory, buffer_desc: *const c_void,
    ) as |call| {
        // SAFETY: read after the driver wrote it and answered success.
        let within = || unsafe { *dev_ptr };
        mapped(ext_mem, within, call)
    };

    guard cuExternalMemoryGetMappedMipmappedArray(
        mipmap: *mut CUmipmappedArray, ext_mem: CUexternalMemory, mipmap_desc: *const c_void,
    ) as |call| {
        // SAFETY: read after the driver wrote it and answered success.
        let within = || unsafe { (*mipmap).0 as u64 };
        mapped(ext_mem, within, call)
    };

    guard cuDestroyExternalMemory(ext_mem: CUexternalMemory) as |call| {
        let name = Name::External(ext_mem.0 as u64);
        released(name, call)
    };
}
