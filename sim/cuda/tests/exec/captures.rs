//! Capture of streams.

use crate::common::{MS, World, event, stream, word};
use crate::graphs::instantiate;
use crate::harness::{alloc, get, put};
use gpuslice_nvabi::types::*;
use std::ptr::{null, null_mut};

fn begin(stream: CUstream) {
    ok!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

fn end(stream: CUstream) -> CUgraph {
    let mut graph = CUgraph::NULL;
    ok!(cuStreamEndCapture(stream, &mut graph));
    graph
}

fn status(stream: CUstream) -> CUstreamCaptureStatus {
    let mut status = 99;
    ok!(cuStreamIsCapturing(stream, &mut status));
    status
}

scenarios! {
    what_is_captured_happens_at_launch("") {
        let world = World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let (a, b, counter) = (alloc(16), alloc(16), alloc(4));
        put(a, &[3; 16]);
        assert_eq!(status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
        begin(stream);
        assert_eq!(status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
        world.spin(stream, MS, counter);
        ok!(cuMemcpyDtoDAsync_v2(b, a, 16, stream));
        ok!(cuMemsetD8Async(b, 4, 8, stream));
        ok!(cuStreamWriteValue32_v2(stream, a, 1, 0));
        let (mut state, mut id, mut graph, mut tips, mut count) =
            (0, 0, CUgraph::NULL, null(), 0);
        ok!(cuStreamGetCaptureInfo_v2(
            stream, &mut state, &mut id, &mut graph, &mut tips, &mut count
        ));
        assert_eq!((state, count), (CU_STREAM_CAPTURE_STATUS_ACTIVE, 1));
        assert!(id > 0 && !graph.is_null() && !tips.is_null());
        let captured = end(stream);
        assert_eq!(captured, graph);
        assert_eq!(status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
        ok!(cuCtxSynchronize());
        assert_eq!((word(counter), word(b)), (0, 0));
        let mut nodes = 0;
        ok!(cuGraphGetNodes(captured, null_mut(), &mut nodes));
        assert_eq!(nodes, 4);
        let exec = instantiate(captured);
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!((word(counter), word(a)), (1, 1));
        assert_eq!(get(b, 16), [[4_u8; 8], [3; 8]].concat());
    }

    streams_join_by_events("") {
        let world = World::new();
        let (first, second) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
        let (fork, join, counter) = (event(), event(), alloc(4));
        begin(first);
        world.spin(first, MS, counter);
        ok!(cuEventRecord(fork, first));
        refused!(ERROR_CAPTURED_EVENT, cuEventQuery(fork));
        ok!(cuStreamWaitEvent(second, fork, 0));
        assert_eq!(status(second), CU_STREAM_CAPTURE_STATUS_ACTIVE);
        world.spin(second, 2 * MS, counter);
        world.spin(first, 3 * MS, counter);
        ok!(cuEventRecord(join, second));
        ok!(cuStreamWaitEvent(first, join, 0));
        world.spin(first, MS, counter);
        let mut graph = CUgraph::NULL;
        refused!(ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(second, &mut graph));
        let graph = end(first);
        let (mut edges, mut nodes) = (0, 0);
        ok!(cuGraphGetNodes(graph, null_mut(), &mut nodes));
        ok!(cuGraphGetEdges(graph, null_mut(), null_mut(), &mut edges));
        assert_eq!((nodes, edges), (4, 4));
        assert_eq!(status(second), CU_STREAM_CAPTURE_STATUS_NONE);
        ok!(cuGraphLaunch(instantiate(graph), first));
        ok!(cuStreamSynchronize(first));
        assert_eq!(word(counter), 4);
        ok!(cuEventRecord(fork, first));
        ok!(cuEventSynchronize(fork));
    }

    what_spoils_a_capture("") {
        let world = World::new();
        let (first, second) = (stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING));
        let (outside, fork, mut graph) = (event(), event(), CUgraph::NULL);
        let at = alloc(4);
        // Waiting for work that has not run.
        begin(first);
        refused!(ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(first));
        assert_eq!(status(first), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        refused!(
            ERROR_STREAM_CAPTURE_INVALIDATED,
            cuStreamWriteValue32_v2(first, at, 1, 0)
        );
        refused!(ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(first, &mut graph));
        assert!(graph.is_null());
        // Waiting for work outside the capture.
        world.spin(second, MS, 0);
        ok!(cuEventRecord(outside, second));
        begin(first);
        refused!(ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(first, outside, 0));
        refused!(ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(first, &mut graph));
        // A stream that joined and was never joined back.
        begin(first);
        ok!(cuEventRecord(fork, first));
        ok!(cuStreamWaitEvent(second, fork, 0));
        world.spin(second, MS, 0);
        refused!(ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(first, &mut graph));
        // Two captures cannot become one.
        begin(first);
        begin(second);
        ok!(cuEventRecord(fork, first));
        refused!(ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(second, fork, 0));
        refused!(ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(first, &mut graph));
        refused!(ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(second, &mut graph));
        // Nor is the whole context to be waited for, nor the legacy default stream to be used
        // beside a blocking stream.
        begin(first);
        refused!(ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
        refused!(ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(first, &mut graph));
        let blocking = stream(CU_STREAM_DEFAULT);
        begin(blocking);
        // To ask is not to use.
        let mut asked = CU_STREAM_CAPTURE_STATUS_NONE;
        refused!(ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(CUstream::NULL, &mut asked));
        assert_eq!(status(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
        refused!(ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD8Async(at, 1, 4, CUstream::NULL));
        refused!(ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &mut graph));
        refused!(
            ERROR_STREAM_CAPTURE_UNSUPPORTED,
            cuStreamBeginCapture_v2(CUstream::NULL, CU_STREAM_CAPTURE_MODE_GLOBAL)
        );
        refused!(ERROR_ILLEGAL_STATE, cuStreamEndCapture(first, &mut graph));
        // All is as it was.
        begin(first);
        world.spin(first, MS, 0);
        ok!(cuGraphDestroy(end(first)));
        ok!(cuCtxSynchronize());
    }

    what_may_wait_is_forbidden_meanwhile("") {
        let _world = World::new();
        let (stream, outside, at) = (stream(CU_STREAM_NON_BLOCKING), event(), alloc(4));
        let (mut graph, mut there, mut byte) = (CUgraph::NULL, 0, 7_u8);
        let byte: *mut u8 = &raw mut byte;
        ok!(cuEventRecord(outside, stream));
        let mut spoils = |what: &str, code: CUresult| {
            assert_eq!(code, CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED, "{what}");
            assert_eq!(status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED, "{what}");
            refused!(ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &mut graph));
            begin(stream);
        };
        begin(stream);
        spoils("alloc", call!(cuMemAlloc_v2(&mut there, 4)));
        spoils("managed", call!(cuMemAllocManaged(&mut there, 4, CU_MEM_ATTACH_GLOBAL)));
        spoils("free", call!(cuMemFree_v2(at)));
        spoils("module", call!(cuModuleLoadData(null_mut(), null())));
        spoils("copy", call!(cuMemcpyDtoH_v2(byte.cast(), at, 1)));
        spoils("event", call!(cuEventQuery(outside)));
        spoils("event", call!(cuEventSynchronize(outside)));
        assert_eq!(there, 0);
        // What cannot wait is allowed, and so is all in a thread that says it knows.
        ok!(cuMemsetD8Async(at, 1, 1, stream));
        assert!(crate::harness::free_bytes() > 0);
        let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
        ok!(cuMemFree_v2(alloc(4)));
        ok!(cuEventQuery(outside));
        ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
        end(stream);
        ok!(cuMemFree_v2(at));
    }

    a_global_capture_binds_other_threads("") {
        let world = World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let context = world.context;
        // Allocates in another thread that is in the given mode.
        let alloc_in = |mut mode: CUstreamCaptureMode| {
            let thread = std::thread::spawn(move || {
                let mut there = 0;
                ok!(cuCtxSetCurrent(context));
                ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
                call!(cuMemAlloc_v2(&mut there, 4))
            });
            thread.join().unwrap()
        };
        let [global, local, relaxed] = [
            CU_STREAM_CAPTURE_MODE_GLOBAL,
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CU_STREAM_CAPTURE_MODE_RELAXED,
        ];
        for of_capture in [global, local, relaxed] {
            ok!(cuStreamBeginCapture_v2(stream, of_capture));
            for of_thread in [relaxed, local, global] {
                let forbidden = [of_capture, of_thread] == [global; 2];
                let expected = match forbidden {
                    true => CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED,
                    false => CUresult::SUCCESS,
                };
                assert_eq!(alloc_in(of_thread), expected, "{of_capture} {of_thread}");
            }
            let mut graph = CUgraph::NULL;
            let ended = call!(cuStreamEndCapture(stream, &mut graph));
            assert_eq!(ended == CUresult::SUCCESS, of_capture != global, "{of_capture}");
        }
    }

    only_the_thread_that_began_may_end("") {
        let world = World::new();
        let stream = stream(CU_STREAM_NON_BLOCKING);
        let elsewhere = |stream: CUstream, context: CUcontext| {
            let thread = std::thread::spawn(move || {
                let mut graph = CUgraph::NULL;
                ok!(cuCtxSetCurrent(context));
                call!(cuStreamEndCapture(stream, &mut graph))
            });
            thread.join().unwrap()
        };
        begin(stream);
        let wrong = CUresult::ERROR_STREAM_CAPTURE_WRONG_THREAD;
        assert_eq!(elsewhere(stream, world.context), wrong);
        end(stream);
        ok!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        assert_eq!(elsewhere(stream, world.context), CUresult::SUCCESS);
        let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
        assert_eq!(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    }

    a_capture_can_go_on_in_a_graph("") {
        let world = World::new();
        let (stream, counter) = (stream(CU_STREAM_NON_BLOCKING), alloc(4));
        let (graph, mut root) = (crate::graphs::graph(), CUgraphNode::NULL);
        ok!(cuGraphAddEmptyNode(&mut root, graph, null(), 0));
        let mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        ok!(cuStreamBeginCaptureToGraph(stream, graph, &root, null(), 1, mode));
        world.spin(stream, MS, counter);
        let flags = CU_STREAM_SET_CAPTURE_DEPENDENCIES;
        ok!(cuStreamUpdateCaptureDependencies(stream, &mut root, 1, flags));
        world.spin(stream, MS, counter);
        assert_eq!(end(stream), graph);
        let mut count = 0;
        ok!(cuGraphNodeGetDependentNodes(root, null_mut(), &mut count));
        assert_eq!(count, 2);
        ok!(cuGraphLaunch(instantiate(graph), stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word(counter), 2);
    }
}
