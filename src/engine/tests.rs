//! The engine as its caller sees it: events in, actions out.

use std::string::{String, ToString};
use std::vec::Vec;

use gpuslice_wire::admin::{Denial, MemoryAsk};
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane, NvmlIndex};
use gpuslice_wire::limits::{
    ACCOUNTS_MAX, CLIENTS_PER_CONTAINER_MAX, CONTAINERS_MAX, RECALL_WAIT_NS,
};
use gpuslice_wire::policy::{Class, Gangs, Policy};
use gpuslice_wire::select::GpuSelector;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::tenant::Rejection;
use gpuslice_wire::text::{CgroupPath, Name};
use gpuslice_wire::units::{Bytes, GIB, Instant, MIB, Percent};

use crate::{
    Action, Claims, Config, Credit, Cut, Engine, Event, Mode, Record, SliceRequest, Token,
};

pub(crate) const MS: u64 = 1_000_000;

/// SplitMix64: numbers for random walks.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

pub(crate) fn uuid(n: u8) -> GpuUuid {
    GpuUuid([n; 16])
}

pub(crate) fn id(name: &str) -> ContainerId {
    ContainerId::new(name).expect("an id")
}

#[derive(Clone)]
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) now: u64,
}

impl Rig {
    /// GPUs of these sizes, in GiB.
    pub(crate) fn new(config: Config, gpus: &[u64]) -> Rig {
        let mut rig = Rig { engine: Engine::new(config), now: 0 };
        for (n, gib) in gpus.iter().enumerate() {
            let (uuid, index) = (uuid(n as u8), NvmlIndex(n as u32));
            rig.step(Event::GpuFound { uuid, index, total: Bytes(gib * GIB) });
        }
        rig
    }
    pub(crate) fn step(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.engine.step(Instant(self.now), event, &mut actions);
        self.engine.check();
        actions
    }
    pub(crate) fn admit(&mut self, ask: SliceRequest) -> Result<Record, (Denial, String)> {
        let answer = self.step(Event::Admit { token: Token(1), ask: ask.into() });
        match answer.into_iter().next() {
            Some(Action::Admitted { record, .. }) => Ok(*record),
            Some(Action::Denied { why, .. }) => Err((why.denial(), why.to_string())),
            other => panic!("no answer but {other:?}"),
        }
    }
    pub(crate) fn attach(&mut self, container: &str, held: u64) -> Result<ClientId, Rejection> {
        let held = holds(held);
        let attach =
            Event::Attach { token: Token(2), container: id(container), process: None, held };
        let mut answers = self.step(attach).into_iter().filter_map(|it| match it {
            Action::Attached { client, .. } => Some(Ok(client)),
            Action::Rejected { why, .. } => Some(Err(why)),
            _ => None,
        });
        answers.next().expect("an answer")
    }
    pub(crate) fn reserve(&mut self, client: ClientId, need: u64, wish: u64) -> Vec<Action> {
        let (need, wish) = (Bytes(need), Bytes(wish));
        self.step(Event::Reserve { client, token: Token(3), lane: Lane(0), need, wish })
    }
    /// Answers a recall.
    pub(crate) fn give_back(&mut self, client: ClientId, recall: u32, bytes: u64) -> Vec<Action> {
        self.step(Event::Yield { client, lane: Lane(0), recall, bytes: Bytes(bytes) })
    }
    pub(crate) fn slice(&self, container: &str) -> Snapshot {
        let rows = self.engine.snapshot(Instant(self.now));
        let is = |row: &Snapshot| matches!(row, Snapshot::Slice { container: c, .. } if *c == id(container));
        rows.into_iter().find(is).expect("a slice")
    }
}

/// So many bytes of GPU lane 0, and nothing else.
pub(crate) fn holds(bytes: u64) -> crate::Granted {
    let mut all = [Bytes::ZERO; ACCOUNTS_MAX];
    all[0] = Bytes(bytes);
    all
}

/// The client whose attach was answered.
pub(crate) fn attached(actions: &[Action]) -> Option<ClientId> {
    actions.iter().find_map(|it| match it {
        Action::Attached { client, .. } => Some(*client),
        _ => None,
    })
}

pub(crate) fn ask(container: &str, gpus: &str, bytes: u64) -> SliceRequest {
    SliceRequest {
        container: id(container),
        name: Name::EMPTY,
        gpus: GpuSelector::parse(gpus).expect("a selector"),
        whole: None,
        memory: MemoryAsk::Exactly(Bytes(bytes)),
        memory_limit: None,
        weight: None,
        share: None,
        share_limit: None,
        class: Class::Normal,
        gang: Gangs::Auto,
        pinned: None,
        bounds: None,
        cgroup: CgroupPath::EMPTY,
    }
}

/// A node of 16 and 8 GiB, with a slice of 10 GiB on the first and one of 70 % on the second.
fn partly_taken() -> Rig {
    let mut rig = Rig::new(Config::default(), &[16, 8]);
    rig.admit(ask("a", "0", 10 * GIB)).expect("fits");
    rig.admit(share("b", 70)).expect("fits");
    rig
}

fn share(container: &str, percent: u32) -> SliceRequest {
    SliceRequest { share: Percent::new(percent).ok(), ..ask(container, "1", GIB) }
}

fn denied(rig: &mut Rig, ask: SliceRequest, kind: Denial, text: &str) {
    assert_eq!(rig.admit(ask), Err((kind, text.to_string())), "{ask:?}");
}

#[test]
fn denials_of_memory_say_how_much_there_is() {
    let mut rig = partly_taken();
    let mut no = |ask: SliceRequest, text: &str| denied(&mut rig, ask, Denial::Memory, text);
    let above = "cap 20GiB is above GPU 0's 16GiB; ask for at most 16GiB";
    no(ask("x", "0", 20 * GIB), above);
    no(ask("x", "any", 20 * GIB), above);
    no(
        ask("x", "0", 7 * GIB),
        "cap 7GiB is above what GPU 0 has left of its 16GiB; ask for at most 6GiB, end another \
         slice, or set oversubscribe = true",
    );
    no(
        ask("x", "any", 8 * GIB),
        "cap 8GiB is above what any GPU has left; ask for at most 7GiB, end another slice, or set \
         oversubscribe = true",
    );
    let memory = MemoryAsk::Ratio { part: 1, whole: 9_000 };
    no(
        SliceRequest { memory, ..ask("x", "1", 1) },
        "1/9000 of GPU 1's 8GiB is less than 1MiB; ask for a larger part",
    );
}

#[test]
fn other_denials_name_object_problem_and_remedy() {
    let mut rig = partly_taken();
    let memory = MemoryAsk::Ratio { part: 3, whole: 2 };
    let twice = "0,GPU-00000000-0000-0000-0000-000000000000";
    let cases = [
        (ask("x", "0", 0), Denial::Invalid, "the memory cap is 0; ask for at least one byte"),
        (
            ask("x", "5", GIB),
            Denial::NoSuchGpu,
            "there is no GPU 5; this node has 2, which gpuslice gpus lists",
        ),
        (ask("x", twice, GIB), Denial::Invalid, "GPU 0 is named twice; name it once"),
        (
            ask("a", "0", GIB),
            Denial::Exists,
            "container a has a slice already; end it with gpuslice rm a if the container is gone, or \
             choose another id",
        ),
        (
            share("x", 31),
            Denial::Capacity,
            "share 31 % is above the 30 % that GPU 1 has left; ask for at most 30 %, or ask \
             for a weight, which needs no room",
        ),
        (
            SliceRequest { memory, ..ask("x", "1", 1) },
            Denial::Invalid,
            "a memory ratio of 3/2 is not between 0 and 1; the part is at least 1 and at most \
             the whole",
        ),
    ];
    for (ask, kind, text) in cases {
        denied(&mut rig, ask, kind, text);
    }
    let nothing = Rig::new(Config::default(), &[]).admit(ask("x", "any", 1));
    let (kind, text) = nothing.expect_err("no GPU");
    assert!(kind == Denial::NoSuchGpu && text.contains("has no GPU"), "{text}");
}

#[test]
fn any_is_the_gpu_with_the_most_unpromised_memory() {
    let mut rig = Rig::new(Config::default(), &[16, 8, 16]);
    let gpus: Vec<GpuUuid> = ["a", "b", "c", "d"]
        .iter()
        .map(|name| rig.admit(ask(name, "any", 6 * GIB)).expect("fits").lanes[0].gpu)
        .collect();
    assert_eq!(gpus, [uuid(0), uuid(2), uuid(0), uuid(2)]);
    assert_eq!(rig.admit(ask("e", "any", 8 * GIB)).expect("fits").lanes[0].gpu, uuid(1));
}

#[test]
fn a_list_keeps_its_order_and_all_is_all_or_nothing() {
    let mut rig = Rig::new(Config::default(), &[16, 8]);
    let record = rig.admit(ask("a", "1,0", GIB)).expect("fits");
    assert_eq!(record.lanes.iter().map(|lane| lane.gpu).collect::<Vec<_>>(), [uuid(1), uuid(0)]);
    assert!(rig.admit(ask("b", "all", 8 * GIB)).is_err(), "8GiB are not left on GPU 1");
    assert_eq!(rig.admit(ask("b", "all", 7 * GIB)).expect("nothing was kept").lanes.len(), 2);
}

#[test]
fn ratios_round_down_to_a_mib() {
    let mut rig = Rig::new(Config::default(), &[16]);
    let memory = MemoryAsk::Ratio { part: 3, whole: 7 };
    let record = rig.admit(SliceRequest { memory, ..ask("a", "0", 1) }).expect("fits");
    assert_eq!(record.lanes[0].cap, Bytes(16 * 1024 * 3 / 7 * MIB));
}

#[test]
fn promises_may_exceed_the_gpu_only_where_configured() {
    let config = Config { oversubscribe: true, ..Config::default() };
    let mut rig = Rig::new(config, &[16]);
    for name in ["a", "b", "c"] {
        rig.admit(ask(name, "0", 10 * GIB)).expect("oversubscribed");
    }
    assert!(rig.admit(ask("d", "0", 17 * GIB)).is_err(), "more than there is");
}

#[test]
fn containers_and_processes_are_bounded() {
    let mut rig = Rig::new(Config::default(), &[16]);
    for n in 0..CONTAINERS_MAX {
        rig.admit(ask(&std::format!("c{n}"), "0", 1)).expect("fits");
    }
    let refusal = rig.admit(ask("x", "0", 1)).expect_err("one too many");
    assert_eq!(refusal.0, Denial::Capacity);
    for n in 0..4 * CLIENTS_PER_CONTAINER_MAX {
        rig.attach(&std::format!("c{}", n % 4), 0).expect("fits");
    }
    assert_eq!(rig.attach("c0", 0), Err(Rejection::TooManyClients));
    for n in 16..4 * CONTAINERS_MAX {
        rig.attach(&std::format!("c{}", n / 4), 0).expect("its minimum");
    }
    assert_eq!(rig.attach("nobody", 0), Err(Rejection::NotYours));
}

#[test]
fn names_default_to_the_ids_beginning() {
    let mut rig = Rig::new(Config::default(), &[16]);
    let record = rig.admit(ask("0123456789abcdef", "0", 1)).expect("fits");
    assert_eq!(record.name.as_str(), "0123456789ab");
}

#[test]
fn the_last_byte_goes_to_one() {
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.admit(ask("a", "0", 100)).expect("fits");
    let (one, two) = (rig.attach("a", 0).expect("in"), rig.attach("a", 0).expect("in"));
    let granted = rig.reserve(one, 60, 80);
    assert!(matches!(granted[0], Action::Reserved { bytes: Bytes(80), .. }), "{granted:?}");
    assert!(
        matches!(rig.reserve(two, 60, 80)[..], [Action::SetLane { .. }]),
        "the other is asked first"
    );
    let refused = rig.give_back(one, 1, 0);
    assert!(matches!(refused[0], Action::Refused { left: Bytes(20), .. }), "{refused:?}");
    rig.step(Event::Gone { client: one });
    let granted = rig.reserve(two, 60, 200);
    assert!(matches!(granted[0], Action::Reserved { bytes: Bytes(100), .. }), "{granted:?}");
    assert!(rig.reserve(one, 1, 1).is_empty(), "it is gone");
}

/// What is told of a refusal adds up: the size of the allocation, and under the cap what is used, what it could have
/// had, and the credit that another process keeps.
#[test]
fn the_figures_of_a_refusal_add_up() {
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.admit(ask("a", "0", 100)).expect("fits");
    let (one, two) = (rig.attach("a", 0).expect("in"), rig.attach("a", 0).expect("in"));
    rig.reserve(one, 30, 30);
    rig.reserve(two, 40, 40);
    for (client, held) in [(one, 20), (two, 33)] {
        let claims = Claims { held: Bytes(held), ..Claims::default() };
        rig.step(Event::Claims { client, lane: Lane(0), claims });
    }
    // its program asks for 50: its own credit of 10 counts, and the other one returns nothing
    rig.reserve(one, 40, 40);
    let refused = rig.give_back(two, 1, 0);
    let credit = Credit { own: Bytes(10), others: Bytes(7) };
    assert!(
        matches!(refused[0], Action::Refused { need: Bytes(40), left: Bytes(30), credit: it, .. } if it == credit),
        "{refused:?}"
    );
    let Snapshot::Slice { used, denied_need, denied_left, denied_credit, .. } = rig.slice("a")
    else {
        panic!("a slice")
    };
    assert_eq!((denied_need, denied_left, denied_credit), (Bytes(50), Bytes(40), Bytes(7)));
    assert_eq!(used.0 + denied_left.0 + denied_credit.0, 100, "the cap");
}

#[test]
fn a_process_that_gives_back_more_than_it_has_is_cut() {
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.admit(ask("a", "0", 100)).expect("fits");
    let client = rig.attach("a", 0).expect("in");
    rig.reserve(client, 60, 60);
    let release = |bytes, lane| Event::Release { client, lane: Lane(lane), bytes: Bytes(bytes) };
    let cut = Action::Disconnect { client, why: Cut::Broke(Rejection::Overdrawn) };
    assert_eq!(rig.step(release(61, 0))[0], cut);
    assert!(matches!(rig.slice("a"), Snapshot::Slice { reserved: Bytes(60), clients: 0, .. }));
    rig.step(Event::Gone { client });
    let client = rig.attach("a", 0).expect("in");
    let release = Event::Release { client, lane: Lane(1), bytes: Bytes(0) };
    let cut = Action::Disconnect { client, why: Cut::Broke(Rejection::NoSuchLane) };
    assert_eq!(rig.step(release)[0], cut);
}

#[test]
fn growth_waits_for_returning_processes() {
    let mut first = Rig::new(Config::default(), &[16]);
    let record = first.admit(ask("a", "0", 100)).expect("fits");
    let mut rig = Rig::new(Config::default(), &[16]);
    let restored = rig.step(Event::Restore(record.clone().into()));
    assert!(matches!(restored[0], Action::Restored { lanes: 1, .. }), "{restored:?}");
    let early = rig.attach("a", 0).expect("in");
    assert!(rig.reserve(early, 50, 50).is_empty(), "not yet");
    rig.attach("a", 70).expect("back");
    assert_eq!(rig.engine.next_deadline(), Some(Instant(750 * MS)));
    rig.now = 750 * MS;
    rig.step(Event::Tick);
    let asked = 750 * MS + RECALL_WAIT_NS;
    assert_eq!(rig.engine.next_deadline(), Some(Instant(asked)));
    rig.now = asked;
    let answers = rig.step(Event::Tick);
    assert!(matches!(answers[0], Action::Refused { left: Bytes(30), .. }), "{answers:?}");
    let again = rig.step(Event::Restore(record.into()));
    assert!(matches!(again[0], Action::NotRestored { .. }), "{again:?}");
}

#[test]
fn a_dismissed_container_may_not_launch_and_is_gone() {
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.admit(ask("a", "0", 100)).expect("fits");
    let client = rig.attach("a", 0).expect("in");
    let dismiss = || Event::Dismiss { token: Token(9), container: id("a") };
    let actions = rig.step(dismiss());
    let Action::SetLane { view, .. } = actions[0] else { panic!("{actions:?}") };
    assert!(view.mode == Mode::Turns && view.turn % 2 == 0);
    assert_eq!(actions[1], Action::Disconnect { client, why: Cut::Dismissed });
    assert!(matches!(actions[2], Action::Dismissed { known: true, .. }));
    assert!(matches!(rig.step(dismiss())[0], Action::Dismissed { known: false, .. }));
    assert_eq!(rig.attach("a", 0), Err(Rejection::NotYours));
    rig.admit(ask("a", "0", 16 * GIB)).expect("all is free again");
}

#[test]
fn a_snapshot_counts_claims_within_the_grants() {
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.admit(ask("a", "0", 100)).expect("fits");
    let client = rig.attach("a", 0).expect("in");
    rig.reserve(client, 60, 60);
    rig.reserve(client, 60, 60);
    let claims = Claims { runnable: true, held: Bytes(900), launches: 5, ..Claims::default() };
    rig.step(Event::Claims { client, lane: Lane(0), claims });
    rig.now = 40 * MS;
    let Snapshot::Slice { used, peak, denied, denied_need, launches, gpu_ns, gated, .. } =
        rig.slice("a")
    else {
        panic!("a slice")
    };
    // what it was refused had the 60 that it did not hold then
    assert_eq!((used, peak, denied, denied_need), (Bytes(60), Bytes(60), 1, Bytes(120)));
    assert_eq!((launches, gpu_ns, gated), (5, 40 * MS, 0));
    rig.step(Event::Gone { client });
    let row = rig.slice("a");
    assert!(
        matches!(
            row,
            Snapshot::Slice { used: Bytes(0), peak: Bytes(60), denied: 1, launches: 5, .. }
        ),
        "{row:?}"
    );
}

/// A gap between steps longer than the heartbeat limit: tenants ran freely, and no container is charged for
/// all of it.
#[test]
fn a_clock_jump_is_charged_to_no_container() {
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.admit(ask("a", "0", 100)).expect("fits");
    let client = rig.attach("a", 0).expect("in");
    let claims = Claims { runnable: true, ..Claims::default() };
    rig.step(Event::Claims { client, lane: Lane(0), claims });
    rig.now = 3_600_000 * MS;
    rig.step(Event::Tick);
    assert!(matches!(rig.slice("a"), Snapshot::Slice { gpu_ns, .. } if gpu_ns == 250 * MS));
    rig.now = 0;
    rig.step(Event::Tick);
    assert!(matches!(rig.slice("a"), Snapshot::Slice { gpu_ns, .. } if gpu_ns == 250 * MS));
}

/// A GPU's time does not shrink when a slice ends.
#[test]
fn a_gpus_busy_time_includes_slices_that_ended() {
    let mut rig = Rig::new(Config::default(), &[16]);
    let busy = |rig: &Rig| {
        let rows = rig.engine.usage(Instant(rig.now));
        let busy = rows.iter().find_map(|row| match row {
            Snapshot::GpuUse { busy_ns, .. } => Some(busy_ns / MS),
            _ => None,
        });
        busy.expect("a row")
    };
    let mut run = |name: &str| {
        rig.admit(ask(name, "0", 100)).expect("fits");
        let client = rig.attach(name, 0).expect("in");
        let claims = Claims { runnable: true, ..Claims::default() };
        rig.step(Event::Claims { client, lane: Lane(0), claims });
        rig.now += 100 * MS;
        let running = busy(&rig);
        rig.step(Event::Dismiss { token: Token(4), container: id(name) });
        (running, busy(&rig))
    };
    assert_eq!(run("a"), (100, 100));
    assert_eq!(run("b"), (200, 200));
}

/// A GPU that one container has as a whole goes to no other, whatever else may be promised twice.
#[test]
fn whole_gpus_beside_a_slice() {
    let config = Config { oversubscribe: true, ..Config::default() };
    let mut rig = Rig::new(config, &[16, 8, 16]);
    let beside = |container, gpus, whole| SliceRequest {
        whole: GpuSelector::parse(whole).ok(),
        ..ask(container, gpus, GIB)
    };
    let record = rig.admit(beside("a", "2", "0,1,2")).expect("free");
    let lanes: Vec<_> = record.lanes.iter().map(|lane| (lane.gpu, lane.cap, lane.whole)).collect();
    let all = |n: u8, gib: u64| (uuid(n), Bytes(gib * GIB), true);
    assert_eq!(lanes, [(uuid(2), Bytes(GIB), false), all(0, 16), all(1, 8)]);
    let taken = "GPU 0 is another container's as a whole; name another GPU, or end that container";
    denied(&mut rig, ask("b", "0", GIB), Denial::Capacity, taken);
    denied(&mut rig, beside("b", "2", "0"), Denial::Capacity, taken);
    for policy in Policy::ALL {
        let gpus = GpuSelector::All;
        rig.step(Event::SetPolicy { token: Token(1), gpus: gpus.into(), policy });
        let rows = rig.engine.snapshot(Instant(rig.now));
        let time = |row: &Snapshot| match row {
            Snapshot::Slice { lane, cap_ppm, .. } if *lane != Lane(0) => Some(*cap_ppm),
            _ => None,
        };
        let whole: Vec<u32> = rows.iter().filter_map(time).collect();
        assert_eq!(whole, [1_000_000; 2], "{policy}");
    }
    let sliced = "GPU 2 is asked for as a whole, but others have slices of it (gpuslice ps shows \
                  them); name another GPU, or end those containers";
    let mut more = Rig::new(config, &[16, 8, 16]);
    more.admit(ask("a", "2", GIB)).expect("free");
    denied(&mut more, beside("b", "1", "2"), Denial::Capacity, sliced);
    assert_eq!(rig.admit(ask("c", "any", GIB)).expect("room").lanes[0].gpu, uuid(2));
    let (token, container) = (Token(1), id("a"));
    rig.step(Event::Dismiss { token, container });
    assert!(rig.admit(ask("d", "0", GIB)).is_ok());
}

/// What is recorded adds up to the GPU time of each container, to the nanosecond: alone, in turns, in drains and
/// overruns, and until the slice ends.
#[test]
fn recorded_charges_add_up_to_the_gpu_time() {
    let mut rig = Rig::new(Config::default(), &[16]);
    let mut clients = Vec::new();
    for name in ["a", "b"] {
        rig.admit(ask(name, "0", GIB)).expect("fits");
        clients.push(rig.attach(name, 0).expect("in"));
    }
    let charged = |rig: &Rig, name: &str| match rig.slice(name) {
        Snapshot::Slice { gpu_ns, .. } => gpu_ns,
        _ => 0,
    };
    let busy = |client| {
        let claims = Claims { runnable: true, drained: 0, ..Claims::default() };
        Event::Claims { client, lane: Lane(0), claims }
    };
    rig.step(busy(clients[0]));
    rig.now += 33 * MS;
    let before = ["a", "b"].map(|name| charged(&rig, name));
    let mut sums = [0; 2];
    let mut kinds = std::collections::BTreeSet::new();
    let mut take = |actions: Vec<Action>| {
        for action in actions {
            if let Action::Recorded { container, stretch, .. } = action {
                assert!(stretch.from < stretch.to, "{stretch:?}");
                sums[usize::from(container == id("b"))] += stretch.charged.0;
                kinds.insert(stretch.kind.name());
            }
        }
    };
    take(rig.step(Event::Record { until: Instant(rig.now + 60_000 * MS) }));
    rig.now += 7 * MS + 1;
    take(rig.step(busy(clients[1])));
    // neither of them ever drains, so each overruns in turn
    while rig.now < 9_000 * MS {
        let due = rig.engine.next_deadline().map_or(rig.now + MS, |due| due.0);
        rig.now = due.clamp(rig.now + 1, rig.now + 50 * MS + 3);
        take(rig.step(Event::Tick));
    }
    let b = charged(&rig, "b") - before[1];
    take(rig.step(Event::Dismiss { token: Token(4), container: id("b") }));
    rig.now += 11 * MS;
    take(rig.step(Event::Record { until: Instant(0) }));
    let a = charged(&rig, "a") - before[0];
    assert_eq!(sums, [a, b]);
    assert!(kinds.is_superset(&["turn", "drain", "overrun", "open"].into()), "{kinds:?}");
    rig.now += 100 * MS;
    let quiet = rig.step(Event::Tick);
    assert!(!quiet.iter().any(|it| matches!(it, Action::Recorded { .. })), "it has ended");
}
