//! Stream-ordered memory: `cuMemAllocAsync` and pools. A pool keeps memory that it has taken from the
//! device until a thread synchronises; the memory it keeps is charged.

use crate::words::*;
use gpuslice_apps::api::calls;
use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::*;

family!("pool":
    charged, given_back_at_synchronisation, over_the_device, over_what_is_free,
    refusals_change_nothing, filled_to_the_last, freed_synchronously, usable,
    per_thread_by_name, per_thread_by_flag, plain_memory_freed_in_order, two_streams,
    a_thousand_rounds, explicit, explicit_over_the_device, explicit_destroyed,
    destroyed_with_a_live_allocation, current_of_the_device, default_is_current,
    destroyed_while_current, default_cannot_be_destroyed, many_pools, zero, largest_number,
    null_out, free_null, free_twice, free_foreign, no_pool, bad_properties, bad_device,
    on_a_destroyed_pool;
);

/// A pool of this device; at most `most` bytes if not 0.
pub fn new_pool(
    gpu: Gpu,
    most: usize,
    handles: CUmemAllocationHandleType,
) -> Outcome<CUmemoryPool> {
    let mut pool = CUmemoryPool::NULL;
    ok!(cuMemPoolCreate(&mut pool, &properties(gpu, most, handles)));
    Ok(pool)
}

fn properties(gpu: Gpu, most: usize, handles: CUmemAllocationHandleType) -> CUmemPoolProps {
    CUmemPoolProps {
        alloc_type: CU_MEM_ALLOCATION_TYPE_PINNED,
        handle_types: handles,
        location: gpu.location(),
        win32_security_attributes: std::ptr::null_mut(),
        max_size: most,
        usage: 0,
        gpu_direct_rdma_capable: 0,
        reserved: [0; 53],
    }
}

/// Memory in the order of a stream.
pub fn ordered(bytes: usize, stream: CUstream) -> Outcome<CUdeviceptr> {
    let mut at = 0;
    ok!(cuMemAllocAsync(&mut at, bytes, stream));
    Ok(at)
}

/// The same of a certain pool.
pub fn of_pool(pool: CUmemoryPool, bytes: usize) -> Outcome<CUdeviceptr> {
    let mut at = 0;
    ok!(cuMemAllocFromPoolAsync(&mut at, bytes, pool, CUstream::NULL));
    Ok(at)
}

fn free_and_wait(gpu: Gpu, all: &[CUdeviceptr]) -> Outcome {
    for at in all {
        ok!(cuMemFreeAsync(*at, CUstream::NULL));
    }
    gpu.synchronize()
}

/// A pool takes more from the device than it is asked for, up to this.
pub const PIECE: usize = 32 << 20;

fn charged(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    ordered(bytes, CUstream::NULL)?;
    gpu.synchronize()?;
    gpu.took(bytes, PIECE)
}

fn given_back_at_synchronisation(gpu: Gpu) -> Outcome {
    let at = ordered(gpu.part(8)?, CUstream::NULL)?;
    free_and_wait(gpu, &[at])?;
    gpu.back()
}

fn over_the_device(gpu: Gpu) -> Outcome {
    let (total, mut at) = (gpu.total()?, 0);
    says!(OOM, cuMemAllocAsync(&mut at, total + GRAIN, CUstream::NULL));
    gpu.back()
}

fn over_what_is_free(gpu: Gpu) -> Outcome {
    gpu.alloc(gpu.free()? / 2)?;
    let gpu = gpu.measured()?;
    let mut at = 0;
    says!(OOM, cuMemAllocAsync(&mut at, gpu.before + 2 * GRAIN, CUstream::NULL));
    gpu.back()
}

fn refusals_change_nothing(gpu: Gpu) -> Outcome {
    let (total, mut at) = (gpu.total()?, 0);
    for over in 1..50 {
        says!(OOM, cuMemAllocAsync(&mut at, total + over * GRAIN, CUstream::NULL));
    }
    gpu.back()
}

fn filled_to_the_last(gpu: Gpu) -> Outcome {
    let step = gpu.part(16)?;
    let (mut all, mut at) = (Vec::new(), 0);
    while says!([SUCCESS, OOM], cuMemAllocAsync(&mut at, step, CUstream::NULL)) == SUCCESS {
        all.push(at);
    }
    gpu.fitted(all.len(), step)?;
    free_and_wait(gpu, &all)?;
    gpu.back()
}

fn freed_synchronously(gpu: Gpu) -> Outcome {
    let at = ordered(gpu.part(8)?, CUstream::NULL)?;
    gpu.release(at)?;
    gpu.synchronize()?;
    gpu.back()
}

fn usable(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(16)?;
    let at = ordered(bytes, CUstream::NULL)?;
    gpu.usable(at, bytes)
}

fn per_thread_by_name(gpu: Gpu) -> Outcome {
    let (total, mut at) = (gpu.total()?, 0);
    says!(OOM, cuMemAllocAsync_ptsz(&mut at, total + GRAIN, CUstream::NULL));
    ok!(cuMemAllocAsync_ptsz(&mut at, gpu.part(8)?, CUstream::NULL));
    gpu.took(gpu.part(8)?, PIECE)?;
    ok!(cuMemFreeAsync_ptsz(at, CUstream::NULL));
    gpu.synchronize()?;
    gpu.back()
}

fn per_thread_by_flag(gpu: Gpu) -> Outcome {
    let (total, mut entry, mut at) = (gpu.total()?, std::ptr::null_mut(), 0);
    let (name, flag) = (c"cuMemAllocAsync", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    ok!(cuGetProcAddress(name.as_ptr(), &mut entry, 11020, flag as u64));
    // SAFETY: the driver says that this is the function of that name.
    let call: sig::cuMemAllocAsync = unsafe { std::mem::transmute(entry) };
    // SAFETY: the pointer is to a live local.
    let code = unsafe { call(&mut at, total + GRAIN, CUstream::NULL) };
    that!(code == OOM, "it answered {code:?}");
    // SAFETY: as above.
    let code = unsafe { call(&mut at, gpu.part(8)?, CUstream::NULL) };
    that!(code == SUCCESS, "it answered {code:?}");
    gpu.took(gpu.part(8)?, PIECE)?;
    free_and_wait(gpu, &[at])?;
    gpu.back()
}

fn plain_memory_freed_in_order(gpu: Gpu) -> Outcome {
    let at = gpu.alloc(gpu.part(8)?)?;
    free_and_wait(gpu, &[at])?;
    gpu.back()
}

fn two_streams(gpu: Gpu) -> Outcome {
    let (one, other) = (gpu.stream()?, gpu.stream()?);
    let gpu = gpu.measured()?;
    let bytes = gpu.part(16)?;
    for _ in 0..20 {
        let (a, b) = (ordered(bytes, one)?, ordered(bytes, other)?);
        ok!(cuStreamSynchronize(one));
        ok!(cuMemFreeAsync(a, other));
        ok!(cuMemFreeAsync(b, other));
        ok!(cuStreamSynchronize(other));
    }
    gpu.synchronize()?;
    gpu.back()
}

fn a_thousand_rounds(gpu: Gpu) -> Outcome {
    let mut random = Random(5);
    let most = gpu.part(8)?;
    for _ in 0..1000 {
        let at = ordered(1 + random.below(most), CUstream::NULL)?;
        ok!(cuMemFreeAsync(at, CUstream::NULL));
    }
    gpu.synchronize()?;
    gpu.back()
}

fn explicit(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    let at = of_pool(pool, bytes)?;
    gpu.took(bytes, PIECE)?;
    free_and_wait(gpu, &[at])?;
    gpu.back()
}

fn explicit_over_the_device(gpu: Gpu) -> Outcome {
    let (total, mut at) = (gpu.total()?, 0);
    let pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    let too_much = total + GRAIN;
    says!(OOM, cuMemAllocFromPoolAsync(&mut at, too_much, pool, CUstream::NULL));
    says!(OOM, cuMemAllocFromPoolAsync_ptsz(&mut at, too_much, pool, CUstream::NULL));
    gpu.back()
}

fn explicit_destroyed(gpu: Gpu) -> Outcome {
    let pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    let at = of_pool(pool, gpu.part(8)?)?;
    ok!(cuMemFreeAsync(at, CUstream::NULL));
    ok!(cuMemPoolDestroy(pool));
    gpu.synchronize()?;
    gpu.back()
}

fn destroyed_with_a_live_allocation(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    let at = of_pool(pool, bytes)?;
    ok!(cuMemPoolDestroy(pool));
    gpu.synchronize()?;
    gpu.took(bytes, PIECE)?;
    free_and_wait(gpu, &[at])?;
    gpu.back()
}

fn current_of_the_device(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (pool, mut current) = (new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?, CUmemoryPool::NULL);
    ok!(cuDeviceSetMemPool(gpu.device, pool));
    ok!(cuDeviceGetMemPool(&mut current, gpu.device));
    that!(current == pool, "the current pool is not the one that was set");
    let (at, mut used) = (ordered(bytes, CUstream::NULL)?, 0u64);
    let to = (&raw mut used).cast();
    ok!(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, to));
    that!(used >= bytes as u64, "{used} bytes used of the pool");
    gpu.took(bytes, PIECE)?;
    free_and_wait(gpu, &[at])?;
    gpu.back()
}

fn default_is_current(gpu: Gpu) -> Outcome {
    let (mut default, mut current) = (CUmemoryPool::NULL, CUmemoryPool::NULL);
    ok!(cuDeviceGetDefaultMemPool(&mut default, gpu.device));
    ok!(cuDeviceGetMemPool(&mut current, gpu.device));
    that!(default == current && !default.is_null(), "{default:?} and {current:?}");
    Ok(())
}

fn destroyed_while_current(gpu: Gpu) -> Outcome {
    let pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    let (mut default, mut current) = (CUmemoryPool::NULL, CUmemoryPool::NULL);
    ok!(cuDeviceSetMemPool(gpu.device, pool));
    ok!(cuMemPoolDestroy(pool));
    ok!(cuDeviceGetDefaultMemPool(&mut default, gpu.device));
    ok!(cuDeviceGetMemPool(&mut current, gpu.device));
    that!(default == current, "a destroyed pool is the current one");
    Ok(())
}

fn default_cannot_be_destroyed(gpu: Gpu) -> Outcome {
    let mut default = CUmemoryPool::NULL;
    ok!(cuDeviceGetDefaultMemPool(&mut default, gpu.device));
    says!(INVALID, cuMemPoolDestroy(default));
    ordered(GRAIN, CUstream::NULL).map(drop)
}

fn many_pools(gpu: Gpu) -> Outcome {
    let bytes = GRAIN;
    for _ in 0..100 {
        let pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
        let at = of_pool(pool, bytes)?;
        free_and_wait(gpu, &[at])?;
        ok!(cuMemPoolDestroy(pool));
    }
    gpu.back()
}

/// A card's driver answers success. Its pointer is not used here.
fn zero(gpu: Gpu) -> Outcome {
    let mut at = 0;
    says!([SUCCESS, INVALID], cuMemAllocAsync(&mut at, 0, CUstream::NULL));
    gpu.synchronize()?;
    gpu.back()
}

fn largest_number(gpu: Gpu) -> Outcome {
    let mut at = 0;
    for less in [0, 1, 511, GRAIN, PIECE, usize::MAX / 2] {
        says!(OOM, cuMemAllocAsync(&mut at, usize::MAX - less, CUstream::NULL));
    }
    gpu.back()
}

fn null_out(gpu: Gpu) -> Outcome {
    says!(INVALID, cuMemAllocAsync(std::ptr::null_mut(), GRAIN, CUstream::NULL));
    gpu.back()
}

fn free_null(_: Gpu) -> Outcome {
    // The reference says nothing of it; it must not disturb anything.
    says!([SUCCESS, INVALID], cuMemFreeAsync(0, CUstream::NULL));
    Ok(())
}

fn free_twice(gpu: Gpu) -> Outcome {
    let at = ordered(gpu.part(8)?, CUstream::NULL)?;
    free_and_wait(gpu, &[at])?;
    says!(INVALID, cuMemFreeAsync(at, CUstream::NULL));
    says!(INVALID, cuMemFree_v2(at));
    gpu.back()
}

fn free_foreign(gpu: Gpu) -> Outcome {
    let mine = 0u64;
    says!(INVALID, cuMemFreeAsync((&raw const mine) as u64, CUstream::NULL));
    says!(INVALID, cuMemFreeAsync(u64::MAX, CUstream::NULL));
    gpu.back()
}

fn no_pool(gpu: Gpu) -> Outcome {
    let mut at = 0;
    says!(INVALID, cuMemAllocFromPoolAsync(&mut at, GRAIN, CUmemoryPool::NULL, CUstream::NULL));
    gpu.back()
}

fn bad_properties(gpu: Gpu) -> Outcome {
    let mut pool = CUmemoryPool::NULL;
    let good = properties(gpu, 0, CU_MEM_HANDLE_TYPE_NONE);
    let nowhere = CUmemLocation { kind: 77, id: 0 };
    says!(INVALID, cuMemPoolCreate(std::ptr::null_mut(), &good));
    says!(INVALID, cuMemPoolCreate(&mut pool, std::ptr::null()));
    says!(INVALID, cuMemPoolCreate(&mut pool, &CUmemPoolProps { alloc_type: 77, ..good }));
    says!(INVALID, cuMemPoolCreate(&mut pool, &CUmemPoolProps { location: nowhere, ..good }));
    gpu.back()
}

fn bad_device(gpu: Gpu) -> Outcome {
    let mut pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    let bad = [CUresult::ERROR_INVALID_DEVICE, INVALID];
    says!([bad[0], bad[1]], cuDeviceGetDefaultMemPool(&mut pool, 99));
    says!([bad[0], bad[1]], cuDeviceGetMemPool(&mut pool, -1));
    says!([bad[0], bad[1]], cuDeviceSetMemPool(99, pool));
    Ok(())
}

fn on_a_destroyed_pool(gpu: Gpu) -> Outcome {
    let mut at = 0;
    let pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    ok!(cuMemPoolDestroy(pool));
    let code = calls::cuMemAllocFromPoolAsync(&mut at, GRAIN, pool, CUstream::NULL);
    that!(code != SUCCESS, "a destroyed pool gives memory");
    gpu.back()
}
