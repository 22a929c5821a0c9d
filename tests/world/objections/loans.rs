//! Stories about memory limits above caps. Two containers of 40 bytes share a GPU of 100: `a` may grow to 100.

use super::*;
use gpuslice_engine::{Credit, RECLAIM_MOVE_MAX, Reclaim, Refusal};
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::RECALL_WAIT_NS;
use gpuslice_wire::snapshot::{Snapshot, SuspensionState};

const A: usize = 0;
const B: usize = 1;
const GRACE: u64 = 50 * MS;

/// How many bytes a container's page shows as reserved below its limit.
fn sees(n: usize, reserved: u64) -> Action {
    let limit = if n == A { 100 } else { 40 };
    let Action::SetLane { container, lane, view } = page(n, Mode::Turns, 0, 0, reserved) else {
        unreachable!("a page is a lane");
    };
    Action::SetLane { container, lane, view: LaneView { cap: Bytes(limit), ..view } }
}

fn begin(reclaim: Reclaim) -> Story {
    let admitted = |n: usize| {
        let Action::Admitted { token, mut record } = admitted(n, 1, 0, Class::Normal) else {
            unreachable!("an admission");
        };
        let limit = if n == A { 100 } else { 40 };
        let lane = &mut record.lanes[0];
        (lane.cap, lane.limit, lane.elastic) = (Bytes(40), Bytes(limit), limit > 40);
        Action::Admitted { token, record }
    };
    let config = Config { reclaim, reclaim_grace: Duration(GRACE), ..Config::default() };
    let mut story = Story { checkers: Checkers::new(config, 0), now: 0 };
    let found = Event::GpuFound { uuid: gpu(0), index: NvmlIndex(0), total: Bytes(100) };
    story.tell(0, found, &[]).expect("a good beginning");
    for n in [A, B] {
        story.tell(0, Event::Tick, &[admitted(n), turn(n, 0, 0)]).expect("a good beginning");
        let (attach, attached) = attach(n, client(n), 1);
        story.tell(0, attach, &[attached]).expect("a good beginning");
    }
    story
}

fn asks(n: usize, bytes: u64) -> Event {
    let (need, wish) = (Bytes(bytes), Bytes(bytes));
    Event::Reserve { client: client(n), token: Token(n as u64), lane: Lane(0), need, wish }
}

fn gets(n: usize, bytes: u64) -> Action {
    let (token, lane) = (Token(n as u64), Lane(0));
    Action::Reserved { client: client(n), token, lane, bytes: Bytes(bytes) }
}

fn refused(n: usize, need: u64, left: u64, overdue: bool) -> Action {
    Action::Refused {
        client: client(n),
        token: Token(n as u64),
        lane: Lane(0),
        need: Bytes(need),
        left: Bytes(left),
        credit: Credit::default(),
        overdue,
    }
}

fn gives(n: usize, bytes: u64) -> Event {
    Event::Release { client: client(n), lane: Lane(0), bytes: Bytes(bytes) }
}

fn wanted(bytes: u64) -> Action {
    Action::Wanted { container: container(A as u64), lane: Lane(0), bytes: Bytes(bytes) }
}

/// `a` has 80 bytes, of which 40 are borrowed.
fn lent(reclaim: Reclaim) -> Story {
    let mut story = begin(reclaim);
    story.tell(0, asks(A, 80), &[gets(A, 80), sees(A, 80)]).expect("there is room");
    story
}

/// Then `b` claims 30 bytes, of which 20 are free.
fn claimed(reclaim: Reclaim) -> Story {
    let mut story = lent(reclaim);
    story.tell(0, asks(B, 30), &[wanted(10), sees(A, 100)]).expect("a claim waits");
    story
}

fn order(away: bool, memory: u64) -> Action {
    let (token, container) = (Token::NONE, container(A as u64));
    Action::MoveMemory { token, container, away, memory: Bytes(memory) }
}

fn settled(away: bool, memory: u64) -> Action {
    let (token, container, left) = (Token::NONE, container(A as u64), Bytes::ZERO);
    Action::SuspensionSettled { token, container, away, memory: Bytes(memory), left }
}

fn moved(away: bool) -> Event {
    let (container, stays) = (container(A as u64), Some(Vec::new()));
    Event::MemoryMoved { container, away, stays }
}

impl Story {
    /// `a` is in this state from the next step on.
    fn suspends(&mut self, state: Option<SuspensionState>) {
        let id: ContainerId = container(A as u64);
        self.checkers.suspend(state.into_iter().map(|state| (id, state)).collect());
    }
}

/// `a` is moved to the host for the claim of `b`, which is granted. The pages of both show the rest as free.
fn suspended() -> Story {
    let mut story = claimed(Reclaim::Suspend);
    story.suspends(Some(SuspensionState::Suspending));
    story.then(GRACE, &[order(true, 80), wanted(0)]).expect("the grace is over");
    story.suspends(Some(SuspensionState::Suspended));
    let actions = [settled(true, 80), gets(B, 30), sees(A, 80), sees(B, 30)];
    story.tell(MS, moved(true), &actions).expect("there is room");
    story
}

#[test]
fn to_promises_that_do_not_fit() {
    let Action::Admitted { token, mut record } = admitted(2, 1, 0, Class::Normal) else {
        unreachable!("an admission");
    };
    let mut admit = |cap| {
        let lane = &mut record.lanes[0];
        (lane.cap, lane.limit) = (Bytes(cap), Bytes(cap));
        let admitted = Action::Admitted { token, record: record.clone() };
        begin(Reclaim::Suspend).then(0, &[admitted, turn(2, 0, 0)])
    };
    assert_eq!(admit(20), Ok(()));
    objects(admit(21), "are promised of");
}

#[test]
fn to_more_than_the_limit_or_the_gpu() {
    let mut story = lent(Reclaim::Suspend);
    story.tell(0, asks(B, 20), &[gets(B, 20), sees(A, 100), sees(B, 20)]).expect("it is free");
    objects(story.tell(0, asks(A, 1), &[gets(A, 1), sees(A, 81)]), "of 0 free ones");
    let more = lent(Reclaim::Suspend).tell(0, asks(A, 21), &[gets(A, 21), sees(A, 101)]);
    objects(more, "free ones");
    let above = lent(Reclaim::Suspend).tell(0, asks(B, 41), &[gets(B, 41), sees(B, 41)]);
    objects(above, "free ones");
    let other = lent(Reclaim::Suspend).tell(0, asks(B, 30), &[gets(B, 30), sees(B, 30)]);
    objects(other, "free ones");
}

#[test]
fn to_a_loan_while_a_claim_waits() {
    let lends = |after| {
        let actions = [gets(A, 1), wanted(11), sees(A, 100)];
        claimed(Reclaim::Suspend).tell(after, asks(A, 1), &actions)
    };
    objects(lends(0), "is lent memory that");
    let refuses = claimed(Reclaim::Suspend).tell(0, asks(A, 1), &[refused(A, 1, 0, false)]);
    assert_eq!(refuses, Ok(()));
}

#[test]
fn to_a_claim_that_waits_for_nothing() {
    let mut story = claimed(Reclaim::Suspend);
    let free = story.tell(0, gives(A, 10), &[wanted(0), sees(A, 100)]);
    objects(free, "waits for 30 bytes, and 30 are free");
    let served = [gets(B, 30), wanted(0), sees(A, 100), sees(B, 30)];
    assert_eq!(claimed(Reclaim::Suspend).tell(0, gives(A, 10), &served), Ok(()));
    let mut late = claimed(Reclaim::Suspend);
    assert_eq!(late.then(GRACE, &[]), Ok(()));
    let result = (0..5).try_for_each(|_| late.then(20 * MS, &[]));
    objects(result, "waits after the grace, and no memory moves");
}

/// Process `C` is another one of `b`.
const C: usize = 2;

/// The page of `b` with this recall, and what is reserved.
fn recalls(reserved: u64) -> Action {
    let Action::SetLane { container, lane, view } = sees(B, reserved) else {
        unreachable!("a page is a lane");
    };
    Action::SetLane { container, lane, view: LaneView { recall: 1, ..view } }
}

/// `b` has all that is left, in one process. Its other one asks for more.
fn recalled() -> Story {
    let mut story = lent(Reclaim::Refuse);
    let (attach, attached) = attach(B, client(C), 1);
    story.tell(0, attach, &[attached]).expect("a second process");
    let actions = [gets(B, 20), sees(B, 20), sees(A, 100)];
    story.tell(0, asks(B, 20), &actions).expect("it is free");
    story.tell(0, asks(C, 10), &[wanted(10), recalls(20)]).expect("a claim waits");
    story
}

#[test]
fn to_a_claim_that_is_refused_before_its_siblings_have_answered() {
    let refuses = |story: &mut Story| story.then(GRACE, &[refused(C, 10, 0, true), wanted(0)]);
    objects(refuses(&mut recalled()), "was refused before");
    let mut answered = recalled();
    let (lane, bytes) = (Lane(0), Bytes::ZERO);
    let yields = Event::Yield { client: client(B), lane, recall: 1, bytes };
    answered.tell(MS, yields, &[]).expect("it uses all that it has");
    assert_eq!(refuses(&mut answered), Ok(()));
    let mut silent = recalled();
    silent.then(RECALL_WAIT_NS - GRACE, &[]).expect("it may answer");
    assert_eq!(refuses(&mut silent), Ok(()));
}

/// `b` claims 10 bytes more behind its first request: borrowers are asked for both.
#[test]
fn to_a_request_for_which_borrowers_are_not_asked() {
    let asks_again = |actions: &[Action]| {
        let mut story = claimed(Reclaim::Suspend);
        let (attach, attached) = attach(B, client(C), 1);
        story.tell(0, attach, &[attached]).expect("a second process");
        story.tell(0, asks(C, 10), actions)
    };
    assert_eq!(asks_again(&[wanted(20)]), Ok(()));
    objects(asks_again(&[]), "10 bytes of GPU-01010101-0101-0101-0101-010101010101 are wanted");
}

#[test]
fn to_a_claim_without_an_end() {
    let mut story = claimed(Reclaim::Suspend);
    story.suspends(Some(SuspensionState::Suspending));
    story.then(GRACE, &[order(true, 80), wanted(0)]).expect("the grace is over");
    assert_eq!(story.then(RECLAIM_MOVE_MAX.0, &[]), Ok(()));
    objects(story.then(100 * MS, &[]), "claims 30 bytes since");
}

#[test]
fn to_a_refused_claim() {
    let end = [refused(B, 30, 20, true), wanted(0), sees(A, 80)];
    objects(claimed(Reclaim::Refuse).then(GRACE - 1, &end), "before the grace");
    assert_eq!(claimed(Reclaim::Refuse).then(GRACE, &end), Ok(()));
    objects(claimed(Reclaim::Suspend).then(GRACE, &end), "is not suspended");
    let mut moves = claimed(Reclaim::Suspend);
    moves.suspends(Some(SuspensionState::Suspending));
    moves.then(GRACE, &[order(true, 80), wanted(0)]).expect("the grace is over");
    objects(moves.then(MS, &end[..1]), "was refused while");
    let promised = [refused(B, 30, 20, false), wanted(0), sees(A, 80)];
    objects(claimed(Reclaim::Refuse).then(GRACE, &promised), "within its cap true, overdue false");
}

#[test]
fn to_what_borrowers_are_told() {
    let tell = |bytes| lent(Reclaim::Suspend).tell(0, asks(B, 30), &[wanted(bytes), sees(A, 100)]);
    assert_eq!(tell(10), Ok(()));
    objects(tell(9), "are wanted back, not 10 to 10");
    objects(tell(41), "borrowed 40");
    objects(lent(Reclaim::Suspend).then(0, &[wanted(1)]), "that none claims");
}

#[test]
fn to_free_memory_that_is_none() {
    let shows =
        |n| begin(Reclaim::Suspend).tell(0, asks(B, 30), &[gets(B, 30), sees(B, 30), sees(A, n)]);
    assert_eq!(shows(30), Ok(()));
    objects(shows(29), "sees 71 bytes free, not 70 to 70");
    let claim = lent(Reclaim::Suspend).tell(0, asks(B, 30), &[wanted(10), sees(A, 80)]);
    objects(claim, "sees 20 bytes free, not 0 to 0");
}

/// A sample of processes outside of all slices.
fn sample(used: u64) -> Event {
    Event::Outside { gpu: gpu(0), used: Bytes(used) }
}

/// Processes outside of all slices have 30 bytes. After two samples of these, the page of `a` shows so much reserved.
fn outside(samples: [u64; 2], shown: u64) -> Result<Story, Objection> {
    let mut story = begin(Reclaim::Suspend);
    story.checkers.outside(gpu(0), 30);
    story.tell(0, sample(samples[0]), &[]).expect("one sample is not enough");
    story.tell(0, sample(samples[1]), &[sees(A, shown)]).map(|()| story)
}

#[test]
fn to_memory_outside_that_is_lent() {
    let samples = [30, 30];
    objects(outside(samples, 0).map(drop), "sees 100 bytes free, not 70 to 70");
    objects(outside(samples, 31).map(drop), "sees 69 bytes free, not 70 to 70");
    assert_eq!(outside([0, 30], 0).map(drop), Ok(()), "it may have come between the samples");
    let lends = |bytes| {
        let mut story = outside(samples, 30)?;
        story.checkers.outside(gpu(0), 50); // no sample shows the growth yet
        story.tell(0, asks(A, bytes), &[gets(A, bytes), sees(A, bytes + 30)])
    };
    assert_eq!(lends(70), Ok(()));
    objects(lends(71), "was granted 71 bytes of GPU-01010101");
    // What was given back meanwhile may be lent before a sample shows that, or not.
    let given_back = |shown| {
        let mut story = outside(samples, 30)?;
        story.checkers.outside(gpu(0), 10);
        story.then(0, &[sees(A, shown)])
    };
    assert_eq!([10, 30].map(given_back), [Ok(()), Ok(())]);
    objects(given_back(9), "sees 91 bytes free, not 70 to 90");
}

#[test]
fn to_a_grant_to_a_suspended_container() {
    let grants = |story: &mut Story| story.tell(0, asks(A, 1), &[gets(A, 1), sees(A, 81)]);
    objects(grants(&mut suspended()), "is suspended and was granted");
    let mut returns = suspended();
    let given = [sees(A, 80), sees(B, 0)];
    returns.tell(0, gives(B, 30), &given).expect("it is free");
    returns.suspends(Some(SuspensionState::Resuming));
    returns.then(MS, &[order(false, 80)]).expect("there is room");
    objects(grants(&mut returns), "is suspended and was granted");
}

#[test]
fn to_a_ledger_that_a_move_changes() {
    let mut story = claimed(Reclaim::Suspend);
    story.suspends(Some(SuspensionState::Suspending));
    objects(story.then(GRACE, &[order(true, 79), wanted(0)]), "is moved with 79 bytes, and has 80");
    let row = |memory| Snapshot::Suspension {
        container: container(A as u64),
        state: SuspensionState::Suspended,
        memory: Bytes(memory),
    };
    assert_eq!(suspended().checkers.loans(&row(80)), Ok(()));
    objects(suspended().checkers.loans(&row(0)), "is moved with 0 bytes");
}

/// What a suspended container's process gives back in the ledger is still on the host.
#[test]
fn to_a_return_with_less_than_was_moved() {
    let returns = |memory| {
        let mut story = suspended();
        story.tell(MS, gives(A, 30), &[sees(A, 50)]).expect("it is believed in the ledger");
        story.tell(MS, gives(B, 30), &[sees(A, 50), sees(B, 0)]).expect("it is free");
        story.suspends(Some(SuspensionState::Resuming));
        story.then(MS, &[order(false, memory), sees(A, 80)])
    };
    assert_eq!(returns(80), Ok(()));
    objects(returns(50), "is moved with 50 bytes, and has 80");
}

#[test]
fn to_a_return_without_room_or_none() {
    let mut early = suspended();
    early.suspends(Some(SuspensionState::Resuming));
    objects(early.then(MS, &[order(false, 80)]), "and has no room");
    let mut never = suspended();
    never.tell(0, gives(B, 30), &[sees(A, 80), sees(B, 0)]).expect("it is free");
    assert_eq!(never.then(10_000 * MS, &[]), Ok(()));
    objects(never.then(100 * MS, &[]), "is suspended, and there is room for it");
}

#[test]
fn to_a_suspension_that_never_begins() {
    let mut story = claimed(Reclaim::Suspend);
    story.suspends(Some(SuspensionState::Suspending));
    story.then(GRACE, &[wanted(0)]).expect("the grace is over");
    assert_eq!(story.then(2_000 * MS, &[]), Ok(()));
    objects(story.then(100 * MS, &[]), "drains and is not moved");
}

#[test]
fn to_a_move_that_is_refused_for_no_reason() {
    let refuses = |left| {
        let (index, memory, left) = (NvmlIndex(0), Bytes(80), Bytes(left));
        let (token, container) = (Token(9), container(A as u64));
        let why = Refusal::NoRoom { gpu: index, memory, left };
        suspended().then(0, &[Action::NoRoomToMove { token, container, why }])
    };
    assert_eq!(refuses(79), Ok(()));
    objects(refuses(80), "is not moved for lack of room, and has it");
}
