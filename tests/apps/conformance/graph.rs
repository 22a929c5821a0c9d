//! Graphs that allocate. Their memory comes from a pool of its own, which grows when a graph is first
//! launched and shrinks only when it is trimmed; until then it is charged.

use crate::words::*;
use gpuslice_apps::api::calls;
use gpuslice_nvabi::types::*;

family!("graph":
    charged_when_launched, given_back_by_trimming, kept_until_trimmed, relaunched_costs_once,
    allocated_and_kept, kept_is_freed_in_a_stream, kept_is_freed_at_once,
    trim_spares_the_living, trim_spares_what_is_launched, captured, captured_and_freed_outside, captured_in_turn, over_the_device,
    over_the_device_captured, refusals_change_nothing, uploaded, destroyed, many_graphs,
    freed_by_another_graph, freed_at_each_launch, relaunched_after_anothers_trim, not_launched_twice, figures, highs_reset,
    highs_are_only_reset, other_memory_under_pressure, params_read_back, zero, largest_number,
    null_params, free_node_of_nothing, bad_device, instantiated_by_each_function,
    refused_by_each_function;
);

fn new_graph() -> Outcome<CUgraph> {
    let mut graph = CUgraph::NULL;
    ok!(cuGraphCreate(&mut graph, 0));
    Ok(graph)
}

fn wanted(gpu: Gpu, bytesize: usize) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    let pool_props = CUmemPoolProps {
        alloc_type: CU_MEM_ALLOCATION_TYPE_PINNED,
        handle_types: CU_MEM_HANDLE_TYPE_NONE,
        location: gpu.location(),
        win32_security_attributes: std::ptr::null_mut(),
        max_size: 0,
        usage: 0,
        gpu_direct_rdma_capable: 0,
        reserved: [0; 53],
    };
    let access_descs = std::ptr::null();
    CUDA_MEM_ALLOC_NODE_PARAMS { pool_props, access_descs, access_desc_count: 0, bytesize, dptr: 0 }
}

/// Adds a node that allocates.
fn add_alloc(gpu: Gpu, graph: CUgraph, bytes: usize) -> Outcome<(CUgraphNode, CUdeviceptr)> {
    let (mut node, mut params) = (CUgraphNode::NULL, wanted(gpu, bytes));
    ok!(cuGraphAddMemAllocNode(&mut node, graph, std::ptr::null(), 0, &mut params));
    that!(params.dptr != 0, "no address");
    Ok((node, params.dptr))
}

/// A graph that allocates, and frees what it allocated unless it is to be kept.
fn graph(gpu: Gpu, bytes: usize, keep: bool) -> Outcome<(CUgraphExec, CUdeviceptr)> {
    let graph = new_graph()?;
    let (node, at) = add_alloc(gpu, graph, bytes)?;
    if !keep {
        let mut freed = CUgraphNode::NULL;
        ok!(cuGraphAddMemFreeNode(&mut freed, graph, &node, 1, at));
    }
    let exec = instantiate(graph, 0)?;
    ok!(cuGraphDestroy(graph));
    Ok((exec, at))
}

fn instantiate(graph: CUgraph, flags: u64) -> Outcome<CUgraphExec> {
    let mut exec = CUgraphExec::NULL;
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, flags));
    Ok(exec)
}

fn launch(gpu: Gpu, exec: CUgraphExec) -> Outcome {
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    gpu.synchronize()
}

fn trim(gpu: Gpu) -> Outcome {
    gpu.synchronize()?;
    ok!(cuDeviceGraphMemTrim(gpu.device));
    Ok(())
}

fn figure(gpu: Gpu, attribute: CUgraphMem_attribute) -> Outcome<u64> {
    let mut value = 0u64;
    ok!(cuDeviceGetGraphMemAttribute(gpu.device, attribute, (&raw mut value).cast()));
    Ok(value)
}

/// Where graph memory comes from takes more than asked for, up to this.
const PIECE: usize = 32 << 20;

fn charged_when_launched(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (exec, at) = graph(gpu, bytes, true)?;
    launch(gpu, exec)?;
    gpu.took(bytes, PIECE)?;
    gpu.usable(at, bytes)
}

fn given_back_by_trimming(gpu: Gpu) -> Outcome {
    let (exec, _) = graph(gpu, gpu.part(8)?, false)?;
    launch(gpu, exec)?;
    ok!(cuGraphExecDestroy(exec));
    trim(gpu)?;
    gpu.back()
}

fn kept_until_trimmed(gpu: Gpu) -> Outcome {
    let (exec, _) = graph(gpu, gpu.part(8)?, false)?;
    launch(gpu, exec)?;
    let reserved = figure(gpu, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)? as usize;
    gpu.took(reserved, 2 * GRAIN)?;
    trim(gpu)?;
    let reserved = figure(gpu, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)? as usize;
    gpu.took(reserved, 2 * GRAIN)
}

fn relaunched_costs_once(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (exec, _) = graph(gpu, bytes, false)?;
    for _ in 0..50 {
        ok!(cuGraphLaunch(exec, CUstream::NULL));
    }
    gpu.synchronize()?;
    gpu.took_at_most(bytes + PIECE + GRAIN)?;
    ok!(cuGraphExecDestroy(exec));
    trim(gpu)?;
    gpu.back()
}

fn allocated_and_kept(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (exec, _) = graph(gpu, bytes, true)?;
    launch(gpu, exec)?;
    trim(gpu)?;
    gpu.took(bytes, PIECE)
}

fn kept_is_freed_in_a_stream(gpu: Gpu) -> Outcome {
    let (exec, at) = graph(gpu, gpu.part(8)?, true)?;
    for _ in 0..10 {
        launch(gpu, exec)?;
        ok!(cuMemFreeAsync(at, CUstream::NULL));
    }
    gpu.synchronize()?;
    ok!(cuGraphExecDestroy(exec));
    trim(gpu)?;
    gpu.back()
}

fn kept_is_freed_at_once(gpu: Gpu) -> Outcome {
    let (exec, at) = graph(gpu, gpu.part(8)?, true)?;
    for _ in 0..10 {
        launch(gpu, exec)?;
        gpu.release(at)?;
    }
    ok!(cuGraphExecDestroy(exec));
    trim(gpu)?;
    gpu.back()
}

fn trim_spares_the_living(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (exec, at) = graph(gpu, bytes, true)?;
    launch(gpu, exec)?;
    trim(gpu)?;
    gpu.usable(at, bytes)
}

fn trim_spares_what_is_launched(gpu: Gpu) -> Outcome {
    // So much that the launch waits for it, and no more: a simulated GPU writes each byte.
    let (bytes, other) = (gpu.part(8)?, gpu.part(4)?.min(256 << 20));
    let ((exec, at), before) = (graph(gpu, bytes, true)?, gpu.alloc(other)?);
    for _ in 0..8 {
        ok!(cuMemsetD32Async(before, 5, other / 4, CUstream::NULL));
    }
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    ok!(cuDeviceGraphMemTrim(gpu.device));
    gpu.synchronize()?;
    gpu.took(other + bytes, PIECE)?;
    gpu.usable(at, bytes)
}

/// Captures what `work` puts into a stream.
fn capture(gpu: Gpu, work: impl FnOnce(CUstream) -> Outcome) -> Outcome<CUgraph> {
    let (stream, mut graph) = (gpu.stream()?, CUgraph::NULL);
    ok!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    work(stream)?;
    ok!(cuStreamEndCapture(stream, &mut graph));
    Ok(graph)
}

fn captured(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let graph = capture(gpu, |stream| {
        let mut at = 0;
        ok!(cuMemAllocAsync(&mut at, bytes, stream));
        ok!(cuMemsetD32Async(at, 5, bytes / 4, stream));
        ok!(cuMemFreeAsync(at, stream));
        Ok(())
    })?;
    let exec = instantiate(graph, 0)?;
    for _ in 0..3 {
        launch(gpu, exec)?;
    }
    let high = figure(gpu, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)?;
    that!(high >= bytes as u64, "{high} bytes used at most");
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(graph));
    trim(gpu)?;
    gpu.back()
}

/// Allocations that are freed before the next one use the same memory: together they have more than the device.
fn captured_in_turn(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(4)?;
    let graph = capture(gpu, |stream| {
        for value in 0..12 {
            let mut at = 0;
            ok!(cuMemAllocAsync(&mut at, bytes, stream));
            ok!(cuMemsetD32Async(at, value, 1024, stream)); // all of it would take minutes on a simulated GPU
            ok!(cuMemFreeAsync(at, stream));
        }
        Ok(())
    })?;
    let exec = instantiate(graph, 0)?;
    for _ in 0..3 {
        launch(gpu, exec)?;
        gpu.took_at_most(2 * bytes)?;
    }
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(graph));
    trim(gpu)?;
    gpu.back()
}

fn captured_and_freed_outside(gpu: Gpu) -> Outcome {
    let (bytes, mut at) = (gpu.part(8)?, 0);
    let graph = capture(gpu, |stream| {
        ok!(cuMemAllocAsync(&mut at, bytes, stream));
        Ok(())
    })?;
    freed_outside(gpu, (graph, instantiate(graph, 0)?), (at, bytes))
}

/// Launches a graph whose memory is freed by the program, and destroys it.
fn freed_outside(
    gpu: Gpu,
    (graph, exec): (CUgraph, CUgraphExec),
    (at, bytes): (CUdeviceptr, usize),
) -> Outcome {
    launch(gpu, exec)?;
    gpu.took(bytes, PIECE)?;
    gpu.release(at)?;
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(graph));
    trim(gpu)?;
    gpu.back()
}

/// A graph that cannot be: it is refused when added, when instantiated, or when launched.
fn refused(gpu: Gpu, bytes: usize) -> Outcome {
    let (graph, mut node, mut params) = (new_graph()?, CUgraphNode::NULL, wanted(gpu, bytes));
    let none = std::ptr::null();
    let mut code =
        says!([SUCCESS, OOM], cuGraphAddMemAllocNode(&mut node, graph, none, 0, &mut params));
    let mut exec = CUgraphExec::NULL;
    if code == SUCCESS {
        code = says!([SUCCESS, OOM], cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    }
    if code == SUCCESS {
        says!(OOM, cuGraphLaunch(exec, CUstream::NULL));
        ok!(cuGraphExecDestroy(exec));
    }
    ok!(cuGraphDestroy(graph));
    Ok(())
}

fn over_the_device(gpu: Gpu) -> Outcome {
    let total = gpu.total()?;
    refused(gpu, total + GRAIN)?;
    trim(gpu)?;
    gpu.back()
}

fn over_the_device_captured(gpu: Gpu) -> Outcome {
    let total = gpu.total()?;
    let (stream, mut graph, mut at) = (gpu.stream()?, CUgraph::NULL, 0);
    ok!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    let code = says!([SUCCESS, OOM], cuMemAllocAsync(&mut at, total + GRAIN, stream));
    let ended = calls::cuStreamEndCapture(stream, &mut graph);
    if code == SUCCESS {
        that!(ended == SUCCESS, "the capture ended with {ended:?}");
        let mut exec = CUgraphExec::NULL;
        if says!([SUCCESS, OOM], cuGraphInstantiateWithFlags(&mut exec, graph, 0)) == SUCCESS {
            says!(OOM, cuGraphLaunch(exec, stream));
        }
    }
    trim(gpu)?;
    gpu.back()
}

fn refusals_change_nothing(gpu: Gpu) -> Outcome {
    let at = gpu.alloc(gpu.part(2)?)?;
    let gpu = gpu.measured()?;
    for _ in 0..20 {
        refused(gpu, gpu.part(2)? + 16 * GRAIN)?;
    }
    trim(gpu)?;
    gpu.back()?;
    gpu.release(at)
}

fn uploaded(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (exec, _) = graph(gpu, bytes, true)?;
    ok!(cuGraphUpload(exec, CUstream::NULL));
    gpu.synchronize()?;
    gpu.took_at_most(bytes + PIECE + GRAIN)?;
    launch(gpu, exec)?;
    gpu.took(bytes, PIECE)
}

fn destroyed(gpu: Gpu) -> Outcome {
    let (exec, _) = graph(gpu, gpu.part(8)?, false)?;
    ok!(cuGraphExecDestroy(exec));
    trim(gpu)?;
    gpu.back()
}

fn many_graphs(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(4)?;
    // One after another they use the same memory.
    for _ in 0..30 {
        let (exec, _) = graph(gpu, bytes, false)?;
        launch(gpu, exec)?;
        ok!(cuGraphExecDestroy(exec));
    }
    gpu.took_at_most(2 * bytes)?;
    trim(gpu)?;
    gpu.back()
}

fn freed_by_another_graph(gpu: Gpu) -> Outcome {
    let (takes, at) = graph(gpu, gpu.part(8)?, true)?;
    let (other, mut node) = (new_graph()?, CUgraphNode::NULL);
    ok!(cuGraphAddMemFreeNode(&mut node, other, std::ptr::null(), 0, at));
    let gives = instantiate(other, 0)?;
    for _ in 0..5 {
        launch(gpu, takes)?;
        launch(gpu, gives)?;
    }
    ok!(cuGraphExecDestroy(takes));
    ok!(cuGraphExecDestroy(gives));
    trim(gpu)?;
    gpu.back()
}

fn freed_at_each_launch(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let graph = new_graph()?;
    let (_, at) = add_alloc(gpu, graph, bytes)?;
    let exec = instantiate(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH as u64)?;
    for _ in 0..10 {
        launch(gpu, exec)?;
        gpu.took(bytes, PIECE)?;
    }
    gpu.release(at)?;
    ok!(cuGraphExecDestroy(exec));
    trim(gpu)?;
    gpu.back()
}

/// Of two graphs the first has most of the device, and keeps it until its next launch. A trim that releases only the
/// memory of the second does not cost the first a second allocation.
fn relaunched_after_anothers_trim(gpu: Gpu) -> Outcome {
    let (bytes, holder) = (gpu.before / 8 * 5, new_graph()?);
    let (_, at) = add_alloc(gpu, holder, bytes)?;
    let exec = instantiate(holder, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH as u64)?;
    let (other, _) = graph(gpu, gpu.part(16)?, false)?;
    for _ in 0..3 {
        launch(gpu, exec)?;
        launch(gpu, other)?;
        trim(gpu)?;
        gpu.took(bytes, PIECE)?;
    }
    launch(gpu, exec)?;
    gpu.release(at)?;
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphExecDestroy(other));
    trim(gpu)?;
    gpu.back()
}

/// What a graph still holds it cannot allocate again.
fn not_launched_twice(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (exec, at) = graph(gpu, bytes, true)?;
    launch(gpu, exec)?;
    says!(INVALID, cuGraphLaunch(exec, CUstream::NULL));
    gpu.took(bytes, PIECE)?;
    gpu.release(at)?;
    launch(gpu, exec)
}

fn figures(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let (exec, at) = graph(gpu, bytes, true)?;
    launch(gpu, exec)?;
    let used = figure(gpu, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)?;
    let reserved = figure(gpu, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)?;
    that!(used >= bytes as u64 && reserved >= used, "{used} used, {reserved} reserved");
    gpu.release(at)?;
    gpu.synchronize()?;
    // A card's driver still counts it as used after the wait.
    let now = figure(gpu, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)?;
    that!(now == 0 || now == used, "{now} used when all is freed, {used} before");
    Ok(())
}

fn highs_reset(gpu: Gpu) -> Outcome {
    let (exec, _) = graph(gpu, gpu.part(8)?, false)?;
    launch(gpu, exec)?;
    trim(gpu)?;
    for attribute in [CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH] {
        let mut zero = 0u64;
        that!(figure(gpu, attribute)? > 0, "attribute {attribute} is 0 after a launch");
        ok!(cuDeviceSetGraphMemAttribute(gpu.device, attribute, (&raw mut zero).cast()));
        let high = figure(gpu, attribute)?;
        that!(high <= gpu.part(8)? as u64 + PIECE as u64, "attribute {attribute} is {high}");
    }
    Ok(())
}

fn highs_are_only_reset(gpu: Gpu) -> Outcome {
    let mut some = 4096u64;
    for attribute in [CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, 99] {
        says!(INVALID, cuDeviceSetGraphMemAttribute(gpu.device, attribute, (&raw mut some).cast()));
    }
    Ok(())
}

/// What graphs keep but do not use, others can have.
fn other_memory_under_pressure(gpu: Gpu) -> Outcome {
    let (exec, _) = graph(gpu, gpu.before / 2, false)?;
    launch(gpu, exec)?;
    ok!(cuGraphExecDestroy(exec));
    gpu.synchronize()?;
    let mut at = 0;
    let code = says!([SUCCESS, OOM], cuMemAlloc_v2(&mut at, gpu.before / 4 * 3));
    if code == OOM {
        // The reference guarantees it only after a trim.
        trim(gpu)?;
        at = gpu.alloc(gpu.before / 4 * 3)?;
    }
    gpu.release(at)?;
    trim(gpu)?;
    gpu.back()
}

fn params_read_back(gpu: Gpu) -> Outcome {
    let (graph, bytes) = (new_graph()?, gpu.part(8)?);
    let (node, at) = add_alloc(gpu, graph, bytes)?;
    let mut read = wanted(gpu, 0);
    ok!(cuGraphMemAllocNodeGetParams(node, &mut read));
    that!((read.bytesize, read.dptr) == (bytes, at), "{read:?}");
    Ok(())
}

fn zero(gpu: Gpu) -> Outcome {
    let (mut node, mut params) = (CUgraphNode::NULL, wanted(gpu, 0));
    let none = std::ptr::null();
    says!(INVALID, cuGraphAddMemAllocNode(&mut node, new_graph()?, none, 0, &mut params));
    gpu.back()
}

fn largest_number(gpu: Gpu) -> Outcome {
    let (mut node, none) = (CUgraphNode::NULL, std::ptr::null());
    for bytes in [usize::MAX, usize::MAX - GRAIN, usize::MAX / 2] {
        let mut params = wanted(gpu, bytes);
        let graph = new_graph()?;
        says!([OOM, INVALID], cuGraphAddMemAllocNode(&mut node, graph, none, 0, &mut params));
    }
    gpu.back()
}

fn null_params(gpu: Gpu) -> Outcome {
    let (mut node, none) = (CUgraphNode::NULL, std::ptr::null());
    let (graph, mut params) = (new_graph()?, wanted(gpu, GRAIN));
    says!(INVALID, cuGraphAddMemAllocNode(&mut node, graph, none, 0, std::ptr::null_mut()));
    says!(INVALID, cuGraphAddMemAllocNode(&mut node, CUgraph::NULL, none, 0, &mut params));
    gpu.back()
}

fn free_node_of_nothing(gpu: Gpu) -> Outcome {
    let (mut node, none) = (CUgraphNode::NULL, std::ptr::null());
    let at = gpu.alloc(GRAIN)?;
    for bad in [0, 1, at] {
        let code = calls::cuGraphAddMemFreeNode(&mut node, new_graph()?, none, 0, bad);
        that!(code != SUCCESS, "a graph would free {bad:#x}");
    }
    Ok(())
}

fn bad_device(gpu: Gpu) -> Outcome {
    let mut value = 0u64;
    let to = (&raw mut value).cast();
    let bad = [INVALID, CUresult::ERROR_INVALID_DEVICE];
    says!([bad[0], bad[1]], cuDeviceGraphMemTrim(99));
    says!([bad[0], bad[1]], cuDeviceGetGraphMemAttribute(99, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, to));
    says!(INVALID, cuDeviceGetGraphMemAttribute(gpu.device, 99, to));
    Ok(())
}

/// A function that instantiates a graph.
type Instantiate = fn(&mut CUgraphExec, CUgraph) -> CUresult;

/// All of them: each must be known to whatever counts memory.
const INSTANTIATE: [(&str, Instantiate); 6] = [
    ("cuGraphInstantiate", |exec, graph| {
        let nowhere = std::ptr::null_mut();
        calls::cuGraphInstantiate(exec, graph, nowhere, std::ptr::null_mut(), 0)
    }),
    ("cuGraphInstantiate_v2", |exec, graph| {
        let nowhere = std::ptr::null_mut();
        calls::cuGraphInstantiate_v2(exec, graph, nowhere, std::ptr::null_mut(), 0)
    }),
    ("cuGraphInstantiate as of CUDA 12", |exec, graph| {
        crate::lookup::instantiate(exec, graph, std::ptr::null_mut())
    }),
    ("cuGraphInstantiateWithFlags", |exec, graph| {
        calls::cuGraphInstantiateWithFlags(exec, graph, 0)
    }),
    ("cuGraphInstantiateWithParams", |exec, graph| {
        calls::cuGraphInstantiateWithParams(exec, graph, &mut plain_params())
    }),
    ("cuGraphInstantiateWithParams_ptsz", |exec, graph| {
        calls::cuGraphInstantiateWithParams_ptsz(exec, graph, &mut plain_params())
    }),
];

fn plain_params() -> CUDA_GRAPH_INSTANTIATE_PARAMS {
    CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: 0,
        h_upload_stream: CUstream::NULL,
        h_err_node_out: CUgraphNode::NULL,
        result_out: CUDA_GRAPH_INSTANTIATE_SUCCESS,
    }
}

fn instantiated_by_each_function(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    for (name, instantiate) in INSTANTIATE {
        let (graph, mut exec) = (new_graph()?, CUgraphExec::NULL);
        let (_, at) = add_alloc(gpu, graph, bytes)?;
        let code = instantiate(&mut exec, graph);
        that!(code == SUCCESS, "{name} answered {code:?}");
        freed_outside(gpu, (graph, exec), (at, bytes))?;
    }
    Ok(())
}

/// Beside memory that is held, a graph's does not fit, however it was instantiated.
fn refused_by_each_function(gpu: Gpu) -> Outcome {
    let (held, bytes) = (gpu.alloc(gpu.part(2)?)?, gpu.part(2)? + 16 * GRAIN);
    let gpu = gpu.measured()?;
    for (name, instantiate) in INSTANTIATE {
        let (graph, mut exec) = (new_graph()?, CUgraphExec::NULL);
        add_alloc(gpu, graph, bytes)?;
        let code = instantiate(&mut exec, graph);
        that!(code == SUCCESS || code == OOM, "{name} answered {code:?}");
        if code == SUCCESS {
            says!(OOM, cuGraphLaunch(exec, CUstream::NULL));
            ok!(cuGraphExecDestroy(exec));
        }
        ok!(cuGraphDestroy(graph));
        trim(gpu)?;
        gpu.back()?;
    }
    gpu.release(held)
}
