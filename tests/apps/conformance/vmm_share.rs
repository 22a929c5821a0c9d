//! Physical memory by descriptor: exported, it lives as long as the descriptor or an import does;
//! imported, it is the same memory and costs nothing more.

use crate::child::{self, Helper};
use crate::vmm::{create, map, open, reserve, wanted};
use crate::words::*;
use gpuslice_nvabi::types::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

family!("vmm_share":
    exporting_costs_nothing, descriptor_keeps, imported_here, imported_here_keeps,
    imported_by_a_process, process_keeps, process_dies, imported_after_release, not_exportable,
    bad_descriptor, null_out;
);

const FD: CUmemAllocationHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn shareable(gpu: Gpu, bytes: usize) -> Outcome<u64> {
    let (props, mut handle) =
        (CUmemAllocationProp { requested_handle_types: FD, ..wanted(gpu) }, 0);
    ok!(cuMemCreate(&mut handle, bytes, &props, 0));
    Ok(handle)
}

fn exported(handle: u64) -> Outcome<OwnedFd> {
    let mut fd = -1i32;
    ok!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, FD, 0));
    that!(fd >= 0, "the descriptor is {fd}");
    // SAFETY: the driver has made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn imported(fd: i32) -> Outcome<u64> {
    let mut handle = 0;
    ok!(cuMemImportFromShareableHandle(&mut handle, fd as usize as *mut c_void, FD));
    Ok(handle)
}

fn release(handle: u64) -> Outcome {
    ok!(cuMemRelease(handle));
    Ok(())
}

fn exporting_costs_nothing(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let handle = shareable(gpu, bytes)?;
    let fd = exported(handle)?;
    gpu.took_after_others(bytes, GRAIN)?;
    drop(fd);
    gpu.took_after_others(bytes, GRAIN)?;
    release(handle)?;
    gpu.back_after_others()
}

fn descriptor_keeps(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let handle = shareable(gpu, bytes)?;
    let fd = exported(handle)?;
    release(handle)?;
    gpu.took_after_others(bytes, GRAIN)?;
    drop(fd);
    gpu.back_after_others()
}

fn imported_here(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let handle = shareable(gpu, bytes)?;
    let fd = exported(handle)?;
    let again = imported(fd.as_raw_fd())?;
    gpu.took_after_others(bytes, GRAIN)?;
    release(handle)?;
    release(again)?;
    drop(fd);
    gpu.back_after_others()
}

fn imported_here_keeps(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let handle = shareable(gpu, bytes)?;
    let fd = exported(handle)?;
    let again = imported(fd.as_raw_fd())?;
    release(handle)?;
    drop(fd);
    gpu.took_after_others(bytes, GRAIN)?;
    release(again)?;
    gpu.back_after_others()
}

/// Shared memory in which the first word is 77, mapped here.
fn shared(gpu: Gpu, bytes: usize) -> Outcome<(u64, CUdeviceptr, OwnedFd)> {
    let (handle, at) = (shareable(gpu, bytes)?, reserve(bytes)?);
    map(at, bytes, handle)?;
    open(gpu, at, bytes)?;
    ok!(cuMemsetD32_v2(at, 77, 1));
    gpu.synchronize()?;
    let fd = exported(handle)?;
    child::inherit(fd.as_raw_fd());
    Ok((handle, at, fd))
}

fn importer(fd: &OwnedFd, bytes: usize) -> Outcome<Helper> {
    let (fd, bytes) = (fd.as_raw_fd().to_string(), bytes.to_string());
    let mut helper = Helper::start("import", &[&fd, &bytes])?;
    helper.says("read 77")?;
    Ok(helper)
}

/// A helper that imports memory, maps it, reads the first word and waits.
pub fn import(words: &[String]) -> Outcome {
    let gpu = gpu()?;
    let [fd, bytes] = words else {
        return fail("import needs a descriptor and a size");
    };
    let (fd, bytes): (i32, usize) = (fd.parse().or_else(fail)?, bytes.parse().or_else(fail)?);
    let (handle, at, mut read) = (imported(fd)?, reserve(bytes)?, 0u32);
    // SAFETY: the descriptor was inherited for this, and nothing else here uses it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    map(at, bytes, handle)?;
    open(gpu, at, bytes)?;
    ok!(cuMemcpyDtoH_v2((&raw mut read).cast(), at, 4));
    child::say(&format!("read {read}"))?;
    child::listen();
    Ok(())
}

fn unshare(at: CUdeviceptr, bytes: usize, handle: u64) -> Outcome {
    ok!(cuMemUnmap(at, bytes));
    release(handle)
}

/// What a helper's context costs is not part of the comparison: it has ended before.
fn imported_by_a_process(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, at, fd) = shared(gpu, bytes)?;
    importer(&fd, bytes)?.end()?;
    gpu.took_after_others(bytes, GRAIN)?;
    drop(fd);
    unshare(at, bytes, handle)?;
    gpu.back_after_others()
}

fn process_keeps(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(4)?;
    let (handle, at, fd) = shared(gpu, bytes)?;
    let helper = importer(&fd, bytes)?;
    drop(fd);
    unshare(at, bytes, handle)?;
    gpu.synchronize()?;
    // The ledger may need a moment to find the new holder, but then the memory is charged to it.
    eventually("memory that another process has open is taken", || {
        Ok(gpu.free()? + bytes <= gpu.before)
    })?;
    helper.end()?;
    gpu.back_after_others()
}

fn process_dies(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(4)?;
    let (handle, at, fd) = shared(gpu, bytes)?;
    let helper = importer(&fd, bytes)?;
    drop(fd);
    unshare(at, bytes, handle)?;
    helper.kill()?;
    gpu.back_after_others()
}

/// The descriptor alone carries the memory over.
fn imported_after_release(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(4)?;
    let handle = shareable(gpu, bytes)?;
    let fd = exported(handle)?;
    release(handle)?;
    let again = imported(fd.as_raw_fd())?;
    drop(fd);
    gpu.took_after_others(bytes, GRAIN)?;
    release(again)?;
    gpu.back_after_others()
}

fn not_exportable(gpu: Gpu) -> Outcome {
    let (handle, mut fd) = (create(gpu, gpu.part(8)?)?, -1i32);
    let to = (&raw mut fd).cast();
    says!(INVALID, cuMemExportToShareableHandle(to, handle, FD, 0));
    release(handle)
}

fn bad_descriptor(gpu: Gpu) -> Outcome {
    let mut handle = 0;
    let null = std::fs::File::open("/dev/null").or_else(fail)?;
    for fd in [null.as_raw_fd() as usize, 9999, usize::MAX] {
        let code = gpuslice_apps::api::calls::cuMemImportFromShareableHandle(
            &mut handle,
            fd as *mut c_void,
            FD,
        );
        that!(code != SUCCESS, "descriptor {fd} is memory");
    }
    gpu.back_after_others()
}

fn null_out(gpu: Gpu) -> Outcome {
    let handle = shareable(gpu, gpu.part(8)?)?;
    says!(INVALID, cuMemExportToShareableHandle(std::ptr::null_mut(), handle, FD, 0));
    release(handle)
}
