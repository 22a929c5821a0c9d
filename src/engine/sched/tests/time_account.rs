//! Where wall time goes, by cause. Each test is one way to be slow.

use super::*;
use crate::sched::preempt::Answer;
use crate::sched::waits::Wait;
use crate::tests::{ask, id};
use crate::{Action, Claims, Event};
use gpuslice_wire::ids::{ClientId, ContainerId};
use gpuslice_wire::policy::ClassCaps;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::GIB;
use gpuslice_wire::waits::WaitCause;

/// Running, waiting, hand-over, limited, gang, idle and absent, in ms.
type Parts = [u64; 7];

impl Rig {
    /// The parts of a container's time. They add up to the wall time.
    fn parts(&self, who: usize) -> Parts {
        let time = &self.turns.entities[who].time;
        assert_eq!(time.total(), self.turns.now.since(time.since), "container {who}");
        let TimeAccount { running, handover, limited, gang, idle, absent, .. } = *time;
        assert_eq!(time.waited().0, time.waiting().0 + handover.0 + limited.0 + gang.0);
        let parts = [running, time.waiting(), handover, limited, gang, idle, absent];
        parts.map(|part| part.0 / MS)
    }

    /// The wait behind the container that cost it most.
    fn worst(&self, who: usize) -> Wait {
        let ([worst, ..], _) = self.turns.entities[who].time.waits.table().largest();
        worst.expect("it waited")
    }

    /// The same: behind which container, the longest single wait in ms, and its cause.
    fn culprit(&self, who: usize) -> (u16, u64, WaitCause) {
        let worst = self.worst(who);
        (worst.behind.0, worst.longest.0 / MS, worst.cause)
    }

    /// Runs until the turn of `who` is closed.
    fn until_closed(&mut self, who: usize) -> u64 {
        let it = ContainerIndex(who as u16);
        while !matches!(self.turns.phase, Phase::Closing { index, .. } if index == it) {
            let due = self.turns.deadline().expect("a turn ends");
            self.at(due.0);
        }
        self.turns.now.0
    }
}

#[test]
fn without_work_a_container_is_idle() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    rig.wake(0, 0);
    rig.run(1_000 * MS);
    assert_eq!(rig.parts(0), [1_000, 0, 0, 0, 0, 0, 0]);
    assert_eq!(rig.parts(1), [0, 0, 0, 0, 0, 1_000, 0]);
    assert_eq!(rig.turns.entities[1].time.waits.table().largest(), ([None; 3], Duration(0)));
}

#[test]
fn turns_of_others_are_ordinary_waits() {
    let mut rig = Rig::new(&[(1, 0, false), (3, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    rig.run(1_600 * MS);
    let [running, waiting, ..] = rig.parts(0);
    assert!(running.abs_diff(400) <= 16 && waiting.abs_diff(1_200) <= 16, "{running} {waiting}");
    let (behind, longest, cause) = rig.culprit(0);
    assert_eq!((behind, cause), (1, WaitCause::Queue));
    assert!((6..=20).contains(&longest), "a turn, {longest} ms");
}

/// The time of an honest drain is hand-over for the container that waits. What is longer is a wait.
#[test]
fn a_drain_is_handover_until_it_is_late() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    let closed = rig.until_closed(0);
    let before = rig.turns.entities[1].time.clone();
    rig.report(closed + MS, 0, true, true);
    let time = &rig.turns.entities[1].time;
    assert_eq!(time.handover.0 - before.handover.0, 850_000);
    assert_eq!(time.waiting().0 - before.waiting().0, 150_000);
    assert_eq!(rig.turns.entities[0].time.handover.0, 0, "it runs until it has drained");
}

#[test]
fn a_long_kernel_is_named() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    let closed = rig.until_closed(0);
    rig.report(closed + 1_500 * MS, 0, true, true);
    let (behind, longest, cause) = rig.culprit(1);
    assert_eq!((behind, cause), (0, WaitCause::LongKernel));
    assert!((1_500..1_520).contains(&longest), "{longest} ms");
    assert_eq!(rig.holder(), Some(1));
}

/// A container that never drains is waited for until `drain_max`. Then it runs beside others.
#[test]
fn a_container_that_never_drains_is_named() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    let closed = rig.until_closed(0);
    while rig.holder().is_none() {
        let due = rig.turns.deadline().expect("the wait ends");
        rig.at(due.0);
    }
    assert_eq!(rig.turns.now.0, closed + 2_000 * MS);
    let (behind, longest, cause) = rig.culprit(1);
    assert_eq!((behind, cause), (0, WaitCause::NoDrain));
    assert!((2_000..2_020).contains(&longest), "{longest} ms");
    let before = rig.parts(0);
    rig.at(closed + 2_004 * MS);
    assert_eq!(rig.parts(0)[0], before[0] + 4, "beside the turn of the other one");
}

#[test]
fn a_higher_class_is_named() {
    let config = Config { class_caps: ClassCaps::ALL, ..Config::default() };
    let mut rig = Rig::with(config, &[(1, 0, false), (1, 0, true)]);
    (0..2).for_each(|who| rig.wake(0, who));
    rig.run(1_000 * MS);
    let (behind, longest, cause) = rig.culprit(0);
    assert_eq!((behind, cause), (1, WaitCause::HigherClass));
    assert!(longest >= 900, "{longest} ms");
}

#[test]
fn a_share_that_is_used_up_is_a_limit() {
    let mut rig = Rig::new(&[(1, 30, false), (1, 0, false)]);
    rig.wake(0, 0);
    rig.run(10_000 * MS);
    let [running, waiting, handover, limited, ..] = rig.parts(0);
    assert!(running.abs_diff(3_000) <= 50 && limited.abs_diff(7_000) <= 50, "{running} {limited}");
    assert_eq!((waiting, handover), (0, 0));
    // beside one that uses the rest, its turn comes when its share is due: a wait
    rig.wake(10_000 * MS, 1);
    rig.run(20_000 * MS);
    let [running, waiting, ..] = rig.parts(0);
    assert!(
        running.abs_diff(6_000) <= 100 && waiting.abs_diff(7_000) <= 100,
        "{running} {waiting}"
    );
}

/// Under `native` containers run together, and neither waits.
#[test]
fn without_turns_all_run() {
    let config = Config { policy: Policy::Native, ..Config::default() };
    let mut rig = Rig::with(config, &[(1, 0, false), (1, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    rig.run(1_000 * MS);
    for who in 0..2 {
        assert_eq!(rig.parts(who), [1_000, 0, 0, 0, 0, 0, 0]);
    }
}

/// Work from before turns began is a drain as after any turn.
#[test]
fn untracked_work_is_waited_for() {
    let config = Config { policy: Policy::Native, ..Config::default() };
    let mut rig = Rig::with(config, &[(1, 0, false), (1, 0, false), (1, 0, false)]);
    rig.deep = Some(0);
    rig.report(0, 0, false, false);
    (1..3).for_each(|who| rig.wake(0, who));
    rig.turns.set_policy(Policy::Soft);
    rig.at(MS);
    assert_eq!(rig.holder(), None, "the first one has work in flight");
    rig.deep = None;
    rig.at(301 * MS);
    assert_eq!(rig.holder(), Some(1));
    assert_eq!(rig.culprit(1), (0, 299, WaitCause::LongKernel));
    assert_eq!(rig.parts(0)[0], 300, "it has work in flight");
}

/// Stopped work waits for its turn, whatever its processes claim.
#[test]
fn stopped_work_waits() {
    let config = Config { stop: true, ..Config::default() };
    let mut rig = Rig::with(config, &[(1, 0, false), (1, 0, true)]);
    rig.wake(0, 0);
    rig.report(MS, 1, true, true);
    let closed = rig.turns.now.0;
    rig.at(closed + MS);
    assert!(rig.notes.contains(&Note::Stop(ContainerIndex(0))), "{:?}", rig.notes);
    let order = rig.turns.entities[0].order;
    rig.turns.preemption_answered(ContainerIndex(0), Answer::Stop { order, ok: true });
    rig.report(closed + 2 * MS, 0, false, false);
    assert_eq!(rig.holder(), Some(1));
    rig.at(closed + 12 * MS);
    assert_eq!(rig.culprit(0), (1, 10, WaitCause::HigherClass));
    assert_eq!(rig.parts(1)[1], 1, "it waited for the stop");
}

/// A claim of work without work is shown as what was measured: turns, and waits for turns.
#[test]
fn a_hollow_claim_runs_and_waits() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    rig.run(2_000 * MS);
    let [running, waiting, ..] = rig.parts(1);
    assert!(running.abs_diff(1_000) <= 16 && waiting.abs_diff(1_000) <= 16, "{running} {waiting}");
}

#[test]
fn a_new_container_of_an_old_index_inherits_no_wait() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    rig.run(100 * MS);
    let waited = rig.worst(0).total();
    rig.turns.leave(ContainerIndex(1));
    let (shown, others) = rig.turns.entities[0].time.waits.table().largest();
    assert_eq!((shown, others), ([None; 3], waited));
}

/// A node of the whole engine, with a process in each container.
struct Node {
    rig: crate::tests::Rig,
    /// The processes, and what they claim on each GPU.
    processes: Vec<(ContainerId, ClientId, [Claims; 2])>,
}

impl Node {
    /// Containers, by name and GPUs.
    fn new(all: &[(&str, &str)]) -> Node {
        let rig = crate::tests::Rig::new(Config::default(), &[16, 16]);
        let mut node = Node { rig, processes: Vec::new() };
        for (name, gpus) in all {
            node.rig.admit(ask(name, gpus, GIB)).expect("it fits");
            node.attach(name);
        }
        node
    }

    fn attach(&mut self, name: &str) {
        let client = self.rig.attach(name, 0).expect("a place");
        self.processes.push((id(name), client, [Claims::default(); 2]));
    }

    fn says(&mut self, name: &str, lane: u8, claims: Claims) {
        let process = self.processes.iter_mut().find(|it| it.0 == id(name)).expect("a process");
        process.2[usize::from(lane)] = claims;
        let event = Event::Claims { client: process.1, lane: Lane(lane), claims };
        self.step(event);
    }

    fn step(&mut self, event: Event) {
        for action in self.rig.step(event) {
            if let Action::ReadClaims { client, lane } = action {
                let process = self.processes.iter().find(|it| it.1 == client);
                let claims = process.expect("a process").2[usize::from(lane.0)];
                self.step(Event::Claims { client, lane, claims });
            }
        }
    }

    /// Steps whenever the engine asks for it, for so many ms.
    fn run(&mut self, ms: u64) {
        let end = self.rig.now + ms * MS;
        while let Some(due) = self.rig.engine.next_deadline().filter(|due| due.0 <= end) {
            self.rig.now = due.0;
            self.step(Event::Tick);
        }
        self.rig.now = end;
    }

    /// The row of a container's GPU, and the culprit it names.
    fn row(&self, container: &str, lane: u8) -> (Parts, Option<(ContainerId, WaitCause)>) {
        let rows = self.rig.engine.snapshot(Instant(self.rig.now));
        let row = rows.into_iter().find_map(|row| match row {
            Snapshot::SliceTime {
                container: it,
                lane: at,
                since_ns,
                running_ns,
                waiting_ns,
                handover_ns,
                limited_ns,
                gang_ns,
                idle_ns,
                suspended_ns: 0,
                absent_ns,
                behind,
                ..
            } if it == id(container) && at == Lane(lane) => {
                let parts =
                    [running_ns, waiting_ns, handover_ns, limited_ns, gang_ns, idle_ns, absent_ns];
                assert_eq!(parts.iter().sum::<u64>(), self.rig.now - since_ns);
                let first = behind[0];
                Some((parts.map(|ns| ns / MS), first.container.map(|it| (it, first.cause))))
            }
            _ => None,
        });
        row.expect("a row")
    }
}

fn runnable() -> Claims {
    Claims { runnable: true, ..Claims::default() }
}

/// A gang waits behind a long kernel on one GPU, and for that GPU on the other one.
#[test]
fn a_gang_waits_for_its_other_gpus() {
    let mut node = Node::new(&[("one", "0"), ("gang", "0,1"), ("two", "1")]);
    for claims in [runnable(), Claims::default()] {
        (0..2).for_each(|lane| node.says("gang", lane, claims));
    }
    // a kernel that does not end with its turn
    node.says("one", 0, Claims { active: 1, ..runnable() });
    node.says("gang", 0, runnable());
    node.run(20);
    node.says("two", 0, runnable());
    node.run(1_000);
    let (first, culprit) = node.row("gang", 0);
    assert_eq!(culprit, Some((id("one"), WaitCause::LongKernel)));
    assert!(first[1] > 1_000, "{first:?}");
    let (second, culprit) = node.row("gang", 1);
    let (third, third_culprit) = node.row("two", 0);
    assert_eq!((second[1], second[4] >= 1_000, culprit), (0, true, None), "{second:?}");
    // turns that fit in before the gang run meanwhile
    assert_eq!((third[0], third_culprit), (1_000, None), "{third:?}");
}

/// A step that is later than a heartbeat may be old.
#[test]
fn the_absence_of_the_daemon_is_no_wait() {
    let mut node = Node::new(&[("a", "0"), ("b", "0")]);
    // nothing is due, so that no absence is
    node.rig.now += 5_000 * MS;
    node.step(Event::Tick);
    assert_eq!(node.row("a", 0).0, [0, 0, 0, 0, 0, 5_000, 0]);
    node.says("a", 0, runnable());
    node.says("b", 0, runnable());
    let due = node.rig.engine.next_deadline().expect("a turn ends").0 - node.rig.now;
    node.rig.now += due + 250 * MS + 700 * MS;
    let seen = due / MS + 250;
    for stepped in [false, true] {
        let rows = ["a", "b"].map(|name| node.row(name, 0).0);
        let parts = |running, waiting| [running, waiting, 0, 0, 0, 5_000, 700];
        assert_eq!(rows, [parts(0, seen), parts(seen, 0)], "stepped: {stepped}");
        node.step(Event::Tick);
    }
}

/// It takes no turn meanwhile, whatever the daemon misses.
#[test]
fn a_suspended_container_is_known_to_be_so_in_the_absence_of_the_daemon() {
    let mut node = Node::new(&[("away", "0"), ("a", "0"), ("b", "0")]);
    let container = id("away");
    node.step(Event::Suspend { token: crate::Token(9), container });
    node.step(Event::MemoryMoved { container, away: true, stays: Some(Vec::new()) });
    node.says("a", 0, runnable());
    node.says("b", 0, runnable());
    let due = node.rig.engine.next_deadline().expect("a turn ends");
    node.rig.now = due.0 + 950 * MS;
    for _ in 0..2 {
        let rows = node.rig.engine.snapshot(Instant(node.rig.now));
        let parts = rows.iter().find_map(|row| match row {
            Snapshot::SliceTime { container: it, since_ns, suspended_ns, absent_ns, .. } => {
                (*it == container).then_some((node.rig.now - since_ns, *suspended_ns, *absent_ns))
            }
            _ => None,
        });
        let (wall, suspended, absent) = parts.expect("a row");
        assert_eq!((suspended, absent), (wall, 0));
        assert_eq!(node.row("a", 0).0[6], 700, "the absence is one for others");
        node.step(Event::Tick);
    }
}

/// A deadline that a late step leaves to the next tick is no absence: the daemon is there again.
#[test]
fn a_late_step_ends_the_absence() {
    let mut node = Node::new(&[("a", "0"), ("b", "0")]);
    let client = node.processes[0].1;
    let second = node.rig.attach("a", 0).expect("a second process");
    node.rig.reserve(second, 1, GIB / 2);
    node.rig.reserve(client, GIB / 2 + 1, GIB); // the second process is asked for its credit
    let due = node.rig.engine.next_deadline().expect("the end of the recall");
    node.rig.now = due.0 + 1_250 * MS;
    for _ in 0..10 {
        node.says("a", 0, Claims::default());
        node.rig.now += MS;
    }
    let (parts, _) = node.row("b", 0);
    assert_eq!(parts[6], 1_000, "{parts:?}");
}

/// After a restart the daemon does not know a container's processes until they attach again. The account is a
/// new one.
#[test]
fn a_restart_begins_accounts_anew() {
    let mut before = crate::tests::Rig::new(Config::default(), &[16]);
    let records = ["a", "b"].map(|name| before.admit(ask(name, "0", GIB)).expect("it fits"));
    let mut node = Node::new(&[]);
    node.rig.now = 9_000 * MS;
    for record in records {
        node.step(Event::Restore(record.into()));
    }
    node.run(100);
    node.step(Event::Opened { container: id("b") });
    node.attach("a");
    node.run(1_900);
    assert_eq!(node.row("a", 0).0, [0, 0, 0, 0, 0, 1_900, 100]);
    assert_eq!(node.row("b", 0).0, [0, 0, 0, 0, 0, 1_150, 850]);
}
