//! Graphs as data: nodes, their tasks and their dependencies.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::plan;
use crate::handles::{Key, Named, Table};

/// A node; `T` is its task.
pub struct Node<T> {
    pub graph: GraphKey,
    pub task: T,
    before: Vec<Key<Node<T>>>,
    after: Vec<Key<Node<T>>>,
    /// The node this one was copied from, when its graph was cloned.
    origin: Option<Key<Node<T>>>,
}

impl<T> Named for Node<T> {
    const KIND: u8 = 3;
}

/// A graph.
#[derive(Default)]
pub struct Graph {
    /// Belongs to a node of another graph; the program cannot destroy it.
    pub embedded: bool,
}

impl Named for Graph {
    const KIND: u8 = 4;
}

/// Names a graph.
pub type GraphKey = Key<Graph>;

/// An edge: from, to.
type Edge<T> = (Key<Node<T>>, Key<Node<T>>);
/// A node, and the places of those it depends on in the same list.
pub type Placed<T> = (Key<Node<T>>, Vec<usize>);

/// Why a change of a graph is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such graph or node, or a node of another graph.
    Unknown,
    /// An edge that is there already, is not there, or closes a circle.
    Edge,
    /// What graphs of this kind cannot do.
    Unsupported,
    TooMany,
}

/// All graphs of the process.
pub struct Graphs<T> {
    graphs: Table<Graph>,
    nodes: Table<Node<T>>,
    /// Nodes of each graph, in the order in which they were added.
    members: HashMap<u64, Vec<Key<Node<T>>>>,
}

impl<T: Clone> Graphs<T> {
    pub fn new() -> Self {
        Self { graphs: Table::new(), nodes: Table::new(), members: HashMap::new() }
    }

    pub fn create(&mut self) -> Result<GraphKey, Refusal> {
        let key = self.graphs.insert(Graph::default()).ok_or(Refusal::TooMany)?;
        self.members.insert(key.id(), Vec::new());
        Ok(key)
    }

    pub fn graph(&self, key: GraphKey) -> Result<&Graph, Refusal> {
        self.graphs.get(key).ok_or(Refusal::Unknown)
    }

    pub fn graph_mut(&mut self, key: GraphKey) -> Result<&mut Graph, Refusal> {
        self.graphs.get_mut(key).ok_or(Refusal::Unknown)
    }

    /// Removes a graph and its nodes; returns their tasks.
    pub fn destroy(&mut self, key: GraphKey) -> Result<Vec<T>, Refusal> {
        self.graphs.remove(key).ok_or(Refusal::Unknown)?;
        let members = self.members.remove(&key.id()).unwrap_or_default();
        Ok(members.into_iter().filter_map(|node| self.nodes.remove(node)).map(|n| n.task).collect())
    }

    pub fn nodes(&self, key: GraphKey) -> Result<&[Key<Node<T>>], Refusal> {
        self.members.get(&key.id()).map(Vec::as_slice).ok_or(Refusal::Unknown)
    }

    pub fn node(&self, key: Key<Node<T>>) -> Result<&Node<T>, Refusal> {
        self.nodes.get(key).ok_or(Refusal::Unknown)
    }

    pub fn node_mut(&mut self, key: Key<Node<T>>) -> Result<&mut Node<T>, Refusal> {
        self.nodes.get_mut(key).ok_or(Refusal::Unknown)
    }

    /// Adds a node that comes after the given ones, which must be of the same graph and different.
    pub fn add(
        &mut self,
        graph: GraphKey,
        before: &[Key<Node<T>>],
        task: T,
    ) -> Result<Key<Node<T>>, Refusal> {
        self.graph(graph)?;
        for (index, node) in before.iter().enumerate() {
            if self.node(*node)?.graph != graph {
                return Err(Refusal::Unknown);
            }
            if before[..index].contains(node) {
                return Err(Refusal::Edge);
            }
        }
        let node = Node { graph, task, before: before.to_vec(), after: Vec::new(), origin: None };
        let key = self.nodes.insert(node).ok_or(Refusal::TooMany)?;
        for other in before {
            self.node_mut(*other)?.after.push(key);
        }
        self.members.entry(graph.id()).or_default().push(key);
        Ok(key)
    }

    /// Removes a node and its edges; returns its task.
    pub fn remove(&mut self, key: Key<Node<T>>) -> Result<T, Refusal> {
        let node = self.nodes.remove(key).ok_or(Refusal::Unknown)?;
        for other in node.before.iter().chain(&node.after) {
            if let Some(other) = self.nodes.get_mut(*other) {
                other.before.retain(|node| *node != key);
                other.after.retain(|node| *node != key);
            }
        }
        if let Some(members) = self.members.get_mut(&node.graph.id()) {
            members.retain(|member| *member != key);
        }
        Ok(node.task)
    }

    pub fn before(&self, key: Key<Node<T>>) -> Result<&[Key<Node<T>>], Refusal> {
        self.node(key).map(|node| node.before.as_slice())
    }

    pub fn after(&self, key: Key<Node<T>>) -> Result<&[Key<Node<T>>], Refusal> {
        self.node(key).map(|node| node.after.as_slice())
    }

    /// Adds an edge; refused where it exists or would close a circle.
    pub fn link(
        &mut self,
        graph: GraphKey,
        from: Key<Node<T>>,
        to: Key<Node<T>>,
    ) -> Result<(), Refusal> {
        if self.node(from)?.graph != graph || self.node(to)?.graph != graph {
            return Err(Refusal::Unknown);
        }
        if self.before(to)?.contains(&from) || self.leads(to, from) {
            return Err(Refusal::Edge);
        }
        self.node_mut(from)?.after.push(to);
        self.node_mut(to)?.before.push(from);
        Ok(())
    }

    /// Whether one node is the other or comes before it.
    fn leads(&self, from: Key<Node<T>>, to: Key<Node<T>>) -> bool {
        let mut seen = vec![from];
        let mut at = 0;
        while let Some(key) = seen.get(at).copied() {
            if key == to {
                return true;
            }
            for next in self.after(key).unwrap_or_default() {
                if !seen.contains(next) {
                    seen.push(*next);
                }
            }
            at += 1;
        }
        false
    }

    /// Removes an edge; refused where it does not exist.
    pub fn unlink(
        &mut self,
        graph: GraphKey,
        from: Key<Node<T>>,
        to: Key<Node<T>>,
    ) -> Result<(), Refusal> {
        if self.node(from)?.graph != graph || self.node(to)?.graph != graph {
            return Err(Refusal::Unknown);
        }
        if !self.before(to)?.contains(&from) {
            return Err(Refusal::Edge);
        }
        self.node_mut(from)?.after.retain(|node| *node != to);
        self.node_mut(to)?.before.retain(|node| *node != from);
        Ok(())
    }

    /// All edges, from and to.
    pub fn edges(&self, graph: GraphKey) -> Result<Vec<Edge<T>>, Refusal> {
        let mut edges = Vec::new();
        for to in self.nodes(graph)? {
            edges.extend(self.before(*to)?.iter().map(|from| (*from, *to)));
        }
        Ok(edges)
    }

    /// The graph's nodes, each after those it depends on, and for each the places of those.
    pub fn ordered(&self, graph: GraphKey) -> Result<Vec<Placed<T>>, Refusal> {
        let nodes = self.nodes(graph)?;
        let place: HashMap<u64, usize> =
            nodes.iter().enumerate().map(|(index, node)| (node.id(), index)).collect();
        let after: Vec<Vec<usize>> = nodes
            .iter()
            .map(|node| {
                let before = self.before(*node).unwrap_or_default();
                before.iter().filter_map(|other| place.get(&other.id()).copied()).collect()
            })
            .collect();
        let order = plan::order(&after).ok_or(Refusal::Edge)?;
        let mut new_place = vec![0; order.len()];
        for (new, old) in order.iter().enumerate() {
            new_place[*old] = new;
        }
        let places = |old: &usize| after[*old].iter().map(|other| new_place[*other]).collect();
        Ok(order.iter().map(|old| (nodes[*old], places(old))).collect())
    }

    /// Copies a graph; what a node does is changed by `copy` on the way.
    pub fn copy(
        &mut self,
        graph: GraphKey,
        mut copy: impl FnMut(&mut Self, &T) -> Result<T, Refusal>,
    ) -> Result<GraphKey, Refusal> {
        let ordered = self.ordered(graph)?;
        let clone = self.create()?;
        let mut made = Vec::with_capacity(ordered.len());
        for (node, before) in &ordered {
            let task = self.node(*node)?.task.clone();
            let task = copy(self, &task)?;
            let before: Vec<_> = before.iter().map(|place| made[*place]).collect();
            let new = self.add(clone, &before, task)?;
            self.node_mut(new)?.origin = Some(*node);
            made.push(new);
        }
        Ok(clone)
    }

    /// The node of a cloned graph that was copied from the given one.
    pub fn find_copy(
        &self,
        graph: GraphKey,
        origin: Key<Node<T>>,
    ) -> Result<Key<Node<T>>, Refusal> {
        let is_it = |key: &&Key<Node<T>>| {
            self.nodes.get(**key).is_some_and(|node| node.origin == Some(origin))
        };
        self.nodes(graph)?.iter().find(is_it).copied().ok_or(Refusal::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_and_copies() {
        let mut graphs: Graphs<char> = Graphs::new();
        let graph = graphs.create().expect("there is room");
        let a = graphs.add(graph, &[], 'a').expect("the graph is there");
        let b = graphs.add(graph, &[a], 'b').expect("the graph is there");
        let c = graphs.add(graph, &[], 'c').expect("the graph is there");
        assert_eq!(graphs.link(graph, b, c), Ok(()));
        assert_eq!(graphs.link(graph, b, c), Err(Refusal::Edge));
        assert_eq!(graphs.link(graph, c, a), Err(Refusal::Edge));
        assert_eq!(graphs.link(graph, a, a), Err(Refusal::Edge));
        assert_eq!(graphs.edges(graph), Ok(vec![(a, b), (b, c)]));
        let clone = graphs.copy(graph, |_, task| Ok(task.to_ascii_uppercase())).expect("no circle");
        let copy = graphs.find_copy(clone, c).expect("it was copied");
        assert_eq!(graphs.node(copy).map(|node| node.task), Ok('C'));
        assert_eq!(graphs.unlink(graph, b, c), Ok(()));
        assert_eq!(graphs.unlink(graph, b, c), Err(Refusal::Edge));
        assert_eq!(graphs.edges(clone).map(|edges| edges.len()), Ok(2));
        assert_eq!(graphs.remove(a), Ok('a'));
        assert_eq!(graphs.before(b).map(<[_]>::len), Ok(0));
        assert_eq!(graphs.add(clone, &[b], 'x'), Err(Refusal::Unknown));
        assert_eq!(graphs.destroy(graph), Ok(vec!['b', 'c']));
        assert!(graphs.node(b).is_err() && graphs.nodes(graph).is_err());
    }
}
