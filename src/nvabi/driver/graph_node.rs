//! Graph nodes: adding, describing, changing them and the edges between them.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_graph_node_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 10000] cuGraphAddKernelNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize,
                node_params: *const CUDA_KERNEL_NODE_PARAMS_v1,
            );
            [pass, sim, 12000] cuGraphAddKernelNode_v2(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize,
                node_params: *const CUDA_KERNEL_NODE_PARAMS,
            );
            [pass, sim, 10000] cuGraphKernelNodeGetParams(
                h_node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS_v1,
            );
            [pass, sim, 12000] cuGraphKernelNodeGetParams_v2(
                h_node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS,
            );
            [pass, sim, 10000] cuGraphKernelNodeSetParams(
                h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1,
            );
            [pass, sim, 12000] cuGraphKernelNodeSetParams_v2(
                h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS,
            );
            [pass, sim, 10000] cuGraphAddMemcpyNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize,
                copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext,
            );
            [pass, sim, 10000] cuGraphMemcpyNodeGetParams(
                h_node: CUgraphNode, node_params: *mut CUDA_MEMCPY3D,
            );
            [pass, sim, 10000] cuGraphMemcpyNodeSetParams(
                h_node: CUgraphNode, node_params: *const CUDA_MEMCPY3D,
            );
            [pass, sim, 10000] cuGraphAddMemsetNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize,
                memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext,
            );
            [pass, sim, 10000] cuGraphMemsetNodeGetParams(
                h_node: CUgraphNode, node_params: *mut CUDA_MEMSET_NODE_PARAMS,
            );
            [pass, sim, 10000] cuGraphMemsetNodeSetParams(
                h_node: CUgraphNode, node_params: *const CUDA_MEMSET_NODE_PARAMS,
            );
            [pass, sim, 10000] cuGraphAddHostNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize,
                node_params: *const CUDA_HOST_NODE_PARAMS,
            );
            [pass, sim, 10000] cuGraphHostNodeGetParams(
                h_node: CUgraphNode, node_params: *mut CUDA_HOST_NODE_PARAMS,
            );
            [pass, sim, 10000] cuGraphHostNodeSetParams(
                h_node: CUgraphNode, node_params: *const CUDA_HOST_NODE_PARAMS,
            );
            [pass, sim, 10000] cuGraphAddChildGraphNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize, child_graph: CUgraph,
            );
            [pass, sim, 10000] cuGraphChildGraphNodeGetGraph(
                h_node: CUgraphNode, ph_graph: *mut CUgraph,
            );
            [pass, sim, 10000] cuGraphAddEmptyNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize,
            );
            [pass, sim, 11010] cuGraphAddEventRecordNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize, event: CUevent,
            );
            [pass, sim, 11010] cuGraphEventRecordNodeGetEvent(
                h_node: CUgraphNode, event_out: *mut CUevent,
            );
            [pass, sim, 11010] cuGraphEventRecordNodeSetEvent(h_node: CUgraphNode, event: CUevent);
            [pass, sim, 11010] cuGraphAddEventWaitNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize, event: CUevent,
            );
            [pass, sim, 11010] cuGraphEventWaitNodeGetEvent(
                h_node: CUgraphNode, event_out: *mut CUevent,
            );
            [pass, sim, 11010] cuGraphEventWaitNodeSetEvent(h_node: CUgraphNode, event: CUevent);
            [pass, none, 11020] cuGraphAddExternalSemaphoresSignalNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize,
                node_params: *const c_void,
            );
            [pass, none, 11020] cuGraphExternalSemaphoresSignalNodeGetParams(
                h_node: CUgraphNode, params_out: *mut c_void,
            );
            [pass, none, 11020] cuGraphExternalSemaphoresSignalNodeSetParams(
                h_node: CUgraphNode, node_params: *const c_void,
            );
            [pass, none, 11020] cuGraphAddExternalSemaphoresWaitNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize,
                node_params: *const c_void,
            );
            [pass, none, 11020] cuGraphExternalSemaphoresWaitNodeGetParams(
                h_node: CUgraphNode, params_out: *mut c_void,
            );
            [pass, none, 11020] cuGraphExternalSemaphoresWaitNodeSetParams(
                h_node: CUgraphNode, node_params: *const c_void,
            );
            [pass, none, 11070] cuGraphAddBatchMemOpNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize,
                node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
            );
            [pass, none, 11070] cuGraphBatchMemOpNodeGetParams(
                h_node: CUgraphNode, node_params_out: *mut CUDA_BATCH_MEM_OP_NODE_PARAMS,
            );
            [pass, none, 11070] cuGraphBatchMemOpNodeSetParams(
                h_node: CUgraphNode, node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
            );
            [pass, none, 11070] cuGraphExecBatchMemOpNodeSetParams(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode,
                node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
            );
            [pass, sim, 11040] cuGraphAddMemAllocNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize,
                node_params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
            );
            [pass, sim, 11040] cuGraphMemAllocNodeGetParams(
                h_node: CUgraphNode, params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
            );
            [pass, sim, 11040] cuGraphAddMemFreeNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize, dptr: CUdeviceptr,
            );
            [pass, sim, 11040] cuGraphMemFreeNodeGetParams(
                h_node: CUgraphNode, dptr_out: *mut CUdeviceptr,
            );
            [pass, sim, 10000] cuGraphNodeFindInClone(
                ph_node: *mut CUgraphNode, h_original_node: CUgraphNode, h_cloned_graph: CUgraph,
            );
            [pass, sim, 10000] cuGraphNodeGetType(h_node: CUgraphNode, kind: *mut CUgraphNodeType);
            [pass, none, 13010] cuGraphNodeGetContainingGraph(
                h_node: CUgraphNode, ph_graph: *mut CUgraph,
            );
            [pass, none, 13010] cuGraphNodeGetLocalId(h_node: CUgraphNode, node_id: *mut u32);
            [pass, none, 13010] cuGraphNodeGetToolsId(h_node: CUgraphNode, tools_node_id: *mut u64);
            [pass, sim, 10000] cuGraphGetNodes(
                h_graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize,
            );
            [pass, sim, 10000] cuGraphGetRootNodes(
                h_graph: CUgraph, root_nodes: *mut CUgraphNode, num_root_nodes: *mut usize,
            );
            [pass, sim, 10000] cuGraphNodeGetDependencies(
                h_node: CUgraphNode, dependencies: *mut CUgraphNode, num_dependencies: *mut usize,
            );
            [pass, sim, 12030] cuGraphNodeGetDependencies_v2(
                h_node: CUgraphNode, dependencies: *mut CUgraphNode,
                edge_data: *mut CUgraphEdgeData, num_dependencies: *mut usize,
            );
            [pass, sim, 10000] cuGraphNodeGetDependentNodes(
                h_node: CUgraphNode, dependent_nodes: *mut CUgraphNode,
                num_dependent_nodes: *mut usize,
            );
            [pass, sim, 12030] cuGraphNodeGetDependentNodes_v2(
                h_node: CUgraphNode, dependent_nodes: *mut CUgraphNode,
                edge_data: *mut CUgraphEdgeData, num_dependent_nodes: *mut usize,
            );
            [pass, sim, 10000] cuGraphAddDependencies(
                h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
                num_dependencies: usize,
            );
            [pass, sim, 12030] cuGraphAddDependencies_v2(
                h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
                edge_data: *const CUgraphEdgeData, num_dependencies: usize,
            );
            [pass, sim, 10000] cuGraphDestroyNode(h_node: CUgraphNode);
            [pass, sim, 10010] cuGraphExecKernelNodeSetParams(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode,
                node_params: *const CUDA_KERNEL_NODE_PARAMS_v1,
            );
            [pass, sim, 12000] cuGraphExecKernelNodeSetParams_v2(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode,
                node_params: *const CUDA_KERNEL_NODE_PARAMS,
            );
            [pass, sim, 10020] cuGraphExecMemcpyNodeSetParams(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode, copy_params: *const CUDA_MEMCPY3D,
                ctx: CUcontext,
            );
            [pass, sim, 10020] cuGraphExecMemsetNodeSetParams(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode,
                memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext,
            );
            [pass, sim, 10020] cuGraphExecHostNodeSetParams(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode,
                node_params: *const CUDA_HOST_NODE_PARAMS,
            );
            [hook, sim, 11010] cuGraphExecChildGraphNodeSetParams(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode, child_graph: CUgraph,
            );
            [pass, sim, 11010] cuGraphExecEventRecordNodeSetEvent(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode, event: CUevent,
            );
            [pass, sim, 11010] cuGraphExecEventWaitNodeSetEvent(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode, event: CUevent,
            );
            [pass, none, 11020] cuGraphExecExternalSemaphoresSignalNodeSetParams(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *const c_void,
            );
            [pass, none, 11020] cuGraphExecExternalSemaphoresWaitNodeSetParams(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *const c_void,
            );
            [pass, sim, 11060] cuGraphNodeSetEnabled(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode, is_enabled: u32,
            );
            [pass, sim, 11060] cuGraphNodeGetEnabled(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode, is_enabled: *mut u32,
            );
            [pass, sim, 11000] cuGraphKernelNodeCopyAttributes(dst: CUgraphNode, src: CUgraphNode);
            [pass, sim, 11000] cuGraphKernelNodeGetAttribute(
                h_node: CUgraphNode, attr: CUlaunchAttributeID,
                value_out: *mut CUlaunchAttributeValue,
            );
            [pass, sim, 11000] cuGraphKernelNodeSetAttribute(
                h_node: CUgraphNode, attr: CUlaunchAttributeID,
                value: *const CUlaunchAttributeValue,
            );
            [pass, sim, 12020] cuGraphAddNode(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, num_dependencies: usize,
                node_params: *mut CUgraphNodeParams,
            );
            [pass, sim, 12030] cuGraphAddNode_v2(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, dependency_data: *const CUgraphEdgeData,
                num_dependencies: usize, node_params: *mut CUgraphNodeParams,
            );
            [pass, none, 13040] cuGraphAddNode_v3(
                ph_graph_node: *mut CUgraphNode, h_graph: CUgraph,
                dependencies: *const CUgraphNode, dependency_data: *const CUgraphEdgeData,
                num_dependencies: usize, node_params: *mut CUgraphNodeParams,
            );
            [pass, sim, 12020] cuGraphNodeSetParams(
                h_node: CUgraphNode, node_params: *mut CUgraphNodeParams,
            );
            [pass, none, 13040] cuGraphNodeSetParams_v2(
                h_node: CUgraphNode, node_params: *mut CUgraphNodeParams,
            );
            [pass, none, 13020] cuGraphNodeGetParams(
                h_node: CUgraphNode, node_params: *mut CUgraphNodeParams,
            );
            [hook, sim, 12020] cuGraphExecNodeSetParams(
                h_graph_exec: CUgraphExec, h_node: CUgraphNode,
                node_params: *mut CUgraphNodeParams,
            );
            [pass, none, 12030] cuGraphConditionalHandleCreate(
                p_handle_out: *mut CUgraphConditionalHandle, h_graph: CUgraph, ctx: CUcontext,
                default_launch_value: u32, flags: u32,
            );
        }
    };
}
