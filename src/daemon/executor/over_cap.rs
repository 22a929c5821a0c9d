//! A container that is over its cap: each step of its escalation is done, logged, and an event with its reason.

use super::Duties;
use crate::events::Happening;
use crate::over_cap::{Due, Step};
use gpuslice_engine::{Excess, Record};
use gpuslice_host::cgroup::{directory, mount};
use gpuslice_host::clock::now;
use gpuslice_wire::history::EventKind;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::text::CgroupPath;
use gpuslice_wire::units::Bytes;
use std::collections::BTreeSet;
use std::path::PathBuf;

impl Duties {
    /// The accounting has looked: `excess` is all that is over its cap, and the samples of `unseen` containers failed.
    pub fn over_cap_looked(&mut self, excess: &[Excess], unseen: &BTreeSet<ContainerId>) {
        for due in self.over_cap.look(now(), excess, unseen) {
            self.over_cap_step(due);
        }
    }

    fn over_cap_step(&mut self, due: Due) {
        let Due { container, step, excess } = due;
        let (gpu, held, cap) = match excess {
            Some((gpu, held, cap)) => (Some(gpu), held, cap),
            None => (None, Bytes::ZERO, Bytes::ZERO),
        };
        let dir = self.containers.state().container_dir(&container);
        let own = self.cgroup_limits.own_cgroup(&container);
        let groups = self.groups_of(&container, own);
        let (kind, done) = match step {
            Step::Warn => (EventKind::OverCap, Ok(true)),
            Step::Freeze => {
                (EventKind::Frozen, self.over_cap.freeze(container, &dir, groups).map(|()| true))
            }
            Step::Thaw => (EventKind::Thawed, Ok(self.over_cap.thaw(&container, Some(&dir)))),
            Step::Kill => (EventKind::Killed, self.over_cap.kill(groups).map(|()| true)),
        };
        match done {
            Ok(true) => {
                tracing::warn!(%container, %held, %cap, what = kind.name(), "a container over its cap");
                let event = Happening::of(kind, container).on(gpu);
                self.events.record(now(), event.with([held.0, cap.0], String::new()));
            }
            Ok(false) => {}
            // It is tried again at each look, and told once.
            Err(why) if self.over_cap.refuse(&container, step) => {
                tracing::error!(%container, %held, %cap, ?step, why, "a container over its cap stays as it is");
            }
            Err(_) => {}
        }
    }

    /// A container with a record, restored or not, may have been frozen by an earlier daemon.
    pub fn restore_over_cap(&mut self, record: &Record) {
        let container = record.container;
        let dir = self.containers.state().container_dir(&container);
        let own = (!record.cgroup.is_empty()).then_some(record.cgroup);
        let groups = self.groups_of(&container, own);
        self.over_cap.restore(container, self.containers.has(&container), &dir, groups);
    }

    /// The directories of a slice's own control groups: `own`, and those of the containers in its claim.
    fn groups_of(&self, container: &ContainerId, own: Option<CgroupPath>) -> Vec<PathBuf> {
        let Some(mount) = mount() else {
            return Vec::new();
        };
        let joined = self.containers.joined_cgroups(container);
        let all = own.iter().chain(&joined);
        all.map(|cgroup| directory(&mount, cgroup.as_bytes())).collect()
    }
}
