//! Memory of another API by descriptor. Without that API the only descriptor of device memory is one
//! of the driver's own; where the driver does not take it, there is no way to make one here.
//!
//! The owner of such a descriptor's memory is not visible. So an accountant may charge it once more, to the
//! importer; that charge must end with the import.

use crate::vmm::wanted;
use crate::words::*;
use gpuslice_apps::api::calls;
use gpuslice_nvabi::types::*;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

family!("external":
    imported_and_destroyed, mapped_buffer_is_usable, mapped_twice_costs_no_more,
    outlives_its_maker, buffer_outside, destroy_nothing;
    bare: bad_descriptor, no_description, unknown_kind,
);

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[repr(C)]
struct BufferDesc {
    offset: u64,
    size: u64,
    flags: u32,
    reserved: [u32; 16],
}

const OPAQUE_FD: u32 = 1;

type MemoryDesc = CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

fn memory_desc(kind: u32, fd: i32, size: usize) -> MemoryDesc {
    // The descriptor is in the first bytes of a union.
    let (handle, flags, reserved) = ([fd as u32 as u64, 0], 0, [0; 16]);
    MemoryDesc { kind, handle, size: size as u64, flags, reserved }
}

/// A descriptor of device memory whose handle still exists.
fn descriptor(gpu: Gpu, bytes: usize) -> Outcome<(u64, OwnedFd)> {
    let requested_handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let props = CUmemAllocationProp { requested_handle_types, ..wanted(gpu) };
    let (mut handle, mut fd) = (0, -1i32);
    ok!(cuMemCreate(&mut handle, bytes, &props, 0));
    let to = (&raw mut fd).cast();
    ok!(cuMemExportToShareableHandle(to, handle, requested_handle_types, 0));
    // SAFETY: the driver has made this descriptor for us.
    Ok((handle, unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Imports; from then on the descriptor is the driver's.
fn import(fd: OwnedFd, bytes: usize) -> Outcome<CUexternalMemory> {
    let mut memory = CUexternalMemory::NULL;
    let desc = memory_desc(OPAQUE_FD, fd.into_raw_fd(), bytes);
    match calls::cuImportExternalMemory(&mut memory, &desc) {
        SUCCESS => Ok(memory),
        other => skip(format_args!("no way to make external memory here: {other:?}")),
    }
}

fn mapped(memory: CUexternalMemory, bytes: usize) -> Outcome<CUdeviceptr> {
    let mut at = 0;
    let desc = BufferDesc { offset: 0, size: bytes as u64, flags: 0, reserved: [0; 16] };
    ok!(cuExternalMemoryGetMappedBuffer(&mut at, memory, (&raw const desc).cast()));
    Ok(at)
}

fn destroy(memory: CUexternalMemory) -> Outcome {
    ok!(cuDestroyExternalMemory(memory));
    Ok(())
}

fn release(handle: u64) -> Outcome {
    ok!(cuMemRelease(handle));
    Ok(())
}

fn imported_and_destroyed(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, fd) = descriptor(gpu, bytes)?;
    let memory = import(fd, bytes)?;
    gpu.took(bytes, bytes + GRAIN)?;
    destroy(memory)?;
    gpu.took(bytes, GRAIN)?;
    release(handle)?;
    gpu.back()
}

fn mapped_buffer_is_usable(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, fd) = descriptor(gpu, bytes)?;
    let memory = import(fd, bytes)?;
    let at = mapped(memory, bytes)?;
    gpu.usable(at, bytes)?;
    gpu.release(at)?;
    destroy(memory)?;
    release(handle)?;
    gpu.back()
}

fn mapped_twice_costs_no_more(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, fd) = descriptor(gpu, bytes)?;
    let memory = import(fd, bytes)?;
    let imported = gpu.measured()?;
    let all = vec![mapped(memory, bytes)?, mapped(memory, bytes)?];
    imported.back()?;
    gpu.release_all(all)?;
    destroy(memory)?;
    release(handle)?;
    gpu.back()
}

fn outlives_its_maker(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, fd) = descriptor(gpu, bytes)?;
    let memory = import(fd, bytes)?;
    release(handle)?;
    gpu.took(bytes, GRAIN)?;
    destroy(memory)?;
    gpu.back()
}

fn refused(desc: *const MemoryDesc) -> Outcome {
    let gpu = gpu()?;
    let mut memory = CUexternalMemory::NULL;
    let code = calls::cuImportExternalMemory(&mut memory, desc);
    if code == CUresult::ERROR_NOT_SUPPORTED {
        return skip("the driver imports no external memory");
    }
    that!(code != SUCCESS, "it is imported");
    gpu.back()
}

fn bad_descriptor() -> Outcome {
    refused(&memory_desc(OPAQUE_FD, -1, GRAIN))?;
    let null = std::fs::File::open("/dev/null").or_else(fail)?;
    refused(&memory_desc(OPAQUE_FD, OwnedFd::from(null).into_raw_fd(), GRAIN))
}

fn no_description() -> Outcome {
    refused(std::ptr::null())
}

fn unknown_kind() -> Outcome {
    refused(&memory_desc(77, 0, GRAIN))
}

fn buffer_outside(gpu: Gpu) -> Outcome {
    let (bytes, mut at) = (gpu.part(8)?, 0);
    let (handle, fd) = descriptor(gpu, bytes)?;
    let memory = import(fd, bytes)?;
    let half = bytes as u64 / 2;
    for (offset, size) in
        [(half, bytes as u64), (0, 2 * bytes as u64), (u64::MAX, 2), (0, u64::MAX)]
    {
        let desc = BufferDesc { offset, size, flags: 0, reserved: [0; 16] };
        says!(INVALID, cuExternalMemoryGetMappedBuffer(&mut at, memory, (&raw const desc).cast()));
    }
    destroy(memory)?;
    release(handle)
}

fn destroy_nothing(_: Gpu) -> Outcome {
    says!(
        [CUresult::ERROR_INVALID_HANDLE, INVALID],
        cuDestroyExternalMemory(CUexternalMemory::NULL)
    );
    Ok(())
}
