//! A context killed by a fault: every call that needs it says so, until it is destroyed.

use crate::common::{MS, World, stream};
use crate::harness::{MIB, alloc, context_on, free_bytes};
use gpuslice_nvabi::types::*;
use std::ptr::null_mut;

scenarios! {
    what_killed_a_context_is_told_until_it_is_destroyed("fault=xid:31@launch=2") {
        let before = context_on(0);
        let all = free_bytes();
        let world = World::new();
        let (at, held, stream) = (alloc(64 * MIB), alloc(4), stream(CU_STREAM_NON_BLOCKING));
        let (mut there, mut host, mut byte) = (0, null_mut(), 7_u8);
        let (mut stream_out, mut event_out) = (CUstream::NULL, CUevent::NULL);
        let byte: *mut c_void = (&raw mut byte).cast();
        let (mut free, mut total) = (1, 1);
        world.spin(stream, MS, 0);
        ok!(cuStreamSynchronize(stream));
        let mut ns = MS;
        let mut params: [*mut c_void; 1] = [(&raw mut ns).cast()];
        let (function, params) = (world.function(c"spin_only"), params.as_mut_ptr());
        let none = null_mut();
        let launch = || call!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, none));
        assert_eq!(launch(), CUresult::ERROR_ILLEGAL_ADDRESS);
        assert_eq!(launch(), CUresult::ERROR_ILLEGAL_ADDRESS);
        refused!(ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
        refused!(ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
        refused!(ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&mut there, 4));
        refused!(ERROR_ILLEGAL_ADDRESS, cuMemAllocAsync(&mut there, 4, stream));
        refused!(ERROR_ILLEGAL_ADDRESS, cuMemAllocManaged(&mut there, 4, CU_MEM_ATTACH_GLOBAL));
        refused!(ERROR_ILLEGAL_ADDRESS, cuMemHostAlloc(&mut host, 4096, 0));
        refused!(ERROR_ILLEGAL_ADDRESS, cuMemGetInfo_v2(&mut free, &mut total));
        refused!(ERROR_ILLEGAL_ADDRESS, cuMemcpyHtoD_v2(at, byte, 1));
        refused!(ERROR_ILLEGAL_ADDRESS, cuMemcpyDtoH_v2(byte, at, 1));
        refused!(ERROR_ILLEGAL_ADDRESS, cuMemcpyDtoHAsync_v2(byte, at, 1, stream));
        refused!(ERROR_ILLEGAL_ADDRESS, cuMemsetD8_v2(at, 0, 1));
        refused!(ERROR_ILLEGAL_ADDRESS, cuStreamCreate(&mut stream_out, 0));
        refused!(ERROR_ILLEGAL_ADDRESS, cuEventCreate(&mut event_out, 0));
        refused!(ERROR_ILLEGAL_ADDRESS, cuMemFree_v2(at));
        assert_eq!((there, free, host.is_null()), (0, 1, true));
        // The other context goes on, and the dead one's memory comes back with its end.
        ok!(cuCtxPushCurrent_v2(before));
        assert!(free_bytes() <= all - 64 * MIB);
        refused!(ERROR_ILLEGAL_ADDRESS, cuMemFree_v2(held));
        ok!(cuCtxDestroy_v2(world.context));
        assert_eq!(free_bytes(), all);
        ok!(cuMemFree_v2(alloc(4)));
        refused!(ERROR_INVALID_VALUE, cuMemFree_v2(held));
    }
}
