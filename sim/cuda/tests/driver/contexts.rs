//! Contexts: the stack of each thread, the primary one, what they cost.

use crate::harness::{MIB, alloc, context_on, free_bytes};
use gpuslice_nvabi::types::*;
use std::ptr::null_mut;

/// The current context.
fn current() -> CUcontext {
    let mut context = CUcontext::NULL;
    ok!(cuCtxGetCurrent(&mut context));
    context
}

scenarios! {
    the_stack_of_a_thread("") {
        let first = context_on(0);
        let second = context_on(0);
        assert_ne!(first, second);
        assert_eq!(current(), second);
        let mut popped = CUcontext::NULL;
        ok!(cuCtxPopCurrent_v2(&mut popped));
        assert_eq!((popped, current()), (second, first));
        ok!(cuCtxPushCurrent_v2(second));
        ok!(cuCtxSetCurrent(first));
        assert_eq!(current(), first);
        ok!(cuCtxPopCurrent_v2(null_mut()));
        assert_eq!(current(), first, "what was under the top");
        ok!(cuCtxSetCurrent(CUcontext::NULL));
        assert_eq!(current(), CUcontext::NULL);
        refused!(ERROR_INVALID_CONTEXT, cuCtxPopCurrent_v2(&mut popped));
        refused!(ERROR_INVALID_CONTEXT, cuCtxGetDevice(&mut 0));
        refused!(ERROR_INVALID_CONTEXT, cuCtxPushCurrent_v2(CUcontext(0x1234 as *mut _)));
        refused!(ERROR_INVALID_CONTEXT, cuCtxSetCurrent(CUcontext(usize::MAX as *mut _)));
        ok!(cuCtxSetCurrent(second));
        let elsewhere = std::thread::spawn(|| current() == CUcontext::NULL);
        assert!(elsewhere.join().unwrap(), "a new thread has none");
    }

    a_destroyed_context_is_gone("") {
        let first = context_on(0);
        let second = context_on(0);
        ok!(cuCtxDestroy_v2(second));
        assert_eq!(current(), first, "popped with its end");
        refused!(ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(second));
        refused!(ERROR_INVALID_CONTEXT, cuCtxSetCurrent(second));
        let worker = std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(first));
            ok!(cuCtxDestroy_v2(first));
        });
        worker.join().unwrap();
        refused!(ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&mut 0, 64));
        refused!(ERROR_CONTEXT_IS_DESTROYED, cuCtxGetDevice(&mut 0));
    }

    a_context_costs_memory_and_its_end_frees_all("mem=1GiB,context=64MiB") {
        let first = context_on(0);
        let alone = free_bytes();
        assert_eq!(alone, 1024 * MIB - 64 * MIB);
        let second = context_on(0);
        assert_eq!(free_bytes(), alone - 64 * MIB);
        let pointer = alloc(100 * MIB);
        alloc(1000);
        ok!(cuCtxDestroy_v2(second));
        assert_eq!(current(), first);
        assert_eq!(free_bytes(), alone);
        refused!(ERROR_INVALID_VALUE, cuMemFree_v2(pointer));
    }

    the_primary_context_is_counted("mem=1GiB,context=64MiB") {
        ok!(cuInit(0));
        let (mut flags, mut active) = (9, 9);
        ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!((flags, active), (0, 0));
        refused!(ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
        ok!(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_BLOCKING_SYNC));
        refused!(ERROR_INVALID_VALUE, cuDevicePrimaryCtxSetFlags_v2(0, 1 << 20));
        let (mut first, mut second) = (CUcontext::NULL, CUcontext::NULL);
        ok!(cuDevicePrimaryCtxRetain(&mut first, 0));
        ok!(cuDevicePrimaryCtxRetain(&mut second, 0));
        assert_eq!(first, second);
        ok!(cuCtxSetCurrent(first));
        ok!(cuCtxGetFlags(&mut flags));
        assert_eq!(flags, CU_CTX_SCHED_BLOCKING_SYNC);
        refused!(ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(first));
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        alloc(MIB);
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        refused!(ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&mut 0, 64));
        ok!(cuDevicePrimaryCtxRetain(&mut first, 0));
        ok!(cuCtxSetCurrent(first));
        assert_eq!(free_bytes(), 960 * MIB);
        ok!(cuDevicePrimaryCtxReset_v2(0));
        ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!(active, 0);
        refused!(ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&mut first, 5));
    }

    a_full_device_has_no_room_for_a_context("mem=128MiB,context=64MiB") {
        context_on(0);
        alloc(64 * MIB);
        refused!(ERROR_OUT_OF_MEMORY, cuCtxCreate_v2(&mut CUcontext(null_mut()), 0, 0));
        refused!(ERROR_INVALID_VALUE, cuCtxCreate_v2(&mut CUcontext(null_mut()), 1 << 16, 0));
        refused!(ERROR_INVALID_VALUE, cuCtxCreate_v2(null_mut(), 0, 0));
    }

    what_is_set_is_read_back("") {
        let context = context_on(0);
        let mut value = 0;
        ok!(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
        ok!(cuCtxGetLimit(&mut value, CU_LIMIT_STACK_SIZE));
        assert_eq!(value, 4096);
        refused!(ERROR_UNSUPPORTED_LIMIT, cuCtxGetLimit(&mut value, 77));
        refused!(ERROR_INVALID_VALUE, cuCtxSetLimit(CU_LIMIT_STACK_SIZE, usize::MAX));
        let (mut least, mut greatest) = (9, 9);
        ok!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
        assert!(least == 0 && greatest < 0);
        let mut version = 0;
        ok!(cuCtxGetApiVersion(context, &mut version));
        assert!(version >= 3020);
        let (mut id, mut same) = (0, 1);
        ok!(cuCtxGetId(context, &mut id));
        ok!(cuCtxGetId(CUcontext::NULL, &mut same));
        assert_eq!(id, same);
    }

    peers_are_kept_in_books("devices=2") {
        let first = context_on(0);
        let second = context_on(1);
        ok!(cuCtxEnablePeerAccess(first, 0));
        refused!(ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(first, 0));
        refused!(ERROR_INVALID_DEVICE, cuCtxEnablePeerAccess(second, 0));
        ok!(cuCtxDisablePeerAccess(first));
        refused!(ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(first));
    }
}
