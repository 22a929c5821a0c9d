//! Memory of the host that the device may use: allocated here, or the program's own, registered.
//!
//! It has one address for both sides. Registered memory is "pinned": only copies between pinned
//! memory and the device run while the program goes on.

use crate::allocations::{self, Allocation, Home, Kind};
use crate::entry::{Out, Outcome, refuse_if};
use crate::vram::map;
use crate::{context, exec};
use gpuslice_nvabi::types::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED,
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE,
    CU_MEMHOSTREGISTER_READ_ONLY, CUdeviceptr, CUresult,
};
use std::ffi::c_void;

const PAGE: u64 = 4096;

const ALLOC_FLAGS: u32 =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
const REGISTER_FLAGS: u32 = CU_MEMHOSTREGISTER_PORTABLE
    | CU_MEMHOSTREGISTER_DEVICEMAP
    | CU_MEMHOSTREGISTER_IOMEMORY
    | CU_MEMHOSTREGISTER_READ_ONLY;

pub fn cuMemHostAlloc(pp: Out<*mut c_void>, bytesize: usize, flags: u32) -> Outcome {
    pp.require()?;
    let context = exec::working()?;
    refuse_if(bytesize == 0 || flags & !ALLOC_FLAGS != 0)?;
    // With unified addressing everything is portable and mapped, whether asked for or not.
    let flags = flags | CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    let mapped = bytesize.checked_next_multiple_of(PAGE as usize);
    let mapped = mapped.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let address = map::anonymous(mapped).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
    let home = Home::Host(mapped);
    let allocation = Allocation::new(context, bytesize as u64, Kind::Host { flags }, home);
    allocations::insert(address, allocation);
    pp.set(address as usize as *mut c_void)
}

pub fn cuMemAllocHost_v2(pp: Out<*mut c_void>, bytesize: usize) -> Outcome {
    cuMemHostAlloc(pp, bytesize, 0)
}

pub fn cuMemFreeHost(p: *mut c_void) -> Outcome {
    let address = p as u64;
    let found = allocations::find(address)
        .filter(|found| found.base == address && matches!(found.kind, Kind::Host { .. }))
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    // A copy of any context may still use it, and would not find that it is gone.
    exec::settle_all();
    let gone = allocations::remove(address, |one| one.id == found.id);
    gone.ok_or(CUresult::ERROR_INVALID_VALUE)?.release(address);
    Ok(())
}

pub fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: u32) -> Outcome {
    let context = exec::working()?;
    let base = p as u64;
    let fits = base.checked_add(bytesize as u64).is_some();
    if p.is_null() || bytesize == 0 || !fits || flags & !REGISTER_FLAGS != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    refuse_if(crate::vram::space::contains(base))?;
    if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let kind = Kind::Registered { flags };
    let entered =
        allocations::insert(base, Allocation::new(context, bytesize as u64, kind, Home::Elsewhere));
    if entered { Ok(()) } else { Err(CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED) }
}

pub fn cuMemHostUnregister(p: *mut c_void) -> Outcome {
    let base = p as u64;
    let found = allocations::find(base)
        .filter(|found| found.base == base && matches!(found.kind, Kind::Registered { .. }))
        .ok_or(CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED)?;
    let settled = found.context.map_or(Ok(()), exec::settle);
    let gone = allocations::remove(base, |one| one.id == found.id);
    gone.ok_or(CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED)?;
    settled
}

pub fn cuMemHostGetDevicePointer_v2(
    pdptr: Out<CUdeviceptr>,
    p: *mut c_void,
    flags: u32,
) -> Outcome {
    pdptr.require()?;
    context::current()?;
    let known = allocations::find(p as u64).is_some_and(|found| found.is_host());
    refuse_if(flags != 0 || !known)?;
    pdptr.set(p as u64)
}

pub fn cuMemHostGetFlags(flags: Out<u32>, p: *mut c_void) -> Outcome {
    flags.require()?;
    context::current()?;
    match allocations::find(p as u64).map(|found| found.kind) {
        Some(Kind::Host { flags: own }) => flags.set(own),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}
