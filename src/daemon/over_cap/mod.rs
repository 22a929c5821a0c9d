//! Containers that have more on the GPU than their caps: `escalation` decides what follows, `groups` does it.
//!
//! The accounting charges what a container takes behind the shim, and the engine refuses its growth from then on.
//! After each sample the escalation of each container that is over its cap, or was lately, takes a look.

mod escalation;
mod groups;

use crate::config::DaemonConfig;
pub use escalation::Step;
use escalation::{Escalation, Limits};
use gpuslice_engine::Excess;
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::{Bytes, Duration, Instant};
use groups::{Groups, Operation};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// In a container's directory: this daemon or an earlier one has frozen it.
const MARK: &str = "over-cap-frozen";

/// A step that is due.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    pub container: ContainerId,
    pub step: Step,
    /// Where it is over its cap; none once it fits.
    pub excess: Option<(GpuUuid, Bytes, Bytes)>,
}

/// See the file's head.
#[derive(Debug)]
pub struct OverCap {
    limits: Limits,
    escalations: BTreeMap<ContainerId, Escalation>,
    /// The groups of the containers that are frozen by gpuslice.
    frozen: BTreeMap<ContainerId, Vec<PathBuf>>,
    groups: Groups,
}

impl OverCap {
    /// Knows no container yet.
    pub fn new(config: &DaemonConfig) -> OverCap {
        let seconds = |number: u64| (number > 0).then(|| Duration::from_millis(1_000 * number));
        let limits = Limits {
            warn: seconds(config.over_cap_warn_s.get()),
            freeze: config.over_cap_freeze_s.and_then(|it| seconds(it.get())),
            kill: config.over_cap_kill_s.and_then(|it| seconds(it.get())),
        };
        // Without samples nothing is known to be over its cap.
        let is_sampled = config.accounting_interval_ms.get() > 0;
        OverCap {
            limits: if is_sampled { limits } else { Limits::default() },
            escalations: BTreeMap::new(),
            frozen: BTreeMap::new(),
            groups: Groups::default(),
        }
    }

    /// Takes a look at all containers; `all`: those that are over their caps; `unseen`: those of which the driver did
    /// not tell what they have. Returns what is due.
    pub fn look(
        &mut self,
        now: Instant,
        all: &[Excess],
        unseen: &BTreeSet<ContainerId>,
    ) -> Vec<Due> {
        let known: BTreeSet<ContainerId> =
            self.escalations.keys().copied().chain(all.iter().map(|it| it.container)).collect();
        let look = |container: ContainerId| {
            let most = all.iter().filter(|it| it.container == container);
            let most = most.max_by_key(|it| it.held.saturating_sub(it.cap));
            let excess = most.map(|it| (it.gpu, it.held, it.cap));
            let escalation = self.escalations.entry(container).or_default();
            if excess.is_none() && escalation.is_inherited() && unseen.contains(&container) {
                return None; // it may have more than is charged
            }
            let step = escalation.look(now, excess.is_some(), &self.limits)?;
            Some(Due { container, step, excess })
        };
        let due = known.into_iter().filter_map(look).collect();
        let is_over = |whose: &ContainerId| all.iter().any(|it| it.container == *whose);
        self.escalations.retain(|whose, it| !it.is_idle() || is_over(whose));
        due
    }

    /// A container with a record: if an earlier daemon froze it, this one thaws it, now or when it fits. Only one that
    /// `has_slice`, since it was restored, is looked at from then on.
    pub fn restore(
        &mut self,
        container: ContainerId,
        has_slice: bool,
        dir: &Path,
        groups: Vec<PathBuf>,
    ) {
        if !dir.join(MARK).exists() {
            return;
        }
        self.frozen.insert(container, groups);
        if has_slice && self.limits.freeze.is_some() {
            self.escalations.insert(container, Escalation::of_frozen(&self.limits));
        } else {
            self.thaw(&container, Some(dir));
        }
    }

    /// A step that was due could not be taken. Returns whether the one before could.
    pub fn refuse(&mut self, container: &ContainerId, step: Step) -> bool {
        self.escalations.get_mut(container).is_none_or(|it| it.refuse(step))
    }

    /// Freezes the groups of a container, and notes it in its directory `dir`.
    ///
    /// # Errors
    /// Why not, as a sentence for the log.
    pub fn freeze(
        &mut self,
        container: ContainerId,
        dir: &Path,
        groups: Vec<PathBuf>,
    ) -> Result<(), String> {
        let theirs = |group: &PathBuf| !groups::is_frozen(group);
        let own: Vec<PathBuf> = has_groups(groups)?.into_iter().filter(theirs).collect();
        if own.is_empty() {
            return Err("another program has frozen it already".to_owned());
        }
        // Without the note a restarted daemon would leave it frozen for good.
        fs::write(dir.join(MARK), "").map_err(|why| format!("{}: {why}", dir.display()))?;
        own.iter().for_each(|group| self.groups.change(group, Operation::Freeze));
        self.frozen.insert(container, own);
        Ok(())
    }

    /// The containers that are frozen, for a snapshot.
    pub fn rows(&self) -> impl Iterator<Item = Snapshot> + '_ {
        self.frozen.keys().map(|container| Snapshot::Frozen { container: *container })
    }

    /// Lets a container go on; returns whether it was frozen.
    pub fn thaw(&mut self, container: &ContainerId, dir: Option<&Path>) -> bool {
        let Some(groups) = self.frozen.remove(container) else {
            return false;
        };
        groups.iter().for_each(|group| self.groups.change(group, Operation::Thaw));
        if let Some(dir) = dir {
            // If it stays, the next daemon thaws a container that runs.
            let _ = fs::remove_file(dir.join(MARK));
        }
        true
    }

    /// Ends all processes in the groups of a container.
    ///
    /// # Errors
    /// Why not, as a sentence for the log.
    pub fn kill(&mut self, groups: Vec<PathBuf>) -> Result<(), String> {
        has_groups(groups)?.iter().for_each(|group| self.groups.change(group, Operation::Kill));
        Ok(())
    }

    /// A container's slice ended: processes of the container that still live go on.
    pub fn forget(&mut self, container: &ContainerId) {
        self.escalations.remove(container);
        self.thaw(container, None);
    }
}

fn has_groups(groups: Vec<PathBuf>) -> Result<Vec<PathBuf>, String> {
    let why = "it has no cgroup of its own in a unified hierarchy (cgroup v2)";
    if groups.is_empty() { Err(why.to_owned()) } else { Ok(groups) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Bounded;

    fn excess(container: &str, held: u64) -> Excess {
        let container = ContainerId::new(container).expect("an id");
        Excess { container, gpu: GpuUuid([1; 16]), held: Bytes(held), cap: Bytes(10) }
    }

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    /// Each container has its own time, and is forgotten when it is paid back.
    #[test]
    fn containers_are_looked_at_one_by_one() {
        let mut over_cap = OverCap::new(&DaemonConfig::default());
        let (mut told, seen) = (Vec::new(), &BTreeSet::new());
        for second in 0..60 {
            let both = [excess("a", 11), excess("a", 15), excess("b", 12)];
            let all = if second < 5 { &both[..2] } else { &both[..] };
            told.extend(over_cap.look(at(second), all, seen).into_iter().map(|due| (second, due)));
        }
        let told: Vec<_> = told.iter().map(|(at, due)| (*at, due.container, due.excess)).collect();
        let [a, b] = [excess("a", 15), excess("b", 12)];
        let most = |it: Excess| Some((it.gpu, it.held, it.cap));
        assert_eq!(told, [(10, a.container, most(a)), (15, b.container, most(b))]);
        (60..80).for_each(|second| drop(over_cap.look(at(second), &[], seen)));
        assert!(over_cap.escalations.is_empty());
    }

    #[test]
    fn a_sample_that_failed_tells_nothing_of_a_frozen_container() {
        let mut over_cap = OverCap::new(&DaemonConfig {
            over_cap_freeze_s: Bounded::try_from(5).ok(),
            ..DaemonConfig::default()
        });
        let container = excess("a", 0).container;
        over_cap.escalations.insert(container, Escalation::of_frozen(&over_cap.limits));
        let (all, none) = (BTreeSet::from([container]), BTreeSet::new());
        let mut due = |s, unseen| over_cap.look(at(s), &[], unseen).first().map(|due| due.step);
        assert_eq!([1, 2, 3, 4].map(|s| due(s, &all)), [None; 4]);
        assert_eq!([5, 6, 7].map(|s| due(s, &none)), [None, None, Some(Step::Thaw)]);
    }

    #[test]
    fn without_samples_nothing_is_known_and_nothing_done() {
        // No file may have both; nothing is done with them all the same.
        let config = DaemonConfig {
            accounting_interval_ms: Bounded::try_from(0).expect("in its bounds"),
            over_cap_kill_s: Bounded::try_from(1).ok(),
            ..DaemonConfig::default()
        };
        assert_eq!(OverCap::new(&config).limits, Limits::default());
    }
}
