//! Memory of another API (Vulkan, NvSci, …), imported by `cuImportExternalMemory`.
//!
//! Its size is charged to the GPU of the current context: no other hook has seen it, and the driver lists
//! it for this process too. Memory that this process exported itself is charged already, and an import
//! is one more reference to it. Buffers and mipmapped arrays mapped in it are not charged again,
//! but they hold it: the charge ends when the import is destroyed and all of them are freed.
//!
//! Registering a buffer, image or surface of OpenGL, EGL or VDPAU takes no memory of this process. A CUDA
//! library cannot follow the allocations of those APIs.

use super::Charging;
use super::physical::{drop_references, physical_table, released};
use crate::guard::{Outcome, guard};
use crate::lane;
use crate::link::{self, Session};
use crate::real;
use crate::vmm::{Name, PhysicalAllocation};
use gpuslice_nvabi::types::*;
use std::os::fd::RawFd;

/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`: a descriptor's number is in the first bytes.
const OPAQUE_FD: u32 = 1;

/// The memory to import: memory that this process exported itself, with a counted reference, or memory to be
/// charged.
enum ImportSource {
    Own(PhysicalAllocation),
    Other(Charging<'static>),
}

fn import_source(
    session: &Session,
    desc: &CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> Result<Option<ImportSource>, CUresult> {
    if desc.kind == OPAQUE_FD
        && let Some(allocation) = physical_table(session).refer_exported(desc.handle[0] as RawFd)
    {
        return Ok(Some(ImportSource::Own(allocation)));
    }
    Ok(Charging::here(desc.size as usize)?.map(ImportSource::Other))
}

pub unsafe extern "C" fn cuImportExternalMemory(
    ext_mem_out: *mut CUexternalMemory,
    mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> CUresult {
    guard(|| {
        let call = || real!(cuImportExternalMemory(ext_mem_out, mem_handle_desc));
        // SAFETY: null, or the application's own, which the driver is about to read.
        let (Some(session), Some(desc)) = (link::session()?, unsafe { mem_handle_desc.as_ref() })
        else {
            return Ok(call());
        };
        let Some(import_source) = import_source(session, desc)? else {
            return Ok(call());
        };
        let result = call();
        let gone = match import_source {
            ImportSource::Own(allocation) if result != CUresult::SUCCESS => vec![allocation],
            ImportSource::Other(_) if result != CUresult::SUCCESS => Vec::new(),
            import_source => {
                // SAFETY: the driver has just written there and answered success.
                let name = Name::External(unsafe { (*ext_mem_out).0 } as u64);
                let context = lane::current(session).map_or(0, |here| lane::key(here.context));
                let mut table = physical_table(session);
                let allocation = match import_source {
                    ImportSource::Own(allocation) => allocation,
                    ImportSource::Other(charging) => table.begin(Some(charging.into_charge())),
                };
                table.create(name, context, allocation)
            }
        };
        drop_references(session, gone);
        Ok(result)
    })
}

/// Maps an object in external memory by `call`; `within` returns its name after success.
fn mapped(
    memory: CUexternalMemory,
    within: impl FnOnce() -> u64,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let Some(session) = link::attached() else {
        return Ok(call());
    };
    let counted = physical_table(session).refer(Name::External(memory.0 as u64));
    let result = call();
    let dropped = match counted {
        Some(allocation) if result == CUresult::SUCCESS => {
            let context = lane::current(session).map_or(0, |here| lane::key(here.context));
            physical_table(session).create(Name::Within(within()), context, allocation)
        }
        counted => Vec::from_iter(counted),
    };
    drop_references(session, dropped);
    Ok(result)
}

pub unsafe extern "C" fn cuExternalMemoryGetMappedBuffer(
    dev_ptr: *mut CUdeviceptr,
    ext_mem: CUexternalMemory,
    buffer_desc: *const c_void,
) -> CUresult {
    // SAFETY: read after the driver wrote it and answered success.
    let within = || unsafe { *dev_ptr };
    let call = || {
        real!(cuExternalMemoryGetMappedBuffer(
            dev_ptr,
            ext_mem,
            buffer_desc
        ))
    };
    guard(|| mapped(ext_mem, within, call))
}

pub unsafe extern "C" fn cuExternalMemoryGetMappedMipmappedArray(
    mipmap: *mut CUmipmappedArray,
    ext_mem: CUexternalMemory,
    mipmap_desc: *const c_void,
) -> CUresult {
    // SAFETY: read after the driver wrote it and answered success.
    let within = || unsafe { (*mipmap).0 as u64 };
    let call = || {
        real!(cuExternalMemoryGetMappedMipmappedArray(
            mipmap,
            ext_mem,
            mipmap_desc
        ))
    };
    guard(|| mapped(ext_mem, within, call))
}

pub unsafe extern "C" fn cuDestroyExternalMemory(ext_mem: CUexternalMemory) -> CUresult {
    let name = Name::External(ext_mem.0 as u64);
    guard(|| released(name, || real!(cuDestroyExternalMemory(ext_mem))))
}
