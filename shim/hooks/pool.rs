//! Stream-ordered memory: charged from the call that allocates to the call that frees.
//!
//! The driver takes the memory from a pool, when the stream gets there. Nothing here waits for that:
//! these calls must stay asynchronous, and legal while a stream is being captured into a graph. What
//! a pool keeps of freed memory is not charged.

use super::{Charging, charged, freed};
use crate::guard::guard;
use crate::lane;
use crate::link::{self, Session};
use crate::real;
use gpuslice_nvabi::types::*;
use gpuslice_wire::ids::Lane;

/// Reserves on the GPU that `stream` works on.
fn by_stream(stream: CUstream, bytes: usize) -> Result<Option<Charging<'static>>, CUresult> {
    let Some(session) = link::session()? else {
        return Ok(None);
    };
    let lane = lane::limited(lane::of_stream(session, stream)?)?;
    Charging::on(session, Some(lane), bytes)
}

/// Reserves on the GPU that `pool` is on, as was noted when it was made; a device's own pool is
/// on the GPU of the stream it is used with.
fn by_pool(
    pool: CUmemoryPool,
    stream: CUstream,
    bytes: usize,
) -> Result<Option<Charging<'static>>, CUresult> {
    let Some(session) = link::session()? else {
        return Ok(None);
    };
    let lane = match session.pools.get(pool) {
        Some(lane) => lane,
        None => Some(lane::limited(lane::of_stream(session, stream)?)?),
    };
    Charging::on(session, lane, bytes)
}

pub unsafe extern "C" fn cuMemAllocAsync(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    h_stream: CUstream,
) -> CUresult {
    guard(|| {
        let charging = by_stream(h_stream, bytesize)?;
        // SAFETY: the application's own pointer, which the driver checks and writes.
        unsafe {
            charged(charging, dptr, || {
                real!(cuMemAllocAsync(dptr, bytesize, h_stream))
            })
        }
    })
}

pub unsafe extern "C" fn cuMemAllocAsync_ptsz(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    h_stream: CUstream,
) -> CUresult {
    guard(|| {
        let charging = by_stream(h_stream, bytesize)?;
        // SAFETY: as in `cuMemAllocAsync`.
        unsafe {
            charged(charging, dptr, || {
                real!(cuMemAllocAsync_ptsz(dptr, bytesize, h_stream))
            })
        }
    })
}

pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    pool: CUmemoryPool,
    h_stream: CUstream,
) -> CUresult {
    guard(|| {
        let charging = by_pool(pool, h_stream, bytesize)?;
        let call = || real!(cuMemAllocFromPoolAsync(dptr, bytesize, pool, h_stream));
        // SAFETY: as in `cuMemAllocAsync`.
        unsafe { charged(charging, dptr, call) }
    })
}

pub unsafe extern "C" fn cuMemAllocFromPoolAsync_ptsz(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    pool: CUmemoryPool,
    h_stream: CUstream,
) -> CUresult {
    guard(|| {
        let charging = by_pool(pool, h_stream, bytesize)?;
        let call = || real!(cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, h_stream));
        // SAFETY: as in `cuMemAllocAsync`.
        unsafe { charged(charging, dptr, call) }
    })
}

pub unsafe extern "C" fn cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream) -> CUresult {
    guard(|| freed(dptr, || real!(cuMemFreeAsync(dptr, h_stream))))
}

pub unsafe extern "C" fn cuMemFreeAsync_ptsz(dptr: CUdeviceptr, h_stream: CUstream) -> CUresult {
    guard(|| freed(dptr, || real!(cuMemFreeAsync_ptsz(dptr, h_stream))))
}

/// The lane a location's memory is charged to; `None` for the host's.
pub(super) fn lane_at(session: &Session, place: CUmemLocation) -> Result<Option<Lane>, CUresult> {
    let device = match place.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => place.id,
        // The two low bytes name a locality domain's device.
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => place.id & 0xffff,
        _ => return Ok(None),
    };
    lane::admitted(device)?;
    lane::of_device(session, device)
}

pub unsafe extern "C" fn cuMemPoolCreate(
    pool: *mut CUmemoryPool,
    pool_props: *const CUmemPoolProps,
) -> CUresult {
    guard(|| {
        let call = || real!(cuMemPoolCreate(pool, pool_props));
        // SAFETY: null, or the application's own properties, which the driver is about to read.
        let (Some(session), Some(props)) = (link::session()?, unsafe { pool_props.as_ref() })
        else {
            return Ok(call());
        };
        let lane = lane_at(session, props.location)?;
        let result = call();
        if result == CUresult::SUCCESS {
            // SAFETY: the driver has just written there and answered success.
            session.pools.insert(unsafe { *pool }, lane);
        }
        Ok(result)
    })
}

pub unsafe extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    guard(|| {
        if let Some(session) = link::attached() {
            session.pools.remove(pool);
        }
        Ok(real!(cuMemPoolDestroy(pool)))
    })
}
