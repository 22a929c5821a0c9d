//! Stream-ordered memory.

use crate::common::{MS, World, stream};
use crate::harness::{MIB, context_on, free_bytes, get, pattern, put};
use gpuslice_nvabi::types::*;

const RESERVED: CUmemPool_attribute = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
const RESERVED_HIGH: CUmemPool_attribute = CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
const USED: CUmemPool_attribute = CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
const USED_HIGH: CUmemPool_attribute = CU_MEMPOOL_ATTR_USED_MEM_HIGH;

fn attribute(pool: CUmemoryPool, attribute: CUmemPool_attribute) -> usize {
    let mut value = 0_u64;
    ok!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
    value as usize
}

fn default_pool() -> CUmemoryPool {
    let mut pool = CUmemoryPool::NULL;
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
    pool
}

fn alloc_async(bytes: usize, stream: CUstream) -> CUdeviceptr {
    let mut pointer = 0;
    ok!(cuMemAllocAsync(&mut pointer, bytes, stream));
    pointer
}

fn props(max_size: usize) -> CUmemPoolProps {
    CUmemPoolProps {
        alloc_type: CU_MEM_ALLOCATION_TYPE_PINNED,
        handle_types: CU_MEM_HANDLE_TYPE_NONE,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
        win32_security_attributes: std::ptr::null_mut(),
        max_size,
        usage: 0,
        gpu_direct_rdma_capable: 0,
        reserved: [0; 53],
    }
}

scenarios! {
    the_books_of_the_default_pool("mem=2GiB") {
        context_on(0);
        let (pool, stream) = (default_pool(), stream(CU_STREAM_NON_BLOCKING));
        let before = free_bytes();
        let a = alloc_async(10 * MIB, stream);
        assert_eq!(attribute(pool, USED), 10 * MIB);
        assert_eq!(attribute(pool, RESERVED), before - free_bytes());
        let b = alloc_async(100 * MIB, stream);
        assert_eq!(attribute(pool, USED_HIGH), 110 * MIB);
        let bytes = pattern(MIB, 4);
        put(b, &bytes);
        assert_eq!(get(b, MIB), bytes);
        ok!(cuMemFreeAsync(b, stream));
        assert_eq!(attribute(pool, USED), 10 * MIB);
        assert!(attribute(pool, RESERVED) >= 110 * MIB, "kept until a thread synchronises");
        ok!(cuStreamSynchronize(stream));
        assert!(attribute(pool, RESERVED) < 100 * MIB);
        assert!(attribute(pool, RESERVED_HIGH) >= 110 * MIB);
        let zero = 0_u64;
        let one = 1_u64;
        let (zero, one) = ((&raw const zero).cast_mut().cast(), (&raw const one).cast_mut().cast());
        ok!(cuMemPoolSetAttribute(pool, USED_HIGH, zero));
        ok!(cuMemPoolSetAttribute(pool, RESERVED_HIGH, zero));
        assert_eq!(attribute(pool, USED_HIGH), 10 * MIB);
        assert_eq!(attribute(pool, RESERVED_HIGH), attribute(pool, RESERVED));
        refused!(ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, USED_HIGH, one));
        refused!(ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, USED, zero));
        ok!(cuMemFree_v2(a));
        ok!(cuMemPoolTrimTo(pool, 0));
        assert_eq!((attribute(pool, USED), attribute(pool, RESERVED)), (0, 0));
        assert_eq!(free_bytes(), before);
        refused!(ERROR_INVALID_VALUE, cuMemFreeAsync(a, stream));
    }

    a_threshold_keeps_memory("mem=2GiB") {
        context_on(0);
        let (pool, stream) = (default_pool(), stream(CU_STREAM_NON_BLOCKING));
        let mut keep = u64::MAX;
        ok!(cuMemPoolSetAttribute(
            pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut keep).cast()
        ));
        let a = alloc_async(256 * MIB, stream);
        ok!(cuMemFreeAsync(a, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(attribute(pool, RESERVED), 256 * MIB);
        let b = alloc_async(256 * MIB, stream);
        assert_eq!(a, b, "what is kept is used again");
        ok!(cuMemFreeAsync(b, stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemPoolTrimTo(pool, 0));
        assert_eq!(attribute(pool, RESERVED), 0);
    }

    a_free_waits_for_its_turn("mem=2GiB") {
        let world = World::new();
        let (first, second) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
        let a = alloc_async(MIB, first);
        world.spin(first, 20 * MS, 0);
        ok!(cuMemsetD8Async(a, 5, MIB, first));
        ok!(cuMemFreeAsync(a, first));
        // Another stream must not get it while it is in use; the same may.
        let other = alloc_async(MIB, second);
        assert_ne!(a, other);
        ok!(cuMemsetD8Async(other, 6, MIB, second));
        let again = alloc_async(MIB, first);
        assert_eq!(a, again);
        ok!(cuMemsetD8Async(again, 7, MIB, first));
        ok!(cuCtxSynchronize());
        assert_eq!(get(again, MIB), vec![7; MIB]);
        assert_eq!(get(other, MIB), vec![6; MIB]);
        ok!(cuMemFreeAsync(again, second));
        refused!(ERROR_INVALID_VALUE, cuMemFreeAsync(again, second));
    }

    pools_have_limits("mem=1GiB") {
        context_on(0);
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let (mut pool, mut pointer) = (CUmemoryPool::NULL, 0);
        ok!(cuMemPoolCreate(&mut pool, &props(64 * MIB)));
        ok!(cuMemAllocFromPoolAsync(&mut pointer, 40 * MIB, pool, stream));
        let mut second = 0;
        refused!(
            ERROR_OUT_OF_MEMORY,
            cuMemAllocFromPoolAsync(&mut second, 40 * MIB, pool, stream)
        );
        ok!(cuMemAllocFromPoolAsync(&mut second, 20 * MIB, pool, stream));
        assert_eq!(attribute(pool, USED), 60 * MIB);
        refused!(ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&mut second, 2048 * MIB, stream));
        refused!(ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&mut second, usize::MAX, stream));
        let mut nothing = 1;
        ok!(cuMemAllocAsync(&mut nothing, 0, stream));
        assert_eq!(nothing, 0);
        ok!(cuMemFreeAsync(pointer, stream));
        // Destroyed while a part is in use: it goes when that part does.
        ok!(cuMemPoolDestroy(pool));
        let used = free_bytes();
        ok!(cuMemFreeAsync(second, stream));
        ok!(cuStreamSynchronize(stream));
        assert!(free_bytes() > used);
        refused!(ERROR_INVALID_VALUE, cuMemPoolDestroy(pool));
        refused!(ERROR_INVALID_VALUE, cuMemPoolDestroy(default_pool()));
        // Unused memory of a pool is available to all allocations of the process.
        let mut keep = u64::MAX;
        ok!(cuMemPoolSetAttribute(
            default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut keep).cast()
        ));
        let large = free_bytes() / 4 * 3;
        ok!(cuMemAllocAsync(&mut pointer, large, stream));
        ok!(cuMemFreeAsync(pointer, stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemPoolCreate(&mut pool, &props(0)));
        ok!(cuMemAllocFromPoolAsync(&mut pointer, large, pool, stream));
        ok!(cuMemFreeAsync(pointer, stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemAllocAsync(&mut pointer, large, stream));
        ok!(cuMemFreeAsync(pointer, stream));
        ok!(cuStreamSynchronize(stream));
        assert!(attribute(default_pool(), RESERVED) >= large);
        crate::harness::alloc(large);
    }

    the_current_pool_of_a_device("devices=2") {
        context_on(0);
        let (mut pool, mut found) = (CUmemoryPool::NULL, CUmemoryPool::NULL);
        ok!(cuMemPoolCreate(&mut pool, &props(0)));
        ok!(cuDeviceSetMemPool(0, pool));
        ok!(cuDeviceGetMemPool(&mut found, 0));
        assert_eq!(found, pool);
        let stream = stream(0);
        let pointer = alloc_async(MIB, stream);
        assert_eq!(attribute(pool, USED), MIB);
        let mut location = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
        ok!(cuMemGetDefaultMemPool(&mut found, &mut location, CU_MEM_ALLOCATION_TYPE_PINNED));
        assert_eq!(found, default_pool());
        refused!(ERROR_INVALID_VALUE, cuDeviceSetMemPool(1, pool));
        let mut flags = 9;
        location.id = 1;
        ok!(cuMemPoolGetAccess(&mut flags, pool, &mut location));
        assert_eq!(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
        let flags_wanted = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc { location, flags: flags_wanted };
        ok!(cuMemPoolSetAccess(pool, &access, 1));
        ok!(cuMemPoolGetAccess(&mut flags, pool, &mut location));
        assert_eq!(flags, flags_wanted);
        ok!(cuMemFreeAsync(pointer, stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuMemPoolDestroy(pool));
        ok!(cuDeviceGetMemPool(&mut found, 0));
        assert_eq!(found, default_pool());
    }

    allocations_outlive_a_reset("mem=1GiB") {
        let mut context = CUcontext::NULL;
        let mut retain = || {
            ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
            ok!(cuCtxSetCurrent(context));
            free_bytes()
        };
        ok!(cuInit(0));
        let before = retain();
        let kept = alloc_async(512 * MIB, CUstream::NULL);
        ok!(cuCtxSynchronize());
        ok!(cuDevicePrimaryCtxReset_v2(0));
        assert_eq!((before - retain(), attribute(default_pool(), RESERVED)), (512 * MIB, 512 * MIB));
        ok!(cuMemFreeAsync(kept, CUstream::NULL));
        ok!(cuCtxSynchronize());
        assert_eq!((free_bytes(), attribute(default_pool(), RESERVED)), (before, 0));
    }

    allocations_outlive_their_context("mem=1GiB") {
        let context = context_on(0);
        let pointer = alloc_async(200 * MIB, CUstream::NULL);
        let freed = alloc_async(100 * MIB, CUstream::NULL);
        ok!(cuMemFreeAsync(freed, CUstream::NULL));
        let plain = crate::harness::alloc(MIB);
        ok!(cuMemFreeAsync(plain, CUstream::NULL));
        ok!(cuCtxDestroy_v2(context));
        context_on(0);
        let held = (attribute(default_pool(), USED), attribute(default_pool(), RESERVED));
        assert_eq!(held, (200 * MIB, 200 * MIB));
        ok!(cuMemFreeAsync(pointer, CUstream::NULL));
        ok!(cuCtxSynchronize());
        assert_eq!((attribute(default_pool(), USED), attribute(default_pool(), RESERVED)), (0, 0));
    }
}
