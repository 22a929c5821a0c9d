//! A restarted daemon that knows its processes' grants.

use super::apart::{attach, held, over};
use super::*;
use crate::{Actions, Process};

fn account(rig: &mut Rig, pid: u32, bytes: u64) -> ClientId {
    let known = rig.step(Event::RestoreProcess {
        token: Token(4),
        container: id("a"),
        process: Process { pid, born: 7 },
        granted: held(bytes),
    });
    match known[0] {
        Action::ProcessRestored { client, token: Token(4) } => client,
        ref other => panic!("{other:?}"),
    }
}

/// A restored slice of 100 bytes with processes 1, 2, ... that hold these grants, and no others.
fn restored(granted: &[u64]) -> (Rig, Vec<ClientId>) {
    let mut first = Rig::new(Config::default(), &[16]);
    let record = first.admit(ask("a", "0", 100)).expect("fits");
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.step(Event::Restore(record.into()));
    let known = (1..).zip(granted);
    let known = known.map(|(pid, bytes)| account(&mut rig, pid, *bytes)).collect();
    rig.step(Event::Complete { container: id("a") });
    (rig, known)
}

fn stays(actions: &Actions) -> bool {
    answers(actions).is_empty()
}

/// A stopped process never attaches again, and keeps its memory.
#[test]
fn a_process_that_never_attaches_again_is_charged_until_it_ends() {
    let (mut rig, known) = restored(&[60]);
    let other = attach(&mut rig, Some(2), held(0)).expect("in");
    assert_eq!(reserved(&rig), 60);
    assert_eq!(answers(&rig.reserve(other, 40, 40)), [(other, Some(40))]);
    assert!(stays(&rig.reserve(other, 1, 1)), "the first may come back with less");
    rig.now = 750 * MS;
    assert_eq!(answers(&rig.step(Event::Tick)), [(other, None)]);
    rig.now = 3_600_000 * MS;
    assert_eq!(answers(&rig.reserve(other, 1, 1)), [(other, None)]);
    rig.step(Event::Gone { client: known[0] });
    assert_eq!(answers(&rig.reserve(other, 60, 60)), [(other, Some(60))]);
}

/// A daemon on a busy machine looks at the clock later than it meant to.
#[test]
fn the_wait_for_processes_that_return_ends_also_when_it_is_late() {
    let (mut rig, _) = restored(&[60]);
    let other = attach(&mut rig, Some(2), held(0)).expect("in");
    assert!(stays(&rig.reserve(other, 41, 41)));
    rig.now = 740 * MS;
    assert!(stays(&rig.step(Event::Tick)), "not yet");
    rig.now = 990 * MS;
    assert_eq!(answers(&rig.step(Event::Tick)), [(other, None)]);
}

#[test]
fn a_process_that_attaches_with_less_leaves_the_rest_to_waiting_requests() {
    let (mut rig, known) = restored(&[60, 30]);
    let other = attach(&mut rig, Some(3), held(0)).expect("in");
    assert!(stays(&rig.reserve(other, 50, 50)));
    let again = attach(&mut rig, Some(1), held(20)).expect("back");
    assert_eq!(reserved(&rig), 100, "it has been given its 50");
    assert_ne!(again, known[0]);
    // A request beyond that waits until the second one is back, and no longer.
    assert!(stays(&rig.reserve(other, 1, 1)));
    attach(&mut rig, Some(2), held(29)).expect("back");
    assert_eq!(reserved(&rig), 100);
    assert_eq!(rig.engine.granted_to(again), Some(held(20)));
    assert_eq!(rig.engine.granted_to(known[1]), None);
}

#[test]
fn no_growth_waits_where_no_process_had_grants() {
    let (mut rig, _) = restored(&[]);
    let one = attach(&mut rig, Some(1), held(0)).expect("in");
    assert_eq!(answers(&rig.reserve(one, 100, 100)), [(one, Some(100))]);
    assert_eq!(answers(&rig.reserve(one, 1, 1)), [(one, None)]);
}

#[test]
fn no_more_is_believed_than_was_written_down() {
    let (mut rig, _) = restored(&[60]);
    let liar = attach(&mut rig, Some(1), held(1200));
    assert_eq!(liar, Err(Rejection::Overdrawn));
    let liar = attach(&mut rig, Some(9), held(1));
    assert_eq!(liar, Err(Rejection::Overdrawn));
    attach(&mut rig, Some(1), held(60)).expect("what it was granted");
    assert_eq!(reserved(&rig), 60);
}

/// More than the cap may have been granted: it was lowered since.
#[test]
fn grants_count_above_a_lowered_cap() {
    let (mut rig, _) = restored(&[150]);
    assert_eq!(reserved(&rig), 150);
    attach(&mut rig, Some(1), held(150)).expect("what it was granted");
    assert_eq!(reserved(&rig), 150);
    for second in 1..4 {
        rig.now = second * 1_000 * MS;
        let client = ClientId { slot: 1, generation: 0 };
        rig.step(measured(client, 150));
    }
    assert_eq!(reserved(&rig), 150, "and not twice");
}

/// With a record that may be incomplete, the engine does as without one: it waits, and believes claims.
#[test]
fn without_all_grants_growth_waits_and_claims_count() {
    let mut first = Rig::new(Config::default(), &[16]);
    let record = first.admit(ask("a", "0", 100)).expect("fits");
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.step(Event::Restore(record.into()));
    let known = account(&mut rig, 1, 30);
    let other = attach(&mut rig, Some(2), held(0)).expect("in");
    assert!(stays(&rig.reserve(other, 10, 10)), "not yet");
    attach(&mut rig, Some(3), held(70)).expect("the grants are unknown");
    assert_eq!(reserved(&rig), 100);
    rig.now = 750 * MS;
    rig.step(Event::Tick);
    rig.now += RECALL_WAIT_NS;
    assert_eq!(answers(&rig.step(Event::Tick)), [(other, None)]);
    rig.step(Event::Gone { client: known });
    assert_eq!(reserved(&rig), 70);
}

/// A driver that is loaded twice loads the library twice. The copy that holds nothing may be the first to attach.
#[test]
fn a_copy_that_holds_nothing_takes_no_account_over() {
    let (mut rig, _) = restored(&[60]);
    let empty = attach(&mut rig, Some(1), held(0)).expect("in");
    assert_eq!(reserved(&rig), 60);
    let full = attach(&mut rig, Some(1), held(60)).expect("it is its own");
    assert_eq!((reserved(&rig), rig.engine.granted_to(full)), (60, Some(held(60))));
    rig.now = 750 * MS;
    rig.step(Event::Tick);
    assert_eq!((reserved(&rig), rig.engine.granted_to(empty)), (60, Some(held(0))));
}

/// It had given all back just before, or was replaced by another program.
#[test]
fn an_account_that_no_copy_claims_ends_after_the_wait() {
    let (mut rig, known) = restored(&[60, 30]);
    attach(&mut rig, Some(1), held(0)).expect("in");
    assert_eq!(reserved(&rig), 90);
    rig.now = 750 * MS;
    let ended = rig.step(Event::Tick);
    assert_eq!(over(&ended), [known[0]], "and no connection");
    assert_eq!(reserved(&rig), 30, "the other process may be stopped");
}

/// So does one whose process loses the connection that began anew, whether it attaches once more or not.
#[test]
fn an_account_that_no_copy_claims_ends_beside_a_connection_that_was_lost() {
    for attaches in [false, true] {
        let (mut rig, known) = restored(&[60]);
        let anew = attach(&mut rig, Some(1), held(0)).expect("in");
        assert_eq!(answers(&rig.reserve(anew, 20, 20)), [(anew, Some(20))]);
        rig.step(Event::Left { client: anew });
        if attaches {
            attach(&mut rig, Some(1), held(20)).expect("what it was granted");
        }
        assert_eq!(reserved(&rig), 80);
        rig.now = 750 * MS;
        assert_eq!(over(&rig.step(Event::Tick)), [known[0]]);
        assert_eq!(reserved(&rig), 20, "attached again: {attaches}");
    }
}

/// Each has its own account, and says so. The time is a guess, and a late copy was told that its claim is a lie.
#[test]
fn a_copy_that_attaches_late_has_its_account() {
    let (mut rig, _) = restored(&[60]);
    account(&mut rig, 1, 30);
    attach(&mut rig, Some(1), held(60)).expect("the one copy");
    rig.now = 750 * MS;
    rig.step(Event::Tick);
    assert_eq!(reserved(&rig), 90);
    attach(&mut rig, Some(1), held(30)).expect("the other copy");
    assert_eq!(reserved(&rig), 90);
}

/// The daemon had no descriptors for its socket, for longer than growth waits.
#[test]
fn processes_that_can_attach_late_have_the_same_time() {
    let mut first = Rig::new(Config::default(), &[16]);
    let record = first.admit(ask("a", "0", 100)).expect("fits");
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.step(Event::Restore(record.into()));
    rig.now = 10_000 * MS;
    rig.step(Event::Tick);
    rig.step(Event::Opened { container: id("a") });
    let other = attach(&mut rig, Some(2), held(0)).expect("in");
    assert!(stays(&rig.reserve(other, 70, 70)), "the first may hold it");
    rig.now += 740 * MS;
    assert!(stays(&rig.step(Event::Tick)), "not yet");
    attach(&mut rig, Some(1), held(60)).expect("the grants are unknown");
    rig.now += 10 * MS;
    rig.step(Event::Tick);
    rig.now += RECALL_WAIT_NS;
    assert_eq!(answers(&rig.step(Event::Tick)), [(other, None)]);
    assert_eq!(reserved(&rig), 60);
}

#[test]
fn copies_that_can_attach_late_take_over_their_own_accounts() {
    let (mut rig, known) = restored(&[60]);
    rig.now = 10_000 * MS;
    rig.step(Event::Tick);
    rig.step(Event::Opened { container: id("a") });
    attach(&mut rig, Some(1), held(0)).expect("in");
    assert_eq!(rig.engine.granted_to(known[0]), Some(held(60)));
    let full = attach(&mut rig, Some(1), held(60)).expect("it is its own");
    assert_eq!((reserved(&rig), rig.engine.granted_to(full)), (60, Some(held(60))));
    // Where all are back, or there was none, nothing waits.
    let other = attach(&mut rig, Some(2), held(0)).expect("in");
    assert_eq!(answers(&rig.reserve(other, 41, 41)), []);
    rig.now += RECALL_WAIT_NS;
    assert_eq!(answers(&rig.step(Event::Tick)), [(other, None)]);
}
