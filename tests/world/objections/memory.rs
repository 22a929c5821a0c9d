//! Stories about memory.

use super::*;
use gpuslice_engine::{CapChange, Credit, Cut, Process};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::limits::RECALL_WAIT_NS;

fn reserve(need: u64, wish: u64) -> Event {
    asks(client(0), 7, need, wish)
}

fn asks(client: ClientId, token: u64, need: u64, wish: u64) -> Event {
    Event::Reserve {
        client,
        token: Token(token),
        lane: Lane(0),
        need: Bytes(need),
        wish: Bytes(wish),
    }
}

fn reserved(bytes: u64) -> Action {
    gets(client(0), 7, bytes)
}

fn gets(client: ClientId, token: u64, bytes: u64) -> Action {
    Action::Reserved { client, token: Token(token), lane: Lane(0), bytes: Bytes(bytes) }
}

fn refused(need: u64, left: u64) -> Action {
    let (need, left) = (Bytes(need), Bytes(left));
    Action::Refused {
        client: client(0),
        token: Token(7),
        lane: Lane(0),
        need,
        left,
        credit: Credit::default(),
        overdue: false,
    }
}

#[test]
fn to_a_wrong_ledger() {
    let shown = |n| page(0, Mode::Turns, 0, 0, n);
    let tell = |event: Event, actions: &[Action]| {
        Story::of(&[(1, 0, Class::Normal)]).tell(0, event, actions)
    };
    assert_eq!(tell(reserve(10, 20), &[reserved(20), shown(20)]), Ok(()));
    objects(tell(reserve(10, 20), &[reserved(20)]), "page shows");
    objects(tell(reserve(10, 20), &[reserved(9), shown(9)]), "granted for");
    objects(tell(reserve(10, 20), &[reserved(21), shown(21)]), "granted for");
    objects(tell(reserve(10, 120), &[reserved(101), shown(101)]), "beyond the cap");
    assert_eq!(tell(reserve(101, 120), &[refused(101, 100)]), Ok(()));
    objects(tell(reserve(100, 120), &[refused(100, 100)]), "without a recall");
    objects(tell(reserve(101, 120), &[refused(101, 90)]), "refused with");
    objects(tell(Event::Tick, &[reserved(1), shown(1)]), "not asked");
    let release = Event::Release { client: client(0), lane: Lane(0), bytes: Bytes(1) };
    objects(tell(release, &[]), "released more");
}

#[test]
fn to_leftovers() {
    let mut story = Story::of(&[(1, 0, Class::Normal)]);
    let ledger = [reserved(20), page(0, Mode::Turns, 0, 0, 20)];
    story.tell(0, reserve(10, 20), &ledger).expect("fine");
    let stale = story.tell(0, Event::Gone { client: client(0) }, &[]);
    objects(stale, "page shows 20 reserved of Lane(0), not 0");
}

/// The only process of a container, which was granted 60 bytes, has ended. A second later come these looks, each 200 ms
/// after the one before, and then the page after so many more.
fn ended(looks: &[u64], after: u64, ledger: u64) -> Result<(), Objection> {
    let config = Config { sees_devices: true, ..Config::default() };
    let mut story = Story::under(config, &[(1, 0, Class::Normal)]);
    story.tell(0, reserve(60, 60), &[reserved(60), shown(60, 0)]).expect("fine");
    story.tell(0, Event::Gone { client: client(0) }, &[]).expect("it may not be free");
    for (n, beside) in looks.iter().copied().map(Bytes).enumerate() {
        let asked = Instant((1_000 + 200 * n as u64) * MS);
        let shown = [shown(beside.0.min(60), 0)];
        let look = Event::DeviceLooked { gpu: gpu(0), asked, least: beside, most: beside };
        story.tell(asked.0 - story.now, look, &shown).expect("a figure bounds it");
    }
    story.then(after * MS, &[shown(ledger, 0)])
}

#[test]
fn to_charges_for_ended_processes_that_nothing_shows() {
    for ok in [ended(&[], 4_999, 60), ended(&[70, 20], 0, 60), ended(&[20, 20], 0, 20)] {
        assert_eq!(ok, Ok(()));
    }
    objects(ended(&[], 0, 61), "61 reserved of Lane(0), not 0");
    objects(ended(&[], 5_000, 1), "1 reserved of Lane(0), not 0");
    objects(ended(&[30, 20], 0, 31), "31 reserved of Lane(0), not 0");
}

/// A container of 100 bytes: its first process holds 60 of them, its second asks for 50, which starts the
/// first recall if `asked`.
fn short(asked: bool) -> Story {
    let mut story = Story::of(&[(1, 0, Class::Normal)]);
    let ledger = [reserved(60), shown(60, 0)];
    story.tell(0, reserve(60, 60), &ledger).expect("fine");
    let (attach, attached) = attach(0, client(9), 1);
    story.tell(0, attach, &[attached]).expect("fine");
    let recall = [shown(60, u32::from(asked))];
    story.tell(0, asks(client(9), 8, 50, 50), &recall).expect("fine");
    story
}

fn shown(reserved: u64, recall: u32) -> Action {
    let Action::SetLane { view, .. } = page(0, Mode::Turns, 0, 0, reserved) else {
        unreachable!("a page is a lane");
    };
    Action::SetLane { container: container(0), lane: Lane(0), view: LaneView { recall, ..view } }
}

fn no() -> Action {
    Action::Refused {
        client: client(9),
        token: Token(8),
        lane: Lane(0),
        need: Bytes(50),
        left: Bytes(40),
        credit: Credit::default(),
        overdue: false,
    }
}

fn gives(recall: u32, bytes: u64) -> Event {
    Event::Yield { client: client(0), lane: Lane(0), recall, bytes: Bytes(bytes) }
}

#[test]
fn to_a_refusal_while_siblings_may_have_it() {
    objects(short(false).then(0, &[no()]), "without a recall");
    objects(short(true).then(RECALL_WAIT_NS - 1, &[no()]), "before");
    objects(short(true).tell(0, gives(2, 0), &[no()]), "before");
    assert_eq!(short(true).then(RECALL_WAIT_NS, &[no()]), Ok(()));
    assert_eq!(short(true).tell(0, gives(1, 0), &[no()]), Ok(()));
    let gone = Event::Gone { client: client(0) };
    objects(short(true).tell(0, gone, &[no(), shown(0, 1)]), "refused with");
}

#[test]
fn to_a_wait_for_available_memory_or_for_ever() {
    objects(short(true).tell(0, gives(1, 60), &[shown(0, 1)]), "is available");
    objects(short(true).tell(0, gives(1, 5), &[shown(55, 1)]), "all have answered");
    let mut waits = short(true);
    let mut result = Ok(());
    for _ in 0..20 {
        result = result.and_then(|()| waits.then(100 * MS, &[]));
    }
    objects(result, "waits since");
    // a step later than the end of a recall is not the engine's doing; a further wait after that is
    let mut late = short(true);
    let second = asks(client(9), 9, 50, 50);
    assert_eq!(late.tell(0, second, &[]), Ok(()));
    for (after, actions) in
        [(200, &[][..]), (99, &[]), (240, &[no(), shown(60, 2)]), (200, &[]), (99, &[]), (100, &[])]
    {
        assert_eq!(late.then(after * MS, actions), Ok(()));
    }
    objects(late.then(100 * MS, &[]), "waits since");
}

#[test]
fn to_overtaking_a_waiting_request() {
    let third = || asks(client(0), 9, 20, 20);
    let overtakes = [gets(client(0), 9, 20), shown(80, 1)];
    objects(short(true).tell(0, third(), &overtakes), "overtook a waiting request");
    let both = [no(), gets(client(0), 9, 20), shown(80, 1)];
    assert_eq!(short(true).tell(0, third(), &both), Ok(()));
}

#[test]
fn to_forgetting_the_drivers_figures() {
    let seen = |used| Event::Measured {
        client: client(0),
        lane: Lane(0),
        used: Bytes(used),
        requested: false,
    };
    let look = |second: u64, after: u64, ledger: u64| {
        let mut story = short(false);
        story.tell(0, seen(90), &[]).expect("one look is none");
        story.tell(after, seen(second), &[shown(ledger, 0)])
    };
    assert_eq!(look(80, 300 * MS, 80), Ok(()));
    objects(look(80, 300 * MS, 60), "not 80");
    objects(look(80, 300 * MS, 90), "not 80");
    objects(look(80, 299 * MS, 80), "not 60");
    let unattributed =
        |used| Event::Unattributed { container: container(0), lane: Lane(0), used: Bytes(used) };
    let mut story = short(false);
    story.tell(0, unattributed(30), &[]).expect("one look is none");
    let counted = story.tell(MS * 300, unattributed(30), &[shown(90, 0)]);
    assert_eq!(counted, Ok(()));
    objects(story.tell(0, unattributed(0), &[]), "not 60");
}

#[test]
fn to_a_cap_other_than_requested() {
    let resize = |bytes| Event::Resize {
        token: Token(0),
        container: container(0),
        lane: Lane(0),
        memory: MemoryAsk::Exactly(Bytes(bytes)),
    };
    let resized = |cap, was, reserved| {
        let Action::Admitted { mut record, .. } = admitted(0, 1, 0, Class::Normal) else {
            unreachable!("an admission");
        };
        record.lanes[0].cap = Bytes(cap);
        let change = CapChange {
            lane: Lane(0),
            was: Bytes(was),
            cap: Bytes(cap),
            limit: Bytes(was),
            reserved: Bytes(reserved),
        };
        Action::Resized { token: Token(0), record, change }
    };
    let tell = |asked, action| short(false).tell(0, resize(asked), &[action]);
    assert_eq!(tell(50, resized(50, 100, 60)), Ok(()));
    objects(tell(50, resized(51, 100, 60)), "resized wrongly");
    objects(tell(50, resized(50, 99, 60)), "resized wrongly");
    objects(tell(50, resized(50, 100, 50)), "60 reserved");
    objects(tell(200, resized(200, 100, 60)), "are promised of");
    objects(short(false).then(0, &[resized(50, 100, 60)]), "without a request");
}

/// Process `pid` attaches as `client` with this memory; these other actions happen first.
fn comes(
    story: &mut Story,
    (pid, bytes, as_client): (u32, u64, ClientId),
    first: &[Action],
    ledger: u64,
) -> Result<(), Objection> {
    let (mut attach, attached) = attach(0, as_client, 1);
    if let Event::Attach { process, held, .. } = &mut attach {
        *process = Some(Process { pid, born: 1 });
        held[0] = Bytes(bytes);
    }
    let actions = [first, &[attached, shown(ledger, 0)]].concat();
    story.tell(0, attach, &actions)
}

fn over(client: ClientId) -> Action {
    let why = Cut::Over;
    Action::Disconnect { client, why }
}

/// Process 7, client 9, was granted 60 of 100 bytes and lost its connection.
fn apart() -> Story {
    let mut story = Story::of(&[(1, 0, Class::Normal)]);
    comes(&mut story, (7, 0, client(9)), &[], 0).expect("fine");
    let ledger = [gets(client(9), 8, 60), shown(60, 0)];
    story.tell(0, asks(client(9), 8, 60, 60), &ledger).expect("fine");
    let left = Event::Left { client: client(9) };
    story.tell(0, left, &[]).expect("fine");
    story
}

#[test]
fn to_forgetting_a_process_that_lives() {
    let left = Event::Left { client: client(9) };
    let gone = Event::Gone { client: client(9) };
    objects(apart().tell(0, left.clone(), &[over(client(9)), shown(0, 0)]), "may live");
    objects(apart().tell(0, left, &[shown(0, 0)]), "not 60");
    objects(apart().then(3_600_000 * MS, &[shown(0, 0)]), "not 60");
    assert_eq!(apart().tell(0, gone, &[shown(0, 0)]), Ok(()));
}

#[test]
fn to_an_account_that_another_process_takes_over() {
    let takes = |pid, bytes, ledger| {
        comes(&mut apart(), (pid, bytes, client(10)), &[over(client(9))], ledger)
    };
    assert_eq!(takes(7, 60, 60), Ok(()));
    assert_eq!(takes(7, 20, 20), Ok(()));
    objects(takes(8, 60, 60), "takes over the memory");
}

#[test]
fn to_believing_memory_that_was_never_granted() {
    let says = |bytes, ledger| comes(&mut apart(), (8, bytes, client(10)), &[], ledger);
    assert_eq!(says(0, 60), Ok(()));
    objects(says(1, 61), "is believed to hold");
    let more =
        |bytes, ledger| comes(&mut apart(), (7, bytes, client(10)), &[over(client(9))], ledger);
    assert_eq!(more(60, 60), Ok(()));
    objects(more(61, 61), "is believed to hold");
}
