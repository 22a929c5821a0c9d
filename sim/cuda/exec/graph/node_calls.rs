//! Entry points about nodes of graphs.

use super::super::task::{HostCall, Operation, Task};
use super::calls::{bury, give_list, give_plain};
use super::{Node, NodeKey, named, params, state};
use crate::entry::{In, Out, Outcome};
use crate::exec::OperationKind;
use gpuslice_nvabi::types::*;
use std::collections::HashMap;
use std::mem::discriminant;
use std::sync::Mutex;

/// The driver's name for the kind of a node.
pub fn kind_of(task: &Task) -> CUgraphNodeType {
    match task {
        Task::Empty | Task::Release(_) | Task::Retire { .. } => CU_GRAPH_NODE_TYPE_EMPTY,
        Task::Kernel(_) => CU_GRAPH_NODE_TYPE_KERNEL,
        Task::Move(one) => match one.kind {
            OperationKind::Copy(_) => CU_GRAPH_NODE_TYPE_MEMCPY,
            OperationKind::Fill(_) => CU_GRAPH_NODE_TYPE_MEMSET,
            OperationKind::Prefetch { .. } => CU_GRAPH_NODE_TYPE_EMPTY,
        },
        Task::Host(_) => CU_GRAPH_NODE_TYPE_HOST,
        Task::Record(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        Task::Await(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        Task::Memops(_) => CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        Task::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
        Task::Alloc(_) => CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        Task::Free(_) => CU_GRAPH_NODE_TYPE_MEM_FREE,
    }
}

fn add(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    before: In<CUgraphNode>,
    count: usize,
    task: impl FnOnce() -> Result<Task, CUresult>,
) -> Outcome {
    out.require()?;
    let graph = named(graph.0)?;
    let before: Result<Vec<NodeKey>, _> =
        before.list(count)?.into_iter().map(|node| named::<Node>(node.0)).collect();
    let before = before?;
    state().graphs.graph(graph)?;
    let task = task()?;
    let node = state().graphs.add(graph, &before, task)?;
    out.set(CUgraphNode(node.to_pointer()))
}

/// What a node does.
fn task_of(node: CUgraphNode) -> Result<Task, CUresult> {
    Ok(state().graphs.node(named(node.0)?)?.task.clone())
}

/// Gives a node something else of the same kind to do.
fn set(node: CUgraphNode, task: Task) -> Outcome {
    let mut state = state();
    let node = state.graphs.node_mut(named(node.0)?)?;
    if kind_of(&node.task) != kind_of(&task) || discriminant(&node.task) != discriminant(&task) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let old = std::mem::replace(&mut node.task, task);
    bury(&mut state.graphs, vec![old]);
    Ok(())
}

const WRONG: CUresult = CUresult::ERROR_INVALID_VALUE;

/// Attributes set on kernel nodes; they change nothing but are read back.
type Attributes = HashMap<(u64, CUlaunchAttributeID), CUlaunchAttributeValue>;
static ATTRIBUTES: Mutex<Option<Attributes>> = Mutex::new(None);

fn with_attributes<T>(work: impl FnOnce(&mut Attributes) -> T) -> T {
    let mut held = ATTRIBUTES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    work(held.get_or_insert_default())
}

/// The task of a kernel node that may name a library's kernel.
pub fn kernel_v2(params: In<CUDA_KERNEL_NODE_PARAMS_v2>) -> Result<Task, CUresult> {
    let params = params.get()?;
    params::kernel(&params.v1, params.kern)
}

fn kernel_node(node: CUgraphNode) -> Result<NodeKey, CUresult> {
    let Task::Kernel(_) = task_of(node)? else {
        return Err(WRONG);
    };
    named(node.0)
}

pub fn cuGraphAddKernelNode_v2(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> Outcome {
    let task = || kernel_v2(node_params);
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)
}

pub fn cuGraphAddKernelNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Outcome {
    let task = || params::kernel(&node_params.get()?, CUkernel::NULL);
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)
}

pub fn cuGraphKernelNodeGetParams_v2(
    h_node: CUgraphNode,
    node_params: Out<CUDA_KERNEL_NODE_PARAMS>,
) -> Outcome {
    let Task::Kernel(launch) = task_of(h_node)? else {
        return Err(WRONG);
    };
    node_params.set(CUDA_KERNEL_NODE_PARAMS_v2 {
        v1: params::of_kernel(&launch),
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    })
}

pub fn cuGraphKernelNodeGetParams(
    h_node: CUgraphNode,
    node_params: Out<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Outcome {
    let Task::Kernel(launch) = task_of(h_node)? else {
        return Err(WRONG);
    };
    node_params.set(params::of_kernel(&launch))
}

pub fn cuGraphKernelNodeSetParams_v2(
    h_node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> Outcome {
    set(h_node, kernel_v2(node_params)?)
}

pub fn cuGraphKernelNodeSetParams(
    h_node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Outcome {
    set(h_node, params::kernel(&node_params.get()?, CUkernel::NULL)?)
}

pub fn cuGraphAddMemcpyNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    copy_params: In<CUDA_MEMCPY3D>,
    ctx: CUcontext,
) -> Outcome {
    let task = || params::copy(&copy_params.get()?, ctx);
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)
}

pub fn cuGraphMemcpyNodeGetParams(h_node: CUgraphNode, node_params: Out<CUDA_MEMCPY3D>) -> Outcome {
    let Task::Move(Operation { kind: OperationKind::Copy(copy), .. }) = task_of(h_node)? else {
        return Err(WRONG);
    };
    node_params.set(copy)
}

pub fn cuGraphMemcpyNodeSetParams(h_node: CUgraphNode, node_params: In<CUDA_MEMCPY3D>) -> Outcome {
    set(h_node, params::copy(&node_params.get()?, CUcontext::NULL)?)
}

pub fn cuGraphAddMemsetNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    memset_params: In<CUDA_MEMSET_NODE_PARAMS>,
    ctx: CUcontext,
) -> Outcome {
    let task = || params::fill(&memset_params.get()?, ctx);
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)
}

pub fn cuGraphMemsetNodeGetParams(
    h_node: CUgraphNode,
    node_params: Out<CUDA_MEMSET_NODE_PARAMS>,
) -> Outcome {
    let Task::Move(Operation { kind: OperationKind::Fill(fill), .. }) = task_of(h_node)? else {
        return Err(WRONG);
    };
    node_params.set(fill)
}

pub fn cuGraphMemsetNodeSetParams(
    h_node: CUgraphNode,
    node_params: In<CUDA_MEMSET_NODE_PARAMS>,
) -> Outcome {
    set(h_node, params::fill(&node_params.get()?, CUcontext::NULL)?)
}

pub fn cuGraphAddHostNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: In<CUDA_HOST_NODE_PARAMS>,
) -> Outcome {
    let task = || params::host(&node_params.get()?);
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)
}

pub fn cuGraphHostNodeGetParams(
    h_node: CUgraphNode,
    node_params: Out<CUDA_HOST_NODE_PARAMS>,
) -> Outcome {
    let Task::Host(HostCall::Function(func, data)) = task_of(h_node)? else {
        return Err(WRONG);
    };
    let user_data = data as *mut std::ffi::c_void;
    node_params.set(CUDA_HOST_NODE_PARAMS_v1 { func, user_data })
}

pub fn cuGraphHostNodeSetParams(
    h_node: CUgraphNode,
    node_params: In<CUDA_HOST_NODE_PARAMS>,
) -> Outcome {
    set(h_node, params::host(&node_params.get()?)?)
}

pub fn cuGraphAddChildGraphNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    child_graph: CUgraph,
) -> Outcome {
    let task = || params::child(child_graph, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE);
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)
}

pub fn cuGraphChildGraphNodeGetGraph(h_node: CUgraphNode, ph_graph: Out<CUgraph>) -> Outcome {
    let Task::Child(child) = task_of(h_node)? else {
        return Err(WRONG);
    };
    ph_graph.set(CUgraph(child.to_pointer()))
}

pub fn cuGraphAddEmptyNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
) -> Outcome {
    let task = || Ok(Task::Empty);
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)
}

pub fn cuGraphAddEventRecordNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    event: CUevent,
) -> Outcome {
    let task = || Ok(Task::Record(params::event(event)?));
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)
}

pub fn cuGraphEventRecordNodeGetEvent(h_node: CUgraphNode, event_out: Out<CUevent>) -> Outcome {
    let Task::Record(event) = task_of(h_node)? else {
        return Err(WRONG);
    };
    event_out.set(CUevent(event.to_pointer()))
}

pub fn cuGraphEventRecordNodeSetEvent(h_node: CUgraphNode, event: CUevent) -> Outcome {
    set(h_node, Task::Record(params::event(event)?))
}

pub fn cuGraphAddEventWaitNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    event: CUevent,
) -> Outcome {
    let task = || Ok(Task::Await(params::event(event)?));
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)
}

pub fn cuGraphEventWaitNodeGetEvent(h_node: CUgraphNode, event_out: Out<CUevent>) -> Outcome {
    let Task::Await(event) = task_of(h_node)? else {
        return Err(WRONG);
    };
    event_out.set(CUevent(event.to_pointer()))
}

pub fn cuGraphEventWaitNodeSetEvent(h_node: CUgraphNode, event: CUevent) -> Outcome {
    set(h_node, Task::Await(params::event(event)?))
}

pub fn cuGraphAddMemAllocNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> Outcome {
    let mut params = node_params.get()?;
    let task = || params::alloc(&mut params);
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)?;
    node_params.set(params)
}

pub fn cuGraphMemAllocNodeGetParams(
    h_node: CUgraphNode,
    params_out: Out<CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> Outcome {
    let Task::Alloc(memory) = task_of(h_node)? else {
        return Err(WRONG);
    };
    params_out.set(params::of_alloc(&memory))
}

pub fn cuGraphAddMemFreeNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    dptr: CUdeviceptr,
) -> Outcome {
    let task = || params::free(dptr);
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)
}

pub fn cuGraphMemFreeNodeGetParams(h_node: CUgraphNode, dptr_out: Out<CUdeviceptr>) -> Outcome {
    let Task::Free(address) = task_of(h_node)? else {
        return Err(WRONG);
    };
    dptr_out.set(address)
}

pub fn cuGraphAddNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: Out<CUgraphNodeParams>,
) -> Outcome {
    let mut params = node_params.get()?;
    let task = || params::any(&mut params);
    add(ph_graph_node, h_graph, dependencies, num_dependencies, task)?;
    node_params.set(params)
}

pub fn cuGraphAddNode_v2(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    _dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    node_params: Out<CUgraphNodeParams>,
) -> Outcome {
    cuGraphAddNode(ph_graph_node, h_graph, dependencies, num_dependencies, node_params)
}

pub fn cuGraphNodeSetParams(h_node: CUgraphNode, node_params: Out<CUgraphNodeParams>) -> Outcome {
    set(h_node, params::any(&mut node_params.get()?)?)
}

pub fn cuGraphNodeGetType(h_node: CUgraphNode, kind: Out<CUgraphNodeType>) -> Outcome {
    kind.set(kind_of(&task_of(h_node)?))
}

pub fn cuGraphNodeFindInClone(
    ph_node: Out<CUgraphNode>,
    h_original_node: CUgraphNode,
    h_cloned_graph: CUgraph,
) -> Outcome {
    ph_node.require()?;
    let (graph, origin) = (named(h_cloned_graph.0)?, named(h_original_node.0)?);
    ph_node.set(CUgraphNode(state().graphs.find_copy(graph, origin)?.to_pointer()))
}

pub fn cuGraphNodeGetDependencies(
    h_node: CUgraphNode,
    dependencies: Out<CUgraphNode>,
    num_dependencies: Out<usize>,
) -> Outcome {
    let list = state().graphs.before(named(h_node.0)?)?.to_vec();
    give_list(&list, dependencies, num_dependencies)
}

pub fn cuGraphNodeGetDependencies_v2(
    h_node: CUgraphNode,
    dependencies: Out<CUgraphNode>,
    edge_data: Out<CUgraphEdgeData>,
    num_dependencies: Out<usize>,
) -> Outcome {
    cuGraphNodeGetDependencies(h_node, dependencies, num_dependencies)?;
    give_plain(edge_data, num_dependencies)
}

pub fn cuGraphNodeGetDependentNodes(
    h_node: CUgraphNode,
    dependent_nodes: Out<CUgraphNode>,
    num_dependent_nodes: Out<usize>,
) -> Outcome {
    let list = state().graphs.after(named(h_node.0)?)?.to_vec();
    give_list(&list, dependent_nodes, num_dependent_nodes)
}

pub fn cuGraphNodeGetDependentNodes_v2(
    h_node: CUgraphNode,
    dependent_nodes: Out<CUgraphNode>,
    edge_data: Out<CUgraphEdgeData>,
    num_dependent_nodes: Out<usize>,
) -> Outcome {
    cuGraphNodeGetDependentNodes(h_node, dependent_nodes, num_dependent_nodes)?;
    give_plain(edge_data, num_dependent_nodes)
}

pub fn cuGraphDestroyNode(h_node: CUgraphNode) -> Outcome {
    let node: NodeKey = named(h_node.0)?;
    let mut state = state();
    // Memory must not lose the node that frees it, nor the one that makes it.
    if matches!(state.graphs.node(node)?.task, Task::Alloc(_) | Task::Free(_)) {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let task = state.graphs.remove(node)?;
    bury(&mut state.graphs, vec![task]);
    with_attributes(|all| all.retain(|(of, _), _| *of != node.id()));
    Ok(())
}

pub fn cuGraphKernelNodeSetAttribute(
    h_node: CUgraphNode,
    attr: CUlaunchAttributeID,
    value: In<CUlaunchAttributeValue>,
) -> Outcome {
    let (node, value) = (kernel_node(h_node)?, value.get()?);
    with_attributes(|all| all.insert((node.id(), attr), value));
    Ok(())
}

pub fn cuGraphKernelNodeGetAttribute(
    h_node: CUgraphNode,
    attr: CUlaunchAttributeID,
    value_out: Out<CUlaunchAttributeValue>,
) -> Outcome {
    let node = kernel_node(h_node)?;
    let set = with_attributes(|all| all.get(&(node.id(), attr)).copied());
    value_out.set(set.unwrap_or(CUlaunchAttributeValue { bytes: [0; 64] }))
}

pub fn cuGraphKernelNodeCopyAttributes(dst: CUgraphNode, src: CUgraphNode) -> Outcome {
    let (dst, src) = (kernel_node(dst)?, kernel_node(src)?);
    with_attributes(|all| {
        let of_src = all.iter().filter(|((node, _), _)| *node == src.id());
        let copied: Vec<_> = of_src.map(|((_, attr), value)| (*attr, *value)).collect();
        all.retain(|(node, _), _| *node != dst.id());
        all.extend(copied.into_iter().map(|(attr, value)| ((dst.id(), attr), value)));
    });
    Ok(())
}
