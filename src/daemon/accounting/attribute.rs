//! Attributes the memory in a sample of a GPU to containers, and finds memory that no process reserved.
//!
//! Attached processes are known by their pids. A process can be attached more than once: its CUDA library and
//! its NVML each have a connection. Its use is then divided among its accounts by the bytes granted to each.
//! Other processes in a container's own cgroup are *unattributed*: they bypass the shim, or started before it.
//! Where the driver counts the cgroup as a whole, the unattributed part is what the attached processes do not
//! explain.
//!
//! A sample does not show a single instant: a process attached when it was sampled may have ended since. So
//! the engine is told of every sample and charges what two samples agree on.

use super::questions::{LimitedGroup, Sample};
use crate::cgroup::Dir;
use gpuslice_engine::{Event, Granted};
use gpuslice_host::cgroup::within;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::text::CgroupPath;
use gpuslice_wire::units::Bytes;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// An account of an attached process.
#[derive(Clone, Copy, Debug)]
pub struct Attached {
    /// The engine's id of the account.
    pub client: ClientId,
    /// The process's container.
    pub container: ContainerId,
    /// In the daemon's pid namespace; 0 if it has none there.
    pub pid: u32,
    /// Bytes granted, by lane.
    pub granted: Granted,
}

/// A container's slice of a GPU.
#[derive(Clone, Debug)]
pub struct SliceOwner {
    /// The container.
    pub container: ContainerId,
    /// GPU of the slice.
    pub lane: Lane,
    /// The GPU's UUID.
    pub gpu: GpuUuid,
    /// Its containers' own cgroups, as /proc names them; none if they have none.
    pub cgroups: Vec<CgroupPath>,
    /// The cgroup's directory, if a limit is in force and the driver counts its memory.
    pub limited_dir: Option<Dir>,
}

impl SliceOwner {
    /// NVML is asked now. No packet is read between this and the question: the grants of this instant count.
    pub fn looking(&self) -> Event {
        Event::Looking { container: self.container, lane: self.lane }
    }
}

/// Slices with unattributed memory in the last sample; the engine is told when it is gone.
#[derive(Debug, Default)]
pub struct Unattributed(BTreeSet<(ContainerId, Lane)>);

impl Unattributed {
    /// A container's slice ended.
    pub fn forget(&mut self, container: &ContainerId) {
        self.0.retain(|(whose, _)| whose != container);
    }

    /// A restored container may have some: its first sample is told, whatever it shows.
    pub fn expect(&mut self, container: ContainerId, gpus: usize) {
        self.0.extend((0..gpus as u8).map(|lane| (container, Lane(lane))));
    }

    /// Whether the engine must be told. Zero is told once.
    fn is_news(&mut self, at: (ContainerId, Lane), now: Bytes) -> bool {
        match now {
            Bytes::ZERO => self.0.remove(&at),
            _ => {
                self.0.insert(at);
                true
            }
        }
    }
}

/// Divides a process's use among its accounts: each gets what it was granted, and the account with the largest
/// grant gets the rest.
fn divide(used: Bytes, accounts: &[&Attached], lane: Lane) -> Vec<Event> {
    let granted = |at: usize| accounts[at].granted[usize::from(lane.0)];
    let most = (0..accounts.len()).max_by_key(|&at| (granted(at), Reverse(at)));
    let mut rest = used;
    let mut parts: Vec<Bytes> = (0..accounts.len())
        .map(|at| {
            let part = granted(at).min(rest);
            rest = rest.saturating_sub(part);
            part
        })
        .collect();
    if let Some(most) = most {
        parts[most] = parts[most].saturating_add(rest);
    }
    let clients = accounts.iter().map(|it| it.client);
    let all = clients.zip(parts);
    let measured = |(client, used)| Event::Measured { client, lane, used, requested: false };
    all.map(measured).collect()
}

/// Bytes granted to the process of a client through its other connections.
pub fn granted_beside(client: ClientId, lane: Lane, all: &[Attached]) -> Bytes {
    let Some(asks) = all.iter().find(|it| it.client == client) else {
        return Bytes::ZERO;
    };
    let same = |it: &&Attached| it.pid == asks.pid && it.container == asks.container;
    let others = all.iter().filter(same).filter(|it| it.client != client);
    let granted = others.map(|it| it.granted[usize::from(lane.0)]);
    granted.fold(Bytes::ZERO, Bytes::saturating_add)
}

/// Events for the engine from one sample of a GPU, about the slices of these owners.
pub fn attribute<'a>(
    sample: &Sample,
    attached: &[Attached],
    owners: impl IntoIterator<Item = &'a SliceOwner>,
    unattributed: &mut Unattributed,
) -> Vec<Event> {
    let mut events = Vec::new();
    let Ok(processes) = &sample.processes else {
        return events; // the engine keeps the previous values
    };
    let known: BTreeSet<u32> = attached.iter().map(|process| process.pid).collect();
    for owner in owners.into_iter().filter(|owner| owner.gpu.0 == sample.gpu) {
        // Bytes explained by attached processes; `None` if the use of one is unknown.
        let mut explained = Some(0u64);
        let ours = attached.iter().filter(|a| a.container == owner.container);
        let mut by_pid: BTreeMap<u32, Vec<&Attached>> = BTreeMap::new();
        for account in ours {
            by_pid.entry(account.pid).or_default().push(account);
        }
        for (pid, accounts) in by_pid {
            let used = match processes.get(&pid) {
                _ if pid == 0 => None,
                Some(seen) => seen.used.map(Bytes),
                None => Some(Bytes::ZERO),
            };
            explained = explained.zip(used).map(|(sum, used)| sum.saturating_add(used.0));
            let parts = used.map(|used| divide(used, &accounts, owner.lane));
            events.extend(parts.into_iter().flatten());
        }
        let Some(explained) = explained else {
            continue;
        };
        let (container, lane) = (owner.container, owner.lane);
        events.push(Event::Looked { container, lane });
        let unattached = |(pid, seen): (&u32, &super::questions::ProcessUsage)| {
            let of_it =
                |name: &[u8]| owner.cgroups.iter().any(|cgroup| within(name, cgroup.as_bytes()));
            let inside = seen.cgroup.as_deref().is_some_and(of_it);
            (inside && !known.contains(pid)).then_some(seen.used?)
        };
        let outside = processes.iter().filter_map(unattached).fold(0, u64::saturating_add);
        let of_it = |group: &&LimitedGroup| owner.limited_dir.as_ref() == Some(&group.dir);
        let counted = sample.limited.iter().find(of_it);
        let unexplained = counted.map_or(0, |group| group.used.saturating_sub(explained));
        let now = Bytes(outside.max(unexplained));
        let news = unattributed.is_news((container, lane), now);
        events.extend(news.then_some(Event::Unattributed { container, lane, used: now }));
    }
    events
}

/// The memory in a sample of processes that are in no container with a slice of the GPU. One whose control group is not
/// known has ended.
pub fn outside(sample: &Sample, attached: &[Attached], owners: &[SliceOwner]) -> Option<Event> {
    let (processes, gpu) = (sample.processes.as_ref().ok()?, GpuUuid(sample.gpu));
    let here: Vec<&SliceOwner> = owners.iter().filter(|owner| owner.gpu == gpu).collect();
    let is_here = |it: &&Attached| here.iter().any(|owner| owner.container == it.container);
    let known: BTreeSet<u32> = attached.iter().filter(is_here).map(|it| it.pid).collect();
    let is_in = |name: &[u8]| {
        let mut groups = here.iter().flat_map(|owner| &owner.cgroups);
        groups.any(|group| within(name, group.as_bytes()))
    };
    let of_none = processes.iter().filter_map(|(pid, seen)| {
        let is_outside =
            !known.contains(pid) && seen.cgroup.as_deref().is_some_and(|it| !is_in(it));
        is_outside.then_some(seen.used?)
    });
    Some(Event::Outside { gpu, used: Bytes(of_none.fold(0, u64::saturating_add)) })
}

#[cfg(test)]
mod tests {
    use super::super::questions::ProcessUsage;
    use super::*;
    use std::path::PathBuf;

    const GPU: GpuUuid = GpuUuid([1; 16]);
    const OTHER: GpuUuid = GpuUuid([2; 16]);

    fn id(text: &str) -> ContainerId {
        ContainerId::new(text).expect("an id")
    }

    fn owner(container: &str, limited: bool) -> SliceOwner {
        SliceOwner {
            container: id(container),
            lane: Lane(0),
            gpu: GPU,
            cgroups: vec![
                CgroupPath::new(format!("/pods/{container}").as_bytes()).expect("a path"),
            ],
            limited_dir: limited.then(|| Dir(PathBuf::from("/cg/pods").join(container))),
        }
    }

    fn process(slot: u16, container: &str, pid: u32) -> Attached {
        Attached {
            client: ClientId { slot, generation: 1 },
            container: id(container),
            pid,
            granted: Granted::default(),
        }
    }

    fn sample_of(seen: &[(u32, Option<u64>, &str)], limited: &[(&str, u64)]) -> Sample {
        let seen = seen.iter().map(|&(pid, used, cgroup)| {
            let cgroup = (!cgroup.is_empty()).then(|| cgroup.as_bytes().to_vec());
            (pid, ProcessUsage { used, cgroup })
        });
        let group =
            |&(dir, used): &(&str, u64)| LimitedGroup { dir: Dir(dir.into()), used, hard: 1 };
        let limited = limited.iter().map(group);
        Sample { limited: limited.collect(), ..Sample::of(GPU.0, Ok(seen.collect())) }
    }

    fn measured(slot: u16, used: u64) -> Event {
        let client = process(slot, "a", 0).client;
        Event::Measured { client, lane: Lane(0), used: Bytes(used), requested: false }
    }

    fn looked(container: &str) -> Event {
        Event::Looked { container: id(container), lane: Lane(0) }
    }

    fn unattributed_of(container: &str, used: u64) -> Event {
        Event::Unattributed { container: id(container), lane: Lane(0), used: Bytes(used) }
    }

    /// A process of another container, or of a container with a slice of another GPU, counts as one of the host.
    #[test]
    fn a_process_is_outside_unless_its_container_has_a_slice_there() {
        let attached = [process(0, "a", 10), process(1, "b", 12)];
        let owners = [owner("a", false), SliceOwner { gpu: OTHER, ..owner("b", false) }];
        let seen = sample_of(
            &[
                (10, Some(1), "/pods/a"),
                (11, Some(2), "/pods/a/inner"),
                (12, Some(4), "/pods/b"),
                (13, Some(8), "/"),
                (14, Some(16), ""),
                (15, None, "/"),
            ],
            &[],
        );
        let told = outside(&seen, &attached, &owners);
        assert_eq!(told, Some(Event::Outside { gpu: GPU, used: Bytes(4 + 8) }));
        let failed = Sample::of(GPU.0, Err("lost".to_owned()));
        assert_eq!(outside(&failed, &attached, &owners), None);
    }

    #[test]
    fn attached_processes_are_measured_and_without_a_context_they_use_nothing() {
        let attached = [process(0, "a", 10), process(1, "a", 11), process(2, "b", 12)];
        let seen = sample_of(&[(10, Some(5), "/pods/a"), (12, None, "/pods/b")], &[]);
        let owners = [owner("a", false), owner("b", false)];
        let events = attribute(&seen, &attached, &owners, &mut Unattributed::default());
        // The driver does not report the third process, so there is no event for it.
        assert_eq!(events, [measured(0, 5), measured(1, 0), looked("a")]);
        let elsewhere = Sample { gpu: OTHER.0, ..seen };
        assert!(attribute(&elsewhere, &attached, &owners, &mut Unattributed::default()).is_empty());
    }

    /// A process that uses CUDA and NVML is attached twice, and has its memory once.
    #[test]
    fn a_process_is_measured_once_however_often_it_is_attached() {
        let account = |slot: u16, granted: u64| {
            let mut it = process(slot, "a", 10);
            it.granted[0] = Bytes(granted);
            it
        };
        let samples: [(u64, &[u64], &[u64]); 7] = [
            (50, &[50, 0], &[50, 0]),
            (50, &[0, 50], &[0, 50]),
            (70, &[0, 50], &[0, 70]),
            (50, &[0, 0], &[50, 0]),
            (90, &[30, 50], &[30, 60]),
            (60, &[30, 50], &[30, 30]),
            (20, &[30, 50], &[20, 0]),
        ];
        for (used, granted, parts) in samples {
            let both: Vec<Attached> = (0..).zip(granted).map(|(at, it)| account(at, *it)).collect();
            let seen = sample_of(&[(10, Some(used), "/pods/a")], &[("/cg/pods/a", used + 7)]);
            let events = attribute(&seen, &both, &[owner("a", true)], &mut Unattributed::default());
            let mut all: Vec<Event> = (0..).zip(parts).map(|(at, it)| measured(at, *it)).collect();
            all.extend([looked("a"), unattributed_of("a", 7)]);
            assert_eq!(events, all, "{used} of {granted:?}");
        }
    }

    #[test]
    fn unattached_processes_of_a_cgroup_are_unattributed_until_they_end() {
        let attached = [process(0, "a", 10)];
        let owners = [owner("a", false), owner("ab", false)];
        let mut unattributed = Unattributed::default();
        let busy = sample_of(
            &[
                (10, Some(5), "/pods/a"),
                (20, Some(7), "/pods/a/inner"),
                (21, Some(9), "/elsewhere"),
                (22, Some(3), ""),
                (23, None, "/pods/a"),
            ],
            &[],
        );
        for _ in 0..2 {
            let events = attribute(&busy, &attached, &owners, &mut unattributed);
            let all = [measured(0, 5), looked("a"), unattributed_of("a", 7), looked("ab")];
            assert_eq!(events, all);
        }
        let quiet = sample_of(&[(10, Some(5), "/pods/a")], &[]);
        let gone = attribute(&quiet, &attached, &owners, &mut unattributed);
        let all = [measured(0, 5), looked("a"), unattributed_of("a", 0), looked("ab")];
        assert_eq!(gone, all);
        let still = attribute(&quiet, &attached, &owners, &mut unattributed);
        let all = [measured(0, 5), looked("a"), looked("ab")];
        assert_eq!(still, all, "said once");
    }

    #[test]
    fn an_unattached_process_is_found_whatever_its_group_is_called() {
        let mut seen = sample_of(&[(20, Some(4), ""), (21, Some(5), ""), (22, Some(6), "")], &[]);
        let names = [&b"/pods/a/\xff"[..], b"/pods/a/x\\012 (deleted)", b"/pods/a (deleted)"];
        let processes = seen.processes.as_mut().expect("some");
        for (process, name) in processes.values_mut().zip(names) {
            process.cgroup = Some(name.to_vec());
        }
        // As it comes from the child that asked.
        let line = serde_json::to_string(&seen).expect("JSON");
        let heard: Sample = serde_json::from_str(&line).expect("the same");
        let (owners, mut unattributed) = ([owner("a", false)], Unattributed::default());
        let events = attribute(&heard, &[], &owners, &mut unattributed);
        assert_eq!(events, [looked("a"), unattributed_of("a", 4 + 5)]);
    }

    #[test]
    fn a_process_attached_to_another_container_is_not_unattributed() {
        let attached = [process(0, "b", 20)];
        let seen = sample_of(&[(20, Some(7), "/pods/a")], &[]);
        let mut unattributed = Unattributed::default();
        let owners = [owner("a", false)];
        for _ in 0..2 {
            let events = attribute(&seen, &attached, &owners, &mut unattributed);
            assert_eq!(events, [looked("a")]);
        }
    }

    #[test]
    fn memory_the_driver_counts_beyond_attached_processes_is_unattributed() {
        let attached = [process(0, "a", 10)];
        let owners = [owner("a", true)];
        let mut unattributed = Unattributed::default();
        let seen = sample_of(&[(10, Some(5), "/pods/a")], &[("/cg/pods/a", 12)]);
        let events = attribute(&seen, &attached, &owners, &mut unattributed);
        assert_eq!(events, [measured(0, 5), looked("a"), unattributed_of("a", 7)]);
        // Of one whose memory is not shown, or whose pid is not known, nothing can be concluded.
        let hidden = sample_of(&[(10, None, "/pods/a")], &[("/cg/pods/a", 12)]);
        assert!(attribute(&hidden, &attached, &owners, &mut unattributed).is_empty());
        let nameless = [process(0, "a", 0)];
        assert!(attribute(&seen, &nameless, &owners, &mut unattributed).is_empty());
    }

    #[test]
    fn a_gpu_that_does_not_answer_changes_nothing() {
        let mut unattributed = Unattributed::default();
        let lost = Sample::of(GPU.0, Err("lost".into()));
        let attached = [process(0, "a", 10)];
        assert!(attribute(&lost, &attached, &[owner("a", true)], &mut unattributed).is_empty());
    }

    #[test]
    fn a_restored_container_is_told_once_that_it_has_none() {
        let (owners, mut unattributed) = ([owner("a", false)], Unattributed::default());
        unattributed.expect(id("a"), 1);
        for news in [&[looked("a"), unattributed_of("a", 0)][..], &[looked("a")]] {
            let events = attribute(&sample_of(&[], &[]), &[], &owners, &mut unattributed);
            assert_eq!(events, news);
        }
    }

    #[test]
    fn a_container_with_a_reused_id_starts_without_history() {
        let owners = [owner("a", false)];
        let mut unattributed = Unattributed::default();
        let seen = sample_of(&[(20, Some(7), "/pods/a")], &[]);
        let events = attribute(&seen, &[], &owners, &mut unattributed);
        assert_eq!(events, [looked("a"), unattributed_of("a", 7)]);
        unattributed.forget(&id("a"));
        let events = attribute(&sample_of(&[], &[]), &[], &owners, &mut unattributed);
        assert_eq!(events, [looked("a")]);
    }
}
