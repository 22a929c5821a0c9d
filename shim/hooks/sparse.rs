//! Memory mapped into parts of sparse arrays; see [`crate::memory::physical::tiles`].

use crate::guard::Outcome;
use crate::memory::contexts::key;
use crate::memory::physical::tiles::Region;
use crate::memory::physical::{Name, PhysicalAllocation};
use crate::real;
use crate::slice::{self, Slice};
use gpuslice_nvabi::types::*;

/// A step of `cuMemMapArrayAsync`.
enum MapStep {
    Map(Region, Option<PhysicalAllocation>),
    Unmap(Region),
}

/// Reads the steps, up to one that the driver cannot accept, and counts a reference for each mapping.
///
/// # Safety
/// `list` is null or has `count` steps.
unsafe fn map_steps(slice: &Slice, list: *const CUarrayMapInfo, count: u32) -> Vec<MapStep> {
    let (mut map_steps, mut table) = (Vec::new(), slice.physical());
    for at in 0..count as usize {
        if list.is_null() {
            break;
        }
        // SAFETY: of the application's list, which the driver reads as far.
        let step = unsafe { list.add(at).read() };
        let region = Region::of(&step);
        match step.mem_operation_type {
            CU_MEM_OPERATION_TYPE_MAP => {
                let allocation = table.refer(Name::Handle(step.mem_handle));
                map_steps.push(MapStep::Map(region, allocation));
            }
            CU_MEM_OPERATION_TYPE_UNMAP => map_steps.push(MapStep::Unmap(region)),
            _ => break,
        }
    }
    map_steps
}

/// Maps and unmaps tiles by `call`.
///
/// # Safety
/// As [`map_steps`].
unsafe fn tiled(
    list: *const CUarrayMapInfo,
    count: u32,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let Some(slice) = slice::attached() else {
        return Ok(call());
    };
    // SAFETY: the application's own list.
    let map_steps = unsafe { map_steps(slice, list, count) };
    let result = call();
    let mut context = CUcontext::NULL;
    let _ = real!(cuCtxGetCurrent(&raw mut context));
    let (mut dropped, mut table) = (Vec::new(), slice.physical());
    for step in map_steps {
        match step {
            MapStep::Map(region, Some(allocation)) if result == CUresult::SUCCESS => {
                table.map_tile(region, key(context), allocation);
            }
            MapStep::Unmap(region) if result == CUresult::SUCCESS => {
                dropped.extend(table.unmap_tile(region));
            }
            MapStep::Map(_, counted) => dropped.extend(counted),
            MapStep::Unmap(_) => {}
        }
    }
    drop(table);
    slice.drop_references(dropped);
    Ok(result)
}

hooks! {
    guard cuMemMapArrayAsync(
        map_info_list: *mut CUarrayMapInfo, count: u32, h_stream: CUstream,
    ) as |call| {
        // SAFETY: the application's own list.
        unsafe { tiled(map_info_list, count, call) }
    };

    guard cuMemMapArrayAsync_ptsz(
        map_info_list: *mut CUarrayMapInfo, count: u32, h_stream: CUstream,
    ) as |call| {
        // SAFETY: the application's own list.
        unsafe { tiled(map_info_list, count, call) }
    };
}
