//! A strict driver: calls that block, memory that is taken late, hardware queues that are shared.

use crate::common::{MS, World, event, milliseconds, pinned, stream};
use crate::harness::{MIB, alloc, context_on, free_bytes};
use gpuslice_nvabi::types::*;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

fn set(word: *mut u32) {
    // SAFETY: pinned memory; the driver reads the word atomically.
    unsafe { AtomicU32::from_ptr(word) }.store(1, Ordering::SeqCst);
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn current(context: CUcontext) {
    ok!(cuCtxSetCurrent(context));
}

fn is_loaded(function: CUfunction) -> bool {
    let mut state = 0;
    ok!(cuFuncIsLoaded(&mut state, function));
    state == CU_FUNCTION_LOADING_STATE_LOADED
}

fn loading_mode() -> CUmoduleLoadingMode {
    let mut mode = 0;
    ok!(cuModuleGetLoadingMode(&mut mode));
    mode
}

/// A stream that waits for a word, so that a free of memory waits for it: the word, the memory, and a second stream
/// with an event that has passed.
fn held_up() -> (*mut u32, CUdeviceptr, CUevent, CUstream) {
    let (kernel, other) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
    let (event, word, memory) = (event(), pinned(), alloc(4));
    ok!(cuEventRecord(event, other));
    ok!(cuStreamSynchronize(other));
    ok!(cuStreamWaitValue32_v2(kernel, word as u64, 1, 0));
    (word, memory, event, other)
}

scenarios! {
    /// The strict profile: its smallest times are asserted, its largest never.
    the_creation_of_a_context_blocks_and_takes_memory("profile=strict,mem=2GiB") {
        let took = timed(|| { context_on(0); });
        assert!(took >= Duration::from_millis(100), "{took:?}");
        let used = (2 << 30) - free_bytes();
        assert_eq!(used, 524 * MIB);
    }

    the_first_launch_of_a_function_loads_it("lazy=50ms,module=8MiB,mem=1GiB") {
        let world = World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let all = free_bytes();
        assert_eq!(loading_mode(), CU_MODULE_LAZY_LOADING);
        let function = world.function(c"spin_only");
        assert!(!is_loaded(function));
        let first = timed(|| world.spin(stream, 1, 0));
        assert!(first >= Duration::from_millis(50), "{first:?}");
        assert!(is_loaded(function));
        assert_eq!(all - free_bytes(), 8 * MIB);
        // A second function of the module takes its time, and no memory more.
        let counter = alloc(4);
        let all = free_bytes();
        let second = timed(|| world.spin(stream, 1, counter));
        assert!(second >= Duration::from_millis(50), "{second:?}");
        assert_eq!(free_bytes(), all);
        // No launch of a loaded function waits: of many the fastest shows it on a busy machine as well.
        let again = (0..20).map(|_| timed(|| world.spin(stream, 1, 0))).min();
        assert!(again < Some(Duration::from_millis(50)), "{again:?}");
    }

    memory_that_the_first_launch_cannot_have("lazy=1ms,module=8MiB,mem=1GiB") {
        let world = World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let held = alloc(free_bytes());
        let mut ns = 1_u64;
        let mut params: [*mut c_void; 1] = [(&raw mut ns).cast()];
        let (function, params) = (world.function(c"spin_only"), params.as_mut_ptr());
        let none = std::ptr::null_mut();
        let launch = || call!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, none));
        assert_eq!(launch(), CUresult::ERROR_OUT_OF_MEMORY);
        ok!(cuMemFree_v2(held));
        assert_eq!(launch(), CUresult::SUCCESS);
    }

    a_program_may_load_eagerly("lazy=1s,module=8MiB,mem=1GiB"; CUDA_MODULE_LOADING = "EAGER") {
        context_on(0);
        let all = free_bytes();
        let world = World::new();
        // World has a context of its own, of 64 MiB.
        assert_eq!(all - free_bytes(), (64 + 8) * MIB);
        assert_eq!(loading_mode(), CU_MODULE_EAGER_LOADING);
        assert!(is_loaded(world.function(c"plain")));
    }

    a_call_that_blocks_holds_up_queries("lock=on") {
        let world = World::new();
        let context = world.context.0 as usize;
        let is_held = || {
            let (word, memory, event, _) = held_up();
            let (word, asked, opened) = (word as usize, AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    current(CUcontext(context as *mut _));
                    ok!(cuMemFree_v2(memory));
                });
                scope.spawn(|| {
                    while !asked.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    std::thread::sleep(Duration::from_millis(300));
                    opened.store(true, Ordering::SeqCst);
                    set(word as *mut u32);
                });
                std::thread::sleep(Duration::from_millis(100));
                asked.store(true, Ordering::SeqCst);
                ok!(cuEventQuery(event));
                opened.load(Ordering::SeqCst)
            })
        };
        // Until the other thread is inside its call nothing holds the query up.
        assert!((0..10).any(|_| is_held()), "no query waited");
    }

    with_a_kind_driver_queries_pass_a_call_that_blocks("") {
        let world = World::new();
        let (word, memory, event, other) = held_up();
        let (context, there) = (world.context.0 as usize, AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                current(CUcontext(context as *mut _));
                there.store(true, Ordering::SeqCst);
                ok!(cuMemFree_v2(memory));
            });
            while !there.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(50));
            ok!(cuEventQuery(event));
            ok!(cuStreamQuery(other));
            set(word);
        });
    }

    a_full_queue_blocks_the_launch("") {
        let world = World::new();
        let (stream, word) = (stream(CU_STREAM_NON_BLOCKING), pinned());
        ok!(cuStreamWaitValue32_v2(stream, word as u64, 1, 0));
        let (launched, context) = (AtomicU32::new(0), world.context.0 as usize);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                current(CUcontext(context as *mut _));
                for _ in 0..2_000 {
                    world.spin(stream, 1, 0);
                    launched.fetch_add(1, Ordering::SeqCst);
                }
            });
            while launched.load(Ordering::SeqCst) < 1_000 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(100));
            assert!(launched.load(Ordering::SeqCst) <= 1_024);
            set(word);
        });
        assert_eq!(launched.load(Ordering::SeqCst), 2_000);
    }

    streams_share_hardware_queues("queues=2") {
        let world = World::new();
        let streams = [(); 3].map(|()| stream(CU_STREAM_NON_BLOCKING));
        let word = pinned();
        ok!(cuStreamWaitValue32_v2(streams[0], word as u64, 1, 0));
        world.spin(streams[1], MS, 0);
        world.spin(streams[2], MS, 0);
        ok!(cuStreamSynchronize(streams[1]));
        std::thread::sleep(Duration::from_millis(20));
        refused!(ERROR_NOT_READY, cuStreamQuery(streams[2]));
        set(word);
        ok!(cuStreamSynchronize(streams[2]));
    }

    a_program_may_ask_for_more_hardware_queues("queues=1"; CUDA_DEVICE_MAX_CONNECTIONS = "32") {
        let world = World::new();
        let streams = [(); 32].map(|()| stream(CU_STREAM_NON_BLOCKING));
        let word = pinned();
        ok!(cuStreamWaitValue32_v2(streams[0], word as u64, 1, 0));
        for stream in &streams[1..] {
            world.spin(*stream, 1_000, 0);
            ok!(cuStreamSynchronize(*stream));
        }
        set(word);
    }

    /// Managed memory comes to the device with the kernel that uses it, and gives way with its bytes.
    managed_memory_moves("managed=moves,mem=128MiB,context=0B,module=0B") {
        let world = World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let managed = [(); 2].map(|()| {
            let mut pointer = 0;
            ok!(cuMemAllocManaged(&mut pointer, 80 * MIB, CU_MEM_ATTACH_GLOBAL));
            pointer
        });
        assert_eq!(free_bytes(), 128 * MIB, "none of it is used");
        let (begin, end) = (event(), event());
        ok!(cuEventRecord(begin, stream));
        world.spin(stream, 1_000, managed[0] + 4);
        ok!(cuEventRecord(end, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(free_bytes(), 48 * MIB);
        // 80 MiB with 50 GB/s.
        assert!(milliseconds(begin, end) > 1.6, "{}", milliseconds(begin, end));
        world.spin(stream, 1_000, managed[1]);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(free_bytes(), 48 * MIB, "in the place of the first");
        let plain = alloc(128 * MIB);
        ok!(cuMemsetD8_v2(plain, 7, 128 * MIB));
        refused!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut 0, 1));
        for pointer in managed {
            let at = if pointer == managed[0] { pointer + 4 } else { pointer };
            assert_eq!(crate::common::word(at), 1, "what the kernel has written");
        }
        ok!(cuMemFree_v2(plain));
        ok!(cuMemPrefetchAsync(managed[0], 80 * MIB, 0, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(free_bytes(), 48 * MIB);
        ok!(cuMemPrefetchAsync(managed[0], 80 * MIB, -1, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(free_bytes(), 128 * MIB);
        ok!(cuMemsetD8Async(managed[1], 1, 80 * MIB, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(free_bytes(), 48 * MIB);
        ok!(cuMemFree_v2(managed[1]));
        ok!(cuMemFree_v2(managed[0]));
        assert_eq!(free_bytes(), 128 * MIB);
    }

    streams_run_at_the_same_time("overlap=on,queues=8") {
        let world = World::new();
        let streams = [(); 2].map(|()| stream(CU_STREAM_NON_BLOCKING));
        let (begins, ends) = ([(); 2].map(|()| event()), [(); 2].map(|()| event()));
        // A late thread places one kernel after the other one's end: such a pair shows nothing.
        let in_time = (0..5).any(|_| {
            let word = pinned();
            for at in 0..2 {
                ok!(cuStreamWaitValue32_v2(streams[at], word as u64, 1, 0));
                world.spin(streams[at], 1_000, 0);
                ok!(cuEventRecord(begins[at], streams[at]));
                world.spin(streams[at], 300 * MS, 0);
                ok!(cuEventRecord(ends[at], streams[at]));
            }
            let took = timed(|| {
                set(word);
                // A query places what it can in all streams, or waits for the thread that does.
                let _ = call!(cuStreamQuery(streams[0]));
            });
            ok!(cuCtxSynchronize());
            took < Duration::from_millis(250)
        });
        assert!(in_time, "no pair was placed in time");
        for (begin, end) in [(0, 1), (1, 0)] {
            let both = milliseconds(begins[begin], ends[end]);
            assert!(both > 0.0, "one ends {both} ms after the other one's begin");
        }
    }

    /// Kernels of blocking streams end before one of the default stream begins, whatever their queues.
    the_default_stream_is_a_barrier("overlap=on,queues=8") {
        let world = World::new();
        let streams = [(); 3].map(|()| stream(CU_STREAM_DEFAULT));
        let (before, after) = ([(); 3].map(|()| event()), [(); 3].map(|()| event()));
        let (begin, end) = (event(), event());
        for (at, ns) in [9 * MS, 3 * MS, 6 * MS].into_iter().enumerate() {
            world.spin(streams[at], ns, 0);
            ok!(cuEventRecord(before[at], streams[at]));
        }
        ok!(cuEventRecord(begin, CU_STREAM_LEGACY));
        world.spin(CU_STREAM_LEGACY, MS, 0);
        ok!(cuEventRecord(end, CU_STREAM_LEGACY));
        for at in 0..3 {
            ok!(cuEventRecord(after[at], streams[at]));
        }
        ok!(cuCtxSynchronize());
        assert!(before.iter().all(|it| milliseconds(*it, begin) >= 0.0));
        assert!(milliseconds(begin, end) >= 1.0);
        assert!(after.iter().all(|it| milliseconds(end, *it) >= 0.0));
    }

    events_take_time_on_the_gpu("event=10ms") {
        World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let (first, last) = (event(), event());
        ok!(cuEventRecord(first, stream));
        for _ in 0..4 {
            ok!(cuEventRecord(event(), stream));
        }
        ok!(cuEventRecord(last, stream));
        ok!(cuStreamSynchronize(stream));
        assert!(milliseconds(first, last) >= 49.0, "{}", milliseconds(first, last));
    }
}
