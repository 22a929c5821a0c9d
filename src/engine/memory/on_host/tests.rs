//! What processes of suspended containers say that they gave back.

use std::vec::Vec;

use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::snapshot::{Snapshot, SuspensionState};
use gpuslice_wire::units::{Bytes, GIB, Instant};

use crate::tests::{MS, Rig, ask, attached, holds, id};
use crate::{Action, Claims, Config, Cut, Event, Process, Refusal, SliceRequest, Token};

const TOKEN: Token = Token(9);
const LANE: Lane = Lane(0);

/// The ways in which a process gives back all that it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Release,
    Yield,
    /// It gives back all, and closes its connection.
    Leave,
    /// It closes its connection, and claims nothing in the next one.
    Again,
}
const WAYS: [Way; 4] = [Way::Release, Way::Yield, Way::Leave, Way::Again];

fn process(name: &str) -> Process {
    Process { pid: u32::from(name.as_bytes()[0]), born: 1 }
}

/// The only process of a container attaches.
fn attach(rig: &mut Rig, name: &str, gib: u64) -> ClientId {
    let (token, container, process) = (Token(2), id(name), Some(process(name)));
    let held = holds(gib * GIB);
    let answer = rig.step(Event::Attach { token, container, process, held });
    attached(&answer).expect("it attaches")
}

/// A process gives back so much; returns who it is from then on.
fn give_back(rig: &mut Rig, way: Way, name: &str, client: ClientId, gib: u64) -> ClientId {
    let bytes = Bytes(gib * GIB);
    match way {
        Way::Release | Way::Leave => drop(rig.step(Event::Release { client, lane: LANE, bytes })),
        Way::Yield => drop(rig.give_back(client, 0, bytes.0)),
        Way::Again => {}
    }
    if matches!(way, Way::Leave | Way::Again) {
        rig.step(Event::Left { client });
    }
    if way == Way::Again { attach(rig, name, 0) } else { client }
}

fn suspend(rig: &mut Rig, name: &str) -> Vec<Action> {
    rig.step(Event::Suspend { token: TOKEN, container: id(name) })
}

/// Its memory begins to move.
fn leaves(rig: &mut Rig, name: &str) {
    suspend(rig, name);
    assert_eq!(order(&pass(rig, 3_000 * MS)), Some((true, 5)));
}

fn resume(rig: &mut Rig, name: &str) -> Vec<Action> {
    rig.step(Event::EndSuspension { token: TOKEN, container: id(name) })
}

fn moved(rig: &mut Rig, name: &str, away: bool) -> Vec<Action> {
    rig.step(Event::MemoryMoved { container: id(name), away, stays: Some(Vec::new()) })
}

/// The move that is ordered: where to, and how many GiB.
fn order(actions: &[Action]) -> Option<(bool, u64)> {
    actions.iter().find_map(|it| match *it {
        Action::MoveMemory { away, memory, .. } => Some((away, memory.0 / GIB)),
        _ => None,
    })
}

/// Lets time pass, with every step that the engine asks for.
fn pass(rig: &mut Rig, length: u64) -> Vec<Action> {
    let (mut all, until) = (Vec::new(), rig.now + length);
    while let Some(due) = rig.engine.next_deadline().filter(|due| due.0 <= until) {
        rig.now = rig.now.max(due.0);
        all.extend(rig.step(Event::Tick));
    }
    rig.now = until;
    all
}

fn state(rig: &Rig) -> Option<(SuspensionState, u64)> {
    let rows = rig.engine.snapshot(Instant(rig.now));
    rows.iter().find_map(|row| match row {
        Snapshot::Suspension { state, memory, .. } => Some((*state, memory.0 / GIB)),
        _ => None,
    })
}

/// Two containers that hold 5 GiB each, on a node whose host has room for 8.
fn two() -> (Rig, ClientId) {
    let mut rig = Rig::new(Config { suspended_memory: Bytes(8 * GIB), ..Config::default() }, &[16]);
    let [a, _] = ["a", "b"].map(|name| {
        rig.admit(ask(name, "0", 6 * GIB)).expect("fits");
        let client = attach(&mut rig, name, 0);
        rig.reserve(client, 5 * GIB, 5 * GIB);
        client
    });
    (rig, a)
}

fn is_full(actions: &[Action]) -> bool {
    let full = |it: &Action| matches!(it, Action::Denied { why: Refusal::HostFull { left, .. }, .. } if left.0 == 3 * GIB);
    actions.iter().any(full)
}

/// Given back at any moment of a suspension, in any way, it is on the host until the process ends.
#[test]
fn what_is_given_back_is_still_on_the_host() {
    for way in WAYS {
        for moment in 0..4 {
            let (mut rig, mut a) = two();
            // It has work in flight, so it does not drain at once.
            let claims = Claims { runnable: true, active: 1, ..Claims::default() };
            rig.step(Event::Claims { client: a, lane: LANE, claims });
            let mut give = |rig: &mut Rig, now: i32| {
                if now == moment {
                    a = give_back(rig, way, "a", a, 5);
                }
            };
            suspend(&mut rig, "a");
            give(&mut rig, 0);
            pass(&mut rig, 3_000 * MS);
            assert_eq!(state(&rig), Some((SuspensionState::Suspending, 5)), "{way:?} {moment}");
            give(&mut rig, 1);
            moved(&mut rig, "a", true);
            give(&mut rig, 2);
            assert_eq!(order(&resume(&mut rig, "a")), Some((false, 5)), "{way:?} {moment}");
            give(&mut rig, 3);
            moved(&mut rig, "a", true);
            assert_eq!(state(&rig), Some((SuspensionState::Suspended, 5)), "{way:?} {moment}");
            assert!(is_full(&suspend(&mut rig, "b")), "{way:?} {moment}");
            rig.step(Event::Gone { client: a });
            assert_eq!(state(&rig), Some((SuspensionState::Suspended, 0)), "{way:?} {moment}");
            assert!(!is_full(&suspend(&mut rig, "b")), "{way:?} {moment}: it has ended");
        }
    }
}

/// A part counts once, in whatever parts it is given back, and nothing is granted in its place.
#[test]
fn what_is_given_back_is_not_granted_again() {
    for early in [true, false] {
        let (mut rig, a) = two();
        suspend(&mut rig, "a");
        if !early {
            pass(&mut rig, 3_000 * MS);
        }
        give_back(&mut rig, Way::Release, "a", a, 2);
        let other = rig.attach("a", 0).expect("attaches");
        assert!(!is_granted(&rig.reserve(other, GIB, GIB), other), "it waits for the resume");
        give_back(&mut rig, Way::Yield, "a", a, 1);
        pass(&mut rig, 3_000 * MS);
        moved(&mut rig, "a", true);
        give_back(&mut rig, Way::Leave, "a", a, 1);
        assert_eq!(state(&rig), Some((SuspensionState::Suspended, 5)));
        resume(&mut rig, "a");
        assert!(is_granted(&moved(&mut rig, "a", false), other));
    }
}

/// When the container is back, the ledger counts: NVML judges what is on the GPU. An account with nothing in it ends.
#[test]
fn the_ledger_counts_when_the_container_is_back() {
    for way in WAYS {
        let (mut rig, a) = two();
        leaves(&mut rig, "a");
        moved(&mut rig, "a", true);
        let a = give_back(&mut rig, way, "a", a, 5);
        resume(&mut rig, "a");
        assert_eq!(rig.engine.present_on(0), Bytes(10 * GIB), "{way:?}: it returns with all");
        let back = moved(&mut rig, "a", false);
        let settled = |it: &Action| matches!(it, Action::SuspensionSettled { away: false, memory, .. } if memory.0 == 5 * GIB);
        assert!(back.iter().any(settled), "{way:?}: {back:?}");
        assert_eq!(rig.engine.present_on(0), Bytes(5 * GIB), "{way:?}");
        let over = |it: &Action| matches!(it, Action::Disconnect { client, why: Cut::Over } if *client == a);
        assert_eq!(back.iter().any(over), way == Way::Leave, "{way:?}: {back:?}");
    }
}

/// A process that the driver left on the GPU counts there with all that it had.
#[test]
fn what_was_not_moved_is_still_on_the_gpu() {
    let (mut rig, a) = two();
    leaves(&mut rig, "a");
    give_back(&mut rig, Way::Release, "a", a, 5);
    let stays = Some(Vec::from([a]));
    rig.step(Event::MemoryMoved { container: id("a"), away: true, stays });
    assert_eq!(rig.engine.present_on(0), Bytes(10 * GIB));
}

/// Pinned memory of a process is not moved.
#[test]
fn host_memory_is_given_back_as_ever() {
    let (mut rig, a) = two();
    let (client, token, bytes) = (a, TOKEN, Bytes(GIB));
    let lane = Lane::HOST;
    rig.step(Event::Reserve { client, token, lane, need: bytes, wish: bytes });
    leaves(&mut rig, "a");
    moved(&mut rig, "a", true);
    rig.step(Event::Release { client, lane, bytes });
    let index = rig.engine.containers.find(id("a")).expect("a slice");
    assert_eq!(rig.engine.kept(index, lane), Bytes::ZERO);
    assert_eq!(state(&rig), Some((SuspensionState::Suspended, 5)));
}

/// A container of 1 GiB has 11 GiB of what is promised to another one, which claims 7 GiB and gets them.
fn borrowed() -> (Rig, ClientId, ClientId) {
    let mut rig = Rig::new(Config::default(), &[16]);
    let memory_limit = Some(MemoryAsk::Exactly(Bytes(15 * GIB)));
    rig.admit(SliceRequest { memory_limit, ..ask("a", "0", GIB) }).expect("fits");
    rig.admit(ask("b", "0", 8 * GIB)).expect("fits");
    let [a, b] = ["a", "b"].map(|name| attach(&mut rig, name, 0));
    rig.reserve(a, 12 * GIB, 12 * GIB);
    rig.reserve(b, 7 * GIB, 7 * GIB);
    assert_eq!(order(&pass(&mut rig, 10_000 * MS)), Some((true, 12)));
    assert!(is_granted(&moved(&mut rig, "a", true), b));
    (rig, a, b)
}

fn is_granted(actions: &[Action], client: ClientId) -> bool {
    actions.iter().any(|it| matches!(it, Action::Reserved { client: of, .. } if *of == client))
}

/// A borrower is resumed where all that was moved of it fits, whatever it gives back in the ledger. What it takes then
/// is promised to others.
#[test]
fn a_borrower_returns_where_all_that_was_moved_fits() {
    for way in WAYS {
        let (mut rig, a, b) = borrowed();
        give_back(&mut rig, way, "a", a, 12);
        assert_eq!(order(&pass(&mut rig, 30_000 * MS)), None, "{way:?}: it has no room");
        // It is over its cap, so it claims nothing.
        let asked = resume(&mut rig, "a");
        let no_room = |it: &Action| matches!(it, Action::Denied { why: Refusal::NoRoom { memory, .. }, .. } if memory.0 == 12 * GIB);
        assert!(asked.iter().any(no_room), "{way:?}: {asked:?}");
        assert!(is_granted(&rig.reserve(b, GIB, GIB), b), "{way:?}: what is promised");
        give_back(&mut rig, Way::Release, "b", b, 8);
        assert_eq!(order(&pass(&mut rig, 10_000 * MS)), Some((false, 12)), "{way:?}");
        // Until it is there, that is not granted to others.
        rig.admit(SliceRequest {
            memory_limit: Some(MemoryAsk::Exactly(Bytes(8 * GIB))),
            ..ask("c", "0", GIB)
        })
        .expect("fits");
        let c = attach(&mut rig, "c", 0);
        let refused = rig.reserve(c, 5 * GIB, 5 * GIB);
        assert!(matches!(refused[..], [Action::Refused { .. }, ..]), "{way:?}: {refused:?}");
    }
}

#[test]
fn the_end_of_a_process_ends_what_a_return_needs() {
    for way in WAYS {
        let (mut rig, a, _) = borrowed();
        let a = give_back(&mut rig, way, "a", a, 12);
        rig.step(Event::Gone { client: a });
        assert_eq!(order(&pass(&mut rig, 10_000 * MS)), Some((false, 0)), "{way:?}");
    }
}

/// After a restart the grants on disk are what was moved.
#[test]
fn a_restarted_daemon_keeps_what_is_on_disk() {
    let record = two().0.engine.containers.iter().next().expect("a slice").1.record.clone();
    for moved in [true, false] {
        let mut rig = Rig::new(Config::default(), &[16]);
        let (token, container, process) = (TOKEN, id("a"), process("a"));
        let granted = holds(5 * GIB);
        rig.step(Event::Restore(record.clone().into()));
        rig.step(Event::RestoreProcess { token, container, process, granted });
        rig.step(Event::Complete { container });
        rig.step(Event::WasSuspended { container, token, moved });
        let a = attach(&mut rig, "a", 3);
        give_back(&mut rig, Way::Release, "a", a, 3);
        assert_eq!(state(&rig).expect("suspended").1, 5, "moved: {moved}");
        pass(&mut rig, 5_000 * MS);
        assert_eq!(state(&rig).expect("suspended").1, 5, "moved: {moved}");
    }
}

/// A daemon that does not know all grants believes each process, but none what another one gave back.
#[test]
fn what_is_given_back_is_not_claimed_again() {
    let record = two().0.engine.containers.iter().next().expect("a slice").1.record.clone();
    let mut rig = Rig::new(Config::default(), &[16]);
    let (token, container) = (TOKEN, id("a"));
    rig.step(Event::Restore(record.into()));
    rig.step(Event::WasSuspended { container, token, moved: false });
    let first = rig.attach("a", 5 * GIB).expect("it is believed");
    give_back(&mut rig, Way::Leave, "a", first, 5);
    rig.attach("a", 2 * GIB).expect_err("6 GiB are its cap");
    rig.attach("a", GIB).expect("it is believed");
    assert_eq!(state(&rig).expect("suspended").1, 6);
}
