//! Physical memory by handle: created, mapped, unmapped, released, in every order. It lives until
//! the last handle *and* the last mapping of it are gone, and as long it is charged.

use crate::child::refused_or_crashes;
use crate::words::*;
use gpuslice_nvabi::types::*;

family!("vmm":
    granularity, created, released, over_the_device, refusals_change_nothing,
    filled_to_the_last, mapping_costs_nothing, addresses_cost_nothing, usable,
    unmapped_then_released, released_then_unmapped, released_while_mapped_is_charged,
    two_mappings_cost_once, two_mappings_keep, two_mappings_of_two, retained,
    retained_by_an_inner_address, part_unmapped, both_unmapped_at_once, sixteen_pieces_in_a_row,
    a_thousand_rounds, properties_read_back, odd_size, zero, largest_number, null_out,
    bad_properties, release_twice, release_foreign, map_a_released_handle, map_over_a_mapping,
    map_outside, map_too_much, unmap_nothing, addresses_freed_while_mapped, context_destroyed;
);

/// Physical memory of this device.
pub fn wanted(gpu: Gpu) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: CU_MEM_HANDLE_TYPE_NONE,
        location: gpu.location(),
        win32_handle_meta_data: std::ptr::null_mut(),
        alloc_flags: CUmemAllocationFlags {
            compression_type: 0,
            gpu_direct_rdma_capable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// The device's step of sizes.
fn step(gpu: Gpu) -> Outcome<usize> {
    let mut step = 0;
    let minimum = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    ok!(cuMemGetAllocationGranularity(&mut step, &wanted(gpu), minimum));
    Ok(step)
}

/// Physical memory, by handle.
pub fn create(gpu: Gpu, bytes: usize) -> Outcome<u64> {
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, bytes, &wanted(gpu), 0));
    Ok(handle)
}

/// Addresses without memory.
pub fn reserve(bytes: usize) -> Outcome<CUdeviceptr> {
    let mut at = 0;
    ok!(cuMemAddressReserve(&mut at, bytes, 0, 0, 0));
    Ok(at)
}

/// Maps all of a handle.
pub fn map(at: CUdeviceptr, bytes: usize, handle: u64) -> Outcome {
    ok!(cuMemMap(at, bytes, 0, handle, 0));
    Ok(())
}

/// Lets the device read and write a mapping.
pub fn open(gpu: Gpu, at: CUdeviceptr, bytes: usize) -> Outcome {
    let flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = CUmemAccessDesc { location: gpu.location(), flags };
    ok!(cuMemSetAccess(at, bytes, &access, 1));
    Ok(())
}

fn unmap(at: CUdeviceptr, bytes: usize) -> Outcome {
    ok!(cuMemUnmap(at, bytes));
    Ok(())
}

fn release(handle: u64) -> Outcome {
    ok!(cuMemRelease(handle));
    Ok(())
}

fn granularity(gpu: Gpu) -> Outcome {
    let (minimum, mut recommended) = (step(gpu)?, 0);
    let option = CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    ok!(cuMemGetAllocationGranularity(&mut recommended, &wanted(gpu), option));
    that!(minimum.is_power_of_two(), "a step of {minimum}");
    that!(recommended >= minimum, "{recommended} recommended, {minimum} the least");
    Ok(())
}

fn created(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    create(gpu, bytes)?;
    gpu.took(bytes, GRAIN)
}

fn released(gpu: Gpu) -> Outcome {
    release(create(gpu, gpu.part(8)?)?)?;
    gpu.back()
}

fn over_the_device(gpu: Gpu) -> Outcome {
    let (total, mut handle) = (gpu.total()?, 0);
    let too_much = total.next_multiple_of(step(gpu)?) + step(gpu)?;
    says!(OOM, cuMemCreate(&mut handle, too_much, &wanted(gpu), 0));
    gpu.back()
}

fn refusals_change_nothing(gpu: Gpu) -> Outcome {
    let half = create(gpu, gpu.part(2)?)?;
    let gpu = gpu.measured()?;
    let mut handle = 0;
    for _ in 0..50 {
        says!(OOM, cuMemCreate(&mut handle, gpu.part(2)? + 8 * GRAIN, &wanted(gpu), 0));
    }
    gpu.back()?;
    release(half)
}

fn filled_to_the_last(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(16)?;
    let (mut all, mut handle) = (Vec::new(), 0);
    while says!([SUCCESS, OOM], cuMemCreate(&mut handle, bytes, &wanted(gpu), 0)) == SUCCESS {
        all.push(handle);
    }
    gpu.fitted(all.len(), bytes)?;
    all.into_iter().try_for_each(release)?;
    gpu.back()
}

fn mapping_costs_nothing(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, at) = (create(gpu, bytes)?, reserve(bytes)?);
    let gpu = gpu.measured()?;
    map(at, bytes, handle)?;
    open(gpu, at, bytes)?;
    gpu.back()
}

fn addresses_cost_nothing(gpu: Gpu) -> Outcome {
    let total = gpu.total()?;
    let bytes = 4 * total.next_multiple_of(step(gpu)?);
    let at = reserve(bytes)?;
    gpu.back()?;
    ok!(cuMemAddressFree(at, bytes));
    gpu.back()
}

fn usable(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, at) = (create(gpu, bytes)?, reserve(bytes)?);
    map(at, bytes, handle)?;
    open(gpu, at, bytes)?;
    gpu.usable(at, bytes)
}

fn unmapped_then_released(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, at) = (create(gpu, bytes)?, reserve(bytes)?);
    map(at, bytes, handle)?;
    unmap(at, bytes)?;
    gpu.took(bytes, GRAIN)?;
    release(handle)?;
    gpu.back()
}

fn released_then_unmapped(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, at) = (create(gpu, bytes)?, reserve(bytes)?);
    map(at, bytes, handle)?;
    release(handle)?;
    unmap(at, bytes)?;
    ok!(cuMemAddressFree(at, bytes));
    gpu.back()
}

fn released_while_mapped_is_charged(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    for held in 1..=6 {
        let (handle, at) = (create(gpu, bytes)?, reserve(bytes)?);
        map(at, bytes, handle)?;
        release(handle)?;
        gpu.took(held * bytes, held * GRAIN)?;
    }
    let mut handle = 0;
    says!(OOM, cuMemCreate(&mut handle, 3 * bytes, &wanted(gpu), 0));
    Ok(())
}

fn two_mappings_cost_once(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let handle = create(gpu, bytes)?;
    for _ in 0..2 {
        map(reserve(bytes)?, bytes, handle)?;
    }
    gpu.took(bytes, GRAIN)
}

fn two_mappings_keep(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, one, other) = (create(gpu, bytes)?, reserve(bytes)?, reserve(bytes)?);
    map(one, bytes, handle)?;
    map(other, bytes, handle)?;
    release(handle)?;
    unmap(one, bytes)?;
    gpu.took(bytes, GRAIN)?;
    open(gpu, other, bytes)?;
    gpu.usable(other, bytes)?;
    unmap(other, bytes)?;
    gpu.back()
}

fn two_mappings_of_two(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let at = reserve(2 * bytes)?;
    let handles = [create(gpu, bytes)?, create(gpu, bytes)?];
    map(at, bytes, handles[0])?;
    map(at + bytes as u64, bytes, handles[1])?;
    handles.into_iter().try_for_each(release)?;
    unmap(at, bytes)?;
    gpu.took(bytes, GRAIN)?;
    unmap(at + bytes as u64, bytes)?;
    gpu.back()
}

fn retained(gpu: Gpu) -> Outcome {
    let (bytes, mut again) = (gpu.part(8)?, 0);
    let (handle, at) = (create(gpu, bytes)?, reserve(bytes)?);
    map(at, bytes, handle)?;
    ok!(cuMemRetainAllocationHandle(&mut again, at as *mut c_void));
    unmap(at, bytes)?;
    release(handle)?;
    gpu.took(bytes, GRAIN)?;
    release(again)?;
    gpu.back()
}

fn retained_by_an_inner_address(gpu: Gpu) -> Outcome {
    let (bytes, mut again) = (gpu.part(8)?, 0);
    let (handle, at) = (create(gpu, bytes)?, reserve(bytes)?);
    map(at, bytes, handle)?;
    release(handle)?;
    ok!(cuMemRetainAllocationHandle(&mut again, (at + 4096) as *mut c_void));
    unmap(at, bytes)?;
    gpu.took(bytes, GRAIN)?;
    release(again)?;
    gpu.back()
}

/// Mappings are undone whole.
fn part_unmapped(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, at) = (create(gpu, bytes)?, reserve(bytes)?);
    map(at, bytes, handle)?;
    release(handle)?;
    says!(INVALID, cuMemUnmap(at, bytes / 2));
    says!(INVALID, cuMemUnmap(at + (bytes / 2) as u64, bytes / 2));
    gpu.took(bytes, GRAIN)?;
    unmap(at, bytes)?;
    gpu.back()
}

fn both_unmapped_at_once(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let at = reserve(2 * bytes)?;
    for place in [at, at + bytes as u64] {
        let handle = create(gpu, bytes)?;
        map(place, bytes, handle)?;
        release(handle)?;
    }
    unmap(at, 2 * bytes)?;
    gpu.back()
}

/// The way of growing tensors.
fn sixteen_pieces_in_a_row(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(32)?;
    let at = reserve(16 * bytes)?;
    for piece in 0..16 {
        let (handle, place) = (create(gpu, bytes)?, at + (piece * bytes) as u64);
        map(place, bytes, handle)?;
        open(gpu, place, bytes)?;
        release(handle)?;
    }
    gpu.took(16 * bytes, 16 * GRAIN)?;
    gpu.usable(at, 16 * bytes)?;
    for piece in (0..16).rev() {
        unmap(at + (piece * bytes) as u64, bytes)?;
        gpu.took(piece * bytes, 16 * GRAIN)?;
    }
    gpu.back()
}

fn a_thousand_rounds(gpu: Gpu) -> Outcome {
    let bytes = step(gpu)?;
    let at = reserve(bytes)?;
    for round in 0..1000 {
        let handle = create(gpu, bytes)?;
        map(at, bytes, handle)?;
        if round % 2 == 0 {
            release(handle)?;
            unmap(at, bytes)?;
        } else {
            unmap(at, bytes)?;
            release(handle)?;
        }
    }
    gpu.back()
}

fn properties_read_back(gpu: Gpu) -> Outcome {
    let (handle, mut read) = (create(gpu, step(gpu)?)?, wanted(gpu));
    read.location.id = 99;
    ok!(cuMemGetAllocationPropertiesFromHandle(&mut read, handle));
    that!(read.location == gpu.location(), "{:?}", read.location);
    release(handle)
}

fn odd_size(gpu: Gpu) -> Outcome {
    let mut handle = 0;
    for bytes in [1, step(gpu)? - 1, step(gpu)? + 1, step(gpu)? * 3 / 2] {
        says!(INVALID, cuMemCreate(&mut handle, bytes, &wanted(gpu), 0));
    }
    gpu.back()
}

fn zero(gpu: Gpu) -> Outcome {
    let mut handle = 0;
    says!(INVALID, cuMemCreate(&mut handle, 0, &wanted(gpu), 0));
    gpu.back()
}

fn largest_number(gpu: Gpu) -> Outcome {
    let (mut handle, step) = (0, step(gpu)?);
    for bytes in [usize::MAX, usize::MAX / 2, 0usize.wrapping_sub(step), 1 << 62] {
        says!([OOM, INVALID], cuMemCreate(&mut handle, bytes, &wanted(gpu), 0));
    }
    gpu.back()
}

fn null_out(gpu: Gpu) -> Outcome {
    let mut handle = 0;
    says!(INVALID, cuMemCreate(std::ptr::null_mut(), step(gpu)?, &wanted(gpu), 0));
    says!(INVALID, cuMemCreate(&mut handle, step(gpu)?, std::ptr::null(), 0));
    gpu.back()
}

fn bad_properties(gpu: Gpu) -> Outcome {
    let (mut handle, good) = (0, wanted(gpu));
    let nowhere = CUmemLocation { kind: 77, id: 0 };
    for bad in [
        CUmemAllocationProp { kind: 77, ..good },
        CUmemAllocationProp { location: nowhere, ..good },
    ] {
        says!(INVALID, cuMemCreate(&mut handle, step(gpu)?, &bad, 0));
    }
    says!(INVALID, cuMemCreate(&mut handle, step(gpu)?, &good, 1));
    gpu.back()
}

fn release_twice(gpu: Gpu) -> Outcome {
    let handle = create(gpu, gpu.part(8)?)?;
    release(handle)?;
    says!(INVALID, cuMemRelease(handle));
    gpu.back()
}

fn release_foreign(gpu: Gpu) -> Outcome {
    refused_or_crashes(gpu, "release-foreign")
}

/// The helper of that case.
pub fn foreign_released(_: &[String]) -> Outcome {
    let gpu = gpu()?;
    says!(INVALID, cuMemRelease(0));
    says!(INVALID, cuMemRelease(u64::MAX));
    gpu.back()
}

fn map_a_released_handle(gpu: Gpu) -> Outcome {
    refused_or_crashes(gpu, "map-released")
}

/// The helper of that case.
pub fn released_mapped(_: &[String]) -> Outcome {
    let gpu = gpu()?;
    let bytes = gpu.part(8)?;
    let (handle, at) = (create(gpu, bytes)?, reserve(bytes)?);
    release(handle)?;
    says!(INVALID, cuMemMap(at, bytes, 0, handle, 0));
    gpu.back()
}

fn map_over_a_mapping(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let at = reserve(bytes)?;
    let (one, other) = (create(gpu, bytes)?, create(gpu, bytes)?);
    map(at, bytes, one)?;
    says!(INVALID, cuMemMap(at, bytes, 0, other, 0));
    release(other)?;
    release(one)?;
    gpu.took(bytes, GRAIN)?;
    unmap(at, bytes)?;
    gpu.back()
}

fn map_outside(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let handle = create(gpu, bytes)?;
    says!(INVALID, cuMemMap(GRAIN as u64, bytes, 0, handle, 0));
    says!(INVALID, cuMemMap(0, bytes, 0, handle, 0));
    release(handle)?;
    gpu.back()
}

/// A card's driver answers at least one of these by "not supported".
fn map_too_much(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, at) = (create(gpu, bytes)?, reserve(2 * bytes)?);
    for (size, offset) in [(2 * bytes, 0), (0, 0), (bytes, bytes)] {
        let unsupported = CUresult::ERROR_NOT_SUPPORTED;
        says!([INVALID, unsupported], cuMemMap(at, size, offset, handle, 0));
    }
    release(handle)?;
    gpu.back()
}

/// A card's driver answers success for a range in which nothing is mapped.
fn unmap_nothing(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let at = reserve(bytes)?;
    says!([SUCCESS, INVALID], cuMemUnmap(at, bytes));
    says!([SUCCESS, INVALID], cuMemUnmap(at, 0));
    gpu.back()
}

fn addresses_freed_while_mapped(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (handle, at) = (create(gpu, bytes)?, reserve(bytes)?);
    map(at, bytes, handle)?;
    release(handle)?;
    says!(INVALID, cuMemAddressFree(at, bytes));
    gpu.took(bytes, GRAIN)?;
    unmap(at, bytes)?;
    ok!(cuMemAddressFree(at, bytes));
    gpu.back()
}

/// Handles belong to the process, not to a context.
fn context_destroyed(gpu: Gpu) -> Outcome {
    let mut other = CUcontext::NULL;
    ok!(cuCtxCreate_v2(&mut other, 0, gpu.device));
    set_current(gpu.context)?;
    let gpu = gpu.measured()?;
    let bytes = gpu.part(8)?;
    set_current(other)?;
    let handle = create(gpu, bytes)?;
    ok!(cuCtxDestroy_v2(other));
    set_current(gpu.context)?;
    release(handle)?;
    gpu.took_at_most(GRAIN)
}
