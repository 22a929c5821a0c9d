//! The rules of memory, one by one, as the daemon sees them.

use std::vec::Vec;

use gpuslice_wire::admin::{Denial, MemoryAsk};
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::limits::{ACCOUNTS_MAX, CLIENTS_PER_CONTAINER_MAX, RECALL_WAIT_NS};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::tenant::Rejection;
use gpuslice_wire::units::{Bytes, GIB, Instant};

use crate::tests::{MS, Rig, ask, id};
use crate::{Action, CapChange, Claims, Config, Cut, Event, LaneView, Record, Token};

mod again;
mod apart;
mod residual;
mod sums;
mod unfreed;

/// A slice of 100 bytes with processes that hold these grants.
fn slice_of(granted: &[u64]) -> (Rig, Vec<ClientId>) {
    slice_with(Config::default(), granted)
}

/// The same with this configuration.
fn slice_with(config: Config, granted: &[u64]) -> (Rig, Vec<ClientId>) {
    let mut rig = Rig::new(config, &[16]);
    rig.admit(ask("a", "0", 100)).expect("fits");
    let clients = granted.iter().map(|&bytes| {
        let client = rig.attach("a", 0).expect("in");
        rig.reserve(client, bytes, bytes);
        client
    });
    let clients = clients.collect();
    (rig, clients)
}

/// Grants and refusals (`None`) by process, in order.
fn answers(actions: &[Action]) -> Vec<(ClientId, Option<u64>)> {
    let answer = |action: &Action| match *action {
        Action::Reserved { client, bytes, .. } => Some((client, Some(bytes.0))),
        Action::Refused { client, .. } => Some((client, None)),
        _ => None,
    };
    actions.iter().filter_map(answer).collect()
}

fn view(actions: &[Action]) -> Option<LaneView> {
    let views = actions.iter().rev();
    let mut views = views.filter_map(|action| match action {
        Action::SetLane { view, .. } => Some(*view),
        _ => None,
    });
    views.next()
}

fn release(client: ClientId, lane: Lane, bytes: u64) -> Event {
    Event::Release { client, lane, bytes: Bytes(bytes) }
}

fn measured(client: ClientId, used: u64) -> Event {
    Event::Measured { client, lane: Lane(0), used: Bytes(used), requested: false }
}

/// The process itself has asked.
fn requested(client: ClientId, used: u64) -> Event {
    Event::Measured { client, lane: Lane(0), used: Bytes(used), requested: true }
}

fn unattributed(used: u64) -> Event {
    Event::Unattributed { container: id("a"), lane: Lane(0), used: Bytes(used) }
}

fn says(rig: &mut Rig, client: ClientId, held: u64, unseen: u64) {
    rig.step(Event::Claims {
        client,
        lane: Lane(0),
        claims: Claims { held: Bytes(held), unseen: Bytes(unseen), ..Claims::default() },
    });
}

fn resize(rig: &mut Rig, lane: Lane, memory: MemoryAsk) -> Result<(CapChange, Record), Denial> {
    let answer = rig.step(Event::Resize { token: Token(5), container: id("a"), lane, memory });
    match answer.into_iter().next() {
        Some(Action::Resized { change, record, .. }) => Ok((change, *record)),
        Some(Action::Denied { why, .. }) => Err(why.denial()),
        other => panic!("no answer but {other:?}"),
    }
}

fn reserved(rig: &Rig) -> u64 {
    match rig.slice("a") {
        Snapshot::Slice { reserved, .. } => reserved.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_short_process_gets_the_unused_credit_of_its_siblings() {
    let (mut rig, who) = slice_of(&[60, 30, 0]);
    let asked = rig.reserve(who[2], 50, 90);
    assert_eq!((answers(&asked), view(&asked).map(|v| v.recall)), (Vec::new(), Some(1)));
    assert_eq!(answers(&rig.give_back(who[1], 1, 30)), [], "40 are there, 50 are needed");
    let answer = rig.give_back(who[0], 1, 25);
    assert_eq!(answers(&answer), [(who[2], Some(50))], "its need and no more");
    assert_eq!(rig.engine.next_deadline(), None);
    assert_eq!(reserved(&rig), 85);
}

#[test]
fn an_early_answer_that_suffices_ends_the_wait() {
    let (mut rig, who) = slice_of(&[60, 40, 0]);
    rig.reserve(who[2], 10, 10);
    assert_eq!(answers(&rig.give_back(who[1], 1, 40)), [(who[2], Some(10))]);
    assert_eq!(rig.engine.next_deadline(), None);
    assert_eq!(answers(&rig.give_back(who[0], 1, 5)), [], "late, and still taken back");
    assert_eq!(reserved(&rig), 65);
}

#[test]
fn silence_costs_the_limit_and_no_more() {
    let (mut rig, who) = slice_of(&[60, 40, 0]);
    rig.reserve(who[2], 10, 10);
    assert_eq!(rig.engine.next_deadline(), Some(Instant(RECALL_WAIT_NS)));
    rig.now = RECALL_WAIT_NS - 1;
    assert_eq!(answers(&rig.step(Event::Tick)), []);
    rig.now = RECALL_WAIT_NS;
    assert_eq!(answers(&rig.step(Event::Tick)), [(who[2], None)]);
    assert_eq!(rig.engine.next_deadline(), None);
}

#[test]
fn no_recall_starts_where_it_cannot_help() {
    let (mut rig, who) = slice_of(&[60, 30]);
    assert_eq!(answers(&rig.reserve(who[0], 41, 41)), [(who[0], None)], "its own 60 are in use");
    assert_eq!(answers(&rig.reserve(who[1], 101, 101)), [(who[1], None)]);
    assert_eq!(answers(&rig.reserve(who[0], u64::MAX, u64::MAX)), [(who[0], None)]);
    assert_eq!(rig.engine.next_deadline(), None);
}

#[test]
fn an_end_or_a_request_is_an_answer() {
    let (mut rig, who) = slice_of(&[30, 30, 40]);
    assert_eq!(answers(&rig.reserve(who[0], 35, 35)), []);
    assert_eq!(answers(&rig.step(Event::Gone { client: who[1] })), []);
    // the last sibling is short itself: it has nothing to give, so the first one is refused; then the first
    // one is asked
    let both = rig.reserve(who[2], 35, 35);
    assert_eq!(answers(&both), [(who[0], None)]);
    assert_eq!(view(&both).map(|view| view.recall), Some(2));
    assert_eq!(answers(&rig.give_back(who[0], 2, 30)), [(who[2], Some(35))]);
}

#[test]
fn requests_are_served_in_order_and_small_ones_do_not_pass() {
    let (mut rig, who) = slice_of(&[90, 0, 0]);
    assert_eq!(answers(&rig.reserve(who[1], 30, 30)), []);
    assert_eq!(answers(&rig.reserve(who[2], 5, 50)), []);
    let answer = rig.give_back(who[0], 1, 40);
    assert_eq!(answers(&answer), [(who[1], Some(30)), (who[2], Some(5))]);
}

#[test]
fn a_request_during_a_recall_starts_its_own() {
    let (mut rig, who) = slice_of(&[90, 0, 0]);
    rig.reserve(who[1], 60, 60);
    rig.now = RECALL_WAIT_NS - 1;
    rig.reserve(who[2], 30, 30);
    rig.now = RECALL_WAIT_NS;
    let first = rig.step(Event::Tick);
    assert_eq!(answers(&first), [(who[1], None)]);
    assert_eq!(view(&first).map(|view| view.recall), Some(2));
    assert_eq!(rig.engine.next_deadline(), Some(Instant(2 * RECALL_WAIT_NS)));
    assert_eq!(answers(&rig.give_back(who[0], 2, 20)), [(who[2], Some(30))]);
}

#[test]
fn only_the_present_number_is_an_answer() {
    let (mut rig, who) = slice_of(&[90, 0]);
    rig.reserve(who[1], 50, 50);
    for wrong in [0, 2, u32::MAX] {
        assert_eq!(answers(&rig.give_back(who[0], wrong, 1)), []);
    }
    assert_eq!(rig.engine.next_deadline(), Some(Instant(RECALL_WAIT_NS)));
    assert_eq!(answers(&rig.give_back(who[0], 1, 0)), [(who[1], None)]);
    assert_eq!(reserved(&rig), 87, "what came with the wrong number came back");
}

#[test]
fn yielding_more_than_granted_breaks_a_rule_and_frees_the_way() {
    let (mut rig, who) = slice_of(&[90, 0]);
    rig.reserve(who[1], 50, 50);
    let cut = rig.give_back(who[0], 1, 91);
    let why = Cut::Broke(Rejection::Overdrawn);
    assert_eq!(cut[0], Action::Disconnect { client: who[0], why });
    assert_eq!(answers(&cut), [(who[1], None)], "it lives, and may have it");
    rig.step(Event::Gone { client: who[0] });
    assert_eq!(answers(&rig.reserve(who[1], 50, 50)), [(who[1], Some(50))]);
}

#[test]
fn a_dismissal_in_a_recall_leaves_nothing() {
    let (mut rig, who) = slice_of(&[90, 0]);
    rig.reserve(who[1], 50, 50);
    let gone = rig.step(Event::Dismiss { token: Token(1), container: id("a") });
    assert_eq!(answers(&gone), []);
    assert_eq!(rig.engine.next_deadline(), None);
}

#[test]
fn memory_beyond_the_ledger_counts_even_above_the_cap() {
    let (mut rig, who) = slice_of(&[60, 40]);
    says(&mut rig, who[0], 50, 20);
    rig.step(measured(who[0], 90));
    assert_eq!(reserved(&rig), 100, "one look may be unlucky");
    rig.now = 1_000 * MS;
    rig.step(measured(who[0], 95));
    assert_eq!(reserved(&rig), 150, "90 shown and 20 not, of which 60 were granted");
    let row = rig.slice("a");
    assert!(matches!(row, Snapshot::Slice { untracked: Bytes(50), .. }), "{row:?}");
    // 60 are granted to the requester itself, 50 are not attributed: of 100 nothing can come
    assert_eq!(answers(&rig.reserve(who[0], 1, 1)), [(who[0], None)]);
    rig.step(Event::Gone { client: who[0] });
    assert_eq!(reserved(&rig), 40);
}

/// A measurement shows memory that was given back before the answer came.
#[test]
fn requested_memory_is_never_taken_for_unrequested() {
    let (mut rig, who) = slice_of(&[0]);
    for second in 1..5 {
        rig.reserve(who[0], 90, 90);
        rig.give_back(who[0], 0, 90);
        rig.now = second * 1_000 * MS;
        rig.step(measured(who[0], 90));
        assert_eq!(reserved(&rig), 0, "after {second} looks");
    }
    for second in 5..8 {
        rig.now = second * 1_000 * MS;
        rig.step(measured(who[0], 90));
    }
    assert_eq!(reserved(&rig), 90, "and what stays is found out");
}

#[test]
fn a_false_claim_never_makes_less_count_than_nvml_shows() {
    for (held, unseen) in [(0, 0), (60, 0), (u64::MAX, 0), (60, 60), (5, 90), (0, u64::MAX)] {
        let (mut rig, who) = slice_of(&[60]);
        says(&mut rig, who[0], held, unseen);
        for second in 1..4 {
            rig.now = second * 1_000 * MS;
            rig.step(measured(who[0], 80));
        }
        assert!(reserved(&rig) >= 80, "held {held} unseen {unseen}: {}", reserved(&rig));
    }
}

#[test]
fn stray_memory_counts_while_it_lasts_and_then_serves_waiting_requests() {
    let (mut rig, who) = slice_of(&[10, 10]);
    rig.step(unattributed(70));
    rig.now = 1_000 * MS;
    rig.step(unattributed(70));
    assert_eq!(reserved(&rig), 90);
    assert_eq!(answers(&rig.reserve(who[0], 15, 15)), []);
    assert_eq!(answers(&rig.step(unattributed(0))), [(who[0], Some(15))]);
    let host = Event::Unattributed { container: id("a"), lane: Lane::HOST, used: Bytes(9) };
    assert_eq!(rig.step(host), [], "NVML knows nothing of the host's memory");
}

/// What a container was granted before its cap was lowered is its own; what it took without a request is not.
#[test]
fn only_memory_that_was_not_granted_makes_a_container_exceed_its_cap() {
    let (mut rig, _) = slice_of(&[60]);
    assert_eq!(rig.engine.over_caps(), []);
    resize(&mut rig, Lane(0), MemoryAsk::Exactly(Bytes(50))).expect("a lower cap");
    assert_eq!(rig.engine.over_caps(), [], "60 were granted");
    resize(&mut rig, Lane(0), MemoryAsk::Exactly(Bytes(100))).expect("the former cap");
    for (second, used) in [(0, 40), (1, 40), (2, 50), (3, 50), (4, 0)] {
        rig.now = second * 1_000 * MS;
        rig.step(unattributed(used));
        let over: Vec<_> = rig.engine.over_caps().iter().map(|it| (it.held.0, it.cap.0)).collect();
        // Two samples must agree; 60 + 40 fit.
        let expected: &[(u64, u64)] = if second == 3 { &[(110, 100)] } else { &[] };
        assert_eq!(over, expected, "after {second} s");
    }
}

/// What NVML shows beyond the grants, a little of which every container has, is kept with a lowered cap as well. What
/// is taken after that is not, and neither is what was over the cap before.
#[test]
fn a_lowered_cap_leaves_what_was_held_and_nothing_more() {
    let over = |rig: &Rig| rig.engine.over_caps().iter().map(|it| it.held.0).collect::<Vec<_>>();
    let measured = |rig: &mut Rig, used| {
        for _ in 0..2 {
            rig.now += 1_000 * MS;
            rig.step(Event::Looking { container: id("a"), lane: Lane(0) });
            rig.step(unattributed(used));
            rig.step(Event::Looked { container: id("a"), lane: Lane(0) });
        }
    };
    let lower = |rig: &mut Rig, cap| {
        resize(rig, Lane(0), MemoryAsk::Exactly(Bytes(cap))).expect("a lower cap");
    };
    let (mut rig, _) = slice_of(&[60]);
    measured(&mut rig, 10);
    lower(&mut rig, 50);
    measured(&mut rig, 10);
    assert_eq!(over(&rig), [], "70 were held");
    lower(&mut rig, 40);
    assert_eq!(over(&rig), []);
    measured(&mut rig, 11);
    assert_eq!(over(&rig), [71]);
    lower(&mut rig, 30);
    assert_eq!(over(&rig), [71], "only 70 of them are rightful");
}

/// The cost of a context on GPU 0 that a container's page shows.
fn context_cost(rig: &Rig, container: &str) -> u64 {
    let index = rig.engine.containers.find(id(container)).expect("admitted");
    let container = rig.engine.containers.get(index).expect("there");
    let shown = container.slices.get(Lane(0)).and_then(|slice| slice.shown);
    shown.map_or(0, |view| view.context.0)
}

#[test]
fn a_context_costs_as_much_as_the_smallest_first_one_of_its_container() {
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.admit(ask("a", "0", 100)).expect("fits");
    rig.admit(ask("b", "0", 1_000)).expect("fits");
    let cost = |rig: &mut Rig, container: &str, held: u64, used: &[u64]| {
        let client = rig.attach(container, 0).expect("in");
        says(rig, client, held, 0);
        for &used in used {
            rig.step(requested(client, used));
        }
        context_cost(rig, container)
    };
    assert_eq!(cost(&mut rig, "a", 0, &[0]), 0, "nothing is not a context");
    assert_eq!(cost(&mut rig, "a", 0, &[400]), 50, "no more than half of a small cap");
    assert_eq!(cost(&mut rig, "a", 0, &[40]), 40);
    assert_eq!(cost(&mut rig, "a", 0, &[41, 39]), 40, "more, or not the first");
    assert_eq!(cost(&mut rig, "a", 1, &[5]), 40, "it had something else");
    assert_eq!(cost(&mut rig, "a", 0, &[0, 38]), 38, "it was looked at before it had one");
    assert_eq!(cost(&mut rig, "a", 0, &[7]), 7);
    // A sample may show a context that is half made.
    let client = rig.attach("b", 0).expect("in");
    for half in [14, 14] {
        rig.step(measured(client, half));
    }
    assert_eq!(context_cost(&rig, "b"), 0);
    // A false figure, which is smaller or larger than a context, costs no other container.
    says(&mut rig, client, 0, 0);
    rig.step(requested(client, 300));
    assert_eq!(context_cost(&rig, "b"), 300);
    assert_eq!(cost(&mut rig, "a", 0, &[1]), 1);
    assert_eq!(context_cost(&rig, "b"), 300);
}

#[test]
fn a_larger_cap_follows_admission_and_serves_waiting_requests() {
    let (mut rig, who) = slice_of(&[60, 40, 0]);
    rig.admit(ask("b", "0", 10 * GIB)).expect("fits");
    let exactly = |bytes| MemoryAsk::Exactly(Bytes(bytes));
    for (memory, why) in [
        (exactly(0), Denial::Invalid),
        (exactly(17 * GIB), Denial::Memory),
        (exactly(7 * GIB), Denial::Memory),
        (MemoryAsk::Ratio { part: 2, whole: 1 }, Denial::Invalid),
        (MemoryAsk::Ratio { part: 1, whole: u32::MAX }, Denial::Memory),
    ] {
        assert_eq!(resize(&mut rig, Lane(0), memory).expect_err("refused"), why, "{memory:?}");
    }
    assert_eq!(resize(&mut rig, Lane(1), exactly(9)).expect_err("no GPU 1"), Denial::NoSuchSlice);
    rig.reserve(who[2], 50, 50);
    let grown = rig.step(Event::Resize {
        token: Token(5),
        container: id("a"),
        lane: Lane(0),
        memory: exactly(150),
    });
    assert_eq!(answers(&grown), [(who[2], Some(50))]);
    let (change, record) =
        resize(&mut rig, Lane(0), MemoryAsk::Ratio { part: 3, whole: 8 }).expect("6 GiB are left");
    assert_eq!((change.was, change.cap), (Bytes(150), Bytes(6 * GIB)));
    assert_eq!(record.lanes[0].cap, change.cap);
    assert_eq!(rig.admit(ask("c", "0", 1)).expect_err("all promised").0, Denial::Memory);
}

#[test]
fn a_smaller_cap_takes_nothing_away_and_shows() {
    let (mut rig, who) = slice_of(&[60, 40]);
    let (change, record) =
        resize(&mut rig, Lane(0), MemoryAsk::Exactly(Bytes(30))).expect("less is no promise");
    assert_eq!((change.cap, change.reserved), (Bytes(30), Bytes(100)));
    assert_eq!(record.lanes[0].cap, Bytes(30));
    assert_eq!(answers(&rig.reserve(who[0], 1, 1)), []);
    assert_eq!(answers(&rig.give_back(who[1], 1, 0)), [(who[0], None)]);
    rig.step(release(who[0], Lane(0), 60));
    assert_eq!(answers(&rig.reserve(who[0], 1, 1)), [], "the other may have something");
    assert_eq!(answers(&rig.give_back(who[1], 2, 11)), [(who[0], Some(1))]);
}

/// Else a process could go on allocating from its credit, beyond the new cap.
#[test]
fn a_smaller_cap_asks_for_unused_credit_back() {
    let (mut rig, who) = slice_of(&[60, 40]);
    let lower = |bytes| Event::Resize {
        token: Token(9),
        container: id("a"),
        lane: Lane(0),
        memory: MemoryAsk::Exactly(Bytes(bytes)),
    };
    let recalled = |actions: &[Action]| view(actions).map(|view| view.recall);
    assert_eq!(recalled(&rig.step(lower(100))), None, "all of it fits");
    assert_eq!(recalled(&rig.step(lower(30))), Some(1));
    rig.give_back(who[0], 1, 50);
    rig.give_back(who[1], 1, 35);
    assert_eq!(reserved(&rig), 15);
    assert_eq!(recalled(&rig.step(lower(20))), Some(1), "what is left fits");
}

#[test]
fn less_is_allowed_where_too_much_is_promised() {
    let config = Config { oversubscribe: true, ..Config::default() };
    let mut rich = Rig::new(config, &[16]);
    let records = ["a", "b"].map(|name| rich.admit(ask(name, "0", 12 * GIB)).expect("fits"));
    let mut rig = Rig::new(Config::default(), &[16]);
    for record in records {
        rig.step(Event::Restore(record.into()));
    }
    let exactly = |gib| MemoryAsk::Exactly(Bytes(gib * GIB));
    assert!(resize(&mut rig, Lane(0), exactly(13)).is_err());
    assert!(resize(&mut rig, Lane(0), exactly(11)).is_ok());
    assert!(resize(&mut rig, Lane(0), exactly(12)).is_err());
}

/// Where caps add up to more than the GPU has, what is free is what the GPU has.
#[test]
fn on_an_oversubscribed_gpu_no_more_is_free_than_there_is() {
    for (oversubscribe, cap, free) in [(true, 12, 6), (false, 6, 6)] {
        let config = Config { oversubscribe, ..Config::default() };
        let mut rig = Rig::new(config, &[16]);
        for name in ["a", "b"] {
            rig.admit(ask(name, "0", cap * GIB)).expect("fits");
        }
        let client = rig.attach("a", 0).expect("in");
        rig.reserve(client, 10 * GIB, 10 * GIB);
        let of = |name| rig.engine.memory_of(id(name))[0].free;
        assert_eq!(of("b"), Bytes(free * GIB), "{oversubscribe}");
    }
}

#[test]
fn pinned_memory_has_a_ledger_of_its_own() {
    let mut rig = Rig::new(Config::default(), &[16]);
    let pinned = Some(Bytes(50));
    let refused =
        rig.admit(crate::SliceRequest { pinned: Some(Bytes::ZERO), ..ask("a", "0", 100) });
    assert_eq!(refused.expect_err("a cap of nothing").0, Denial::Invalid);
    let record = rig.admit(crate::SliceRequest { pinned, ..ask("a", "0", 100) });
    assert_eq!(record.expect("fits").pinned, pinned);
    let client = rig.attach("a", 0).expect("in");
    let want = |bytes: u64| Event::Reserve {
        client,
        token: Token(3),
        lane: Lane::HOST,
        need: Bytes(bytes),
        wish: Bytes(bytes),
    };
    assert_eq!(answers(&rig.step(want(50))), [(client, Some(50))]);
    assert_eq!(answers(&rig.step(want(1))), [(client, None)]);
    assert_eq!(answers(&rig.reserve(client, 100, 100)), [(client, Some(100))]);
    let ratio = MemoryAsk::Ratio { part: 1, whole: 2 };
    assert_eq!(resize(&mut rig, Lane::HOST, ratio).expect_err("of what"), Denial::Invalid);
    let none = MemoryAsk::Exactly(Bytes(u64::MAX));
    let (_, record) = resize(&mut rig, Lane::HOST, none).expect("no cap");
    assert_eq!(record.pinned, None);
    assert_eq!(answers(&rig.step(want(1 << 60))), [(client, Some(1 << 60))]);
    let cut = rig.step(release(client, Lane::HOST, u64::MAX));
    assert!(matches!(cut[0], Action::Disconnect { .. }));
}

/// What the daemon asks before a request that it may have to refuse.
#[test]
fn a_request_is_short_where_its_account_has_less_left() {
    let (rig, who) = slice_of(&[60]);
    let is_short = |need| rig.engine.is_short(who[0], Lane(0), Bytes(need));
    assert_eq!([39, 40, 41].map(is_short), [false, false, true]);
    assert!(!rig.engine.is_short(who[0], Lane(1), Bytes(41)), "no such GPU");
    let stranger = ClientId { slot: 9, generation: 0 };
    assert!(!rig.engine.is_short(stranger, Lane(0), Bytes(41)));
}

/// As many as the threads of a container's processes may have; the next one is refused at once.
#[test]
fn requests_that_wait_are_bounded() {
    let (mut rig, who) = slice_of(&[60, 30]);
    for _ in 0..4 * CLIENTS_PER_CONTAINER_MAX {
        assert_eq!(answers(&rig.reserve(who[0], 20, 20)), [], "the other one is asked");
    }
    assert_eq!(answers(&rig.reserve(who[0], 20, 20)), [(who[0], None)]);
}

/// The ledger stays exact, whatever a process claims to hold.
#[test]
fn liars_of_any_size_are_counted_and_forgotten() {
    let mut first = Rig::new(Config::default(), &[16]);
    let record = first.admit(ask("a", "0", 100)).expect("fits");
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.step(Event::Restore(record.into()));
    let mut held = [Bytes::ZERO; ACCOUNTS_MAX];
    (held[0], held[ACCOUNTS_MAX - 1]) = (Bytes(u64::MAX), Bytes(u64::MAX));
    assert_eq!(apart::attach(&mut rig, None, held), Err(Rejection::Overdrawn));
    held[0] = Bytes(33);
    let liars = [0, u64::MAX, 0].map(|host| {
        held[ACCOUNTS_MAX - 1] = Bytes(host);
        apart::attach(&mut rig, None, held).expect("what was granted is not known")
    });
    for client in liars {
        rig.step(measured(client, u64::MAX));
        rig.now += 1_000 * MS;
        rig.step(measured(client, u64::MAX));
        rig.step(Event::Gone { client });
    }
    assert_eq!(reserved(&rig), 0);
}
