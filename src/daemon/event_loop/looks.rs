//! NVML's samples of processes, and looks at devices for the memory of ended ones.
//!
//! The memory in use on a device that no living process explains is the driver's own, or that of ended processes. The
//! engine tells them apart (`memory::unfreed`). Devices are looked at with each sample, so that the driver's own part
//! is known, and every 50 ms while a process's memory may become free.

use super::Daemon;
use crate::accounting::Claimed;
use crate::accounting::attribute::{Attached, outside};
use crate::accounting::questions::{DeviceUsage, Sample};
use gpuslice_engine::Event;
use gpuslice_wire::ids::{ClientId, GpuUuid};
use gpuslice_wire::units::{Bytes, Instant};
use std::collections::{BTreeMap, BTreeSet};

impl Daemon {
    pub(super) fn account_samples(&mut self, samples: &[Sample]) {
        let attached = self.attached_processes();
        let duties = &mut self.duties;
        duties.accounting.sampled();
        let mut owners = duties.cgroup_limits.owners();
        for owner in &mut owners {
            owner.cgroups.extend(duties.containers.joined_cgroups(&owner.container));
        }
        duties.clients.read_all_claims(&mut duties.tasks);
        self.settle();
        for sample in samples {
            let accounting = &mut self.duties.accounting;
            accounting.note_figures(sample);
            self.duties.cgroup_limits.note_sample(sample);
            let accounting = &mut self.duties.accounting;
            let events = accounting.attribute(sample, &attached, &owners);
            for event in events.into_iter().chain(outside(sample, &attached, &owners)) {
                self.deliver(event);
            }
            self.note_mps(sample, &attached);
        }
        let excess = self.engine.over_caps();
        let failed: BTreeSet<_> =
            samples.iter().filter(|it| it.processes.is_err()).map(|it| it.gpu).collect();
        let unseen = owners.iter().filter(|it| failed.contains(&it.gpu.0)).map(|it| it.container);
        let duties = &mut self.duties;
        duties.over_cap_looked(&excess, &unseen.collect());
        duties.cgroup_limits.update_all(&mut duties.accounting);
        duties.note_found_limits();
        duties.containers.follow_untracked(&self.engine);
    }

    /// All accounts in the ledger, with the pids of their processes.
    pub(super) fn attached_processes(&self) -> Vec<Attached> {
        let known = self.duties.clients.pids();
        let known = known.filter_map(|(client, container, pid)| {
            Some(Attached { client, container, pid, granted: self.engine.granted_to(client)? })
        });
        known.collect()
    }

    /// When devices are looked at next, if memory there may become free.
    pub(super) fn look_deadline(&self) -> Option<Instant> {
        self.duties.accounting.look_at(self.engine.look_due()?)
    }

    pub(super) fn look_at_devices(&mut self, now: Instant) {
        self.read_claims();
        let gpus = self.engine.gpus_in_use();
        let claimed = self.claimed(&gpus);
        self.duties.accounting.look(now, &gpus, claimed);
    }

    /// What each attached process claims to have of these GPUs: if NVML has a figure for it, and if not.
    fn claimed(&self, gpus: &[GpuUuid]) -> Claimed {
        let mut all = Claimed::new();
        for it in self.attached_processes() {
            for &gpu in gpus {
                if let Some(lane) = self.duties.containers.lane_of(&it.container, gpu) {
                    let claimed = |figure| self.engine.claimed(it.client, lane, figure);
                    all.insert((gpu, it.client), (it.pid, [claimed(true), claimed(false)]));
                }
            }
        }
        all
    }

    /// NVML has told the memory in use.
    pub(super) fn devices_looked(&mut self, asked_ns: u64, usage: &[DeviceUsage]) {
        let before = self.duties.accounting.looked();
        self.read_claims();
        let gpus: Vec<GpuUuid> = usage.iter().map(|device| GpuUuid(device.gpu)).collect();
        let after = self.claimed(&gpus);
        for device in usage {
            let (gpu, asked) = (GpuUuid(device.gpu), Instant(asked_ns));
            let figures = self.duties.accounting.tells_figures(device);
            let [least, most] = beside(device, figures, [&before, &after]);
            self.deliver(Event::DeviceLooked { gpu, asked, least, most });
        }
    }
}

/// The memory in use that no living process explains, at least and at most. A process takes and frees memory while NVML
/// is asked: the larger of its two figures, and of its claims before and after, gives the least, the smaller the most.
///
/// A claim to hold memory is at least what the device has of it: it includes what is requested and not allocated
/// yet, and what is set aside for a pool. So where NVML tells `figures` at other times, a process without one explains
/// as little as nothing, and the next look with a figure decides.
fn beside(device: &DeviceUsage, figures: bool, [before, after]: [&Claimed; 2]) -> [Bytes; 2] {
    let none = BTreeMap::new();
    let listed = device.processes.as_ref().unwrap_or(&none);
    let without_figure = |pid: &u32| match listed.get(pid) {
        Some(figure) => figure.is_none(),
        None => device.processes.is_none(), // it has nothing there
    };
    let claims = |of: &Claimed, key: &(GpuUuid, ClientId)| {
        let (pid, claims) = of.get(key)?;
        Some(claims[usize::from(without_figure(pid))].0)
    };
    let here: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let claimed = here.into_iter().filter(|(gpu, _)| gpu.0 == device.gpu).map(|key| {
        let [was, is] = [before, after].map(|of| claims(of, key).unwrap_or(0));
        let of = |of: &Claimed| of.get(key).is_some_and(|(pid, _)| without_figure(pid));
        let is_unsure = figures && (of(before) || of(after));
        [if is_unsure { 0 } else { was.min(is) }, was.max(is)]
    });
    let explained = listed.values().flatten().copied().chain(claimed);
    let sums = explained.fold([0_u64; 2], |[least, most], it| {
        [least.saturating_add(it[0]), most.saturating_add(it[1])]
    });
    [sums[1], sums[0]].map(|explained| Bytes(device.used.saturating_sub(explained)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: GpuUuid = GpuUuid([3; 16]);

    /// One process with the pid 10 that claims these bytes, with a figure and without one.
    fn claims(with: u64, without: u64) -> Claimed {
        let client = ClientId { slot: 0, generation: 0 };
        Claimed::from([((GPU, client), (10, [Bytes(with), Bytes(without)]))])
    }

    /// A process, and its two figures.
    type Named = (u32, Option<[u64; 2]>);

    fn usage(used: u64, processes: Option<&[Named]>) -> DeviceUsage {
        let processes = processes.map(|all| all.iter().copied().collect());
        DeviceUsage { gpu: GPU.0, used, processes }
    }

    #[test]
    fn what_processes_and_their_claims_explain_is_not_beside_them() {
        let same = claims(5, 40);
        let beside = |it: &DeviceUsage| {
            let [least, most] = beside(it, false, [&same, &same]);
            assert_eq!(least, most);
            most.0
        };
        let (ten, eleven) = ((10, Some([30, 30])), (11, Some([20, 20])));
        assert_eq!(beside(&usage(100, Some(&[ten, eleven]))), 100 - 50 - 5);
        assert_eq!(beside(&usage(100, Some(&[(10, None), eleven]))), 100 - 20 - 40);
        assert_eq!(
            beside(&usage(100, Some(&[]))),
            95,
            "it has no context, or managed memory alone"
        );
        assert_eq!(beside(&usage(100, None)), 60, "no list at all");
        assert_eq!(beside(&usage(10, Some(&[ten]))), 0);
    }

    #[test]
    fn what_changes_meanwhile_is_explained_and_is_not() {
        let (little, much) = (claims(5, 5), claims(50, 50));
        for (before, after) in [(&little, &much), (&much, &little)] {
            let beside = beside(&usage(100, None), false, [before, after]);
            assert_eq!(beside, [Bytes(50), Bytes(95)]);
        }
        let ended = Claimed::new();
        let beside = |it: &DeviceUsage, before, after| beside(it, false, [before, after]);
        assert_eq!(beside(&usage(100, None), &much, &ended), [Bytes(50), Bytes(100)]);
        let new = usage(100, Some(&[(10, Some([0, 64]))]));
        assert_eq!(beside(&new, &ended, &ended), [Bytes(36), Bytes(100)]);
    }

    /// The list can name a process and not tell its figure, once in a while or always.
    #[test]
    fn a_claim_explains_nothing_for_certain_where_figures_are_told_at_other_times() {
        let same = claims(5, 40);
        let beside = |processes| beside(&usage(100, processes), true, [&same, &same]);
        assert_eq!(beside(Some(&[(10, None)])), [Bytes(60), Bytes(100)]);
        assert_eq!(beside(None), [Bytes(60), Bytes(100)]);
        assert_eq!(beside(Some(&[(10, Some([30, 30]))])), [Bytes(65), Bytes(65)]);
    }
}
