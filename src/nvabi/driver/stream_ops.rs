//! Stream memory operations (waiting for and writing a word), attributes and capture into graphs.
//!
//! `cuStreamWaitValue32` and similar functions changed meaning in CUDA 11.7 (`_v2`); the older form worked
//! only if an administrator had enabled it.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_stream_ops_fn {
    ($callback:ident) => {
        $callback! {
            [hook, none, 13010] cuStreamBeginCaptureToCig(
                h_stream: CUstream, stream_cig_capture_params: *mut c_void,
            );
            [hook, none, 13010] cuStreamBeginCaptureToCig_ptsz(
                h_stream: CUstream, stream_cig_capture_params: *mut c_void,
            );
            [pass, none, 13010] cuStreamEndCaptureToCig(h_stream: CUstream);
            [pass, none, 13010] cuStreamEndCaptureToCig_ptsz(h_stream: CUstream);
            [hook, sim, 3020] cuStreamWaitEvent(h_stream: CUstream, h_event: CUevent, flags: u32);
            [hook, sim, 7000] cuStreamWaitEvent_ptsz(
                h_stream: CUstream, h_event: CUevent, flags: u32,
            );
            [hook, sim, 10000] cuStreamBeginCapture(h_stream: CUstream);
            [hook, sim, 10000] cuStreamBeginCapture_ptsz(h_stream: CUstream);
            [hook, sim, 10010] cuStreamBeginCapture_v2(
                h_stream: CUstream, mode: CUstreamCaptureMode,
            );
            [hook, sim, 10010] cuStreamBeginCapture_v2_ptsz(
                h_stream: CUstream, mode: CUstreamCaptureMode,
            );
            [hook, none, 13030] cuStreamBeginRecaptureToGraph(
                h_stream: CUstream, mode: CUstreamCaptureMode, h_graph: CUgraph,
                callback_func: CUgraphRecaptureCallback, user_data: *mut c_void,
            );
            [hook, none, 13030] cuStreamBeginRecaptureToGraph_ptsz(
                h_stream: CUstream, mode: CUstreamCaptureMode, h_graph: CUgraph,
                callback_func: CUgraphRecaptureCallback, user_data: *mut c_void,
            );
            [hook, sim, 12030] cuStreamBeginCaptureToGraph(
                h_stream: CUstream, h_graph: CUgraph, dependencies: *const CUgraphNode,
                dependency_data: *const CUgraphEdgeData, num_dependencies: usize,
                mode: CUstreamCaptureMode,
            );
            [hook, sim, 12030] cuStreamBeginCaptureToGraph_ptsz(
                h_stream: CUstream, h_graph: CUgraph, dependencies: *const CUgraphNode,
                dependency_data: *const CUgraphEdgeData, num_dependencies: usize,
                mode: CUstreamCaptureMode,
            );
            [pass, sim, 10010] cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
            [pass, sim, 10000] cuStreamEndCapture(h_stream: CUstream, ph_graph: *mut CUgraph);
            [pass, sim, 10000] cuStreamEndCapture_ptsz(h_stream: CUstream, ph_graph: *mut CUgraph);
            [pass, sim, 10000] cuStreamIsCapturing(
                h_stream: CUstream, capture_status: *mut CUstreamCaptureStatus,
            );
            [pass, sim, 10000] cuStreamIsCapturing_ptsz(
                h_stream: CUstream, capture_status: *mut CUstreamCaptureStatus,
            );
            [pass, sim, 10010] cuStreamGetCaptureInfo(
                h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus,
                id_out: *mut u64,
            );
            [pass, sim, 10010] cuStreamGetCaptureInfo_ptsz(
                h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus,
                id_out: *mut u64,
            );
            [pass, sim, 11030] cuStreamGetCaptureInfo_v2(
                h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus,
                id_out: *mut u64, graph_out: *mut CUgraph,
                dependencies_out: *mut *const CUgraphNode, num_dependencies_out: *mut usize,
            );
            [pass, sim, 11030] cuStreamGetCaptureInfo_v2_ptsz(
                h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus,
                id_out: *mut u64, graph_out: *mut CUgraph,
                dependencies_out: *mut *const CUgraphNode, num_dependencies_out: *mut usize,
            );
            [pass, sim, 12030] cuStreamGetCaptureInfo_v3(
                h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus,
                id_out: *mut u64, graph_out: *mut CUgraph,
                dependencies_out: *mut *const CUgraphNode,
                edge_data_out: *mut *const CUgraphEdgeData, num_dependencies_out: *mut usize,
            );
            [pass, sim, 12030] cuStreamGetCaptureInfo_v3_ptsz(
                h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus,
                id_out: *mut u64, graph_out: *mut CUgraph,
                dependencies_out: *mut *const CUgraphNode,
                edge_data_out: *mut *const CUgraphEdgeData, num_dependencies_out: *mut usize,
            );
            [pass, sim, 11030] cuStreamUpdateCaptureDependencies(
                h_stream: CUstream, dependencies: *mut CUgraphNode, num_dependencies: usize,
                flags: u32,
            );
            [pass, sim, 11030] cuStreamUpdateCaptureDependencies_ptsz(
                h_stream: CUstream, dependencies: *mut CUgraphNode, num_dependencies: usize,
                flags: u32,
            );
            [pass, sim, 12030] cuStreamUpdateCaptureDependencies_v2(
                h_stream: CUstream, dependencies: *mut CUgraphNode,
                dependency_data: *const CUgraphEdgeData, num_dependencies: usize, flags: u32,
            );
            [pass, sim, 12030] cuStreamUpdateCaptureDependencies_v2_ptsz(
                h_stream: CUstream, dependencies: *mut CUgraphNode,
                dependency_data: *const CUgraphEdgeData, num_dependencies: usize, flags: u32,
            );
            [pass, sim, 11000] cuStreamCopyAttributes(dst_stream: CUstream, src_stream: CUstream);
            [pass, sim, 11000] cuStreamCopyAttributes_ptsz(dst: CUstream, src: CUstream);
            [pass, sim, 11000] cuStreamGetAttribute(
                h_stream: CUstream, attr: CUlaunchAttributeID, value: *mut CUlaunchAttributeValue,
            );
            [pass, sim, 11000] cuStreamGetAttribute_ptsz(
                h_stream: CUstream, attr: CUlaunchAttributeID,
                value_out: *mut CUlaunchAttributeValue,
            );
            [pass, sim, 11000] cuStreamSetAttribute(
                h_stream: CUstream, attr: CUlaunchAttributeID,
                param: *const CUlaunchAttributeValue,
            );
            [pass, sim, 11000] cuStreamSetAttribute_ptsz(
                h_stream: CUstream, attr: CUlaunchAttributeID,
                value: *const CUlaunchAttributeValue,
            );
            [pass, none, 8000] cuStreamWaitValue32(
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32,
            );
            [pass, none, 8000] cuStreamWaitValue32_ptsz(
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32,
            );
            [pass, sim, 11070] cuStreamWaitValue32_v2(
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32,
            );
            [pass, sim, 11070] cuStreamWaitValue32_v2_ptsz(
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32,
            );
            [pass, none, 9000] cuStreamWaitValue64(
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32,
            );
            [pass, none, 9000] cuStreamWaitValue64_ptsz(
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32,
            );
            [pass, sim, 11070] cuStreamWaitValue64_v2(
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32,
            );
            [pass, sim, 11070] cuStreamWaitValue64_v2_ptsz(
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32,
            );
            [pass, none, 8000] cuStreamWriteValue32(
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32,
            );
            [pass, none, 8000] cuStreamWriteValue32_ptsz(
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32,
            );
            [pass, sim, 11070] cuStreamWriteValue32_v2(
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32,
            );
            [pass, sim, 11070] cuStreamWriteValue32_v2_ptsz(
                stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32,
            );
            [pass, none, 9000] cuStreamWriteValue64(
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32,
            );
            [pass, none, 9000] cuStreamWriteValue64_ptsz(
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32,
            );
            [pass, sim, 11070] cuStreamWriteValue64_v2(
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32,
            );
            [pass, sim, 11070] cuStreamWriteValue64_v2_ptsz(
                stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32,
            );
            [pass, none, 8000] cuStreamBatchMemOp(
                stream: CUstream, count: u32, param_array: *mut CUstreamBatchMemOpParams,
                flags: u32,
            );
            [pass, none, 8000] cuStreamBatchMemOp_ptsz(
                stream: CUstream, count: u32, param_array: *mut CUstreamBatchMemOpParams,
                flags: u32,
            );
            [pass, sim, 11070] cuStreamBatchMemOp_v2(
                stream: CUstream, count: u32, param_array: *mut CUstreamBatchMemOpParams,
                flags: u32,
            );
            [pass, sim, 11070] cuStreamBatchMemOp_v2_ptsz(
                stream: CUstream, count: u32, param_array: *mut CUstreamBatchMemOpParams,
                flags: u32,
            );
        }
    };
}
