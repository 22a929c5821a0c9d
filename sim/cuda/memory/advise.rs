//! Hints about managed memory: advice and prefetching. They are checked and remembered, so that a
//! program can read them back. Advice changes nothing; a prefetch moves memory on a machine where it moves.

use crate::allocations::{self, Kind};
use crate::driver::process;
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::exec::{self, Operation, OperationKind};
use gpuslice_nvabi::types::*;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The hints for one allocation, by its id.
#[derive(Clone, Default)]
struct Hints {
    read_mostly: bool,
    preferred: Option<CUdevice>,
    prefetched: Option<CUdevice>,
    accessed_by: Vec<CUdevice>,
}

const CPU: CUdevice = -1;
const NOWHERE: CUdevice = -2;

fn with<R>(id: u64, work: impl FnOnce(&mut Hints) -> R) -> R {
    static HINTS: LazyLock<Mutex<HashMap<u64, Hints>>> = LazyLock::new(Mutex::default);
    work(HINTS.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_default())
}

/// The id of the managed allocation the range lies in.
fn managed(pointer: u64, count: usize) -> Result<u64, CUresult> {
    let found = allocations::check(pointer, count as u64, false, false)?;
    let found = found.filter(|found| count > 0 && matches!(found.kind, Kind::Managed { .. }));
    found.map(|found| found.id).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// A device, or the host.
fn place(device: CUdevice) -> Result<CUdevice, CUresult> {
    if device != CPU {
        process()?.gpu(device)?;
    }
    Ok(device)
}

fn place_of(location: CUmemLocation) -> Result<CUdevice, CUresult> {
    match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => place(location.id).and_then(|device| match device {
            CPU => Err(CUresult::ERROR_INVALID_DEVICE),
            device => Ok(device),
        }),
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(CPU),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

fn advise(pointer: u64, count: usize, advice: u32, device: CUdevice) -> Outcome {
    let id = managed(pointer, count)?;
    with(id, |hints| {
        match advice {
            CU_MEM_ADVISE_SET_READ_MOSTLY => hints.read_mostly = true,
            CU_MEM_ADVISE_UNSET_READ_MOSTLY => hints.read_mostly = false,
            CU_MEM_ADVISE_SET_PREFERRED_LOCATION => hints.preferred = Some(device),
            CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => hints.preferred = None,
            CU_MEM_ADVISE_SET_ACCESSED_BY if !hints.accessed_by.contains(&device) => {
                hints.accessed_by.push(device);
            }
            CU_MEM_ADVISE_SET_ACCESSED_BY => {}
            CU_MEM_ADVISE_UNSET_ACCESSED_BY => hints.accessed_by.retain(|&other| other != device),
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(())
    })
}

/// Whether an advice names a place; of the others it is ignored.
fn names_place(advice: u32) -> bool {
    let named = [
        CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
        CU_MEM_ADVISE_SET_ACCESSED_BY,
        CU_MEM_ADVISE_UNSET_ACCESSED_BY,
    ];
    named.contains(&advice)
}

fn prefetch(pointer: u64, count: usize, device: CUdevice, stream: CUstream) -> Outcome {
    let id = managed(pointer, count)?;
    let ns = exec::cost::copy(count as u64, true);
    let run = Arc::new(move || {
        with(id, |hints| hints.prefetched = Some(device));
        Ok(())
    });
    exec::queue(
        stream,
        Operation {
            kind: OperationKind::Prefetch { address: pointer, to_host: device == CPU },
            ns,
            run,
        },
    )
}

/// The answer to a question about a range, as 32-bit words.
fn range_attribute(id: u64, attribute: u32, words: usize) -> Result<Vec<i32>, CUresult> {
    let kind = |device: Option<CUdevice>| match device {
        Some(CPU) => CU_MEM_LOCATION_TYPE_HOST,
        Some(_) => CU_MEM_LOCATION_TYPE_DEVICE,
        None => CU_MEM_LOCATION_TYPE_NONE,
    } as i32;
    let hints = with(id, |hints| hints.clone());
    Ok(match attribute {
        CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => vec![i32::from(hints.read_mostly)],
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => vec![hints.preferred.unwrap_or(NOWHERE)],
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => {
            vec![hints.prefetched.unwrap_or(NOWHERE)]
        }
        CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY => {
            let mut list = hints.accessed_by;
            list.resize(words, NOWHERE);
            list
        }
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE => vec![kind(hints.preferred)],
        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID => vec![hints.preferred.unwrap_or(0)],
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => vec![kind(hints.prefetched)],
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => vec![hints.prefetched.unwrap_or(0)],
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}

pub fn cuMemAdvise(
    pointer: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    device: CUdevice,
) -> Outcome {
    let device = if names_place(advice) { place(device)? } else { CPU };
    advise(pointer, count, advice, device)
}

pub fn cuMemAdvise_v2(
    pointer: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    location: CUmemLocation,
) -> Outcome {
    let device = if names_place(advice) { place_of(location)? } else { CPU };
    advise(pointer, count, advice, device)
}

pub fn cuMemPrefetchAsync(
    pointer: CUdeviceptr,
    count: usize,
    device: CUdevice,
    stream: CUstream,
) -> Outcome {
    prefetch(pointer, count, place(device)?, stream)
}
pub use cuMemPrefetchAsync as cuMemPrefetchAsync_ptsz;

pub fn cuMemPrefetchAsync_v2(
    pointer: CUdeviceptr,
    count: usize,
    location: CUmemLocation,
    flags: u32,
    stream: CUstream,
) -> Outcome {
    refuse_if(flags != 0)?;
    prefetch(pointer, count, place_of(location)?, stream)
}
pub use cuMemPrefetchAsync_v2 as cuMemPrefetchAsync_v2_ptsz;

pub fn cuMemRangeGetAttribute(
    data: Out<c_void>,
    size: usize,
    attribute: CUmem_range_attribute,
    pointer: CUdeviceptr,
    count: usize,
) -> Outcome {
    let id = managed(pointer, count)?;
    refuse_if(size == 0 || !size.is_multiple_of(4))?;
    let words = range_attribute(id, attribute, size / 4)?;
    for (at, word) in words.into_iter().take(size / 4).enumerate() {
        data.cast::<i32>().set_at(at, word)?;
    }
    Ok(())
}

pub fn cuMemRangeGetAttributes(
    data: In<*mut c_void>,
    sizes: In<usize>,
    attributes: In<CUmem_range_attribute>,
    number: usize,
    pointer: CUdeviceptr,
    count: usize,
) -> Outcome {
    for at in 0..number {
        let place = Out::vouched(data.at(at)?);
        cuMemRangeGetAttribute(place, sizes.at(at)?, attributes.at(at)?, pointer, count)?;
    }
    Ok(())
}
