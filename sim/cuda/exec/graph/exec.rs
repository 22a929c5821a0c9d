//! Executable graphs, made from graphs by instantiation.

#![forbid(unsafe_code)]

use super::super::cost::Nanos;
use super::super::stream::{Body, Mark, Request};
use super::super::task::Task;
use super::memory::{end_use, uses};
use super::model::{GraphKey, Graphs, Refusal};
use super::plan::{self, Step};
use super::{Key, NodeKey};
use crate::entry::refuse_if;
use gpuslice_nvabi::types::{CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, CUresult};
use gpuslice_sim_device::Kind;
use std::mem::discriminant;

/// One thing an executable graph does.
pub struct Part {
    /// The node it was made of; none for the end of a child graph.
    pub origin: NodeKey,
    pub task: Task,
    pub enabled: bool,
    before: Vec<usize>,
}

/// An executable graph. Child graphs are part of it, between a beginning and an end of their own.
pub struct Exec {
    pub parts: Vec<Part>,
    pub flags: u64,
    /// The end of its latest launch: it never runs beside itself.
    pub last: Option<Mark>,
}

/// Why an update was refused.
pub enum Mismatch {
    Topology,
    Kind(NodeKey),
    Refused(CUresult),
}

impl Exec {
    pub fn new(graphs: &Graphs<Task>, graph: GraphKey, flags: u64) -> Result<Self, Refusal> {
        let mut parts = Vec::new();
        flatten(graphs, graph, &[], &mut parts)?;
        Ok(Self { parts, flags, last: None })
    }

    /// The part made of a node.
    pub fn part(&mut self, origin: NodeKey) -> Result<&mut Part, CUresult> {
        let found = self.parts.iter_mut().find(|part| part.origin == origin);
        found.ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Takes what the parts do from another graph of the same shape.
    pub fn update(&mut self, graphs: &Graphs<Task>, graph: GraphKey) -> Result<(), Mismatch> {
        let refused = |refusal: Refusal| Mismatch::Refused(refusal.into());
        let mut parts = Vec::new();
        flatten(graphs, graph, &[], &mut parts).map_err(refused)?;
        if parts.len() != self.parts.len() {
            return Err(Mismatch::Topology);
        }
        for (old, new) in self.parts.iter().zip(&parts) {
            if discriminant(&old.task) != discriminant(&new.task) {
                return Err(Mismatch::Kind(new.origin));
            }
            if old.before != new.before {
                return Err(Mismatch::Topology);
            }
        }
        // The handles of the graph it was made of stay those by which its parts are known.
        for (old, new) in self.parts.iter_mut().zip(parts) {
            old.task = new.task;
        }
        Ok(())
    }

    /// Takes what the parts of an embedded child graph do from another graph of the same shape.
    pub fn update_child(
        &mut self,
        graphs: &Graphs<Task>,
        embedded: GraphKey,
        other: GraphKey,
    ) -> Result<(), CUresult> {
        let (old, new) = (graphs.ordered(embedded)?, graphs.ordered(other)?);
        let shape = |nodes: &[(NodeKey, Vec<usize>)]| -> Vec<Vec<usize>> {
            nodes.iter().map(|(_, before)| before.clone()).collect()
        };
        refuse_if(shape(&old) != shape(&new))?;
        for ((old, _), (new, _)) in old.iter().zip(&new) {
            let task = graphs.node(*new)?.task.clone();
            let part = self.part(*old)?;
            match (&part.task, &task) {
                (Task::Child(inner), Task::Child(other)) => {
                    let inner = *inner;
                    self.update_child(graphs, inner, *other)?;
                }
                (was, _) if discriminant(was) == discriminant(&task) => part.task = task,
                _ => return Err(CUresult::ERROR_INVALID_VALUE),
            }
        }
        Ok(())
    }

    /// Sees to the memory a launch allocates.
    pub fn prepare(&self) -> Result<(), CUresult> {
        let freed = |address: u64| {
            let (allocs, frees) = uses(self.parts.iter().map(|part| &part.task), address);
            allocs == frees
        };
        let auto = self.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
        for part in &self.parts {
            let Task::Alloc(memory) = &part.task else {
                continue;
            };
            if memory.is_in_use() && !freed(memory.address) {
                refuse_if(!auto)?;
                end_use(memory.address)?;
            }
            memory.back()?;
        }
        Ok(())
    }

    /// What a stream must do for one launch.
    pub fn requests(&self) -> Result<Vec<Request>, CUresult> {
        let time = |part: &Part| {
            if part.enabled { part.task.time().saturating_add(part.task.moves()) } else { 0 }
        };
        let steps: Vec<Step> = self
            .parts
            .iter()
            .map(|part| Step { ns: time(part), after: part.before.clone() })
            .collect();
        let sequence = plan::sequence(&steps).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let requests = sequence.into_iter().flat_map(|(index, gap)| {
            let part = &self.parts[index];
            if part.enabled { part.task.requests(gap) } else { idle(gap) }
        });
        Ok(requests.collect())
    }
}

fn idle(ns: Nanos) -> Vec<Request> {
    vec![Request::Body(Body::Work { kind: Kind::Marker, ns, blocks: 0, effect: None })]
}

/// Appends a graph's nodes, behind the given parts; returns the parts that end it.
fn flatten(
    graphs: &Graphs<Task>,
    graph: GraphKey,
    start: &[usize],
    parts: &mut Vec<Part>,
) -> Result<Vec<usize>, Refusal> {
    let ordered = graphs.ordered(graph)?;
    let mut ends = Vec::with_capacity(ordered.len());
    let mut leads_on = vec![false; ordered.len()];
    for (node, before) in &ordered {
        let task = graphs.node(*node)?.task.clone();
        let mut after: Vec<usize> = before.iter().map(|place| ends[*place]).collect();
        if after.is_empty() {
            after.extend(start);
        }
        for place in before {
            leads_on[*place] = true;
        }
        let child = if let Task::Child(child) = &task { Some(*child) } else { None };
        parts.push(Part { origin: *node, task, enabled: true, before: after });
        let begin = parts.len() - 1;
        match child {
            None => ends.push(begin),
            Some(child) => {
                let mut before = flatten(graphs, child, &[begin], parts)?;
                if before.is_empty() {
                    before.push(begin);
                }
                let end = Part { origin: Key::none(), task: Task::Empty, enabled: true, before };
                parts.push(end);
                ends.push(parts.len() - 1);
            }
        }
    }
    Ok(ends.into_iter().zip(leads_on).filter(|(_, on)| !on).map(|(end, _)| end).collect())
}
