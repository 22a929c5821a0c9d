//! Suspension as the engine's caller sees it.

use std::string::ToString;
use std::vec::Vec;

use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::policy::Policy;
use gpuslice_wire::snapshot::{Snapshot, SuspensionState};
use gpuslice_wire::units::{Bytes, Duration, GIB, Instant};

use crate::tests::{MS, Rig, ask, attached, holds, id};
use crate::{Action, Claims, Config, Event, Token};

const TOKEN: Token = Token(9);

/// A rig with containers of these names, each with a process that holds so many GiB of GPU 0.
fn rig(config: Config, containers: &[(&str, u64)]) -> (Rig, Vec<ClientId>) {
    let mut rig = Rig::new(config, &[16]);
    let mut attach = |&(name, gib): &(&str, u64)| {
        rig.admit(ask(name, "0", 8 * GIB)).expect("fits");
        let client = rig.attach(name, 0).expect("attaches");
        rig.reserve(client, gib * GIB, gib * GIB);
        client
    };
    let clients = containers.iter().map(&mut attach).collect();
    (rig, clients)
}

fn suspend(rig: &mut Rig, container: &str) -> Vec<Action> {
    rig.step(Event::Suspend { token: TOKEN, container: id(container) })
}

fn resume(rig: &mut Rig, container: &str) -> Vec<Action> {
    rig.step(Event::EndSuspension { token: TOKEN, container: id(container) })
}

fn moved(rig: &mut Rig, container: &str, away: bool) -> Vec<Action> {
    stays(rig, container, away, &[])
}

/// The same, without the memory of these processes.
fn stays(rig: &mut Rig, container: &str, away: bool, stays: &[ClientId]) -> Vec<Action> {
    rig.step(Event::MemoryMoved { container: id(container), away, stays: Some(stays.to_vec()) })
}

/// Steps until the engine orders the move.
fn until_ordered(rig: &mut Rig, mut actions: Vec<Action>) -> bool {
    for _ in 0..100 {
        if actions.iter().any(|it| matches!(it, Action::MoveMemory { .. })) {
            return true;
        }
        let Some(due) = rig.engine.next_deadline() else { return false };
        rig.now = due.0;
        actions = rig.step(Event::Tick);
    }
    false
}

fn refused(actions: &[Action]) -> std::string::String {
    match actions {
        [.., Action::Denied { token: TOKEN, why }] => why.to_string(),
        other => panic!("not refused but {other:?}"),
    }
}

fn state(rig: &Rig) -> Option<(SuspensionState, Bytes)> {
    let rows = rig.engine.snapshot(Instant(rig.now));
    rows.iter().find_map(|row| match row {
        Snapshot::Suspension { state, memory, .. } => Some((*state, *memory)),
        _ => None,
    })
}

fn busy(rig: &mut Rig, client: ClientId) -> Vec<Action> {
    let claims = Claims { runnable: true, active: 1, held: Bytes(GIB), ..Claims::default() };
    rig.step(Event::Claims { client, lane: Lane(0), claims })
}

fn is_gated(rig: &Rig, container: &str) -> bool {
    matches!(rig.slice(container), Snapshot::Slice { gated: 1, .. })
}

#[test]
fn memory_leaves_and_returns() {
    let (mut rig, clients) = rig(Config::default(), &[("a", 4)]);
    let actions = suspend(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
    let four = Bytes(4 * GIB);
    assert_eq!(state(&rig), Some((SuspensionState::Suspending, four)));
    let settled = moved(&mut rig, "a", true);
    let container = id("a");
    let left = Bytes::ZERO;
    let expected =
        |away| Action::SuspensionSettled { token: TOKEN, container, away, memory: four, left };
    assert!(settled.contains(&expected(true)), "{settled:?}");
    assert_eq!(state(&rig), Some((SuspensionState::Suspended, four)));
    rig.admit(ask("b", "0", 9 * GIB)).expect_err("its cap stays promised");
    // What NVML shows of it now is nothing, and changes nothing.
    let client = clients[0];
    rig.step(Event::Measured { client, lane: Lane(0), used: Bytes::ZERO, requested: false });
    let resumed = resume(&mut rig, "a");
    assert!(matches!(resumed[..], [.., Action::MoveMemory { away: false, .. }]), "{resumed:?}");
    assert_eq!(state(&rig), Some((SuspensionState::Resuming, four)));
    assert!(moved(&mut rig, "a", false).contains(&expected(false)));
    assert_eq!(state(&rig), None);
}

/// The part that is on the GPU already is not needed again.
#[test]
fn a_resume_needs_what_is_not_on_the_gpu() {
    let (mut rig, clients) = rig(Config::default(), &[("a", 4), ("b", 1)]);
    let needs = |rig: &Rig| {
        let needs = rig.engine.resume_needs(id("a"));
        needs.iter().map(|need| (need.index.0, need.bytes.0 / GIB)).collect::<Vec<_>>()
    };
    let second = rig.attach("a", 0).expect("attaches");
    rig.reserve(second, GIB, GIB);
    let actions = suspend(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
    stays(&mut rig, "a", true, &[second]);
    assert_eq!(needs(&rig), [(0, 4)]);
    let (client, lane, bytes) = (clients[0], Lane(0), Bytes(2 * GIB));
    rig.step(Event::Release { client, lane, bytes });
    assert_eq!(needs(&rig), [(0, 4)], "what it gives back meanwhile is on the host");
    // What a process takes around the shim meanwhile is no part of what returns.
    let (client, container) = (rig.attach("a", 0).expect("attaches"), id("a"));
    for _ in 0..2 {
        rig.now += 300 * MS;
        let used = Bytes(3 * GIB);
        rig.step(Event::Measured { client, lane, used, requested: false });
        rig.step(Event::Looked { container, lane });
    }
    assert_eq!(rig.engine.present_on(0), Bytes(5 * GIB), "beside 1 GiB of the other container");
    assert_eq!(needs(&rig), [(0, 4)]);
}

/// What its processes claim to hold is not on the device, so it explains nothing that NVML shows there.
#[test]
fn a_suspended_container_claims_no_memory() {
    let (mut rig, clients) = rig(Config::default(), &[("a", 4)]);
    rig.reserve(clients[0], GIB, 4 * GIB);
    busy(&mut rig, clients[0]);
    let claimed = |rig: &Rig| rig.engine.claimed(clients[0], Lane(0), false);
    assert_eq!(claimed(&rig), Bytes(GIB));
    let actions = suspend(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
    moved(&mut rig, "a", true);
    assert_eq!(claimed(&rig), Bytes::ZERO);
    resume(&mut rig, "a");
    moved(&mut rig, "a", false);
    assert_eq!(claimed(&rig), Bytes(GIB));
}

/// It gets no turn, whatever its processes claim; others have the GPU without turns.
#[test]
fn a_suspended_container_takes_no_turns() {
    let (mut rig, clients) = rig(Config::default(), &[("a", 1), ("b", 1)]);
    busy(&mut rig, clients[0]);
    let actions = suspend(&mut rig, "a");
    assert!(is_gated(&rig, "a"), "its gate is closed although it is alone");
    assert!(until_ordered(&mut rig, actions), "it does not drain, and is moved after `drain_max`");
    moved(&mut rig, "a", true);
    for _ in 0..50 {
        rig.now += 50 * MS;
        busy(&mut rig, clients[0]);
        busy(&mut rig, clients[1]);
        let (Snapshot::Slice { runnable: a, .. }, Snapshot::Slice { holds: b, .. }) =
            (rig.slice("a"), rig.slice("b"))
        else {
            panic!("no slices")
        };
        assert_eq!((a, b), (0, 1));
    }
    assert!(!is_gated(&rig, "b"), "turns for one container");
    let rows = rig.engine.snapshot(Instant(rig.now));
    let off = rows.into_iter().find_map(|row| match row {
        Snapshot::SliceTime { container, idle_ns, suspended_ns, .. } if container == id("a") => {
            Some((idle_ns, suspended_ns))
        }
        _ => None,
    });
    let (idle, suspended) = off.expect("an account");
    assert!(idle < MS && suspended >= 50 * 50 * MS, "{idle} {suspended}: its time is not idle");
    resume(&mut rig, "a");
    moved(&mut rig, "a", false);
    busy(&mut rig, clients[0]);
    assert!(matches!(rig.slice("a"), Snapshot::Slice { runnable: 1, .. }));
}

/// Container `a` is to be suspended while its work is stopped on the GPU, or is being stopped, and `b` has work.
fn stopped(answered: bool) -> (Rig, ClientId, Vec<Action>) {
    let (mut rig, clients) = rig(Config { stop: true, ..Config::default() }, &[("a", 1), ("b", 1)]);
    clients.iter().for_each(|client| drop(busy(&mut rig, *client)));
    for _ in 0..100 {
        rig.now = rig.engine.next_deadline().expect("turns").0;
        let actions = rig.step(Event::Tick);
        let order = actions.iter().find_map(|it| match *it {
            Action::Stop { container, order, .. } if container == id("a") => Some(order),
            _ => None,
        });
        if let Some(order) = order {
            let (container, lane, ok) = (id("a"), Lane(0), true);
            if answered {
                rig.step(Event::Stopped { container, lane, order, ok });
            }
            let actions = suspend(&mut rig, "a");
            return (rig, clients[1], actions);
        }
        // the other one drains at once, whatever its turn
        let turn = (1..20).map(|turn| Claims { active: turn, drained: turn, ..Claims::default() });
        for claims in turn {
            let claims = Claims { runnable: true, ..claims };
            rig.step(Event::Claims { client: clients[1], lane: Lane(0), claims });
        }
    }
    panic!("no stop is ordered");
}

fn goes_on(actions: &[Action]) -> bool {
    actions.iter().any(|it| matches!(it, Action::Resume { container, .. } if *container == id("a")))
}

/// A driver would wait for work that cannot end.
#[test]
fn stopped_work_goes_on_before_the_move() {
    let (mut rig, other, actions) = stopped(true);
    let mut resumed = false;
    let mut looks = |actions: &[Action]| {
        resumed |= goes_on(actions);
        let moves = actions.iter().any(|it| matches!(it, Action::MoveMemory { .. }));
        assert!(resumed || !moves, "{actions:?}");
    };
    looks(&actions);
    for _ in 0..20 {
        let claims = Claims::default();
        looks(&rig.step(Event::Claims { client: other, lane: Lane(0), claims }));
        rig.now += MS;
        looks(&rig.step(Event::Tick));
    }
    assert!(resumed, "it has a turn");
}

#[test]
fn stopped_work_of_a_suspended_container_is_not_forgotten() {
    let (mut rig, _, actions) = stopped(false);
    assert!(until_ordered(&mut rig, actions), "it is moved after `drain_max`");
    assert!(goes_on(&moved(&mut rig, "a", true)), "it gets no turn any more");
}

/// Its grants are on the host, and more of them would be on the GPU.
#[test]
fn growth_waits_for_the_resume() {
    let (mut rig, clients) = rig(Config::default(), &[("a", 4), ("b", 1)]);
    let actions = suspend(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
    moved(&mut rig, "a", true);
    let granted = |actions: &[Action]| {
        actions
            .iter()
            .any(|it| matches!(it, Action::Reserved { client, .. } if *client == clients[0]))
    };
    let later = rig.attach("a", 0).expect("a new process attaches");
    let waits = rig.reserve(later, GIB, GIB);
    assert!(!granted(&waits) && !granted(&rig.reserve(clients[0], 0, 0)), "not even for nothing");
    assert!(!granted(&rig.reserve(clients[0], GIB, GIB)), "{waits:?}");
    let pinned = |client| Event::Reserve {
        client,
        token: TOKEN,
        lane: Lane::HOST,
        need: Bytes(GIB),
        wish: Bytes(GIB),
    };
    assert!(granted(&rig.step(pinned(clients[0]))), "host memory is none of the GPU's");
    rig.step(Event::Gone { client: later });
    resume(&mut rig, "a");
    assert!(granted(&moved(&mut rig, "a", false)));
}

/// The memory of a slice that is shown as used, and as untracked.
fn shown(rig: &Rig, name: &str) -> (Bytes, Bytes) {
    let of_it = rig.engine.snapshot(Instant(rig.now)).into_iter().find_map(|row| match row {
        Snapshot::Slice { container, used, untracked, .. } if container == id(name) => {
            Some((used, untracked))
        }
        _ => None,
    });
    of_it.expect("a slice")
}

/// What a new process of it takes on the GPU is not free for others, and does not change its ledger.
#[test]
fn memory_left_behind_is_not_free() {
    let config = Config { oversubscribe: true, ..Config::default() };
    let (mut rig, clients) = rig(config, &[("a", 4), ("b", 8), ("c", 2)]);
    let actions = suspend(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
    moved(&mut rig, "a", true);
    let gib = |gib: u64| Bytes(gib * GIB);
    let mut look = |attached, strangers, ms: u64| {
        rig.now += ms * MS;
        let (client, container, lane) = (clients[0], id("a"), Lane(0));
        rig.step(Event::Looking { container, lane });
        rig.step(Event::Measured { client, lane, used: gib(attached), requested: false });
        rig.step(Event::Unattributed { container, lane, used: gib(strangers) });
        rig.step(Event::Looked { container, lane });
        let present = rig.engine.present_on(0);
        let left = present.saturating_sub(gib(10));
        assert_eq!(shown(&rig, "a"), (Bytes::ZERO, left), "what is used and untracked");
        (left, state(&rig).expect("suspended").1)
    };
    assert_eq!(look(4, 0, 1_000), (gib(0), gib(4)), "it may be a figure from before the move");
    assert_eq!(look(0, 0, 100), (gib(0), gib(4)));
    assert_eq!(look(1, 1, 1_000), (gib(0), gib(4)));
    assert_eq!(look(1, 1, 1_000), (gib(2), gib(4)), "two looks agree");
    assert_eq!(look(0, 1, 1_000), (gib(1), gib(4)));
    assert!(
        matches!(resume(&mut rig, "a")[..], [.., Action::MoveMemory { .. }]),
        "its own is no lack"
    );
}

/// A move that fails leaves the container where it was.
#[test]
fn a_failed_move_changes_nothing() {
    let (mut rig, _) = rig(Config::default(), &[("a", 4)]);
    let actions = suspend(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
    moved(&mut rig, "a", false);
    assert_eq!(state(&rig), None);
    let actions = suspend(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
    moved(&mut rig, "a", true);
    resume(&mut rig, "a");
    moved(&mut rig, "a", true);
    assert_eq!(state(&rig), Some((SuspensionState::Suspended, Bytes(4 * GIB))));
    // An answer to no order is none.
    assert!(moved(&mut rig, "a", false).is_empty() && moved(&mut rig, "x", true).is_empty());
}

#[test]
fn what_does_not_fit_the_state_is_refused() {
    let suspended_memory = Bytes(5 * GIB);
    let config = Config { suspended_memory, ..Config::default() };
    let (mut rig, _) = rig(config, &[("a", 4), ("b", 2)]);
    assert!(refused(&resume(&mut rig, "a")).contains("is not suspended"));
    assert!(refused(&suspend(&mut rig, "x")).contains("has no slice"));
    assert!(refused(&resume(&mut rig, "x")).contains("has no slice"));
    let actions = suspend(&mut rig, "a");
    for again in [suspend, resume] {
        assert!(refused(&again(&mut rig, "a")).contains("is being suspended; try again when"));
    }
    assert!(until_ordered(&mut rig, actions));
    moved(&mut rig, "a", true);
    assert!(refused(&suspend(&mut rig, "a")).contains("is suspended; gpuslice resume a ends"));
    resume(&mut rig, "a");
    for again in [suspend, resume] {
        assert!(refused(&again(&mut rig, "a")).contains("is being resumed, or waits for memory"));
    }
    moved(&mut rig, "a", true);
    let full = refused(&suspend(&mut rig, "b"));
    assert!(full.contains("its 2048MiB on the GPU") && full.contains("1024MiB are left"), "{full}");
    assert!(full.contains("resume one of them") && full.contains("suspended_memory"), "{full}");
    let config = Config { suspended_memory: Bytes(GIB), ..Config::default() };
    let (mut rig, _) = self::rig(config, &[("a", 4)]);
    let full = refused(&suspend(&mut rig, "a"));
    assert!(full.contains("none is suspended") && !full.contains("resume"), "{full}");
}

/// Only an oversubscribed GPU can lack room for a return.
#[test]
fn a_return_without_room_is_refused() {
    let config = Config { oversubscribe: true, ..Config::default() };
    let (mut rig, clients) = rig(config, &[("a", 8), ("b", 8), ("c", 0)]);
    let actions = suspend(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
    moved(&mut rig, "a", true);
    rig.reserve(clients[2], GIB, GIB);
    let why = refused(&resume(&mut rig, "a"));
    assert!(
        why.contains("GPU 0 has no room for its 8192MiB: other containers leave 7168MiB"),
        "{why}"
    );
    assert_eq!(state(&rig), Some((SuspensionState::Suspended, Bytes(8 * GIB))));
    rig.step(Event::Gone { client: clients[2] });
    assert!(matches!(resume(&mut rig, "a")[..], [.., Action::MoveMemory { .. }]));
}

/// What it claims beyond its grants counts for nothing, so room is told from what NVML shows and what was granted.
#[test]
fn a_process_that_claims_memory_without_end_blocks_no_return() {
    let (mut rig, clients) = rig(Config::default(), &[("a", 8), ("liar", 4)]);
    let actions = suspend(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
    moved(&mut rig, "a", true);
    let (client, lane) = (clients[1], Lane(0));
    let claims = Claims { held: Bytes(4 * GIB), unseen: Bytes(u64::MAX), ..Claims::default() };
    rig.step(Event::Claims { client, lane, claims });
    for _ in 0..2 {
        rig.now += 1_000 * MS;
        rig.step(Event::Measured { client, lane, used: Bytes(4 * GIB), requested: false });
    }
    let resumed = resume(&mut rig, "a");
    let goes = |action: &Action| matches!(action, Action::MoveMemory { away: false, .. });
    assert!(resumed.iter().any(goes), "{resumed:?}");
}

#[test]
fn a_slice_ends_in_every_state() {
    for steps in 0..4 {
        let (mut rig, _) = rig(Config::default(), &[("a", 4)]);
        let actions = suspend(&mut rig, "a");
        if steps > 0 {
            assert!(until_ordered(&mut rig, actions));
        }
        if steps > 1 {
            moved(&mut rig, "a", true);
        }
        if steps > 2 {
            resume(&mut rig, "a");
        }
        rig.step(Event::Dismiss { token: TOKEN, container: id("a") });
        assert!(moved(&mut rig, "a", true).is_empty());
        rig.now += 5_000 * MS;
        rig.step(Event::Tick);
        rig.admit(ask("a", "0", 16 * GIB)).expect("all is free again");
        assert_eq!(state(&rig), None);
    }
}

#[test]
fn a_restored_container_stays_suspended() {
    let (mut rig, clients) = rig(Config::default(), &[("a", 4)]);
    rig.step(Event::WasSuspended { container: id("a"), token: TOKEN, moved: true });
    busy(&mut rig, clients[0]);
    assert!(matches!(rig.slice("a"), Snapshot::Slice { runnable: 0, .. }));
    let actions = resume(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
}

/// The daemon ended in the middle of a move: its memory counts on the GPU until the move was ordered again and done.
#[test]
fn a_move_that_a_restart_cut_short_is_ordered_again() {
    let (mut rig, _) = rig(Config::default(), &[("a", 4), ("b", 1)]);
    let again = rig.step(Event::WasSuspended { container: id("a"), token: TOKEN, moved: false });
    assert!(until_ordered(&mut rig, again));
    assert_eq!(rig.engine.present_on(0), Bytes(5 * GIB));
    moved(&mut rig, "a", true);
    assert_eq!(rig.engine.present_on(0), Bytes(GIB));
    assert_eq!(state(&rig).expect("suspended").0, SuspensionState::Suspended);
}

/// A container `a` after a restart, with a process that holds 4 GiB and has not attached again; `complete`: the daemon
/// knows that from its files.
fn restored(complete: bool) -> Rig {
    let (mut before, _) = rig(Config::default(), &[]);
    let record = before.admit(ask("a", "0", 8 * GIB)).expect("fits");
    let (container, token, process) = (id("a"), TOKEN, PROCESS);
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.step(Event::Restore(record.into()));
    if complete {
        rig.step(Event::RestoreProcess { token, container, process, granted: holds(4 * GIB) });
        rig.step(Event::Complete { container });
    }
    rig
}

const PROCESS: crate::Process = crate::Process { pid: 1, born: 1 };

/// Where the processes are not all known, the move waits for them to attach again, and not for ever.
#[test]
fn a_move_ordered_again_waits_for_processes_to_attach() {
    for complete in [false, true] {
        let mut rig = restored(complete);
        let container = id("a");
        let mut begun = rig.step(Event::WasSuspended { container, token: TOKEN, moved: false });
        if !complete {
            // Other slices are restored meanwhile.
            rig.now += 500 * MS;
            begun = rig.step(Event::Opened { container });
            rig.attach("a", 4 * GIB).expect("it is believed");
        }
        let at = rig.now;
        assert!(until_ordered(&mut rig, begun));
        let waited = if complete { 0 } else { Config::default().restore_grace.0 };
        assert_eq!(rig.now - at, waited);
        assert_eq!(rig.engine.present_on(0), Bytes(4 * GIB));
    }
}

/// A first move waits for them also where their grants are known, and for each to tell whether it shares memory.
/// Without turns a container has drained at once.
#[test]
fn a_move_soon_after_a_restart_waits_for_processes_to_tell() {
    let ordered = |it: &Action| matches!(it, Action::MoveMemory { .. });
    for policy in [Policy::Fair, Policy::Native] {
        let mut rig = restored(true);
        let gpus = gpuslice_wire::select::GpuSelector::All;
        rig.step(Event::SetPolicy { token: TOKEN, gpus: gpus.into(), policy });
        assert!(!suspend(&mut rig, "a").iter().any(ordered));
        let (token, process, held) = (TOKEN, Some(PROCESS), holds(4 * GIB));
        let answer = rig.step(Event::Attach { token, container: id("a"), process, held });
        assert!(!answer.iter().any(ordered), "{policy:?}: its page is blank");
        let client = attached(&answer).expect("it is believed");
        for untold in [true, false] {
            let claims = Claims { held: Bytes(4 * GIB), untold, ..Claims::default() };
            let told = rig.step(Event::Claims { client, lane: Lane(0), claims });
            assert_eq!(told.iter().any(ordered), !untold, "{policy:?}: {told:?}");
        }
    }
}

/// One that is stopped does not attach in time, and one with an old library never tells.
#[test]
fn a_move_does_not_wait_for_ever_for_processes_to_tell() {
    let grace = Config::default().restore_grace;
    for drain_max in [1, 2_000].map(|ms| Duration(ms * MS)) {
        let mut rig = restored(true);
        rig.engine.config.drain_max = drain_max;
        let at = rig.now;
        let begun = suspend(&mut rig, "a");
        assert!(until_ordered(&mut rig, begun));
        assert_eq!(rig.now - at, grace.0);
        let (mut rig, _) = self::rig(Config { drain_max, ..Config::default() }, &[("a", 4)]);
        let at = rig.now;
        let begun = suspend(&mut rig, "a");
        assert!(until_ordered(&mut rig, begun));
        assert_eq!(rig.now - at, drain_max.0);
    }
}

/// A process that the driver does not report as moved counts on the GPU, until NVML shows less of it.
#[test]
fn a_process_that_was_not_moved_counts_as_on_the_gpu() {
    let config = Config { sees_devices: true, ..Config::default() };
    let (mut rig, clients) = rig(config, &[("a", 4), ("b", 1)]);
    let skipped = rig.attach("a", 0).expect("attaches");
    rig.reserve(skipped, 2 * GIB, 2 * GIB);
    let actions = suspend(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
    let settled = stays(&mut rig, "a", true, &[skipped]);
    let left = settled.iter().find_map(|it| match it {
        Action::SuspensionSettled { left, .. } => Some(*left),
        _ => None,
    });
    assert_eq!(left, Some(Bytes(2 * GIB)));
    let present = |rig: &Rig| (rig.engine.present_on(0).0 - GIB) >> 20;
    assert_eq!(present(&rig), 2048);
    let container = id("a");
    let (lane, used) = (Lane(0), Bytes(GIB));
    rig.step(Event::Measured { client: clients[0], lane, used: Bytes::ZERO, requested: false });
    rig.step(Event::Looked { container, lane });
    assert_eq!(present(&rig), 2048, "NVML has no figure for it");
    rig.step(Event::Measured { client: skipped, lane, used, requested: false });
    rig.step(Event::Looked { container, lane });
    assert_eq!(present(&rig), 1024);
    // A resume that is not even begun changes nothing, and the process's end leaves it to the driver to free.
    resume(&mut rig, "a");
    rig.step(Event::MemoryMoved { container, away: true, stays: None });
    assert_eq!(present(&rig), 1024);
    rig.step(Event::Gone { client: skipped });
    assert_eq!(present(&rig), 2048, "all that it was charged is unfreed");
    rig.now += 5_000 * MS;
    rig.step(Event::Tick);
    assert_eq!(present(&rig), 0);
}

/// What NVML stops showing of processes that are not attached is not charged after the resume.
#[test]
fn strangers_that_end_meanwhile_are_charged_no_more() {
    let (mut rig, _) = rig(Config::default(), &[("a", 4)]);
    let (container, lane) = (id("a"), Lane(0));
    for _ in 0..2 {
        rig.step(Event::Unattributed { container, lane, used: Bytes(GIB) });
        rig.now += 1_000 * MS;
    }
    assert_eq!(rig.engine.present_on(0), Bytes(5 * GIB));
    let actions = suspend(&mut rig, "a");
    assert!(until_ordered(&mut rig, actions));
    moved(&mut rig, "a", true);
    assert_eq!(rig.engine.present_on(0), Bytes(GIB), "they were not moved");
    rig.step(Event::Unattributed { container, lane, used: Bytes::ZERO });
    resume(&mut rig, "a");
    moved(&mut rig, "a", false);
    assert_eq!(rig.engine.present_on(0), Bytes(4 * GIB));
}
