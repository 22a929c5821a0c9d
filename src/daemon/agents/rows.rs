//! The rows that an agent sees: GPUs, slices, containers in claims. A change is a difference between two sets of rows.
//!
//! Memory in use changes with every allocation. So it alone is no change of a slice; its figure is that of the
//! slice's last other change, or of the list.

use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::node::NodeAnswer;
use gpuslice_wire::owner::ClaimId;
use gpuslice_wire::units::Bytes;
use std::collections::BTreeMap;

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Gpu(u8),
    Slice(ContainerId),
    Member(ClaimId, ContainerId),
}

impl Subject {
    fn of(row: &NodeAnswer) -> Option<Subject> {
        match row {
            NodeAnswer::Gpu { gpu } => Some(Subject::Gpu(gpu.number)),
            NodeAnswer::Slice { slice, .. } => Some(Subject::Slice(*slice)),
            NodeAnswer::Member { claim, container } => Some(Subject::Member(*claim, *container)),
            _ => None,
        }
    }
}

/// A set of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows(BTreeMap<Subject, NodeAnswer>);

impl FromIterator<NodeAnswer> for Rows {
    fn from_iter<I: IntoIterator<Item = NodeAnswer>>(rows: I) -> Rows {
        let keyed = rows.into_iter().filter_map(|row| Some((Subject::of(&row)?, row)));
        Rows(keyed.collect())
    }
}

/// The row without its memory in use.
fn still(row: &NodeAnswer) -> NodeAnswer {
    let mut still = row.clone();
    if let NodeAnswer::Slice { reserved, .. } = &mut still {
        *reserved = Bytes::ZERO;
    }
    still
}

impl Rows {
    /// All rows: GPUs, slices, containers in claims.
    pub fn all(&self) -> impl Iterator<Item = &NodeAnswer> {
        self.0.values()
    }

    /// The messages that turn `old` into these rows.
    pub fn since(&self, old: &Rows) -> Vec<NodeAnswer> {
        let mut changes = Vec::new();
        for (subject, _) in old.0.iter().filter(|(subject, _)| !self.0.contains_key(subject)) {
            match *subject {
                Subject::Gpu(_) => {}
                Subject::Slice(slice) => changes.push(NodeAnswer::Gone { slice }),
                // With a slice, all its members are gone.
                Subject::Member(claim, container) => {
                    if self.0.contains_key(&Subject::Slice(claim.slice())) {
                        changes.push(NodeAnswer::Left { claim, container });
                    }
                }
            }
        }
        for (subject, row) in &self.0 {
            let same = old.0.get(subject).is_some_and(|known| still(known) == still(row));
            if !same {
                changes.push(row.clone());
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::node::GpuNumbers;
    use gpuslice_wire::owner::Owner;
    use gpuslice_wire::policy::Class;
    use gpuslice_wire::text::Name;

    fn claim(id: &str) -> ClaimId {
        ClaimId::new(id).expect("a claim id")
    }

    fn slice(id: &str, memory: u64, reserved: u64) -> NodeAnswer {
        NodeAnswer::Slice {
            slice: claim(id).slice(),
            claim: Some(claim(id)),
            released: false,
            name: Name::EMPTY,
            owner: Owner::default(),
            gpus: GpuNumbers(1),
            memory: Bytes(memory),
            reserved: Bytes(reserved),
            share: None,
            weight: None,
            class: Class::Normal,
        }
    }

    fn member(id: &str, container: &str) -> NodeAnswer {
        let container = ContainerId::new(container).expect("an id");
        NodeAnswer::Member { claim: claim(id), container }
    }

    #[test]
    fn changes_are_differences_and_memory_in_use_alone_is_none() {
        let rows = |all: &[NodeAnswer]| all.iter().cloned().collect::<Rows>();
        let old = rows(&[slice("a", 1, 0), slice("b", 2, 0), member("a", "x"), member("b", "y")]);
        assert_eq!(old.since(&old), []);
        assert_eq!(old.since(&Rows::default()).len(), 4);
        let used = rows(&[slice("a", 1, 7), slice("b", 2, 7), member("a", "x"), member("b", "y")]);
        assert_eq!(used.since(&old), []);
        // The slice goes, and its member without a message of its own.
        let new = rows(&[slice("b", 3, 0), slice("c", 1, 0)]);
        let container = ContainerId::new("y").expect("an id");
        let gone = NodeAnswer::Gone { slice: claim("a").slice() };
        let left = NodeAnswer::Left { claim: claim("b"), container };
        assert_eq!(new.since(&old), [gone, left, slice("b", 3, 0), slice("c", 1, 0)]);
    }
}
