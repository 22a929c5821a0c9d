//! Memory that graphs allocate.

use crate::common::{World, pinned, stream};
use crate::graphs::{copy_params, graph, instantiate};
use crate::harness::{MIB, free_bytes, get, put};
use gpuslice_nvabi::types::*;
use std::ptr::null;

fn attribute(attribute: CUgraphMem_attribute) -> usize {
    let mut value = 0_u64;
    ok!(cuDeviceGetGraphMemAttribute(0, attribute, (&raw mut value).cast()));
    value as usize
}

fn alloc_params(bytes: usize) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    CUDA_MEM_ALLOC_NODE_PARAMS {
        pool_props: CUmemPoolProps {
            alloc_type: CU_MEM_ALLOCATION_TYPE_PINNED,
            handle_types: CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
            win32_security_attributes: std::ptr::null_mut(),
            max_size: 0,
            usage: 0,
            gpu_direct_rdma_capable: 0,
            reserved: [0; 53],
        },
        access_descs: null(),
        access_desc_count: 0,
        bytesize: bytes,
        dptr: 0,
    }
}

scenarios! {
    nodes_allocate_and_free("mem=1GiB") {
        let _world = World::new();
        let (graph, ctx, out) = (graph(), CUcontext::NULL, crate::harness::alloc(64));
        let mut params = alloc_params(100 * MIB);
        let (mut made, mut filled) = (CUgraphNode::NULL, CUgraphNode::NULL);
        let (mut copied, mut freed) = (CUgraphNode::NULL, CUgraphNode::NULL);
        ok!(cuGraphAddMemAllocNode(&mut made, graph, null(), 0, &mut params));
        let at = params.dptr;
        let fill = CUDA_MEMSET_NODE_PARAMS {
            dst: at, pitch: 0, value: 8, element_size: 1, width: 64, height: 1,
        };
        ok!(cuGraphAddMemsetNode(&mut filled, graph, &made, 1, &fill, ctx));
        let copy = copy_params(out, at, 64);
        ok!(cuGraphAddMemcpyNode(&mut copied, graph, &filled, 1, &copy, ctx));
        ok!(cuGraphAddMemFreeNode(&mut freed, graph, &copied, 1, at));
        refused!(ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&mut freed, graph, &copied, 1, out));
        let (before, exec) = (free_bytes(), instantiate(graph));
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
        let stream = stream(CU_STREAM_NON_BLOCKING);
        for _ in 0..3 {
            ok!(cuGraphLaunch(exec, stream));
        }
        ok!(cuStreamSynchronize(stream));
        assert_eq!(get(out, 64), [8; 64]);
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 100 * MIB);
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 100 * MIB);
        assert_eq!(before - free_bytes(), 100 * MIB);
        ok!(cuDeviceGraphMemTrim(0));
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 100 * MIB);
        assert_eq!(free_bytes(), before);
        let mut zero = 0_u64;
        let high = CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
        ok!(cuDeviceSetGraphMemAttribute(0, high, (&raw mut zero).cast()));
        assert_eq!(attribute(high), 0);
        let mut clone = CUgraph::NULL;
        refused!(ERROR_NOT_SUPPORTED, cuGraphClone(&mut clone, graph));
    }

    what_a_graph_leaves_is_freed_by_the_program("mem=1GiB") {
        let _world = World::new();
        let (graph, mut made) = (graph(), CUgraphNode::NULL);
        let mut params = alloc_params(10 * MIB);
        ok!(cuGraphAddMemAllocNode(&mut made, graph, null(), 0, &mut params));
        let exec = instantiate(graph);
        ok!(cuGraphLaunch(exec, CUstream::NULL));
        ok!(cuCtxSynchronize());
        put(params.dptr, b"kept");
        assert_eq!(get(params.dptr, 4), b"kept");
        refused!(ERROR_INVALID_VALUE, cuGraphLaunch(exec, CUstream::NULL));
        ok!(cuMemFreeAsync(params.dptr, CUstream::NULL));
        ok!(cuCtxSynchronize());
        ok!(cuGraphLaunch(exec, CUstream::NULL));
        ok!(cuCtxSynchronize());
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 10 * MIB);
        ok!(cuMemFree_v2(params.dptr));
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 10 * MIB, "until it is trimmed");
        ok!(cuDeviceGraphMemTrim(0));
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
        ok!(cuGraphExecDestroy(exec));
        ok!(cuGraphDestroy(graph));
        refused!(ERROR_INVALID_VALUE, cuMemFree_v2(params.dptr));
    }

    a_launch_that_waits_keeps_its_memory_when_all_is_trimmed("mem=1GiB") {
        let _world = World::new();
        let (graph, mut made, gate) = (graph(), CUgraphNode::NULL, pinned());
        let mut params = alloc_params(10 * MIB);
        ok!(cuGraphAddMemAllocNode(&mut made, graph, null(), 0, &mut params));
        let (exec, stream) = (instantiate(graph), stream(CU_STREAM_NON_BLOCKING));
        ok!(cuGraphUpload(exec, stream));
        ok!(cuDeviceGraphMemTrim(0));
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0, "uploaded only");
        ok!(cuStreamWaitValue32_v2(stream, gate as u64, 1, 0));
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuDeviceGraphMemTrim(0));
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 10 * MIB);
        // SAFETY: pinned memory of four bytes, which the stream reads.
        unsafe { gate.write_volatile(1) };
        ok!(cuStreamSynchronize(stream));
        put(params.dptr, b"kept");
        assert_eq!(get(params.dptr, 4), b"kept");
        ok!(cuMemFree_v2(params.dptr));
        ok!(cuDeviceGraphMemTrim(0));
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
    }

    a_launch_can_run_out_of_memory("mem=1GiB") {
        let _world = World::new();
        let (graph, mut made) = (graph(), CUgraphNode::NULL);
        let mut params = alloc_params(600 * MIB);
        ok!(cuGraphAddMemAllocNode(&mut made, graph, null(), 0, &mut params));
        ok!(cuGraphAddMemAllocNode(&mut made, graph, null(), 0, &mut params));
        let exec = instantiate(graph);
        refused!(ERROR_OUT_OF_MEMORY, cuGraphLaunch(exec, CUstream::NULL));
        let mut far = alloc_params(2048 * MIB);
        refused!(
            ERROR_OUT_OF_MEMORY,
            cuGraphAddMemAllocNode(&mut made, graph, null(), 0, &mut far)
        );
    }

    a_captured_allocation_belongs_to_the_graph("mem=1GiB") {
        let _world = World::new();
        let (stream, out) = (stream(CU_STREAM_NON_BLOCKING), crate::harness::alloc(4));
        let (mut at, mut graph) = (0, CUgraph::NULL);
        ok!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        ok!(cuMemAllocAsync(&mut at, 4096, stream));
        ok!(cuMemsetD32Async(at, 77, 1, stream));
        ok!(cuMemcpyDtoDAsync_v2(out, at, 4, stream));
        ok!(cuMemFreeAsync(at, stream));
        refused!(ERROR_INVALID_VALUE, cuMemFreeAsync(out, stream));
        ok!(cuStreamEndCapture(stream, &mut graph));
        let exec = instantiate(graph);
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(crate::common::word(out), 77);
        assert_eq!(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 2 * MIB);
    }
}
