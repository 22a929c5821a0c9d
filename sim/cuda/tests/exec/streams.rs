//! Order, time and waiting.

use crate::common::{LEAD_MS, MS, PTX, World, event, milliseconds, pinned};
use crate::common::{placed_together, stream, together, word};
use crate::harness::{alloc, context_on, get, pattern, put};
use gpuslice_nvabi::types::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

static CALLS: AtomicU32 = AtomicU32::new(0);
static GATE: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn count(data: *mut c_void) {
    CALLS.fetch_add(data as usize as u32, Ordering::SeqCst);
}

unsafe extern "C" fn callback(stream: CUstream, status: CUresult, data: *mut c_void) {
    assert!(!stream.is_null() && status == CUresult::SUCCESS);
    CALLS.fetch_add(data as usize as u32, Ordering::SeqCst);
}

/// Returns when the gate is open.
unsafe extern "C" fn block(_: *mut c_void) {
    while GATE.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn soon(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

scenarios! {
    five_milliseconds_are_five_milliseconds("") {
        let world = World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let (before, start, end) = (event(), event(), event());
        ok!(cuEventRecord(before, stream));
        together(&world, stream, || {
            ok!(cuEventRecord(start, stream));
            world.spin(stream, 5 * MS, 0);
            ok!(cuEventRecord(end, stream));
            refused!(ERROR_NOT_READY, cuEventQuery(end));
            let mut time = 0.0;
            refused!(ERROR_NOT_READY, cuEventElapsedTime(&mut time, start, end));
            refused!(ERROR_NOT_READY, cuStreamQuery(stream));
        });
        ok!(cuEventSynchronize(end));
        ok!(cuStreamQuery(stream));
        let time = milliseconds(start, end);
        assert!((4.95..=5.05).contains(&time), "{time} ms");
        assert!(milliseconds(before, end) >= (LEAD_MS + 5) as f32);
        assert!(milliseconds(end, start) < 0.0);
    }

    a_train_of_kernels_has_no_gaps("") {
        let world = World::new();
        let (start, end) = (event(), event());
        // A late thread makes a gap of its own: such a train shows nothing.
        let in_time = (0..5).any(|_| {
            let in_time = placed_together(&world, CUstream::NULL, || {
                ok!(cuEventRecord(start, CUstream::NULL));
                for _ in 0..100 {
                    world.spin(CUstream::NULL, MS / 10, 0);
                }
                ok!(cuEventRecord(end, CUstream::NULL));
            });
            // No thread calls the driver while the device works.
            std::thread::sleep(Duration::from_millis(LEAD_MS + 100));
            ok!(cuCtxSynchronize());
            in_time
        });
        assert!(in_time, "no train was placed in time");
        let time = milliseconds(start, end);
        assert!((9.9..=10.1).contains(&time), "{time} ms");
    }

    bytes_move_in_the_order_of_the_stream("") {
        let world = World::new();
        let (one, two) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
        let (a, b) = (alloc(1 << 20), alloc(1 << 20));
        let bytes = pattern(1 << 20, 3);
        let done = event();
        put(a, &bytes);
        world.spin(one, 5 * MS, 0);
        ok!(cuMemcpyDtoDAsync_v2(b, a, 1 << 20, one));
        ok!(cuMemsetD8Async(b, 7, 16, one));
        ok!(cuEventRecord(done, one));
        ok!(cuStreamWaitEvent(two, done, 0));
        ok!(cuMemsetD8Async(b, 9, 8, two));
        ok!(cuStreamSynchronize(two));
        let found = get(b, 1 << 20);
        assert_eq!(found[..8], [9; 8]);
        assert_eq!(found[8..16], [7; 8]);
        assert_eq!(found[16..], bytes[16..]);
    }

    host_functions_take_their_turn("") {
        let world = World::new();
        let stream = stream(CU_STREAM_DEFAULT);
        together(&world, stream, || {
            ok!(cuLaunchHostFunc(stream, Some(count), 2 as *mut c_void));
            ok!(cuStreamAddCallback(stream, Some(callback), 20 as *mut c_void, 0));
            let seen = CALLS.load(Ordering::SeqCst);
            assert!(seen == 0, "the kernel is not over");
        });
        // No thread waits for the stream: the driver's own threads run it.
        soon("both were called", || CALLS.load(Ordering::SeqCst) == 22);
        ok!(cuStreamSynchronize(stream));
        refused!(ERROR_INVALID_VALUE, cuLaunchHostFunc(stream, None, std::ptr::null_mut()));
    }

    a_blocked_stream_blocks_no_other("") {
        let world = World::new();
        let (held, free) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
        let counter = alloc(4);
        ok!(cuLaunchHostFunc(held, Some(block), std::ptr::null_mut()));
        world.spin(held, MS, counter);
        world.spin(free, MS, counter);
        ok!(cuStreamSynchronize(free));
        assert_eq!(word(counter), 1);
        refused!(ERROR_NOT_READY, cuStreamQuery(held));
        GATE.store(1, Ordering::SeqCst);
        ok!(cuStreamSynchronize(held));
        assert_eq!(word(counter), 2);
    }

    the_default_stream_waits_for_blocking_streams("") {
        let world = World::new();
        let (blocking, free) = (stream(CU_STREAM_DEFAULT), stream(CU_STREAM_NON_BLOCKING));
        let counter = alloc(4);
        let gate = pinned();
        ok!(cuStreamWaitValue32_v2(blocking, gate as u64, 1, 0));
        world.spin(blocking, MS, counter);
        world.spin(CUstream::NULL, MS, counter);
        world.spin(CU_STREAM_PER_THREAD, MS, counter);
        world.spin(free, MS, 0);
        ok!(cuStreamSynchronize(free));
        refused!(ERROR_NOT_READY, cuStreamQuery(CUstream::NULL));
        refused!(ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
        refused!(ERROR_NOT_READY, cuStreamQuery_ptsz(CUstream::NULL));
        // SAFETY: pinned memory of this test; the driver reads the word atomically.
        unsafe { AtomicU32::from_ptr(gate) }.store(1, Ordering::SeqCst);
        ok!(cuStreamSynchronize_ptsz(CUstream::NULL));
        ok!(cuStreamSynchronize(CUstream::NULL));
        assert_eq!(word(counter), 3);
    }

    streams_and_events_describe_themselves("") {
        let context = context_on(0);
        let mut urgent = CUstream::NULL;
        ok!(cuStreamCreateWithPriority(&mut urgent, CU_STREAM_NON_BLOCKING, -3));
        let (mut priority, mut flags, mut owner) = (0, 9, CUcontext::NULL);
        let (mut id, mut other, mut device) = (0, 0, -1);
        ok!(cuStreamGetPriority(urgent, &mut priority));
        ok!(cuStreamGetFlags(urgent, &mut flags));
        ok!(cuStreamGetCtx(urgent, &mut owner));
        ok!(cuStreamGetDevice(urgent, &mut device));
        ok!(cuStreamGetId(urgent, &mut id));
        ok!(cuStreamGetId(CUstream::NULL, &mut other));
        assert_eq!((priority, flags, owner, device), (-3, CU_STREAM_NON_BLOCKING, context, 0));
        assert_ne!(id, other);
        let mut made = CUstream::NULL;
        refused!(ERROR_INVALID_VALUE, cuStreamCreate(&mut made, 2));
        ok!(cuStreamDestroy_v2(urgent));
        refused!(ERROR_INVALID_HANDLE, cuStreamQuery(urgent));
        refused!(ERROR_INVALID_HANDLE, cuStreamDestroy_v2(urgent));
        refused!(ERROR_INVALID_HANDLE, cuStreamDestroy_v2(CUstream::NULL));
        let (mut timeless, mut bad) = (CUevent::NULL, CUevent::NULL);
        ok!(cuEventCreate(&mut timeless, CU_EVENT_DISABLE_TIMING));
        refused!(ERROR_INVALID_VALUE, cuEventCreate(&mut bad, CU_EVENT_INTERPROCESS));
        let timed = event();
        let mut time = 0.0;
        ok!(cuEventQuery(timed));
        refused!(ERROR_INVALID_HANDLE, cuEventElapsedTime(&mut time, timed, timed));
        ok!(cuEventRecord(timed, CUstream::NULL));
        ok!(cuEventRecord(timeless, CUstream::NULL));
        ok!(cuCtxSynchronize());
        refused!(ERROR_INVALID_HANDLE, cuEventElapsedTime(&mut time, timed, timeless));
        ok!(cuEventDestroy_v2(timed));
        refused!(ERROR_INVALID_HANDLE, cuEventQuery(timed));
    }

    a_destroyed_stream_ends_its_work("") {
        let world = World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let counter = alloc(4);
        world.spin(stream, 10 * MS, counter);
        ok!(cuStreamDestroy_v2(stream));
        ok!(cuCtxSynchronize());
        assert_eq!(word(counter), 1);
    }

    a_wild_counter_kills_the_context("") {
        let world = World::new();
        world.spin(CUstream::NULL, MS, 0xdead_bee0);
        refused!(ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
        refused!(ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(CUstream::NULL));
        // The death of a context is its own.
        ok!(cuCtxDestroy_v2(world.context));
        let mut context = CUcontext::NULL;
        ok!(cuCtxCreate_v2(&mut context, 0, 0));
        ok!(cuCtxSynchronize());
    }

    a_fault_of_the_device_kills_the_context("devices=2"; GPUSLICE_SIM_FAULT = "xid:31@launch=2") {
        let world = World::new();
        world.spin(CUstream::NULL, MS, 0);
        ok!(cuCtxSynchronize());
        // The launch itself may be told, or only what waits for it.
        let (plain, none) = (world.function(c"plain"), std::ptr::null_mut());
        let _ = call!(cuLaunchKernel(plain, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, none, none.cast()));
        refused!(ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
        let mut refused_stream = CUstream::NULL;
        refused!(ERROR_ILLEGAL_ADDRESS, cuStreamCreate(&mut refused_stream, 0));
        context_on(1);
        ok!(cuCtxSynchronize());
    }

    a_full_queue_lets_the_caller_wait("") {
        let world = World::new();
        let counter = alloc(4);
        for _ in 0..5000 {
            world.spin(CUstream::NULL, 1000, counter);
        }
        ok!(cuCtxSynchronize());
        assert_eq!(word(counter), 5000);
    }

    a_context_that_ends_waits_for_what_it_can("") {
        let context = context_on(0);
        let mut module = CUmodule::NULL;
        ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
        let host = pinned();
        let device = alloc(4);
        put(device, &7_u32.to_ne_bytes());
        ok!(cuMemcpyDtoHAsync_v2(host.cast(), device, 4, stream(0)));
        ok!(cuCtxDestroy_v2(context));
    }
}
