//! Sparse arrays: memory is put behind tiles of an array that has none. A tile holds its memory by
//! itself, whatever becomes of the handle.

use crate::child::refused_or_crashes;
use crate::vmm::wanted;
use crate::words::*;
use gpuslice_apps::api::calls;
use gpuslice_nvabi::types::*;

family!("sparse":
    tile, mapped_costs_nothing_more, released_while_mapped_is_charged, unmapped_gives_back,
    destroyed_gives_back, mapped_over, two_tiles_of_one_handle, context_destroyed, no_steps,
    tail_of_a_mipmapped, bad_handle, plain_array;
    bare: outside, cut, too_little_memory,
);

const SIDE: usize = 4096;

fn shape(flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        width: SIDE,
        height: SIDE,
        depth: 0,
        format: CU_AD_FORMAT_FLOAT,
        num_channels: 1,
        flags,
    }
}

/// A sparse array of 64 MiB, and its tiles.
fn array() -> Outcome<(CUarray, CUDA_ARRAY_SPARSE_TILE)> {
    let mut array = CUarray::NULL;
    match calls::cuArray3DCreate_v2(&mut array, &shape(CUDA_ARRAY3D_SPARSE)) {
        SUCCESS => {}
        other => return skip(format_args!("sparse arrays: {other:?}")),
    }
    let none = CUDA_ARRAY_SPARSE_TILE { width: 0, height: 0, depth: 0 };
    let mut properties = CUDA_ARRAY_SPARSE_PROPERTIES {
        tile_extent: none,
        miptail_first_level: 0,
        miptail_size: 0,
        flags: 0,
        reserved: [0; 4],
    };
    ok!(cuArrayGetSparseProperties(&mut properties, array));
    Ok((array, properties.tile_extent))
}

/// Memory that can be put behind tiles.
fn tiles(gpu: Gpu, bytes: usize) -> Outcome<u64> {
    let mut props = wanted(gpu);
    props.alloc_flags.usage = CU_MEM_CREATE_USAGE_TILE_POOL as u16;
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, bytes, &props, 0));
    Ok(handle)
}

/// A step on the region of these many tiles at a tile's place.
fn step(
    array: CUarray,
    tile: CUDA_ARRAY_SPARSE_TILE,
    place: [u32; 2],
    size: [u32; 2],
    handle: Option<u64>,
) -> CUarrayMapInfo {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let (x, y) = (place[0] * tile.width, place[1] * tile.height);
    let (width, height) = (size[0] * tile.width, size[1] * tile.height);
    CUarrayMapInfo {
        resource_type: 0,
        resource: array.0,
        subresource_type: CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL,
        subresource: [0, pair(x, y), pair(0, width), pair(height, 1)],
        mem_operation_type: match handle {
            Some(_) => CU_MEM_OPERATION_TYPE_MAP,
            None => CU_MEM_OPERATION_TYPE_UNMAP,
        },
        mem_handle_type: 0,
        mem_handle: handle.unwrap_or(0),
        offset: 0,
        device_bit_mask: 1,
        flags: 0,
        reserved: [0; 2],
    }
}

fn map(mut step: CUarrayMapInfo) -> Outcome {
    ok!(cuMemMapArrayAsync(&mut step, 1, CUstream::NULL));
    ok!(cuCtxSynchronize());
    Ok(())
}

fn release(handle: u64) -> Outcome {
    ok!(cuMemRelease(handle));
    Ok(())
}

fn destroy(array: CUarray) -> Outcome {
    ok!(cuArrayDestroy(array));
    Ok(())
}

/// The bytes of the regions mapped here: 8 by 8 tiles of 64 KiB.
const BYTES: usize = 64 * (64 << 10);

fn tile(_: Gpu) -> Outcome {
    let (array, tile) = array()?;
    let bytes = tile.width * tile.height * tile.depth * 4;
    that!(bytes == 64 << 10, "a tile of {bytes} bytes");
    destroy(array)
}

fn mapped_costs_nothing_more(gpu: Gpu) -> Outcome {
    let (array, tile) = array()?;
    let handle = tiles(gpu, BYTES)?;
    let gpu = gpu.measured()?;
    map(step(array, tile, [0, 0], [8, 8], Some(handle)))?;
    gpu.back()
}

fn released_while_mapped_is_charged(gpu: Gpu) -> Outcome {
    let (array, tile) = array()?;
    let gpu = gpu.measured()?;
    for at in 0..3 {
        let handle = tiles(gpu, BYTES)?;
        map(step(array, tile, [8 * at, 0], [8, 8], Some(handle)))?;
        release(handle)?;
    }
    gpu.took(3 * BYTES, GRAIN)
}

fn unmapped_gives_back(gpu: Gpu) -> Outcome {
    let (array, tile) = array()?;
    let gpu = gpu.measured()?;
    let handle = tiles(gpu, BYTES)?;
    map(step(array, tile, [8, 16], [8, 8], Some(handle)))?;
    release(handle)?;
    map(step(array, tile, [8, 16], [8, 8], None))?;
    gpu.back()?;
    destroy(array)
}

fn destroyed_gives_back(gpu: Gpu) -> Outcome {
    let (array, tile) = array()?;
    let handle = tiles(gpu, BYTES)?;
    map(step(array, tile, [0, 0], [8, 8], Some(handle)))?;
    release(handle)?;
    gpu.took(BYTES, 2 * GRAIN)?;
    destroy(array)?;
    gpu.back()
}

/// The reference does not say whether mapping over a tile lets go at once of what was behind it;
/// unmapping does.
fn mapped_over(gpu: Gpu) -> Outcome {
    let (array, tile) = array()?;
    let gpu = gpu.measured()?;
    for _ in 0..5 {
        let handle = tiles(gpu, BYTES)?;
        map(step(array, tile, [0, 0], [8, 8], Some(handle)))?;
        release(handle)?;
    }
    gpu.took(BYTES, 4 * BYTES + GRAIN)?;
    map(step(array, tile, [0, 0], [8, 8], None))?;
    gpu.back()
}

fn two_tiles_of_one_handle(gpu: Gpu) -> Outcome {
    let (array, tile) = array()?;
    let gpu = gpu.measured()?;
    let handle = tiles(gpu, BYTES)?;
    let places = [[0, 0], [8, 8]];
    for place in places {
        map(step(array, tile, place, [8, 8], Some(handle)))?;
    }
    release(handle)?;
    for place in places {
        gpu.took(BYTES, GRAIN)?;
        map(step(array, tile, place, [8, 8], None))?;
    }
    gpu.back()
}

fn context_destroyed(gpu: Gpu) -> Outcome {
    let mut other = CUcontext::NULL;
    ok!(cuCtxCreate_v2(&mut other, 0, gpu.device));
    let (array, tile) = array()?;
    let handle = tiles(gpu, BYTES)?;
    map(step(array, tile, [0, 0], [8, 8], Some(handle)))?;
    release(handle)?;
    ok!(cuCtxDestroy_v2(other));
    set_current(gpu.context)?;
    gpu.back()
}

/// A step that is refused changes nothing.
fn refused(change: impl FnOnce(&mut CUarrayMapInfo)) -> Outcome {
    let gpu = gpu()?;
    let (array, tile) = array()?;
    let gpu = gpu.measured()?;
    let handle = tiles(gpu, BYTES)?;
    let mut bad = step(array, tile, [0, 0], [8, 8], Some(handle));
    change(&mut bad);
    let code = calls::cuMemMapArrayAsync(&mut bad, 1, CUstream::NULL);
    that!(code != SUCCESS, "it is mapped");
    release(handle)?;
    gpu.back()
}

fn outside() -> Outcome {
    refused(|step| step.subresource[1] = SIDE as u64)
}

fn cut() -> Outcome {
    refused(|step| step.subresource[1] = 1)
}

fn too_little_memory() -> Outcome {
    refused(|step| step.offset = BYTES as u64 / 2)
}

fn bad_handle(gpu: Gpu) -> Outcome {
    refused_or_crashes(gpu, "map-bad-handle")
}

/// The helper of that case.
pub fn bad_handle_mapped(_: &[String]) -> Outcome {
    refused(|step| step.mem_handle = 77)
}

fn plain_array(gpu: Gpu) -> Outcome {
    refused_or_crashes(gpu, "map-ended-array")
}

/// The helper of that case: an array that was not sparse, and is no more.
pub fn ended_array_mapped(_: &[String]) -> Outcome {
    let mut plain = CUarray::NULL;
    refused(|step| {
        let _ = calls::cuArray3DCreate_v2(&mut plain, &shape(0));
        step.resource = plain.0;
        let _ = calls::cuArrayDestroy(plain);
    })
}

fn no_steps(_: Gpu) -> Outcome {
    let (array, _) = array()?;
    says!(INVALID, cuMemMapArrayAsync(std::ptr::null_mut(), 1, CUstream::NULL));
    destroy(array)
}

/// The smallest levels are mapped together.
fn tail_of_a_mipmapped(gpu: Gpu) -> Outcome {
    let mut array = CUmipmappedArray::NULL;
    match calls::cuMipmappedArrayCreate(&mut array, &shape(CUDA_ARRAY3D_SPARSE), 12) {
        SUCCESS => {}
        other => return skip(format_args!("sparse arrays: {other:?}")),
    }
    let gpu = gpu.measured()?;
    let handle = tiles(gpu, GRAIN)?;
    let tile = CUDA_ARRAY_SPARSE_TILE { width: 128, height: 128, depth: 1 };
    let mut step = step(CUarray(array.0), tile, [0, 0], [1, 1], Some(handle));
    step.resource_type = 1;
    step.subresource_type = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    step.subresource = [0, 0, 64 << 10, 0];
    map(step)?;
    release(handle)?;
    gpu.took(GRAIN, GRAIN)?;
    ok!(cuMipmappedArrayDestroy(array));
    gpu.back()
}
