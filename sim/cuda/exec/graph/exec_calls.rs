//! Entry points about executable graphs: instantiation, launch, update.

use super::super::resolve;
use super::super::stream::shared;
use super::super::task::Task;
use super::exec::{Exec, Mismatch};
use super::node_calls::{kernel_v2, kind_of};
use super::{ExecKey, GraphKey, State, named, params, state};
use crate::entry::{In, Out, Outcome, refuse_if};
use gpuslice_nvabi::types::*;
use std::ffi::c_char;

const FLAGS: u64 = (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
    | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
    | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
    | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY) as u64;

fn instantiate(graph: CUgraph, flags: u64) -> Result<CUgraphExec, CUresult> {
    refuse_if(flags & !FLAGS != 0)?;
    let graph: GraphKey = named(graph.0)?;
    let State { graphs, execs, .. } = &mut *state();
    let exec = Exec::new(graphs, graph, flags)?;
    let key = execs.insert(exec).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    Ok(CUgraphExec(key.to_pointer()))
}

fn with_exec<T>(
    exec: CUgraphExec,
    work: impl FnOnce(&mut Exec) -> Result<T, CUresult>,
) -> Result<T, CUresult> {
    let key: ExecKey = named(exec.0)?;
    work(state().execs.get_mut(key).ok_or(CUresult::ERROR_INVALID_VALUE)?)
}

/// Gives the part made of a node something else of the same kind to do.
fn set(exec: CUgraphExec, node: CUgraphNode, task: Task) -> Outcome {
    with_exec(exec, |exec| {
        let part = exec.part(named(node.0)?)?;
        refuse_if(kind_of(&part.task) != kind_of(&task))?;
        part.task = task;
        Ok(())
    })
}

pub fn cuGraphInstantiateWithFlags(
    ph_graph_exec: Out<CUgraphExec>,
    h_graph: CUgraph,
    flags: u64,
) -> Outcome {
    ph_graph_exec.require()?;
    ph_graph_exec.set(instantiate(h_graph, flags)?)
}

pub fn cuGraphInstantiate_v2(
    ph_graph_exec: Out<CUgraphExec>,
    h_graph: CUgraph,
    ph_error_node: Out<CUgraphNode>,
    log_buffer: Out<c_char>,
    buffer_size: usize,
) -> Outcome {
    ph_error_node.set_if_wanted(CUgraphNode::NULL);
    if buffer_size > 0 {
        log_buffer.set_if_wanted(0);
    }
    cuGraphInstantiateWithFlags(ph_graph_exec, h_graph, 0)
}

/// A card's driver has it at an address of its own. So its code differs from the second form's: a compiler would make
/// one function of two with the same code.
pub fn cuGraphInstantiate(
    ph_graph_exec: Out<CUgraphExec>,
    h_graph: CUgraph,
    ph_error_node: Out<CUgraphNode>,
    log_buffer: Out<c_char>,
    buffer_size: usize,
) -> Outcome {
    let buffer_size = std::hint::black_box(buffer_size);
    cuGraphInstantiate_v2(ph_graph_exec, h_graph, ph_error_node, log_buffer, buffer_size)
}

pub fn cuGraphInstantiateWithParams(
    ph_graph_exec: Out<CUgraphExec>,
    h_graph: CUgraph,
    instantiate_params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> Outcome {
    ph_graph_exec.require()?;
    let mut params = instantiate_params.get()?;
    let made = instantiate(h_graph, params.flags);
    params.h_err_node_out = CUgraphNode::NULL;
    params.result_out = match made {
        Ok(_) => CUDA_GRAPH_INSTANTIATE_SUCCESS,
        Err(_) => CUDA_GRAPH_INSTANTIATE_ERROR,
    };
    instantiate_params.set(params)?;
    let exec = made?;
    ph_graph_exec.set(exec)?;
    if params.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0 {
        cuGraphUpload(exec, params.h_upload_stream)?;
    }
    Ok(())
}
pub use cuGraphInstantiateWithParams as cuGraphInstantiateWithParams_ptsz;

pub fn cuGraphExecGetFlags(h_graph_exec: CUgraphExec, flags: Out<u64>) -> Outcome {
    flags.set(with_exec(h_graph_exec, |exec| Ok(exec.flags))?)
}

pub fn cuGraphExecGetId(h_graph_exec: CUgraphExec, graph_id: Out<u32>) -> Outcome {
    let key: ExecKey = named(h_graph_exec.0)?;
    with_exec(h_graph_exec, |_| Ok(()))?;
    graph_id.set(key.id() as u32 + 1)
}

pub fn cuGraphUpload(h_graph: CUgraphExec, h_stream: CUstream) -> Outcome {
    resolve(h_stream)?;
    with_exec(h_graph, |exec| exec.prepare())
}
pub use cuGraphUpload as cuGraphUpload_ptsz;

pub fn cuGraphLaunch(h_graph: CUgraphExec, h_stream: CUstream) -> Outcome {
    let stream = resolve(h_stream)?;
    if super::is_capturing(stream) {
        return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    let (requests, last) = with_exec(h_graph, |exec| {
        // First, so that nothing of it is trimmed once it is there.
        let requests = exec.requests()?;
        exec.prepare()?;
        Ok((requests, exec.last))
    })?;
    let after = last.into_iter().collect();
    let end = shared()?.push(stream, after, requests)?;
    with_exec(h_graph, |exec| {
        exec.last = end;
        Ok(())
    })
}
pub use cuGraphLaunch as cuGraphLaunch_ptsz;

pub fn cuGraphExecDestroy(h_graph_exec: CUgraphExec) -> Outcome {
    let key: ExecKey = named(h_graph_exec.0)?;
    // Its queued launches hold their own references.
    state().execs.remove(key).map(drop).ok_or(CUresult::ERROR_INVALID_VALUE)
}

pub fn cuGraphExecUpdate_v2(
    h_graph_exec: CUgraphExec,
    h_graph: CUgraph,
    result_info: Out<CUgraphExecUpdateResultInfo>,
) -> Outcome {
    result_info.require()?;
    let (key, graph): (ExecKey, GraphKey) = (named(h_graph_exec.0)?, named(h_graph.0)?);
    let State { graphs, execs, .. } = &mut *state();
    let exec = execs.get_mut(key).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let failed = Err(CUresult::ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    let (result, node, outcome) = match exec.update(graphs, graph) {
        Ok(()) => (CU_GRAPH_EXEC_UPDATE_SUCCESS, CUgraphNode::NULL, Ok(())),
        Err(Mismatch::Topology) => {
            (CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, CUgraphNode::NULL, failed)
        }
        Err(Mismatch::Kind(node)) => {
            let node = CUgraphNode(node.to_pointer());
            (CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, node, failed)
        }
        Err(Mismatch::Refused(error)) => {
            (CU_GRAPH_EXEC_UPDATE_ERROR, CUgraphNode::NULL, Err(error))
        }
    };
    let error_from_node = CUgraphNode::NULL;
    result_info.set(CUgraphExecUpdateResultInfo { result, error_node: node, error_from_node })?;
    outcome
}

pub fn cuGraphExecUpdate(
    h_graph_exec: CUgraphExec,
    h_graph: CUgraph,
    h_error_node_out: Out<CUgraphNode>,
    update_result_out: Out<CUgraphExecUpdateResult>,
) -> Outcome {
    let mut info = CUgraphExecUpdateResultInfo {
        result: CU_GRAPH_EXEC_UPDATE_ERROR,
        error_node: CUgraphNode::NULL,
        error_from_node: CUgraphNode::NULL,
    };
    let outcome = cuGraphExecUpdate_v2(h_graph_exec, h_graph, Out::vouched(&mut info));
    h_error_node_out.set_if_wanted(info.error_node);
    update_result_out.set_if_wanted(info.result);
    outcome
}

pub fn cuGraphExecKernelNodeSetParams_v2(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> Outcome {
    set(h_graph_exec, h_node, kernel_v2(node_params)?)
}

pub fn cuGraphExecKernelNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Outcome {
    let task = params::kernel(&node_params.get()?, CUkernel::NULL)?;
    set(h_graph_exec, h_node, task)
}

pub fn cuGraphExecMemcpyNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    copy_params: In<CUDA_MEMCPY3D>,
    ctx: CUcontext,
) -> Outcome {
    let task = params::copy(&copy_params.get()?, ctx)?;
    set(h_graph_exec, h_node, task)
}

pub fn cuGraphExecMemsetNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    memset_params: In<CUDA_MEMSET_NODE_PARAMS>,
    ctx: CUcontext,
) -> Outcome {
    let task = params::fill(&memset_params.get()?, ctx)?;
    set(h_graph_exec, h_node, task)
}

pub fn cuGraphExecHostNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    node_params: In<CUDA_HOST_NODE_PARAMS>,
) -> Outcome {
    set(h_graph_exec, h_node, params::host(&node_params.get()?)?)
}

pub fn cuGraphExecChildGraphNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    child_graph: CUgraph,
) -> Outcome {
    let (key, node): (ExecKey, _) = (named(h_graph_exec.0)?, named(h_node.0)?);
    let child = named(child_graph.0)?;
    let State { graphs, execs, .. } = &mut *state();
    let exec = execs.get_mut(key).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let Task::Child(embedded) = graphs.node(node)?.task else {
        return Err(CUresult::ERROR_INVALID_VALUE);
    };
    exec.update_child(graphs, embedded, child)
}

pub fn cuGraphExecEventRecordNodeSetEvent(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    event: CUevent,
) -> Outcome {
    set(h_graph_exec, h_node, Task::Record(params::event(event)?))
}

pub fn cuGraphExecEventWaitNodeSetEvent(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    event: CUevent,
) -> Outcome {
    set(h_graph_exec, h_node, Task::Await(params::event(event)?))
}

pub fn cuGraphExecNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    node_params: Out<CUgraphNodeParams>,
) -> Outcome {
    let mut params = node_params.get()?;
    if params.kind == CU_GRAPH_NODE_TYPE_GRAPH {
        // SAFETY: the kind says which member the program has set.
        let child = unsafe { params.params.graph }.graph;
        return cuGraphExecChildGraphNodeSetParams(h_graph_exec, h_node, child);
    }
    set(h_graph_exec, h_node, params::any(&mut params)?)
}

pub fn cuGraphNodeSetEnabled(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    is_enabled: u32,
) -> Outcome {
    with_exec(h_graph_exec, |exec| {
        let part = exec.part(named(h_node.0)?)?;
        refuse_if(!matches!(part.task, Task::Kernel(_) | Task::Move(_)))?;
        part.enabled = is_enabled != 0;
        Ok(())
    })
}

pub fn cuGraphNodeGetEnabled(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    is_enabled: Out<u32>,
) -> Outcome {
    let enabled = with_exec(h_graph_exec, |exec| Ok(exec.part(named(h_node.0)?)?.enabled))?;
    is_enabled.set(u32::from(enabled))
}
