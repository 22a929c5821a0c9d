//! Graphs as a whole: creation, instantiation, launch, update.
//!
//! From CUDA 12 on `cuGraphInstantiate` in a program's source is `cuGraphInstantiateWithFlags`;
//! both old forms are still exported.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_graph_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 10000] cuGraphCreate(ph_graph: *mut CUgraph, flags: u32);
            [pass, sim, 10000] cuGraphClone(ph_graph_clone: *mut CUgraph, original_graph: CUgraph);
            [pass, sim, 13010] cuGraphGetId(h_graph: CUgraph, graph_id: *mut u32);
            [pass, sim, 13010] cuGraphExecGetId(h_graph_exec: CUgraphExec, graph_id: *mut u32);
            [pass, sim, 10000] cuGraphGetEdges(
                h_graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode,
                num_edges: *mut usize,
            );
            [pass, sim, 12030] cuGraphGetEdges_v2(
                h_graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode,
                edge_data: *mut CUgraphEdgeData, num_edges: *mut usize,
            );
            [pass, sim, 10000] cuGraphRemoveDependencies(
                h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
                num_dependencies: usize,
            );
            [pass, sim, 12030] cuGraphRemoveDependencies_v2(
                h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
                edge_data: *const CUgraphEdgeData, num_dependencies: usize,
            );
            [hook, sim, 11040] cuGraphInstantiateWithFlags(
                ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, flags: u64,
            );
            [hook, sim, 12000] cuGraphInstantiateWithParams(
                ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph,
                instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
            );
            [hook, sim, 12000] cuGraphInstantiateWithParams_ptsz(
                ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph,
                instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
            );
            [pass, sim, 12000] cuGraphExecGetFlags(h_graph_exec: CUgraphExec, flags: *mut u64);
            [hook, sim, 11010] cuGraphUpload(h_graph: CUgraphExec, h_stream: CUstream);
            [hook, sim, 11010] cuGraphUpload_ptsz(h_graph_exec: CUgraphExec, h_stream: CUstream);
            [hook, sim, 10000] cuGraphLaunch(h_graph: CUgraphExec, h_stream: CUstream);
            [hook, sim, 10000] cuGraphLaunch_ptsz(h_graph_exec: CUgraphExec, h_stream: CUstream);
            [hook, sim, 10000] cuGraphExecDestroy(h_graph_exec: CUgraphExec);
            [pass, sim, 10000] cuGraphDestroy(h_graph: CUgraph);
            [hook, sim, 10020] cuGraphExecUpdate(
                h_graph_exec: CUgraphExec, h_graph: CUgraph, h_error_node_out: *mut CUgraphNode,
                update_result_out: *mut CUgraphExecUpdateResult,
            );
            [hook, sim, 12000] cuGraphExecUpdate_v2(
                h_graph_exec: CUgraphExec, h_graph: CUgraph,
                result_info: *mut CUgraphExecUpdateResultInfo,
            );
            [pass, sim, 11030] cuGraphDebugDotPrint(
                h_graph: CUgraph, path: *const c_char, flags: u32,
            );
            [pass, sim, 11030] cuUserObjectCreate(
                object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn,
                initial_refcount: u32, flags: u32,
            );
            [pass, sim, 11030] cuUserObjectRetain(object: CUuserObject, count: u32);
            [pass, sim, 11030] cuUserObjectRelease(object: CUuserObject, count: u32);
            [pass, sim, 11030] cuGraphRetainUserObject(
                graph: CUgraph, object: CUuserObject, count: u32, flags: u32,
            );
            [pass, sim, 11030] cuGraphReleaseUserObject(
                graph: CUgraph, object: CUuserObject, count: u32,
            );
            [hook, sim, 10000] cuGraphInstantiate(
                ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, ph_error_node: *mut CUgraphNode,
                log_buffer: *mut c_char, buffer_size: usize,
            );
            [hook, sim, 11000] cuGraphInstantiate_v2(
                ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, ph_error_node: *mut CUgraphNode,
                log_buffer: *mut c_char, buffer_size: usize,
            );
        }
    };
}
