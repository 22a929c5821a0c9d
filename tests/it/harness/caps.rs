//! At the end of each test: no container has held more memory than its cap, at any instant.
//!
//! The simulated device remembers the most that each slice's processes ever held (`sim/device/high_water.rs`). The
//! daemon remembers which caps and memory limits each slice had. The largest of them bounds the mark on every
//! GPU: memory that a container held before its cap was lowered stays its own.

use super::node::Node;
use gpuslice_sim_device::limits::MAX_MARKS;
use gpuslice_sim_device::{Machine, Role, SliceMark};
use gpuslice_wire::history::{EventKind, History};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::snapshot::Snapshot;
use std::collections::BTreeMap;

/// The cases in which a container is to have more than its cap, and why it can.
const EXCEED: [(&str, &str); 1] =
    [("injection::ways", "it counts the ways past the shim, each of which takes twice the cap")];

/// What is known of the slices of a node.
#[derive(Default)]
pub struct Caps {
    /// The largest cap that each slice ever had, bytes.
    most: BTreeMap<String, u64>,
    exceed: bool,
    device: Option<Machine>,
}

impl Caps {
    /// The test's containers are to have more than their caps.
    ///
    /// # Panics
    /// The case is not in the table.
    pub fn exceed(&mut self, case: &str) {
        assert!(EXCEED.iter().any(|(name, _)| *name == case), "{case} is not in the table");
        self.exceed = true;
    }

    /// Learns what the daemon of a node knows, if it runs and a slice has held memory.
    pub fn note(&mut self, node: &Node) {
        if self.marks(node).is_empty() {
            return;
        }
        let Ok(admin) = node.try_admin() else {
            return;
        };
        for row in admin.list() {
            match row {
                Snapshot::Slice { container, lane, cap, .. } if lane != Lane::HOST => {
                    self.raise(container.as_str(), cap.0);
                }
                Snapshot::MemoryLimit { container, limit, .. } => {
                    self.raise(container.as_str(), limit.0);
                }
                _ => {}
            }
        }
        for event in admin.events() {
            let History::Entry { kind, container, amounts, text, .. } = event else {
                continue;
            };
            match kind {
                EventKind::SliceBegan => self.raise(container.as_str(), amounts[1]),
                EventKind::LimitChanged => {
                    self.raise(container.as_str(), amounts[0].max(amounts[1]));
                }
                // A cap of pinned memory is no GPU's.
                EventKind::CapChanged if text.is_empty() => {
                    self.raise(container.as_str(), amounts[0].max(amounts[1]));
                }
                _ => {}
            }
        }
    }

    fn raise(&mut self, slice: &str, cap: u64) {
        let most = self.most.entry(slice.to_owned()).or_default();
        *most = cap.max(*most);
    }

    fn marks(&mut self, node: &Node) -> Vec<SliceMark> {
        let dir = node.root().join("device");
        if self.device.is_none() && dir.exists() {
            self.device = Machine::open(&dir, Role::Observer).ok();
        }
        self.device.as_ref().map(Machine::slice_marks).unwrap_or_default()
    }

    /// What is wrong, in words: containers that have held more than their cap, or a case of the table without one.
    pub fn exceeded(&mut self, node: &Node) -> Vec<String> {
        self.note(node);
        let marks = self.marks(node);
        assert!(marks.len() < MAX_MARKS, "the device remembers no more slices");
        let over = marks.into_iter().filter_map(|mark| {
            let held = *mark.most_bytes.iter().max()?;
            let cap = self.most.get(&mark.slice);
            let over = cap.is_none_or(|cap| held > *cap) && held > 0;
            over.then(|| format!("{} held {held} bytes, cap {cap:?}", mark.slice))
        });
        let over: Vec<String> = over.collect();
        match (self.exceed, over.is_empty()) {
            (false, _) => over,
            (true, false) => Vec::new(),
            (true, true) => vec!["nothing was above a cap, as the table says it is".to_owned()],
        }
    }
}

#[test]
fn each_case_that_exceeds_has_a_reason() {
    assert!(EXCEED.iter().all(|(_, why)| why.len() > 20));
}
