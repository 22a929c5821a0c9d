//! What a look at the GPUs means: which process is whose, and what nobody reserved.
//!
//! Attached processes are known by their pids. One can be attached more than once: its CUDA library and its NVML
//! each have a connection. What NVML shows of it is then divided among its accounts by what each was
//! granted. The rest that runs in a container's own cgroup
//! is *stray*: it bypasses the shim, or started before it. Where the driver counts the cgroup as
//! a whole, the stray part is what the attached processes do not explain.
//!
//! A look is never quite of one instant: a process attached when it was seen may be gone when it is
//! judged. So the engine charges what two looks agree on, and is told of every one.

use super::thread::Look;
use crate::cgroup::Dir;
use gpuslice_engine::{Event, Granted};
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::text::CgroupPath;
use gpuslice_wire::units::Bytes;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// An account of an attached process.
#[derive(Clone, Copy, Debug)]
pub struct Attached {
    /// The engine's name for it.
    pub client: ClientId,
    /// Whose it is.
    pub container: ContainerId,
    /// In the daemon's pid namespace; 0 if it has none there.
    pub pid: u32,
    /// What it was granted.
    pub granted: Granted,
}

/// A container's slice of a GPU.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Whose.
    pub container: ContainerId,
    /// GPU of the slice.
    pub lane: Lane,
    /// The same as the node knows it.
    pub gpu: GpuUuid,
    /// Its own cgroup, as /proc names it; empty if it has none.
    pub cgroup: CgroupPath,
    /// The same as a directory, if the driver counts it.
    pub walled: Option<Dir>,
}

/// Who had something stray at the last look, and so is told when it is gone.
#[derive(Debug, Default)]
pub struct Strays(BTreeSet<(ContainerId, Lane)>);

impl Strays {
    /// A container's slice ended.
    pub fn forget(&mut self, container: &ContainerId) {
        self.0.retain(|(whose, _)| whose != container);
    }

    /// Whether the engine is to know it: nothing is worth telling once.
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

/// Divides what NVML shows of a process among its accounts: to each what it was granted, and the rest to the one
/// that was granted most.
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
    all.map(|(client, used)| Event::Measured { client, lane, used })
        .collect()
}

/// What the engine is to know of one look.
pub fn judge(
    look: &Look,
    attached: &[Attached],
    owners: &[Owner],
    strays: &mut Strays,
) -> Vec<Event> {
    let mut events = Vec::new();
    let Ok(processes) = &look.processes else {
        return events; // what was known stays so
    };
    let known: BTreeSet<u32> = attached.iter().map(|process| process.pid).collect();
    for owner in owners.iter().filter(|owner| owner.gpu.0 == look.gpu) {
        // What the attached processes explain; `None` if it cannot be known of each of them.
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
            explained = explained
                .zip(used)
                .map(|(sum, used)| sum.saturating_add(used.0));
            let parts = used.map(|used| divide(used, &accounts, owner.lane));
            events.extend(parts.into_iter().flatten());
        }
        let Some(explained) = explained else {
            continue;
        };
        let (container, lane) = (owner.container, owner.lane);
        events.push(Event::Looked { container, lane });
        let stranger = |(pid, seen): (&u32, &super::thread::Seen)| {
            let inside = !owner.cgroup.is_empty()
                && seen
                    .cgroup
                    .as_deref()
                    .is_some_and(|name| crate::cgroup::within(name, owner.cgroup.as_bytes()));
            (inside && !known.contains(pid)).then_some(seen.used?)
        };
        let strangers = processes
            .iter()
            .filter_map(stranger)
            .fold(0, u64::saturating_add);
        let of_it = |(dir, _): &&(Dir, u64)| owner.walled.as_ref() == Some(dir);
        let counted = look.walls.iter().find(of_it);
        let unexplained = counted.map_or(0, |(_, all)| all.saturating_sub(explained));
        let now = Bytes(strangers.max(unexplained));
        let news = strays.is_news((container, lane), now);
        events.extend(news.then_some(Event::Stray {
            container,
            lane,
            used: now,
        }));
    }
    events
}

#[cfg(test)]
mod tests {
    use super::super::thread::Seen;
    use super::*;
    use std::path::PathBuf;

    const GPU: GpuUuid = GpuUuid([1; 16]);
    const OTHER: GpuUuid = GpuUuid([2; 16]);

    fn id(text: &str) -> ContainerId {
        ContainerId::new(text).expect("an id")
    }

    fn owner(container: &str, walled: bool) -> Owner {
        Owner {
            container: id(container),
            lane: Lane(0),
            gpu: GPU,
            cgroup: CgroupPath::new(format!("/pods/{container}").as_bytes()).expect("a path"),
            walled: walled.then(|| Dir(PathBuf::from("/cg/pods").join(container))),
        }
    }

    fn process(slot: u16, container: &str, pid: u32) -> Attached {
        Attached {
            client: ClientId {
                slot,
                generation: 1,
            },
            container: id(container),
            pid,
            granted: Granted::default(),
        }
    }

    fn look(seen: &[(u32, Option<u64>, &str)], walls: &[(&str, u64)]) -> Look {
        let seen = seen.iter().map(|&(pid, used, cgroup)| {
            let cgroup = (!cgroup.is_empty()).then(|| cgroup.as_bytes().to_vec());
            (pid, Seen { used, cgroup })
        });
        let walls = walls.iter().map(|&(dir, used)| (Dir(dir.into()), used));
        Look {
            gpu: GPU.0,
            processes: Ok(seen.collect()),
            walls: walls.collect(),
        }
    }

    fn measured(slot: u16, used: u64) -> Event {
        Event::Measured {
            client: process(slot, "a", 0).client,
            lane: Lane(0),
            used: Bytes(used),
        }
    }

    fn looked(container: &str) -> Event {
        Event::Looked {
            container: id(container),
            lane: Lane(0),
        }
    }

    fn stray(container: &str, used: u64) -> Event {
        Event::Stray {
            container: id(container),
            lane: Lane(0),
            used: Bytes(used),
        }
    }

    #[test]
    fn attached_processes_are_measured_and_those_without_a_context_have_nothing() {
        let attached = [
            process(0, "a", 10),
            process(1, "a", 11),
            process(2, "b", 12),
        ];
        let seen = look(&[(10, Some(5), "/pods/a"), (12, None, "/pods/b")], &[]);
        let owners = [owner("a", false), owner("b", false)];
        let events = judge(&seen, &attached, &owners, &mut Strays::default());
        // The driver does not tell of the third, so nothing is said of it.
        assert_eq!(events, [measured(0, 5), measured(1, 0), looked("a")]);
        let elsewhere = Look {
            gpu: OTHER.0,
            ..seen
        };
        assert!(judge(&elsewhere, &attached, &owners, &mut Strays::default()).is_empty());
    }

    /// A process that uses CUDA and NVML is attached twice, and has its memory once.
    #[test]
    fn what_a_process_has_is_measured_once_however_often_it_is_attached() {
        let account = |slot: u16, granted: u64| {
            let mut it = process(slot, "a", 10);
            it.granted[0] = Bytes(granted);
            it
        };
        let looks: [(u64, &[u64], &[u64]); 7] = [
            (50, &[50, 0], &[50, 0]),
            (50, &[0, 50], &[0, 50]),
            (70, &[0, 50], &[0, 70]),
            (50, &[0, 0], &[50, 0]),
            (90, &[30, 50], &[30, 60]),
            (60, &[30, 50], &[30, 30]),
            (20, &[30, 50], &[20, 0]),
        ];
        for (used, granted, parts) in looks {
            let both: Vec<Attached> = (0..)
                .zip(granted)
                .map(|(at, it)| account(at, *it))
                .collect();
            let seen = look(&[(10, Some(used), "/pods/a")], &[("/cg/pods/a", used + 7)]);
            let events = judge(&seen, &both, &[owner("a", true)], &mut Strays::default());
            let mut all: Vec<Event> = (0..).zip(parts).map(|(at, it)| measured(at, *it)).collect();
            all.extend([looked("a"), stray("a", 7)]);
            assert_eq!(events, all, "{used} of {granted:?}");
        }
    }

    #[test]
    fn strangers_of_a_cgroup_are_stray_until_they_are_gone() {
        let attached = [process(0, "a", 10)];
        let owners = [owner("a", false), owner("ab", false)];
        let mut strays = Strays::default();
        let busy = look(
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
            let events = judge(&busy, &attached, &owners, &mut strays);
            let all = [measured(0, 5), looked("a"), stray("a", 7), looked("ab")];
            assert_eq!(events, all);
        }
        let quiet = look(&[(10, Some(5), "/pods/a")], &[]);
        let gone = judge(&quiet, &attached, &owners, &mut strays);
        let all = [measured(0, 5), looked("a"), stray("a", 0), looked("ab")];
        assert_eq!(gone, all);
        let still = judge(&quiet, &attached, &owners, &mut strays);
        let all = [measured(0, 5), looked("a"), looked("ab")];
        assert_eq!(still, all, "said once");
    }

    #[test]
    fn a_stranger_is_found_whatever_its_group_is_called() {
        let mut seen = look(
            &[(20, Some(4), ""), (21, Some(5), ""), (22, Some(6), "")],
            &[],
        );
        let names = [
            &b"/pods/a/\xff"[..],
            b"/pods/a/x\\012 (deleted)",
            b"/pods/a (deleted)",
        ];
        let processes = seen.processes.as_mut().expect("some");
        for (process, name) in processes.values_mut().zip(names) {
            process.cgroup = Some(name.to_vec());
        }
        // As it comes from the child that asked.
        let line = serde_json::to_string(&seen).expect("JSON");
        let heard: Look = serde_json::from_str(&line).expect("the same");
        let (owners, mut strays) = ([owner("a", false)], Strays::default());
        let events = judge(&heard, &[], &owners, &mut strays);
        assert_eq!(events, [looked("a"), stray("a", 4 + 5)]);
    }

    #[test]
    fn a_process_attached_to_another_container_is_nobodys_stray() {
        let attached = [process(0, "b", 20)];
        let seen = look(&[(20, Some(7), "/pods/a")], &[]);
        let mut strays = Strays::default();
        let owners = [owner("a", false)];
        for _ in 0..2 {
            let events = judge(&seen, &attached, &owners, &mut strays);
            assert_eq!(events, [looked("a")]);
        }
    }

    #[test]
    fn what_the_driver_counts_and_nobody_explains_is_stray() {
        let attached = [process(0, "a", 10)];
        let owners = [owner("a", true)];
        let mut strays = Strays::default();
        let seen = look(&[(10, Some(5), "/pods/a")], &[("/cg/pods/a", 12)]);
        let events = judge(&seen, &attached, &owners, &mut strays);
        assert_eq!(events, [measured(0, 5), looked("a"), stray("a", 7)]);
        // Of one whose memory is not shown, or whose pid is not known, nothing can be concluded.
        let hidden = look(&[(10, None, "/pods/a")], &[("/cg/pods/a", 12)]);
        assert!(judge(&hidden, &attached, &owners, &mut strays).is_empty());
        let nameless = [process(0, "a", 0)];
        assert!(judge(&seen, &nameless, &owners, &mut strays).is_empty());
    }

    #[test]
    fn a_gpu_that_does_not_answer_changes_nothing() {
        let mut strays = Strays::default();
        let lost = Look {
            gpu: GPU.0,
            processes: Err("lost".into()),
            walls: Vec::new(),
        };
        let attached = [process(0, "a", 10)];
        assert!(judge(&lost, &attached, &[owner("a", true)], &mut strays).is_empty());
    }

    #[test]
    fn a_container_that_comes_again_begins_anew() {
        let owners = [owner("a", false)];
        let mut strays = Strays::default();
        let seen = look(&[(20, Some(7), "/pods/a")], &[]);
        let events = judge(&seen, &[], &owners, &mut strays);
        assert_eq!(events, [looked("a"), stray("a", 7)]);
        strays.forget(&id("a"));
        let events = judge(&look(&[], &[]), &[], &owners, &mut strays);
        assert_eq!(events, [looked("a")]);
    }
}
