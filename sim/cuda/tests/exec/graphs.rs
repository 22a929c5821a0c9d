//! Graphs: their shape, and what a launch does.

use crate::common::{MS, World, event, milliseconds, stream, together, word};
use crate::harness::{alloc, get, put};
use gpuslice_nvabi::types::*;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

static CALLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn count(data: *mut c_void) {
    CALLS.fetch_add(data as usize as u32, Ordering::SeqCst);
}

pub fn graph() -> CUgraph {
    let mut graph = CUgraph::NULL;
    ok!(cuGraphCreate(&mut graph, 0));
    graph
}

pub fn instantiate(graph: CUgraph) -> CUgraphExec {
    let mut exec = CUgraphExec::NULL;
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    exec
}

fn empty(graph: CUgraph, before: &[CUgraphNode]) -> CUgraphNode {
    let mut node = CUgraphNode::NULL;
    ok!(cuGraphAddEmptyNode(&mut node, graph, before.as_ptr(), before.len()));
    node
}

/// A kernel node that spins and counts.
fn spin(world: &World, graph: CUgraph, before: &[CUgraphNode], ns: u64, at: u64) -> CUgraphNode {
    let (mut ns, mut at, mut node) = (ns, at, CUgraphNode::NULL);
    let mut list: [*mut c_void; 2] = [(&raw mut ns).cast(), (&raw mut at).cast()];
    let params = kernel_params(world, &mut list);
    ok!(cuGraphAddKernelNode_v2(&mut node, graph, before.as_ptr(), before.len(), &params));
    node
}

fn kernel_params(world: &World, list: &mut [*mut c_void; 2]) -> CUDA_KERNEL_NODE_PARAMS {
    let v1 = CUDA_KERNEL_NODE_PARAMS_v1 {
        func: world.function(c"spin"),
        grid_dim_x: 1,
        grid_dim_y: 1,
        grid_dim_z: 1,
        block_dim_x: 1,
        block_dim_y: 1,
        block_dim_z: 1,
        shared_mem_bytes: 0,
        kernel_params: list.as_mut_ptr(),
        extra: null_mut(),
    };
    let (kern, ctx) = (CUkernel::NULL, CUcontext::NULL);
    CUDA_KERNEL_NODE_PARAMS { v1, kern, ctx }
}

fn fill(graph: CUgraph, before: &[CUgraphNode], at: u64, value: u32, bytes: usize) -> CUgraphNode {
    let (mut node, element_size) = (CUgraphNode::NULL, 1);
    let params = CUDA_MEMSET_NODE_PARAMS {
        dst: at,
        pitch: bytes,
        value,
        element_size,
        width: bytes,
        height: 1,
    };
    let (list, count, context) = (before.as_ptr(), before.len(), CUcontext::NULL);
    ok!(cuGraphAddMemsetNode(&mut node, graph, list, count, &params, context));
    node
}

pub fn copy_params(dst: u64, src: u64, bytes: usize) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        src_device: src,
        src_pitch: bytes,
        src_height: 1,
        dst_device: dst,
        dst_pitch: bytes,
        dst_height: 1,
        width_in_bytes: bytes,
        ..CUDA_MEMCPY3D::EMPTY
    }
}

fn copy(graph: CUgraph, before: &[CUgraphNode], dst: u64, src: u64, bytes: usize) -> CUgraphNode {
    let mut node = CUgraphNode::NULL;
    let params = copy_params(dst, src, bytes);
    let (list, count, context) = (before.as_ptr(), before.len(), CUcontext::NULL);
    ok!(cuGraphAddMemcpyNode(&mut node, graph, list, count, &params, context));
    node
}

scenarios! {
    a_graph_of_all_kinds_computes("") {
        let world = World::new();
        let (a, b, counter) = (alloc(64), alloc(64), alloc(4));
        let (inner, outer) = (graph(), graph());
        // The child counts, and copies what the parent has filled.
        let counted = spin(&world, inner, &[], MS, counter);
        copy(inner, &[counted], b, a, 64);
        let filled = fill(outer, &[], a, 0x41, 64);
        let mut child = CUgraphNode::NULL;
        ok!(cuGraphAddChildGraphNode(&mut child, outer, &filled, 1, inner));
        // The child was copied: what becomes of the original does not matter.
        ok!(cuGraphDestroy(inner));
        let host = CUDA_HOST_NODE_PARAMS { func: Some(count), user_data: 3 as *mut c_void };
        let (mut called, mut recorded) = (CUgraphNode::NULL, CUgraphNode::NULL);
        ok!(cuGraphAddHostNode(&mut called, outer, &child, 1, &host));
        let done = event();
        ok!(cuGraphAddEventRecordNode(&mut recorded, outer, &called, 1, done));
        // After the child, beside the host function.
        fill(outer, &[child], a, 0x42, 32);
        empty(outer, &[recorded]);
        let (exec, stream) = (instantiate(outer), stream(CU_STREAM_NON_BLOCKING));
        for turn in 1..=3 {
            ok!(cuGraphLaunch(exec, stream));
            ok!(cuEventSynchronize(done));
            ok!(cuStreamSynchronize(stream));
            assert_eq!(get(b, 64), [0x41; 64]);
            assert_eq!(get(a, 64), [[0x42; 32], [0x41; 32]].concat());
            assert_eq!((word(counter), CALLS.load(Ordering::SeqCst)), (turn, 3 * turn));
        }
        ok!(cuGraphExecDestroy(exec));
        refused!(ERROR_INVALID_VALUE, cuGraphLaunch(exec, stream));
        ok!(cuGraphDestroy(outer));
        refused!(ERROR_INVALID_VALUE, cuGraphDestroy(outer));
    }

    a_graph_takes_as_long_as_its_longest_path("") {
        let world = World::new();
        let (graph, counter) = (graph(), alloc(4));
        let root = spin(&world, graph, &[], MS, counter);
        let long = spin(&world, graph, &[root], 4 * MS, counter);
        let short = spin(&world, graph, &[root], 2 * MS, counter);
        spin(&world, graph, &[long, short], MS, counter);
        let (exec, start, end) = (instantiate(graph), event(), event());
        let null = CUstream::NULL;
        world.spin(null, 20 * MS, 0);
        ok!(cuEventRecord(start, null));
        ok!(cuGraphLaunch(exec, null));
        ok!(cuGraphLaunch_ptsz(exec, CUstream::NULL));
        ok!(cuStreamWaitEvent(null, start, 0));
        ok!(cuCtxSynchronize());
        ok!(cuEventRecord(end, null));
        ok!(cuCtxSynchronize());
        assert_eq!(word(counter), 8);
        let time = milliseconds(start, end);
        assert!(time >= 12.0, "{time} ms");
        together(&world, null, || {
            ok!(cuEventRecord(start, null));
            ok!(cuGraphLaunch(exec, null));
            ok!(cuEventRecord(end, null));
        });
        ok!(cuCtxSynchronize());
        let time = milliseconds(start, end);
        assert!((5.94..6.06).contains(&time), "{time} ms");
    }

    nodes_and_edges_can_be_asked("") {
        let _world = World::new();
        let graph = graph();
        let a = empty(graph, &[]);
        let b = empty(graph, &[a]);
        let c = fill(graph, &[], alloc(16), 1, 16);
        ok!(cuGraphAddDependencies(graph, &b, &c, 1));
        refused!(ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &c, &a, 1));
        let (mut nodes, mut count) = ([CUgraphNode::NULL; 4], 0);
        ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
        assert_eq!(count, 3);
        count = 4;
        ok!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
        assert_eq!((count, nodes), (3, [a, b, c, CUgraphNode::NULL]));
        ok!(cuGraphGetRootNodes(graph, nodes.as_mut_ptr(), &mut count));
        assert_eq!((count, nodes[0]), (1, a));
        let (mut from, mut to) = ([CUgraphNode::NULL; 2], [CUgraphNode::NULL; 2]);
        count = 2;
        ok!(cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut count));
        assert_eq!((count, from, to), (2, [a, b], [b, c]));
        count = 1;
        ok!(cuGraphNodeGetDependencies(c, nodes.as_mut_ptr(), &mut count));
        assert_eq!((count, nodes[0]), (1, b));
        ok!(cuGraphNodeGetDependentNodes(c, null_mut(), &mut count));
        assert_eq!(count, 0);
        let mut kind = 99;
        ok!(cuGraphNodeGetType(c, &mut kind));
        assert_eq!(kind, CU_GRAPH_NODE_TYPE_MEMSET);
        let (mut clone, mut copied) = (CUgraph::NULL, CUgraphNode::NULL);
        ok!(cuGraphClone(&mut clone, graph));
        ok!(cuGraphNodeFindInClone(&mut copied, c, clone));
        ok!(cuGraphRemoveDependencies(graph, &b, &c, 1));
        refused!(ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &b, &c, 1));
        ok!(cuGraphNodeGetDependencies(copied, null_mut(), &mut count));
        assert_eq!(count, 1);
        ok!(cuGraphDestroyNode(a));
        refused!(ERROR_INVALID_VALUE, cuGraphNodeGetType(a, &mut kind));
        refused!(ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&mut copied, clone, &b, 1));
    }

    parameters_can_be_read_and_changed("") {
        let world = World::new();
        let (one, two, graph) = (alloc(4), alloc(4), graph());
        let node = spin(&world, graph, &[], MS, one);
        let (a, b) = (alloc(8), alloc(8));
        put(a, b"abcdefgh");
        let moved = copy(graph, &[node], b, a, 8);
        let filled = fill(graph, &[moved], a, 0, 8);
        let mut read = kernel_params(&world, &mut [null_mut(); 2]);
        ok!(cuGraphKernelNodeGetParams_v2(node, &mut read));
        // SAFETY: the driver gives as many addresses as the kernel has arguments.
        let second = unsafe { (*read.v1.kernel_params.add(1)).cast::<u64>().read_unaligned() };
        assert_eq!((read.v1.func, second), (world.function(c"spin"), one));
        let mut shape = copy_params(0, 0, 0);
        ok!(cuGraphMemcpyNodeGetParams(moved, &mut shape));
        assert_eq!((shape.dst_device, shape.width_in_bytes), (b, 8));
        let exec = instantiate(graph);
        // Of the executable graph, then of the graph it was made of.
        let (mut ns, mut at) = (MS, two);
        let mut list: [*mut c_void; 2] = [(&raw mut ns).cast(), (&raw mut at).cast()];
        let params = kernel_params(&world, &mut list);
        ok!(cuGraphExecKernelNodeSetParams_v2(exec, node, &params));
        ok!(cuGraphExecMemcpyNodeSetParams(exec, moved, &copy_params(b, a, 4), CUcontext::NULL));
        ok!(cuGraphNodeSetEnabled(exec, filled, 0));
        ok!(cuGraphLaunch(exec, CUstream::NULL));
        ok!(cuCtxSynchronize());
        assert_eq!((word(one), word(two)), (0, 1));
        assert_eq!((get(b, 8), get(a, 8)), (b"abcd\0\0\0\0".to_vec(), b"abcdefgh".to_vec()));
        let mut result = CUgraphExecUpdateResultInfo {
            result: 99, error_node: CUgraphNode::NULL, error_from_node: CUgraphNode::NULL,
        };
        ok!(cuGraphExecUpdate_v2(exec, graph, &mut result));
        assert_eq!(result.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
        ok!(cuGraphLaunch(exec, CUstream::NULL));
        ok!(cuCtxSynchronize());
        assert_eq!((word(one), word(two), get(b, 8)), (1, 1, b"abcdefgh".to_vec()));
        empty(graph, &[]);
        refused!(ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, graph, &mut result));
        assert_eq!(result.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
        refused!(ERROR_INVALID_VALUE, cuGraphMemcpyNodeGetParams(node, &mut shape));
    }

    nodes_by_description("") {
        let _world = World::new();
        let (graph, at) = (graph(), alloc(16));
        let mut node = CUgraphNode::NULL;
        let ctx = CUcontext::NULL;
        let mut params = CUgraphNodeParams {
            kind: CU_GRAPH_NODE_TYPE_MEMSET,
            reserved0: [0; 3],
            params: CUgraphNodeUnion { reserved: [0; 29] },
            reserved2: 0,
        };
        let v1 = CUDA_MEMSET_NODE_PARAMS {
            dst: at, pitch: 0, value: 0x0102_0304, element_size: 4, width: 4, height: 1,
        };
        params.params.memset = CUDA_MEMSET_NODE_PARAMS_v2 { v1, ctx };
        ok!(cuGraphAddNode_v2(&mut node, graph, null(), null(), 0, &mut params));
        let exec = instantiate(graph);
        ok!(cuGraphLaunch(exec, CUstream::NULL));
        ok!(cuCtxSynchronize());
        assert_eq!(word(at + 12), 0x0102_0304);
        params.params.memset.v1.value = 9;
        ok!(cuGraphExecNodeSetParams(exec, node, &mut params));
        ok!(cuGraphLaunch(exec, CUstream::NULL));
        ok!(cuCtxSynchronize());
        assert_eq!(word(at), 9);
        params.kind = CU_GRAPH_NODE_TYPE_CONDITIONAL;
        refused!(ERROR_NOT_SUPPORTED, cuGraphAddNode(&mut node, graph, null(), 0, &mut params));
    }

    a_user_object_lives_as_long_as_its_graph("") {
        let _world = World::new();
        let (graph, mut object) = (graph(), CUuserObject::NULL);
        let flag = CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
        ok!(cuUserObjectCreate(&mut object, 5 as *mut c_void, Some(count), 1, flag));
        ok!(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
        assert_eq!(CALLS.load(Ordering::SeqCst), 0);
        ok!(cuGraphDestroy(graph));
        assert_eq!(CALLS.load(Ordering::SeqCst), 5);
        refused!(ERROR_INVALID_VALUE, cuUserObjectRelease(object, 1));
    }
}
