//! Tests of the checkers: each must object to a story that breaks its promise, and must not object to the
//! correct version of it.

mod gangs;
mod loans;
mod memory;
mod queues;
mod stops;
mod wall_time;

use gpuslice_engine::{
    Action, Claims, Config, Event, LaneRecord, LaneView, Late, Mode, Record, Token,
};
use gpuslice_wire::ids::{ClientId, Lane, NvmlIndex};
use gpuslice_wire::limits::ACCOUNTS_MAX;
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::text::{CgroupPath, Name};
use gpuslice_wire::units::{Bytes, Duration, Instant, Percent, Weight};

use crate::checkers::{Checkers, Objection};
use crate::world::{container, gpu};

const MS: u64 = 1_000_000;

/// A story told to the checkers, step by step. Container `n` has one process, client `n`.
struct Story {
    checkers: Checkers,
    now: u64,
}

impl Story {
    /// Containers of (weight, share, class) on one GPU, under turns, none runnable.
    fn of(who: &[(u32, u32, Class)]) -> Story {
        Story::under(Config::default(), who)
    }

    fn under(config: Config, who: &[(u32, u32, Class)]) -> Story {
        let admitted = |(n, it): (usize, &(u32, u32, Class))| admitted(n, it.0, it.1, it.2);
        Story::admits(config, who.iter().enumerate().map(admitted))
    }

    /// Containers that are admitted so.
    fn admits(config: Config, who: impl Iterator<Item = Action>) -> Story {
        let mut story = Story { checkers: Checkers::new(config, 0), now: 0 };
        for (n, admitted) in who.enumerate() {
            story.tell(0, Event::Tick, &[admitted, turn(n, 0, 0)]).expect("a good beginning");
            let (attach, attached) = attach(n, client(n), 1);
            story.tell(0, attach, &[attached]).expect("a good beginning");
        }
        story
    }

    fn tell(&mut self, after: u64, event: Event, actions: &[Action]) -> Result<(), Objection> {
        self.now += after;
        self.checkers.look(self.now, &event, actions)
    }

    /// Only `actions`, `after` ns later.
    fn then(&mut self, after: u64, actions: &[Action]) -> Result<(), Objection> {
        self.tell(after, Event::Tick, actions)
    }

    /// Container `n` claims this; the engine answers with `actions`.
    fn says(&mut self, n: usize, claims: Claims, actions: &[Action]) -> Result<(), Objection> {
        self.tell(0, Event::Claims { client: client(n), lane: Lane(0), claims }, actions)
    }
}

/// Container `n` gets 100 bytes of the GPU.
fn admitted(n: usize, weight: u32, share: u32, class: Class) -> Action {
    let record = Record {
        container: container(n as u64),
        name: Name::EMPTY,
        weight: Weight::new(weight).ok().filter(|_| share == 0),
        share: Percent::new(share).ok(),
        share_limit: Percent::new(share).ok(),
        class,
        gang: Gangs::Auto,
        lanes: vec![LaneRecord {
            gpu: gpu(0),
            cap: Bytes(100),
            limit: Bytes(100),
            elastic: false,
            whole: false,
        }],
        pinned: None,
        cgroup: CgroupPath::EMPTY,
    };
    Action::Admitted { token: Token(0), record: record.into() }
}

fn client(n: usize) -> ClientId {
    ClientId { slot: n as u16, generation: 0 }
}

/// A process of container `n` attaches, which has so many GPUs, and is answered.
fn attach(n: usize, client: ClientId, lanes: u8) -> (Event, Action) {
    let (token, container) = (Token(0), container(n as u64));
    let (process, held) = (None, [Bytes::ZERO; ACCOUNTS_MAX]);
    let attach = Event::Attach { token, container, process, held };
    let attached = Action::Attached { token, client, container, lanes };
    (attach, attached)
}

/// Container `n`'s page: its turn word and the turn's end.
fn turn(n: usize, turn: u32, end: u64) -> Action {
    page(n, Mode::Turns, turn, end, 0)
}

fn page(n: usize, mode: Mode, turn: u32, end: u64, reserved: u64) -> Action {
    let view = LaneView {
        mode,
        gates: false,
        gate_open: true,
        turn,
        turn_end: Instant(end),
        window_us: 0,
        idle_us: 0,
        cap: Bytes(100),
        reserved: Bytes(reserved),
        untracked: Bytes::ZERO,
        recall: 0,
        context: Bytes::ZERO,
    };
    Action::SetLane { container: container(n as u64), lane: Lane(0), view }
}

fn runnable(active: u32, drained: u32) -> Claims {
    Claims { runnable: true, active, drained, ..Claims::default() }
}

fn objects(result: Result<(), Objection>, about: &str) {
    match result {
        Err(objection) => assert!(objection.contains(about), "{objection}"),
        Ok(()) => panic!("no checker objects: {about}"),
    }
}

#[test]
fn to_two_grants() {
    let mut story = Story::of(&[(1, 0, Class::Normal), (1, 0, Class::Normal)]);
    assert_eq!(story.says(0, runnable(0, 0), &[turn(0, 1, 8 * MS)]), Ok(()));
    objects(story.says(1, runnable(0, 0), &[turn(1, 1, 8 * MS)]), "at once");
}

/// Two containers are runnable; the first one's turn has ended, and it has not drained.
fn undrained() -> Story {
    let mut story = Story::of(&[(1, 0, Class::Normal), (1, 0, Class::Normal)]);
    story.says(0, runnable(0, 0), &[turn(0, 1, 8 * MS)]).expect("fine");
    story.says(1, runnable(0, 0), &[]).expect("fine");
    story.then(8 * MS, &[turn(0, 2, 8 * MS)]).expect("fine");
    story
}

#[test]
fn to_a_grant_before_the_last_holder_has_drained() {
    objects(undrained().then(MS, &[turn(1, 1, 17 * MS)]), "at once");
    objects(undrained().says(0, runnable(1, 0), &[turn(1, 1, 17 * MS)]), "at once");
    assert_eq!(undrained().says(0, runnable(1, 1), &[turn(1, 1, 17 * MS)]), Ok(()));
}

#[test]
fn to_an_overrun_too_early() {
    let overrun = Action::Late {
        container: container(0),
        lane: Lane(0),
        stage: Late::Overrun,
        after: Duration(0),
    };
    let actions = [overrun, turn(1, 1, 3_000 * MS)];
    objects(undrained().then(1_999 * MS, &actions), "is treated as overrun after");
    assert_eq!(undrained().then(2_000 * MS, &actions), Ok(()));
}

#[test]
fn to_an_idle_gpu() {
    let mut story = Story::of(&[(1, 0, Class::Normal)]);
    objects(story.says(0, runnable(0, 0), &[]), "idles while");
}

#[test]
fn to_an_unused_turn() {
    let mut story = Story::of(&[(1, 0, Class::Normal)]);
    story.says(0, runnable(0, 0), &[turn(0, 1, 8 * MS)]).expect("fine");
    objects(story.says(0, Claims::default(), &[]), "is not runnable");
}

#[test]
fn to_a_turn_of_no_time() {
    let mut story = Story::of(&[(1, 0, Class::Normal)]);
    objects(story.says(0, runnable(0, 0), &[turn(0, 2, 0)]), "no time");
}

#[test]
fn to_an_identity_given_twice() {
    let mut story = Story::of(&[(1, 0, Class::Normal)]);
    story.tell(0, Event::Gone { client: client(0) }, &[]).expect("fine");
    let (_, attached) = attach(0, client(0), 1);
    objects(story.then(0, &[attached]), "the identity of another process");
}

#[test]
fn to_open_mode_for_two() {
    let mut story = Story::of(&[(1, 0, Class::Normal), (1, 0, Class::Normal)]);
    let open = |n| page(n, Mode::Open, 0, 0, 0);
    story.then(0, &[open(0), open(1)]).expect("fine");
    assert_eq!(story.says(0, runnable(0, 0), &[]), Ok(()));
    objects(story.says(1, runnable(0, 0), &[]), "several containers are runnable");
}

#[test]
fn to_different_modes_on_one_gpu() {
    let mut story = Story::of(&[(1, 0, Class::Normal), (1, 0, Class::Normal)]);
    objects(story.then(0, &[page(0, Mode::Open, 0, 0, 0)]), "differs in mode");
}

/// Both containers are runnable: the first has the GPU for `first` ms, then the second for `second`, and so
/// on, beginning with the second for a moment.
fn alternate(mut story: Story, first: u64, second: u64) -> Result<(), Objection> {
    story.says(1, runnable(0, 0), &[turn(1, 1, MS)])?;
    story.says(0, runnable(0, 0), &[])?;
    let mut words = [0, 1];
    for round in 0..40 {
        let (out, next) = (1 - round % 2, round % 2);
        words[out] += 1;
        story.then([first, second][out] * MS, &[turn(out, words[out], 0)])?;
        words[next] += 1;
        let word = words[out] - 1;
        let begins = [turn(next, words[next], story.now + MS)];
        story.says(out, runnable(word, word), &begins)?;
    }
    Ok(())
}

fn back_and_forth(first: u64, weight: u32) -> Result<(), Objection> {
    let story = Story::of(&[(weight, 0, Class::Normal), (1, 0, Class::Normal)]);
    alternate(story, first, 1)
}

#[test]
fn to_uneven_shares() {
    assert_eq!(back_and_forth(1, 1), Ok(()));
    assert_eq!(back_and_forth(3, 3), Ok(()));
    objects(back_and_forth(3, 1), "drift");
    objects(back_and_forth(1, 3), "drift");
}

#[test]
fn to_a_waiter_left_behind() {
    let mut story =
        Story::of(&[(1, 0, Class::Normal), (1, 0, Class::Normal), (1, 0, Class::Normal)]);
    story.says(0, runnable(0, 0), &[turn(0, 1, MS)]).expect("fine");
    story.says(2, runnable(0, 0), &[]).expect("fine");
    story.says(1, runnable(0, 0), &[]).expect("fine");
    // the first leaves and comes back before each of its turns, so that it never queues
    let mut result = Ok(());
    for round in 0..20u32 {
        let word = 2 * round + 1;
        let gone = Claims { runnable: false, ..runnable(word, word) };
        result = result
            .and_then(|()| story.then(MS, &[turn(0, word + 1, 0)]))
            .and_then(|()| story.says(0, gone, &[turn(1, word, 0)]))
            .and_then(|()| story.says(0, runnable(word, word), &[]))
            .and_then(|()| story.then(0, &[turn(1, word + 1, 0)]))
            .and_then(|()| story.says(1, runnable(word, word), &[turn(0, word + 2, 0)]));
    }
    objects(result, "waits while");
}

/// One container is always runnable; the other one has a turn of `ms`, gives up, and finds the GPU open a
/// moment later.
fn pulses(ms: u64) -> Result<(), Objection> {
    let mut story = Story::of(&[(1, 0, Class::Normal), (1, 0, Class::Normal)]);
    let both = |story: &mut Story, mode, words: [u32; 2], after| {
        let pages = [0, 1].map(|n| page(n, mode, words[n], 0, 0));
        story.then(after, &pages)
    };
    both(&mut story, Mode::Open, [0, 0], 0)?;
    for round in 0..10u32 {
        let word = 4 * round;
        story.says(0, runnable(word, word), &[])?;
        story.then(10 * MS, &[])?;
        // the second one becomes runnable, and turns begin
        let pages = [turn(0, word + 2, 0), turn(1, word + 2, 0)];
        story.says(1, runnable(word, word), &pages)?;
        story.says(0, runnable(word, word), &[])?;
        let begins = [turn(1, word + 3, story.now + MS)];
        story.says(1, runnable(word, word), &begins)?;
        story.then(ms * MS, &[turn(1, word + 4, 0)])?;
        let gone = Claims { runnable: false, ..runnable(word + 3, word + 3) };
        story.says(1, gone, &[turn(0, word + 3, 0)])?;
        story.then(10 * MS, &[])?;
        both(&mut story, Mode::Open, [word + 4, word + 4], 0)?;
    }
    Ok(())
}

#[test]
fn to_a_debt_that_is_forgotten() {
    assert_eq!(pulses(10), Ok(()));
    objects(pulses(30), "which is always runnable");
}

/// The first container has a share of a half.
fn beside_a_share(first: u64) -> Result<(), Objection> {
    let story = Story::of(&[(1, 50, Class::Normal), (1, 0, Class::Normal)]);
    alternate(story, first, 10)
}

#[test]
fn to_a_share_that_is_not_given() {
    assert_eq!(beside_a_share(10), Ok(()));
    objects(beside_a_share(4), "has a share of 50 and is owed");
}

#[test]
fn to_more_than_a_hard_share() {
    let run = |ms: u64| {
        let mut story = Story::of(&[(1, 10, Class::Normal)]);
        story.says(0, runnable(0, 0), &[turn(0, 1, 0)])?;
        for word in 1..200u32 {
            story.then(ms * MS, &[turn(0, 2 * word, 0)])?;
            let drained = 2 * word - 1;
            story.says(0, runnable(drained, drained), &[])?;
            story.then(9 * MS, &[turn(0, 2 * word + 1, 0)])?;
        }
        Ok(())
    };
    assert_eq!(run(1), Ok(()));
    objects(run(2), "of cap 10/100 owes");
}

#[test]
fn to_a_fair_turn_while_a_high_one_waits() {
    let mut story = Story::of(&[(1, 0, Class::Normal), (1, 0, Class::High)]);
    story.says(0, runnable(0, 0), &[turn(0, 1, 8 * MS)]).expect("fine");
    objects(story.says(1, runnable(0, 0), &[]), "goes on");
}

/// A high-priority container waits; guard turns of `length` for the fair one, one after `pause`.
fn guard_turns(length: u64, pause: u64) -> Result<(), Objection> {
    let mut story = Story::of(&[(1, 0, Class::Normal), (1, 0, Class::High)]);
    story.says(1, runnable(0, 0), &[turn(1, 1, 0)])?;
    story.says(0, runnable(0, 0), &[])?;
    for round in 0..3u32 {
        let word = 2 * round + 1;
        story.then(pause - length, &[turn(1, word + 1, 0)])?;
        story.says(1, runnable(word, word), &[turn(0, word, 0)])?;
        story.then(length / 2, &[])?;
        story.then(length - length / 2, &[turn(0, word + 1, 0)])?;
        story.says(0, runnable(word, word), &[turn(1, word + 2, 0)])?;
    }
    Ok(())
}

#[test]
fn to_long_or_frequent_guard_turns() {
    assert_eq!(guard_turns(MS, 20 * MS), Ok(()));
    objects(guard_turns(3 * MS, 20 * MS), "a guard turn on");
    objects(guard_turns(MS, 10 * MS), "guard turns follow");
}

#[test]
fn to_starving_the_fair() {
    let mut story = Story::of(&[(1, 0, Class::Normal), (1, 0, Class::High)]);
    story.says(1, runnable(0, 0), &[turn(1, 1, 0)]).expect("fine");
    story.says(0, runnable(0, 0), &[]).expect("fine");
    let mut last = Ok(());
    for n in 1..40 {
        last = last.and_then(|()| story.then(100 * MS, &[turn(1, 1, n)]));
    }
    objects(last, "starve");
}
