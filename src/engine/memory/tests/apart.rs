//! Processes that lost their connections: their memory counts until they end, or attach again.

use super::*;
pub(super) use crate::tests::holds as held;
use crate::{Actions, Process};
use gpuslice_wire::limits::CLIENTS_PER_CONTAINER_MAX;

type Held = [Bytes; ACCOUNTS_MAX];

/// A process attaches.
pub(super) fn attach(rig: &mut Rig, pid: Option<u32>, held: Held) -> Result<ClientId, Rejection> {
    attach_to(rig, "a", pid, held)
}

fn attach_to(
    rig: &mut Rig,
    container: &str,
    pid: Option<u32>,
    held: Held,
) -> Result<ClientId, Rejection> {
    let attach = Event::Attach {
        token: Token(2),
        container: id(container),
        process: pid.map(|pid| Process { pid, born: 7 }),
        held,
    };
    let mut answers = rig.step(attach).into_iter().filter_map(|action| match action {
        Action::Attached { client, .. } => Some(Ok(client)),
        Action::Rejected { why, .. } => Some(Err(why)),
        _ => None,
    });
    answers.next().expect("an answer")
}

/// A slice of 100 bytes and a process in it with this grant.
fn one(bytes: u64) -> (Rig, ClientId) {
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.admit(ask("a", "0", 100)).expect("fits");
    let client = attach(&mut rig, Some(1), held(0)).expect("in");
    rig.reserve(client, bytes, bytes);
    (rig, client)
}

fn sibling(rig: &mut Rig) -> ClientId {
    attach(rig, Some(2), held(0)).expect("in")
}

pub(super) fn over(actions: &Actions) -> Vec<ClientId> {
    let over = |action: &Action| match *action {
        Action::Disconnect { client, why: Cut::Over } => Some(client),
        _ => None,
    };
    actions.iter().filter_map(over).collect()
}

fn clients(rig: &Rig) -> u32 {
    match rig.slice("a") {
        Snapshot::Slice { clients, .. } => clients,
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_of_a_process_without_a_connection_counts_until_it_ends() {
    let (mut rig, client) = one(60);
    let other = sibling(&mut rig);
    assert_eq!(over(&rig.step(Event::Left { client })), []);
    assert_eq!((reserved(&rig), clients(&rig)), (60, 1));
    rig.now = 3_600_000 * MS;
    rig.step(Event::Tick);
    // It cannot be asked for unused memory, and no other process waits for it.
    assert_eq!(answers(&rig.reserve(other, 50, 50)), [(other, None)]);
    assert_eq!(answers(&rig.reserve(client, 1, 1)), [], "no process asks for it");
    rig.step(Event::Left { client });
    assert_eq!(reserved(&rig), 60, "once is as often");
    rig.step(Event::Gone { client });
    assert_eq!(answers(&rig.reserve(other, 50, 50)), [(other, Some(50))]);
}

#[test]
fn an_account_with_nothing_in_it_is_not_kept() {
    let (mut rig, client) = one(0);
    assert_eq!(over(&rig.step(Event::Left { client })), [client]);
    assert_eq!(over(&rig.step(Event::Left { client })), [client], "nor known");
    assert_eq!(clients(&rig), 0);
}

/// A process that loaded the driver twice. Each of the two connections attaches again with its own memory.
#[test]
fn of_several_accounts_of_a_process_a_connection_takes_over_its_own() {
    let parts = [50, 30];
    for lost in [&[0, 1][..], &[1, 0], &[0], &[1]] {
        for inherited in [false, true] {
            let (mut rig, first) = one(parts[0]);
            let second = attach(&mut rig, Some(1), held(0)).expect("in");
            rig.reserve(second, parts[1], parts[1]);
            let old = [first, second];
            if !inherited {
                lost.iter().for_each(|&at| _ = rig.step(Event::Left { client: old[at] }));
            }
            for &at in lost {
                attach(&mut rig, Some(1), held(parts[at])).expect("back");
                assert_eq!(reserved(&rig), 80, "{lost:?}, {inherited}");
            }
            assert_eq!(clients(&rig), 2);
        }
    }
}

#[test]
fn its_next_connection_takes_it_over() {
    for (says, counts) in [(60, 60), (25, 25), (0, 0)] {
        let (mut rig, client) = one(60);
        rig.step(Event::Left { client });
        let again = attach(&mut rig, Some(1), held(says)).expect("back");
        assert_eq!(reserved(&rig), counts);
        rig.step(Event::Gone { client });
        assert_eq!(reserved(&rig), counts, "the old identity is free");
        rig.step(Event::Gone { client: again });
        assert_eq!(reserved(&rig), 0);
    }
}

#[test]
fn another_process_takes_over_nothing() {
    let (mut rig, client) = one(60);
    rig.step(Event::Left { client });
    for (pid, says, answer) in [
        (Some(2), 60, Err(Rejection::Overdrawn)),
        (None, 60, Err(Rejection::Overdrawn)),
        (Some(2), 41, Err(Rejection::Overdrawn)),
        (Some(2), 40, Err(Rejection::Overdrawn)),
        (None, 1, Err(Rejection::Overdrawn)),
        (Some(2), 0, Ok(())),
        (None, 0, Ok(())),
    ] {
        let came = attach(&mut rig, pid, held(says)).map(drop);
        assert_eq!(came, answer, "{pid:?} says {says}");
    }
    assert_eq!(reserved(&rig), 60);
    rig.step(Event::Gone { client });
    assert_eq!(reserved(&rig), 0);
}

/// 12 GiB under a cap of 1: a claim at the attach does not make it granted, whether it fits or not.
#[test]
fn memory_that_was_never_granted_is_not_believed() {
    let (mut rig, client) = one(60);
    rig.step(Event::Left { client });
    for says in [1200, 101, 90, 61] {
        let liar = attach(&mut rig, Some(1), held(says));
        assert_eq!(liar, Err(Rejection::Overdrawn), "{says}");
        assert_eq!(reserved(&rig), 60, "nothing is lost by that");
    }
    let again = attach(&mut rig, Some(1), held(60)).expect("its own");
    rig.step(Event::Gone { client: again });
    assert_eq!(reserved(&rig), 0);
}

/// A cap lowered below the memory held is no reason to reject the process.
#[test]
fn a_claim_within_the_grants_is_believed_above_a_lowered_cap() {
    let (mut rig, client) = one(60);
    resize(&mut rig, Lane(0), MemoryAsk::Exactly(Bytes(30))).expect("less is no promise");
    rig.step(Event::Left { client });
    attach(&mut rig, Some(1), held(60)).expect("back");
    assert_eq!(reserved(&rig), 60);
    assert_eq!(attach(&mut rig, Some(2), held(1)), Err(Rejection::Overdrawn));
}

/// A forked child keeps the old connection open.
#[test]
fn an_old_connection_that_seems_open_is_taken_over_too() {
    let (mut rig, client) = one(60);
    let other = attach(&mut rig, Some(1), held(0)).expect("a second one");
    assert_eq!((reserved(&rig), clients(&rig)), (60, 2));
    rig.step(Event::Left { client: other });
    attach(&mut rig, Some(1), held(55)).expect("back");
    assert_eq!((reserved(&rig), clients(&rig)), (55, 1));
    assert_eq!(answers(&rig.reserve(client, 1, 1)), []);
}

#[test]
fn memory_that_a_new_connection_does_not_claim_serves_waiting_requests() {
    let (mut rig, client) = one(60);
    let other = sibling(&mut rig);
    rig.reserve(other, 40, 40);
    let third = attach(&mut rig, Some(3), held(0)).expect("in");
    rig.step(Event::Left { client });
    assert_eq!(answers(&rig.reserve(third, 30, 30)), [], "the other is asked");
    let attach = Event::Attach {
        token: Token(2),
        container: id("a"),
        process: Some(Process { pid: 1, born: 7 }),
        held: held(20),
    };
    assert_eq!(answers(&rig.step(attach)), [(third, Some(30))]);
}

/// NVML's figures for a process survive a new connection.
#[test]
fn a_new_connection_does_not_reset_the_residual() {
    let (mut rig, client) = one(10);
    let mut now = client;
    for second in 1..6 {
        rig.now = second * 1_000 * MS;
        rig.step(measured(now, 50));
        rig.step(Event::Left { client: now });
        now = attach(&mut rig, Some(1), held(10)).expect("back");
        let counts = if second > 1 { 50 } else { 10 };
        assert_eq!(reserved(&rig), counts, "second {second}");
    }
}

#[test]
fn accounts_without_a_connection_are_bounded_and_harm_their_own_container_only() {
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.admit(ask("a", "0", 1_000)).expect("fits");
    rig.admit(ask("b", "0", 1_000)).expect("fits");
    for pid in 0..CLIENTS_PER_CONTAINER_MAX as u32 {
        let client = attach(&mut rig, Some(pid), held(0)).expect("in");
        rig.reserve(client, 1, 1);
        rig.step(Event::Left { client });
    }
    let many = Err(Rejection::TooManyClients);
    assert_eq!(attach(&mut rig, Some(9_999), held(0)), many);
    attach(&mut rig, Some(7), held(1)).expect("its own account");
    attach_to(&mut rig, "b", Some(1), held(0)).expect("in");
    rig.step(Event::Dismiss { token: Token(1), container: id("a") });
    assert_eq!(rig.engine.next_deadline(), None);
}

/// Turns do not wait for a process that cannot be asked.
#[test]
fn a_process_without_a_connection_is_not_runnable() {
    let (mut rig, client) = one(60);
    rig.step(Event::Claims {
        client,
        lane: Lane(0),
        claims: Claims { runnable: true, active: 1, held: Bytes(50), ..Claims::default() },
    });
    let runnable = |rig: &Rig| match rig.slice("a") {
        Snapshot::Slice { runnable, used, .. } => (runnable, used.0),
        other => panic!("{other:?}"),
    };
    assert_eq!(runnable(&rig), (1, 50));
    rig.step(Event::Left { client });
    assert_eq!(runnable(&rig), (0, 50), "and holds what it held");
}

/// A daemon without a record of grants believes as much as it can have granted, and no more.
#[test]
fn returning_memory_may_fill_the_cap_and_not_exceed_it() {
    let mut first = Rig::new(Config::default(), &[16]);
    let record = first.admit(ask("a", "0", 100)).expect("fits");
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.step(Event::Restore(record.into()));
    let claims = |rig: &mut Rig, says| attach(rig, None, held(says)).map(drop);
    for says in [101, u64::MAX] {
        assert_eq!(claims(&mut rig, says), Err(Rejection::Overdrawn), "{says}");
    }
    let first = rig.attach("a", 70).expect("back");
    assert_eq!(claims(&mut rig, 31), Err(Rejection::Overdrawn), "101 together");
    // What NVML shows of a process before it is back is the memory that it claims.
    rig.step(unattributed(30));
    rig.now = 400 * MS;
    rig.step(unattributed(30));
    assert_eq!(reserved(&rig), 100);
    let second = rig.attach("a", 30).expect("back");
    rig.step(unattributed(0));
    rig.now = 750 * MS;
    assert!(matches!(rig.reserve(second, 71, 71)[0], Action::Refused { left: Bytes(0), .. }));
    // Later it is growth, beside all that was measured.
    rig.step(Event::Gone { client: first });
    for _ in 0..2 {
        rig.step(unattributed(50));
        rig.now += 1_000 * MS;
        rig.step(unattributed(50));
    }
    assert_eq!(claims(&mut rig, 21), Err(Rejection::Overdrawn));
    assert_eq!((claims(&mut rig, 20), reserved(&rig)), (Ok(()), 100));
}
