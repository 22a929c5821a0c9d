//! Borrowed memory as the engine's caller sees it.

use std::string::ToString;
use std::vec::Vec;

use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::policy::Class;
use gpuslice_wire::snapshot::{Snapshot, SuspensionState};
use gpuslice_wire::units::{Bytes, Duration, GIB, Instant};

use crate::tests::{MS, Rig, ask, id};
use crate::{Action, Claims, Config, Event, Reclaim, Refusal, SliceRequest, Token};

mod effort;
mod meets;
mod walks;

const GRACE: u64 = 5_000 * MS;

/// A request with a limit above its cap, in GiB.
fn limited(name: &str, cap: u64, limit: u64) -> SliceRequest {
    let memory_limit = Some(MemoryAsk::Exactly(Bytes(limit * GIB)));
    SliceRequest { memory_limit, ..ask(name, "0", cap * GIB) }
}

/// A GPU of 16 GiB, with a container of 4 GiB that may grow to 16, and one of 12 GiB; a process in each.
fn rig(config: Config) -> (Rig, ClientId, ClientId) {
    let mut rig = Rig::new(config, &[16]);
    rig.admit(limited("burst", 4, 16)).expect("fits");
    rig.admit(ask("web", "0", 12 * GIB)).expect("fits");
    let burst = rig.attach("burst", 0).expect("attaches");
    let web = rig.attach("web", 0).expect("attaches");
    (rig, burst, web)
}

fn take(rig: &mut Rig, client: ClientId, gib: u64) -> Vec<Action> {
    rig.reserve(client, gib * GIB, gib * GIB)
}

fn give(rig: &mut Rig, client: ClientId, gib: u64) -> Vec<Action> {
    rig.step(Event::Release { client, lane: Lane(0), bytes: Bytes(gib * GIB) })
}

/// The answer to a process, in GiB: granted, or refused and whether it was overdue.
fn answer(actions: &[Action], of: ClientId) -> Option<Result<u64, bool>> {
    actions.iter().find_map(|action| match *action {
        Action::Reserved { client, bytes, .. } if client == of => Some(Ok(bytes.0 / GIB)),
        Action::Refused { client, overdue, .. } if client == of => Some(Err(overdue)),
        _ => None,
    })
}

/// What a container is asked for, in GiB.
fn wanted(actions: &[Action], name: &str) -> Option<u64> {
    actions.iter().find_map(|action| match *action {
        Action::Wanted { container, bytes, .. } if container == id(name) => Some(bytes.0 / GIB),
        _ => None,
    })
}

/// Total and free memory as the container sees them, in GiB.
fn seen(rig: &Rig, name: &str) -> (u64, u64) {
    let index = rig.engine.containers.find(id(name)).expect("a slice");
    let slice = &rig.engine.containers.get(index).expect("a slice").slices.gpus[0];
    let view = slice.shown.expect("a page");
    (view.cap.0 / GIB, view.cap.saturating_sub(view.reserved).0 / GIB)
}

/// Lets time pass until `until`, with every step that the engine asks for; returns all actions.
fn pass(rig: &mut Rig, until: u64) -> Vec<Action> {
    let mut all = Vec::new();
    for _ in 0..10_000 {
        let due = rig.engine.next_deadline().map_or(u64::MAX, |due| due.0);
        rig.now = due.clamp(rig.now, until.max(rig.now));
        all.extend(rig.step(Event::Tick));
        if rig.now >= until {
            return all;
        }
    }
    panic!("the engine asks for steps without end");
}

fn state(rig: &Rig) -> Option<SuspensionState> {
    let rows = rig.engine.snapshot(Instant(rig.now));
    rows.iter().find_map(|row| match row {
        Snapshot::Suspension { state, .. } => Some(*state),
        _ => None,
    })
}

fn moved(rig: &mut Rig, name: &str, away: bool) -> Vec<Action> {
    rig.step(Event::MemoryMoved { container: id(name), away, stays: Some(Vec::new()) })
}

#[test]
fn limits_are_checked_at_admission() {
    let mut rig = Rig::new(Config::default(), &[16]);
    let mut refused = |ask: SliceRequest| rig.admit(ask).expect_err("refused").1;
    assert_eq!(
        refused(limited("a", 4, 3)),
        "memory limit 3GiB is below the cap 4GiB; ask for a limit of at least 4GiB, or for a cap of at \
         most 3GiB"
    );
    let above = "memory limit 17GiB is above GPU 0's 16GiB; ask for at most 16GiB";
    assert_eq!(refused(limited("a", 4, 17)), above);
    let bounds = Some(crate::Bounds { gpus: 1, memory: Some(MemoryAsk::Exactly(Bytes(5 * GIB))) });
    let beyond = refused(SliceRequest { bounds, ..limited("a", 4, 6) });
    assert!(beyond.contains("asks for 6GiB of GPU 0, and may for 5GiB"), "{beyond}");
    let record = rig.admit(limited("a", 4, 16)).expect("a limit promises nothing");
    assert_eq!((record.lanes[0].cap, record.lanes[0].limit), (Bytes(4 * GIB), Bytes(16 * GIB)));
    rig.admit(ask("b", "0", 12 * GIB)).expect("only caps are promised");
    let mut over = Rig::new(Config { oversubscribe: true, ..Config::default() }, &[16]);
    let why = over.admit(limited("a", 4, 16)).expect_err("caps promise nothing").1;
    assert!(why.contains("oversubscribe"), "{why}");
    over.admit(limited("a", 4, 4)).expect("a limit at the cap changes nothing");
}

#[test]
fn a_container_grows_into_what_is_unused_and_sees_it() {
    let (mut rig, burst, web) = rig(Config::default());
    assert_eq!((seen(&rig, "burst"), seen(&rig, "web")), ((16, 16), (12, 12)));
    assert_eq!(answer(&take(&mut rig, burst, 6), burst), Some(Ok(6)));
    assert_eq!(answer(&take(&mut rig, web, 4), web), Some(Ok(4)));
    assert_eq!((seen(&rig, "burst"), seen(&rig, "web")), ((16, 6), (12, 8)));
    assert_eq!(answer(&take(&mut rig, burst, 7), burst), Some(Err(false)), "more than is free");
    assert_eq!(answer(&take(&mut rig, burst, 6), burst), Some(Ok(6)));
    assert_eq!(seen(&rig, "burst"), (16, 0));
    give(&mut rig, burst, 10);
    assert_eq!(seen(&rig, "burst"), (16, 10));
}

#[test]
fn a_claim_waits_until_borrowed_memory_is_given_back() {
    let (mut rig, burst, web) = rig(Config::default());
    take(&mut rig, burst, 12);
    let asked = take(&mut rig, web, 6);
    assert_eq!((answer(&asked, web), wanted(&asked, "burst")), (None, Some(2)));
    assert_eq!(seen(&rig, "burst"), (16, 0), "nothing is lent meanwhile");
    assert_eq!(answer(&take(&mut rig, burst, 1), burst), Some(Err(false)));
    let less = give(&mut rig, burst, 1);
    assert_eq!((answer(&less, web), wanted(&less, "burst")), (None, Some(1)));
    let enough = give(&mut rig, burst, 1);
    assert_eq!((answer(&enough, web), wanted(&enough, "burst")), (Some(Ok(6)), Some(0)));
    pass(&mut rig, 2 * GRACE);
    assert_eq!(state(&rig), None, "it has given back what was asked for");
    give(&mut rig, web, 6);
    assert_eq!(answer(&take(&mut rig, burst, 1), burst), Some(Ok(1)), "lent again");
}

/// The borrower's unused credit returns without its program's help.
#[test]
fn unused_credit_of_borrowers_is_recalled() {
    let (mut rig, burst, web) = rig(Config::default());
    take(&mut rig, burst, 12);
    let before = rig.now;
    let asked = take(&mut rig, web, 6);
    let recall = asked.iter().rev().find_map(|action| match action {
        Action::SetLane { container, view, .. } if *container == id("burst") => Some(view.recall),
        _ => None,
    });
    assert_eq!(recall, Some(1), "its credit is recalled");
    let done = rig.give_back(burst, 1, 3 * GIB);
    assert_eq!((answer(&done, web), rig.now), (Some(Ok(6)), before));
}

#[test]
fn after_the_grace_the_borrower_is_suspended_and_returns_when_there_is_room() {
    let (mut rig, burst, web) = rig(Config::default());
    take(&mut rig, burst, 12);
    take(&mut rig, web, 6);
    let early = pass(&mut rig, GRACE - MS);
    assert!(answer(&early, web).is_none() && state(&rig).is_none());
    let ordered = pass(&mut rig, GRACE + 3_000 * MS);
    let order =
        |away| move |it: &Action| matches!(it, Action::MoveMemory { away: to, .. } if *to == away);
    assert!(ordered.iter().any(order(true)), "{ordered:?}");
    assert_eq!((state(&rig), answer(&ordered, web)), (Some(SuspensionState::Suspending), None));
    let settled = moved(&mut rig, "burst", true);
    assert_eq!(answer(&settled, web), Some(Ok(6)));
    assert_eq!(state(&rig), Some(SuspensionState::Suspended));
    // 12 GiB do not fit beside 6.
    let until = rig.now + 60_000 * MS;
    assert!(!pass(&mut rig, until).iter().any(order(false)));
    give(&mut rig, web, 2);
    let back = pass(&mut rig, until + MS);
    assert!(back.iter().any(order(false)), "{back:?}");
    // There is no room, says the driver: the engine tries again.
    moved(&mut rig, "burst", true);
    assert_eq!(state(&rig), Some(SuspensionState::Suspended));
    let until = rig.now + 11_000 * MS;
    assert!(pass(&mut rig, until).iter().any(order(false)));
    moved(&mut rig, "burst", false);
    assert_eq!((state(&rig), seen(&rig, "burst")), (None, (16, 0)));
}

/// A suspended borrower gets no more, however little it has borrowed then, until it is resumed; and then within its
/// promise.
#[test]
fn a_suspended_borrower_is_granted_nothing() {
    let (mut rig, burst, web) = rig(Config::default());
    rig.step(Event::Dismiss { token: Token(4), container: id("web") });
    rig.admit(ask("web", "0", 11 * GIB)).expect("fits");
    rig.admit(limited("third", 1, 16)).expect("fits");
    let (web, third) =
        (rig.attach("web", 0).unwrap_or(web), rig.attach("third", 0).expect("attaches"));
    take(&mut rig, burst, 12);
    take(&mut rig, web, 6);
    pass(&mut rig, GRACE + 3_000 * MS);
    assert_eq!(answer(&moved(&mut rig, "burst", true), web), Some(Ok(6)));
    give(&mut rig, burst, 11);
    assert_eq!(answer(&take(&mut rig, burst, 3), burst), None, "it waits");
    assert_eq!(answer(&take(&mut rig, third, 10), third), Some(Ok(10)));
    let asked = take(&mut rig, web, 5);
    assert_eq!((answer(&asked, web), wanted(&asked, "third")), (None, Some(5)), "a claim as any");
    let given = give(&mut rig, third, 9);
    assert_eq!((answer(&given, web), answer(&given, burst)), (Some(Ok(5)), None));
    let until = rig.now + 20_000 * MS;
    pass(&mut rig, until);
    assert_eq!(state(&rig), Some(SuspensionState::Suspended), "all of it may still be on the host");
    give(&mut rig, web, 8);
    let until = rig.now + 20_000 * MS;
    pass(&mut rig, until);
    assert_eq!(state(&rig), Some(SuspensionState::Resuming), "there is room for what was moved");
    assert_eq!(answer(&moved(&mut rig, "burst", false), burst), Some(Ok(3)));
}

/// A part of a suspended borrower is still on the GPU, or may be: a claim waits until NVML tells, and is refused if it
/// is there, as what a forked child keeps of a process that has ended.
#[test]
fn what_a_suspended_borrower_keeps_is_not_granted() {
    // Memory that it keeps within its own cap is promised to no other container.
    for (kept, granted) in [(0, Some(Ok(6))), (4, Some(Ok(6))), (12, Some(Err(true)))] {
        let (mut rig, burst, web) = rig(Config { sees_devices: true, ..Config::default() });
        take(&mut rig, burst, 12);
        take(&mut rig, web, 6);
        pass(&mut rig, GRACE + 3_000 * MS);
        let (container, lane, stays) = (id("burst"), Lane(0), Some(Vec::from([burst])));
        let settled = rig.step(Event::MemoryMoved { container, away: true, stays });
        assert_eq!(answer(&settled, web), None, "it may be on the GPU");
        let until = rig.now + 5_000 * MS;
        assert_eq!(answer(&pass(&mut rig, until), web), None, "NVML was not asked yet");
        rig.step(Event::Measured {
            client: burst,
            lane,
            used: Bytes(kept * GIB),
            requested: false,
        });
        let mut looked = rig.step(Event::Looked { container, lane });
        let until = rig.now + 1_000 * MS;
        looked.extend(pass(&mut rig, until));
        assert_eq!(answer(&looked, web), granted);
    }
}

/// Each answer to a recall is a step, in which there is nothing new to ask for.
#[test]
fn recalls_have_pauses_between_them() {
    let (mut rig, burst, web) = rig(Config::default());
    take(&mut rig, burst, 12);
    let is_recall = |it: &&Action| matches!(it, Action::SetLane { container, view, .. } if *container == id("burst") && view.recall > 0);
    take(&mut rig, web, 6);
    let mut recalls = 0;
    for step in 0..1_000 {
        let recall = step as u32 + 1;
        rig.now += MS;
        let answered = rig.give_back(burst, recall.min(recalls as u32 + 1), 0);
        recalls += answered.iter().filter(is_recall).count();
        recalls += rig.step(Event::Tick).iter().filter(is_recall).count();
    }
    assert!((5..=11).contains(&recalls), "{recalls} in a second");
}

/// A borrower whose memory returns from the host can be suspended again when it is there, and the claim waits for that.
#[test]
fn a_claim_waits_while_a_borrower_returns() {
    let config = Config { reclaim_grace: Duration(0), ..Config::default() };
    let (mut rig, burst, web) = rig(config);
    take(&mut rig, burst, 12);
    let (token, container) = (Token(9), id("burst"));
    rig.step(Event::Suspend { token, container });
    pass(&mut rig, 3_000 * MS);
    moved(&mut rig, "burst", true);
    rig.step(Event::EndSuspension { token, container });
    assert_eq!(answer(&take(&mut rig, web, 6), web), None);
    let until = rig.now + 5_000 * MS;
    assert_eq!(answer(&pass(&mut rig, until), web), None, "it is on its way");
    moved(&mut rig, "burst", false);
    let until = rig.now + 5_000 * MS;
    pass(&mut rig, until);
    assert_eq!(answer(&moved(&mut rig, "burst", true), web), Some(Ok(6)));
}

/// A lowered cap takes nothing away, also where another container has a limit.
#[test]
fn a_slice_above_a_lowered_cap_has_borrowed_nothing() {
    let (mut rig, _, web) = rig(Config::default());
    take(&mut rig, web, 12);
    let memory = MemoryAsk::Exactly(Bytes(GIB));
    let (container, lane) = (id("web"), Lane(0));
    rig.step(Event::Resize { token: Token(6), container, lane, memory });
    rig.admit(ask("third", "0", 8 * GIB)).expect("fits");
    let third = rig.attach("third", 0).expect("attaches");
    let asked = take(&mut rig, third, 8);
    assert_eq!((answer(&asked, third), wanted(&asked, "web")), (Some(Ok(8)), None));
    let until = rig.now + 2 * GRACE;
    pass(&mut rig, until);
    assert_eq!(state(&rig), None);
}

/// What is promised to a suspended container is lent, and it is to be resumed.
#[test]
fn a_resume_claims_what_is_promised() {
    for (config, gives) in [
        (Config::default(), true),
        (Config::default(), false),
        (Config { reclaim: Reclaim::Refuse, ..Config::default() }, false),
    ] {
        let (mut rig, burst, web) = rig(config);
        take(&mut rig, web, 10);
        let (token, container) = (Token(9), id("web"));
        rig.step(Event::Suspend { token, container });
        let begin = 3_000 * MS;
        pass(&mut rig, begin);
        moved(&mut rig, "web", true);
        assert_eq!(answer(&take(&mut rig, burst, 14), burst), Some(Ok(14)));
        let asked = rig.step(Event::EndSuspension { token, container });
        assert_eq!(wanted(&asked, "burst"), Some(8), "{asked:?}");
        let again = rig.step(Event::EndSuspension { token: Token(8), container });
        assert!(matches!(again[..], [Action::Denied { token: Token(8), .. }]), "{again:?}");
        assert_eq!(answer(&take(&mut rig, burst, 1), burst), Some(Err(false)), "nothing is lent");
        let order = |it: &Action| matches!(it, Action::MoveMemory { container, away: false, .. } if *container == id("web"));
        let mut later = if gives { give(&mut rig, burst, 8) } else { Vec::new() };
        let until = begin + if gives { 200 * MS } else { GRACE + 3_000 * MS };
        later.extend(pass(&mut rig, until));
        if config.reclaim == Reclaim::Suspend && !gives {
            assert!(!later.iter().any(order), "{later:?}");
            later = moved(&mut rig, "burst", true);
            let until = rig.now + 200 * MS;
            later.extend(pass(&mut rig, until));
        }
        let denied = later.iter().any(|it| matches!(it, Action::Denied { token: Token(9), .. }));
        let is_refused = config.reclaim == Reclaim::Refuse;
        assert_eq!((later.iter().any(order), denied), (!is_refused, is_refused), "{later:?}");
    }
}

#[test]
fn the_lowest_class_goes_first_then_the_largest_loan() {
    let mut rig = Rig::new(Config::default(), &[16]);
    let mut borrower = |name: &str, class, gib| {
        rig.admit(SliceRequest { class, ..limited(name, 1, 16) }).expect("fits");
        let client = rig.attach(name, 0).expect("attaches");
        take(&mut rig, client, gib);
    };
    borrower("high", Class::High, 4);
    borrower("small", Class::Normal, 3);
    borrower("large", Class::Normal, 5);
    borrower("idle", Class::BestEffort, 2);
    rig.admit(ask("web", "0", 10 * GIB)).expect("fits");
    let web = rig.attach("web", 0).expect("attaches");
    let asked = take(&mut rig, web, 8);
    let all = ["idle", "large", "small", "high"].map(|name| wanted(&asked, name));
    assert_eq!(all, [Some(1), Some(4), Some(1), None], "6 GiB are missing");
    let ordered = pass(&mut rig, GRACE + 3_000 * MS);
    let leaves = |name: &str| {
        let its = |it: &Action| matches!(it, Action::MoveMemory { container, .. } if *container == id(name));
        ordered.iter().any(its)
    };
    // All that the first two hold suffices.
    assert_eq!(["idle", "large", "small", "high"].map(leaves), [true, true, false, false]);
    moved(&mut rig, "idle", true);
    assert_eq!(answer(&moved(&mut rig, "large", true), web), Some(Ok(8)));
}

#[test]
fn a_node_may_refuse_the_claim_instead() {
    let (mut rig, burst, web) = rig(Config { reclaim: Reclaim::Refuse, ..Config::default() });
    take(&mut rig, burst, 12);
    take(&mut rig, web, 6);
    let early = pass(&mut rig, GRACE - MS);
    assert_eq!(answer(&early, web), None);
    let late = pass(&mut rig, GRACE);
    assert_eq!((answer(&late, web), wanted(&late, "burst")), (Some(Err(true)), Some(0)));
    assert_eq!((state(&rig), answer(&take(&mut rig, web, 4), web)), (None, Some(Ok(4))));
}

/// A claim ends within its bound, whatever the driver does.
#[test]
fn a_claim_does_not_wait_for_ever() {
    let (mut rig, burst, web) = rig(Config::default());
    take(&mut rig, burst, 12);
    take(&mut rig, web, 6);
    pass(&mut rig, GRACE + 3_000 * MS);
    assert_eq!(answer(&moved(&mut rig, "burst", false), web), None);
    let refused = pass(&mut rig, GRACE + 3_001 * MS);
    assert_eq!(answer(&refused, web), Some(Err(true)), "the driver did not move it");
    // A driver that never answers.
    let now = rig.now + 61_000 * MS;
    pass(&mut rig, now);
    take(&mut rig, web, 6);
    let last = now + GRACE + 30_000 * MS;
    assert_eq!(answer(&pass(&mut rig, last - MS), web), None);
    assert_eq!(answer(&pass(&mut rig, last), web), Some(Err(true)));
}

/// The host has no room for the borrower.
#[test]
fn a_claim_is_refused_where_nothing_can_be_suspended() {
    let config = Config { suspended_memory: Bytes(GIB), ..Config::default() };
    let (mut rig, burst, web) = rig(config);
    take(&mut rig, burst, 12);
    take(&mut rig, web, 6);
    let refused = pass(&mut rig, GRACE);
    assert_eq!(answer(&refused, web), Some(Err(true)));
    // The administrator is told of which container, and why.
    let full = refused.iter().filter(|action| {
        matches!(action, Action::NoRoomToMove { container, why: Refusal::HostFull { .. }, .. }
            if *container == id("burst"))
    });
    assert_eq!(full.count(), 1, "{refused:?}");
}

#[test]
fn a_claim_ends_with_its_process_and_a_borrower_with_its_container() {
    let (mut rig, burst, web) = rig(Config::default());
    take(&mut rig, burst, 12);
    take(&mut rig, web, 6);
    let gone = rig.step(Event::Gone { client: web });
    assert_eq!(wanted(&gone, "burst"), Some(0));
    let web = rig.attach("web", 0).expect("attaches");
    take(&mut rig, web, 6);
    let ended = rig.step(Event::Dismiss { token: Token(4), container: id("burst") });
    assert_eq!(answer(&ended, web), Some(Ok(6)));
}

/// A claim within the cap is granted as without limits when nothing was borrowed, even where the driver's own memory
/// leaves too little.
#[test]
fn without_a_loan_a_claim_does_not_wait() {
    let config = Config { sees_devices: true, ..Config::default() };
    let (mut rig, burst, web) = rig(config);
    take(&mut rig, burst, 4);
    let own = Bytes(GIB);
    for _ in 0..2 {
        rig.now += 6_000 * MS;
        let (gpu, asked) = (crate::tests::uuid(0), Instant(rig.now));
        rig.step(Event::DeviceLooked { gpu, asked, least: own, most: own });
    }
    assert_eq!(seen(&rig, "burst"), (16, 11), "the driver's own is not lent");
    assert_eq!(answer(&take(&mut rig, web, 12), web), Some(Ok(12)));
}

/// Processes that claim a context and end are charged for it, by their claim alone: so it takes no more than what is
/// promised to their own container.
#[test]
fn claimed_contexts_of_ended_processes_borrow_nothing() {
    let config = Config { sees_devices: true, ..Config::default() };
    let (mut rig, _, web) = rig(config);
    for _ in 0..20 {
        let client = rig.attach("burst", 0).expect("attaches");
        let claims = Claims { contexts: 1, ..Claims::default() };
        rig.step(Event::Claims { client, lane: Lane(0), claims });
        rig.step(Event::Gone { client });
    }
    assert_eq!(seen(&rig, "burst"), (16, 12), "its own promise is used up");
    let asked = take(&mut rig, web, 12);
    assert_eq!((answer(&asked, web), wanted(&asked, "burst")), (Some(Ok(12)), None));
}

/// The claim of a process that may borrow is not memory that others lose.
#[test]
fn a_borrower_that_claims_memory_without_end_takes_none_that_is_promised() {
    let (mut rig, burst, web) = rig(Config::default());
    take(&mut rig, burst, 2);
    let claims = Claims { held: Bytes(2 * GIB), unseen: Bytes(u64::MAX), ..Claims::default() };
    rig.step(Event::Claims { client: burst, lane: Lane(0), claims });
    for _ in 0..2 {
        rig.now += 1_000 * MS;
        let used = Bytes(2 * GIB);
        rig.step(Event::Measured { client: burst, lane: Lane(0), used, requested: false });
    }
    assert_eq!(answer(&take(&mut rig, web, 12), web), Some(Ok(12)));
}

#[test]
fn a_limit_changes_while_processes_live() {
    let (mut rig, burst, web) = rig(Config::default());
    let set = |rig: &mut Rig, limit: Option<u64>| {
        let limit = limit.map(|gib| MemoryAsk::Exactly(Bytes(gib * GIB)));
        rig.step(Event::Relimit { token: Token(5), container: id("burst"), lane: Lane(0), limit })
    };
    let denied = |actions: &[Action]| match actions {
        [Action::Denied { why, .. }] => why.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(denied(&set(&mut rig, Some(3))).contains("below the cap"));
    let cap = |gib| Event::Resize {
        token: Token(6),
        container: id("burst"),
        lane: Lane(0),
        memory: MemoryAsk::Exactly(Bytes(gib * GIB)),
    };
    take(&mut rig, burst, 12);
    let changed = set(&mut rig, None);
    let is = |it: &Action| matches!(it, Action::Relimited { record, change, .. } if change.was.0 == 16 * GIB && record.lanes[0].limit == record.lanes[0].cap);
    assert!(changed.iter().any(is), "{changed:?}");
    assert_eq!(answer(&take(&mut rig, burst, 1), burst), Some(Err(false)));
    // What was borrowed before is still a loan.
    assert_eq!(wanted(&take(&mut rig, web, 6), "burst"), Some(2));
    give(&mut rig, burst, 8);
    // Without a limit of its own, the cap is the limit; the change tells the limit before, so that it can be undone.
    rig.step(cap(1));
    assert_eq!(seen(&rig, "burst").0, 1);
    set(&mut rig, Some(2));
    let change = |actions: &[Action]| match actions {
        [Action::Resized { change, .. }, ..] => [change.was, change.cap, change.limit],
        other => panic!("{other:?}"),
    };
    assert_eq!(change(&rig.step(cap(2))), [1, 2, 2].map(|gib| Bytes(gib * GIB)));
    assert_eq!(change(&rig.step(cap(1))), [2, 1, 2].map(|gib| Bytes(gib * GIB)));
    assert_eq!(seen(&rig, "burst").0, 1, "it changed with the cap");
    set(&mut rig, Some(2));
    let below = denied(&rig.step(cap(3)));
    assert!(below.contains("memory limit 2GiB is below the cap"), "{below}");
    let pinned =
        Event::Relimit { token: Token(5), container: id("burst"), lane: Lane::HOST, limit: None };
    assert!(denied(&rig.step(pinned)).contains("a memory limit is of a GPU"));
}

/// A restarted daemon believes a process that holds borrowed memory, up to the limit.
#[test]
fn borrowed_memory_survives_a_restart() {
    let (mut first, ..) = rig(Config::default());
    let record = first.engine.containers.iter().next().expect("a slice").1.record.clone();
    let _ = &mut first;
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.step(Event::Restore(record.into()));
    rig.attach("burst", 17 * GIB).expect_err("beyond the limit");
    rig.attach("burst", 12 * GIB).expect("within the limit");
    rig.now += Duration::from_millis(1_000).0;
    rig.step(Event::Tick);
    assert_eq!(seen(&rig, "burst"), (16, 4));
}

/// A restarted daemon asks at once what is in use beside living processes. That is not free for a claim, although no
/// look can tell yet which part of it the driver keeps.
#[test]
fn after_a_restart_a_claim_is_not_granted_the_drivers_own_memory() {
    let config = Config { sees_devices: true, ..Config::default() };
    let (first, ..) = rig(config);
    let mut rig = Rig::new(config, &[16]);
    for (_, it) in first.engine.containers.iter() {
        rig.step(Event::Restore(it.record.clone().into()));
    }
    assert_eq!(rig.engine.look_due(), Some(Instant(0)));
    let burst = rig.attach("burst", 13 * GIB).expect("within the limit");
    let web = rig.attach("web", 0).expect("attaches");
    let ended = rig.attach("web", GIB).expect("attaches");
    rig.step(Event::Gone { client: ended });
    rig.now = 1_000 * MS;
    rig.step(Event::Tick);
    // One GiB is the ended process's, and charged to its container; the other one is the driver's.
    let (gpu, asked, beside) = (crate::tests::uuid(0), Instant(0), Bytes(2 * GIB));
    rig.step(Event::DeviceLooked { gpu, asked, least: beside, most: beside });
    assert_eq!(seen(&rig, "burst"), (16, 1), "neither is lent");
    let asked = take(&mut rig, web, 2);
    assert_eq!((answer(&asked, web), wanted(&asked, "burst")), (None, Some(1)));
    let given = give(&mut rig, burst, 1);
    assert_eq!(answer(&given, web), Some(Ok(2)));
}
