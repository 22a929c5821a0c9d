//! Entry points about graphs as a whole and the edges in them.

use super::super::task::Task;
use super::model::Graphs;
use super::{GraphKey, Node, NodeKey, Refusal, State, named, state};
use crate::entry::{In, Out, Outcome, refuse_if};
use gpuslice_nvabi::types::*;
use std::ffi::c_char;

/// A copy of a graph, child graphs included; memory belongs to one graph and cannot be copied.
pub fn clone_of(graphs: &mut Graphs<Task>, graph: GraphKey) -> Result<GraphKey, Refusal> {
    graphs.copy(graph, &mut |graphs: &mut Graphs<Task>, task: &Task| match task {
        Task::Alloc(_) | Task::Free(_) => Err(Refusal::Unsupported),
        Task::Child(child) => {
            let copy = clone_of(graphs, *child)?;
            graphs.graph_mut(copy)?.embedded = true;
            Ok(Task::Child(copy))
        }
        other => Ok(other.clone()),
    })
}

/// Destroys what tasks hold: child graphs.
pub fn bury(graphs: &mut Graphs<Task>, tasks: Vec<Task>) {
    for task in tasks {
        if let Task::Child(child) = task
            && let Ok(tasks) = graphs.destroy(child)
        {
            bury(graphs, tasks);
        }
    }
}

/// Gives out a list as the driver does: without a buffer only its length, with one as many as fit,
/// the rest filled with nulls.
pub fn give_list(list: &[NodeKey], buffer: Out<CUgraphNode>, count: Out<usize>) -> Outcome {
    count.require()?;
    if buffer.is_null() {
        return count.set(list.len());
    }
    let room = count.get()?;
    for at in 0..room {
        let node = list.get(at).map(|node| CUgraphNode(node.to_pointer()));
        buffer.set_at(at, node.unwrap_or(CUgraphNode::NULL))?;
    }
    count.set(room.min(list.len()))
}

/// An edge that is a full dependency.
pub const PLAIN: CUgraphEdgeData =
    CUgraphEdgeData { from_port: 0, to_port: 0, kind: 0, reserved: [0; 5] };

/// Fills a list of edge data: all edges are full dependencies.
pub fn give_plain(data: Out<CUgraphEdgeData>, count: Out<usize>) -> Outcome {
    if !data.is_null() {
        for at in 0..count.get()? {
            data.set_at(at, PLAIN)?;
        }
    }
    Ok(())
}

fn pairs(
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    count: usize,
) -> Result<Vec<(NodeKey, NodeKey)>, CUresult> {
    let (from, to) = (from.list(count)?, to.list(count)?);
    let pair =
        |(from, to): (CUgraphNode, CUgraphNode)| Ok((named::<Node>(from.0)?, named::<Node>(to.0)?));
    from.into_iter().zip(to).map(pair).collect()
}

pub fn cuGraphCreate(ph_graph: Out<CUgraph>, flags: u32) -> Outcome {
    ph_graph.require()?;
    refuse_if(flags != 0)?;
    ph_graph.set(CUgraph(state().graphs.create()?.to_pointer()))
}

pub fn cuGraphDestroy(h_graph: CUgraph) -> Outcome {
    let graph = named(h_graph.0)?;
    let mut held = state();
    let State { graphs, users, .. } = &mut *held;
    refuse_if(graphs.graph(graph)?.embedded)?;
    let tasks = graphs.destroy(graph)?;
    bury(graphs, tasks);
    let last = users.graph_ends(graph.id());
    drop(held);
    last.into_iter().for_each(super::user::Last::call);
    Ok(())
}

pub fn cuGraphClone(ph_graph_clone: Out<CUgraph>, original_graph: CUgraph) -> Outcome {
    ph_graph_clone.require()?;
    let clone = clone_of(&mut state().graphs, named(original_graph.0)?)?;
    ph_graph_clone.set(CUgraph(clone.to_pointer()))
}

pub fn cuGraphGetId(h_graph: CUgraph, graph_id: Out<u32>) -> Outcome {
    let graph: GraphKey = named(h_graph.0)?;
    state().graphs.graph(graph)?;
    graph_id.set(graph.id() as u32 + 1)
}

pub fn cuGraphGetNodes(
    h_graph: CUgraph,
    nodes: Out<CUgraphNode>,
    num_nodes: Out<usize>,
) -> Outcome {
    let list = state().graphs.nodes(named(h_graph.0)?)?.to_vec();
    give_list(&list, nodes, num_nodes)
}

pub fn cuGraphGetRootNodes(
    h_graph: CUgraph,
    root_nodes: Out<CUgraphNode>,
    num_root_nodes: Out<usize>,
) -> Outcome {
    let state = state();
    let nodes = state.graphs.nodes(named(h_graph.0)?)?;
    let is_root = |node: &&NodeKey| state.graphs.before(**node).is_ok_and(<[_]>::is_empty);
    let roots: Vec<_> = nodes.iter().filter(is_root).copied().collect();
    give_list(&roots, root_nodes, num_root_nodes)
}

pub fn cuGraphGetEdges(
    h_graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    num_edges: Out<usize>,
) -> Outcome {
    num_edges.require()?;
    refuse_if(from.is_null() != to.is_null())?;
    let edges = state().graphs.edges(named(h_graph.0)?)?;
    let (starts, ends): (Vec<_>, Vec<_>) = edges.into_iter().unzip();
    if from.is_null() {
        return num_edges.set(starts.len());
    }
    let room = num_edges.get()?;
    give_list(&starts, from, num_edges)?;
    num_edges.set(room)?;
    give_list(&ends, to, num_edges)
}

pub fn cuGraphGetEdges_v2(
    h_graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    edge_data: Out<CUgraphEdgeData>,
    num_edges: Out<usize>,
) -> Outcome {
    cuGraphGetEdges(h_graph, from, to, num_edges)?;
    give_plain(edge_data, num_edges)
}

pub fn cuGraphAddDependencies(
    h_graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    num_dependencies: usize,
) -> Outcome {
    let graph = named(h_graph.0)?;
    let pairs = pairs(from, to, num_dependencies)?;
    let graphs = &mut state().graphs;
    pairs.into_iter().try_for_each(|(from, to)| Ok(graphs.link(graph, from, to)?))
}

pub fn cuGraphAddDependencies_v2(
    h_graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    _edge_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
) -> Outcome {
    cuGraphAddDependencies(h_graph, from, to, num_dependencies)
}

pub fn cuGraphRemoveDependencies(
    h_graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    num_dependencies: usize,
) -> Outcome {
    let graph = named(h_graph.0)?;
    let pairs = pairs(from, to, num_dependencies)?;
    let graphs = &mut state().graphs;
    pairs.into_iter().try_for_each(|(from, to)| Ok(graphs.unlink(graph, from, to)?))
}

pub fn cuGraphRemoveDependencies_v2(
    h_graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    _edge_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
) -> Outcome {
    cuGraphRemoveDependencies(h_graph, from, to, num_dependencies)
}

pub fn cuGraphDebugDotPrint(h_graph: CUgraph, path: In<c_char>, _flags: u32) -> Outcome {
    use std::os::unix::ffi::OsStrExt;
    let graph: GraphKey = named(h_graph.0)?;
    let path = super::super::cstr(path)?;
    let state = state();
    let mut text = String::from("digraph dot {\n");
    for node in state.graphs.nodes(graph)? {
        let kind = super::node_calls::kind_of(&state.graphs.node(*node)?.task);
        text += &format!("  n{} [label=\"node {} of kind {kind}\"];\n", node.id(), node.id());
    }
    for (from, to) in state.graphs.edges(graph)? {
        text += &format!("  n{} -> n{};\n", from.id(), to.id());
    }
    drop(state);
    text += "}\n";
    let path = std::ffi::OsStr::from_bytes(path.to_bytes());
    std::fs::write(path, text).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
}
