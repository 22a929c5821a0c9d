//! The clockwork under a clock of the tests' own.

use crate::config::Config;
use crate::layout::{DRIVER, State};
use crate::limits::{MAX_DURATION_NS, MAX_PENDING, RING, WAVE_BLOCKS};
use crate::mapping::state_for_test;
use crate::types::{ContextId, Kind, Seq, Status, Work};
use crate::{process, time};

const MS: u64 = 1_000_000;
const START: u64 = 1_000 * MS;
const SLICE: u64 = 2 * MS;
const SWITCH: u64 = 50_000;

/// A one-GPU machine with `contexts` contexts of different processes.
fn machine(contexts: usize) -> (Box<State>, Vec<ContextId>) {
    machine_of("", contexts)
}

fn machine_of(config: &str, contexts: usize) -> (Box<State>, Vec<ContextId>) {
    let mut state = state_for_test();
    state.initialise(&Config::parse(config).unwrap());
    let ids = (0..contexts)
        .map(|slot| {
            process::enter(&mut state, slot, DRIVER);
            process::create_context(&mut state, 0, slot, (0, 0)).unwrap()
        })
        .collect();
    look(&mut state, START);
    (state, ids)
}

fn look(state: &mut State, now: u64) {
    time::advance(&mut state.gpus[0], &mut state.contexts, now);
}

fn push(state: &mut State, id: ContextId, duration: u64) -> u64 {
    let index = usize::from(id.index);
    let work = Work::new(Kind::Kernel, duration);
    time::push(&mut state.gpus[0], &mut state.contexts[index], id.index, work).0
}

fn status(state: &State, id: ContextId, seq: u64) -> Status {
    time::status(&state.gpus[0], &state.contexts, id.index, seq)
}

fn busy(state: &State, id: ContextId) -> u64 {
    state.contexts[usize::from(id.index)].busy_ns
}

fn done(start: u64, end: u64) -> Status {
    Status::Done { start_ns: START + start, end_ns: START + end }
}

#[test]
fn alone_work_runs_back_to_back_and_is_never_interrupted() {
    let (mut state, ids) = machine(1);
    let first = push(&mut state, ids[0], 5 * MS);
    let marker = push(&mut state, ids[0], 0);
    let second = push(&mut state, ids[0], MS);
    assert_eq!(status(&state, ids[0], second), Status::Pending { earliest_ns: START + 6 * MS });
    look(&mut state, START + 5 * MS - 1);
    assert_eq!(status(&state, ids[0], first), Status::Pending { earliest_ns: START + 5 * MS });
    look(&mut state, START + 60 * MS);
    assert_eq!(status(&state, ids[0], first), done(0, 5 * MS));
    assert_eq!(status(&state, ids[0], marker), done(5 * MS, 5 * MS));
    assert_eq!(status(&state, ids[0], second), done(5 * MS, 6 * MS));
    assert_eq!(busy(&state, ids[0]), 6 * MS);
}

#[test]
fn two_contexts_take_turns_of_a_slice_and_pay_the_switch() {
    let (mut state, ids) = machine(2);
    let a = push(&mut state, ids[0], 3 * MS);
    let b = push(&mut state, ids[1], 3 * MS);
    // a: 0-2, switch, b: 2.05-4.05, switch, a: 4.1-5.1, switch, b: 5.15-6.15.
    let a_end = 5 * MS + 2 * SWITCH;
    let b_end = 6 * MS + 3 * SWITCH;
    assert_eq!(status(&state, ids[0], a), Status::Pending { earliest_ns: START + a_end });
    assert_eq!(status(&state, ids[1], b), Status::Pending { earliest_ns: START + b_end });
    look(&mut state, START + 100 * MS);
    assert_eq!(status(&state, ids[0], a), done(0, a_end));
    assert_eq!(status(&state, ids[1], b), done(SLICE + SWITCH, b_end));
}

#[test]
fn endless_work_shares_the_device_equally_per_context() {
    let (mut state, ids) = machine(3);
    for &id in &ids {
        push(&mut state, id, u64::MAX);
    }
    let rounds = 1000;
    look(&mut state, START + rounds * 3 * (SLICE + SWITCH));
    for &id in &ids {
        assert!(busy(&state, id).abs_diff(rounds * SLICE) <= SLICE, "{}", busy(&state, id));
    }
}

#[test]
fn a_newcomer_waits_for_the_end_of_the_present_slice() {
    let (mut state, ids) = machine(2);
    push(&mut state, ids[0], MAX_DURATION_NS);
    look(&mut state, START + 2 * SLICE + MS / 2);
    let seq = push(&mut state, ids[1], MS);
    let end = START + 3 * SLICE + SWITCH + MS;
    assert_eq!(status(&state, ids[1], seq), Status::Pending { earliest_ns: end });
    look(&mut state, end);
    assert!(matches!(status(&state, ids[1], seq), Status::Done { end_ns, .. } if end_ns == end));
}

#[test]
fn the_rest_of_a_slice_is_given_away() {
    let (mut state, ids) = machine(2);
    push(&mut state, ids[0], MS / 10);
    let seq = push(&mut state, ids[1], MS);
    look(&mut state, START + 10 * MS);
    let begin = MS / 10 + SWITCH;
    assert_eq!(status(&state, ids[1], seq), done(begin, begin + MS));
}

#[test]
fn the_dead_vanish_from_the_queue() {
    let (mut state, ids) = machine(2);
    push(&mut state, ids[0], u64::MAX);
    let seq = push(&mut state, ids[1], MS);
    look(&mut state, START + MS);
    process::drop_process(&mut state, 0, 1);
    look(&mut state, START + 3 * MS);
    assert_eq!(status(&state, ids[1], seq), done(MS, 2 * MS));
    assert!(process::context(&state, ids[0]).is_err());
}

#[test]
fn a_fault_ends_the_work_and_tells_the_world() {
    let (mut state, ids) = machine(2);
    let finished = push(&mut state, ids[0], MS);
    let seq = push(&mut state, ids[0], u64::MAX);
    let other = push(&mut state, ids[1], MS);
    look(&mut state, START + 10 * MS);
    process::fault(&mut state, usize::from(ids[0].index), 31, START + 10 * MS);
    look(&mut state, START + 11 * MS);
    assert_eq!(status(&state, ids[0], finished), done(0, MS));
    assert_eq!(status(&state, ids[0], seq), Status::Faulted { xid: 31 });
    assert!(matches!(status(&state, ids[1], other), Status::Done { .. }));
    let (event, seen) = crate::events::next(&state, 0).unwrap();
    assert_eq!((event.xid, event.gpu, seen), (31, 0, 1));
    assert_eq!(crate::events::next(&state, seen), None);
}

#[test]
fn completions_are_remembered_for_a_while() {
    let (mut state, ids) = machine(1);
    let mut now = START;
    let total = 2 * RING;
    for seq in 0..total {
        assert_eq!(push(&mut state, ids[0], 1000), seq);
        if seq % MAX_PENDING == MAX_PENDING - 1 {
            now += 10_000 * MS;
            look(&mut state, now);
        }
    }
    let Status::Done { start_ns, end_ns } = status(&state, ids[0], total - 4096) else { panic!() };
    assert_eq!(end_ns - start_ns, 1000);
    let Status::Done { start_ns, end_ns } = status(&state, ids[0], 0) else { panic!() };
    assert_eq!(start_ns, end_ns);
}

/// The same work, queued at the same moments, ends at the same moments for any number of accesses
/// in between, and the whole device time is accounted for.
#[test]
fn accesses_do_not_change_results() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for _ in 0..50 {
        let (mut often, ids) = machine(4);
        let (mut seldom, _) = machine(4);
        let mut now = START;
        let mut asked = 0;
        for _ in 0..200 {
            now += random(3 * MS);
            look(&mut often, now);
            look(&mut seldom, now);
            let id = ids[random(4) as usize];
            let duration = if random(5) == 0 { 0 } else { random(4 * MS) };
            asked += duration;
            push(&mut often, id, duration);
            push(&mut seldom, id, duration);
            for _ in 0..random(20) {
                now += random(MS);
                look(&mut often, now);
            }
        }
        now += asked + 10_000 * MS;
        look(&mut often, now);
        look(&mut seldom, now);
        for &id in &ids {
            let tail = often.contexts[usize::from(id.index)].tail;
            for seq in 0..tail {
                assert_eq!(status(&often, id, seq), status(&seldom, id, seq));
                assert!(matches!(status(&often, id, seq), Status::Done { .. }));
            }
        }
        assert_eq!(ids.iter().map(|&id| busy(&often, id)).sum::<u64>(), asked);
    }
}

/// A long time without a look comes to the same as the same time in small pieces.
#[test]
fn rounds_can_be_skipped() {
    let (mut often, ids) = machine(3);
    let (mut seldom, _) = machine(3);
    let hour = 3_600_000 * MS;
    for state in [&mut often, &mut seldom] {
        look(state, START + MS / 3);
        push(state, ids[0], u64::MAX);
        push(state, ids[1], 700_001 * MS + 17);
        push(state, ids[1], 5 * MS);
        push(state, ids[2], 1_200_000 * MS);
    }
    for second in 1..3600 {
        look(&mut often, START + second * 1000 * MS);
    }
    look(&mut often, START + hour);
    look(&mut seldom, START + hour);
    for &id in &ids {
        assert_eq!(busy(&often, id), busy(&seldom, id));
        let load =
            |state: &State| state.contexts[usize::from(id.index)].load.percent(START + hour, 10);
        assert_eq!(load(&often), load(&seldom));
    }
    for seq in 0..2 {
        assert_eq!(status(&often, ids[1], seq), status(&seldom, ids[1], seq));
    }
    assert_eq!(often.gpus[0].busy_ns, seldom.gpus[0].busy_ns);
    assert_eq!(often.gpus[0].clock_ns, seldom.gpus[0].clock_ns);
}

#[test]
fn load_is_the_busy_share_of_the_window() {
    let (mut state, ids) = machine(1);
    push(&mut state, ids[0], 100 * MS);
    look(&mut state, START + 200 * MS);
    assert_eq!(state.gpus[0].load.percent(START + 200 * MS, 10), 50);
    look(&mut state, START + 2_000 * MS);
    assert_eq!(state.gpus[0].load.percent(START + 2_000 * MS, 10), 0);
}

#[test]
fn what_has_not_begun_can_be_taken_back() {
    let (mut state, ids) = machine(2);
    let (a, b) = (ids[0], ids[1]);
    for _ in 0..5 {
        push(&mut state, a, MS);
    }
    look(&mut state, START + MS + MS / 2);
    push(&mut state, b, MS);
    let index = usize::from(a.index);
    let recall = |state: &mut State, from: u64| {
        let State { contexts, gpus, .. } = state;
        time::recall(&mut gpus[0], &mut contexts[index], a.index, from).0
    };
    assert_eq!(recall(&mut state, 4), [Seq(4)]);
    assert_eq!(recall(&mut state, 0), [Seq(2), Seq(3)], "the second is running");
    assert_eq!(recall(&mut state, 0), []);
    look(&mut state, START + 10 * MS);
    assert_eq!(status(&state, a, 1), done(MS, 2 * MS));
    assert_eq!((busy(&state, a), busy(&state, b)), (2 * MS, MS));
    push(&mut state, a, MS);
    look(&mut state, START + 12 * MS);
    assert_eq!(busy(&state, a), 3 * MS);
    // Before it has begun, all of it goes, and the other has the GPU.
    let last = push(&mut state, a, MS);
    assert_eq!(recall(&mut state, 0), [Seq(last)]);
    push(&mut state, b, MS);
    look(&mut state, START + 20 * MS);
    assert_eq!((busy(&state, a), busy(&state, b)), (3 * MS, 2 * MS));
}

fn disable(state: &mut State, id: ContextId, on: bool) {
    let index = usize::from(id.index);
    time::disable(&mut state.gpus[0], &mut state.contexts[index], id.index, on);
}

#[test]
fn a_disabled_context_stops_where_it_is_and_goes_on_there() {
    let (mut state, ids) = machine(2);
    let long = push(&mut state, ids[0], 100 * MS);
    look(&mut state, START + 10 * MS);
    disable(&mut state, ids[0], true);
    disable(&mut state, ids[0], true);
    let short = push(&mut state, ids[1], 5 * MS);
    let later = push(&mut state, ids[0], MS);
    look(&mut state, START + 50 * MS);
    assert_eq!(status(&state, ids[1], short), done(10 * MS, 15 * MS));
    let stopped = Status::Pending { earliest_ns: u64::MAX };
    assert_eq!(status(&state, ids[0], long), stopped);
    assert_eq!((busy(&state, ids[0]), state.contexts[0].saves), (10 * MS, 1));
    disable(&mut state, ids[0], false);
    look(&mut state, START + 300 * MS);
    let end = 50 * MS + SWITCH + 90 * MS;
    assert_eq!(status(&state, ids[0], long), done(0, end));
    assert_eq!(status(&state, ids[0], later), done(end, end + MS));
    assert_eq!((state.contexts[0].stopped, state.contexts[0].stops[0]), (1, START + 10 * MS));
    // with nothing to run there is nothing to take off
    disable(&mut state, ids[0], true);
    assert_eq!(state.contexts[0].saves, 1);
}

#[test]
fn a_time_slice_of_its_own_is_a_part_of_its_own() {
    let (mut state, ids) = machine(2);
    state.contexts[0].slice_ns = 6 * MS;
    ids.iter().for_each(|&id| {
        push(&mut state, id, 10_000 * MS);
    });
    look(&mut state, START + 1_610 * MS);
    let (first, second) = (busy(&state, ids[0]), busy(&state, ids[1]));
    assert!(first.abs_diff(3 * second) <= 12 * MS, "{first} and {second}");
}

/// Two contexts that are always busy, on a GPU whose slices and switches differ from one to the next.
fn uneven(seed: u64) -> (Box<State>, Vec<ContextId>) {
    let config = format!("slice=1ms..3ms,switch=50us..500us,seed={seed}");
    let (mut state, ids) = machine_of(&config, 2);
    for &id in &ids {
        push(&mut state, id, u64::MAX);
    }
    (state, ids)
}

/// The same changes of contexts, with kernels of one block and with kernels that fill the GPU.
#[test]
fn a_switch_is_longer_with_more_state() {
    let switched = |blocks: u16| {
        let (mut state, ids) = machine_of("switch=50us..500us,slice=1ms", 2);
        for id in ids {
            let work = Work { blocks, ..Work::new(Kind::Kernel, 50 * MS) };
            let context = &mut state.contexts[usize::from(id.index)];
            time::push(&mut state.gpus[0], context, id.index, work);
        }
        look(&mut state, START + 1_000 * MS);
        let changes: u32 = state.contexts.iter().map(|it| it.saves).sum();
        state.gpus[0].busy_ns - 100 * MS - u64::from(changes) * SWITCH
    };
    let (small, large) = (switched(1), switched(WAVE_BLOCKS));
    let ratio = large as f64 / small as f64;
    assert!((1.95..2.05).contains(&ratio), "{large} ns above the least, and {small} for one block");
}

#[test]
fn slices_and_switches_are_drawn_anew_each_time() {
    let (mut state, ids) = uneven(1);
    let (mut slices, mut switches) = (Vec::new(), Vec::new());
    let (mut resident, mut since, mut began) = (1, 0, START);
    for us in 0..1_000_000 {
        let now = START + us * 1_000;
        look(&mut state, now);
        if state.gpus[0].resident != resident {
            let ran = busy(&state, ids[0]) + busy(&state, ids[1]);
            slices.push(ran - since);
            switches.push(now - began - (ran - since));
            (resident, since, began) = (state.gpus[0].resident, ran, now);
        }
    }
    // Before the first slice there is no switch. Each moment is seen up to a microsecond late.
    let (slices, switches) = (&slices[3..], &switches[3..]);
    assert!(slices.iter().all(|ns| (MS - 2_000..=3 * MS + 2_000).contains(ns)), "{slices:?}");
    let switched = |ns: &u64| (SWITCH - 2_000..=10 * SWITCH + 2_000).contains(ns);
    assert!(switches.iter().all(switched), "{switches:?}");
    let spread = |all: &[u64]| all.iter().max().unwrap() - all.iter().min().unwrap();
    assert!(spread(slices) > MS && spread(switches) > 5 * SWITCH);
}

#[test]
fn drawn_times_follow_from_the_seed_and_not_from_the_accesses() {
    let end = START + 5_000 * MS;
    let after = |seed: u64, steps: u64| {
        let (mut state, ids) = uneven(seed);
        for step in 1..=steps {
            look(&mut state, START + (end - START) / steps * step);
        }
        (busy(&state, ids[0]), busy(&state, ids[1]))
    };
    assert_eq!(after(1, 1), after(1, 50_000));
    assert_ne!(after(1, 1), after(2, 1));
    let (one, other) = after(1, 1);
    assert!(one.abs_diff(other) < 200 * MS, "{one} {other}");
}

/// A sleeper that wakes at the foretold time never wakes late.
#[test]
fn the_foretold_end_is_never_later_than_the_true_one() {
    for seed in 0..50 {
        let (mut state, ids) =
            machine_of(&format!("slice=1ms..3ms,switch=50us..500us,seed={seed}"), 3);
        push(&mut state, ids[0], u64::MAX);
        push(&mut state, ids[1], u64::MAX);
        look(&mut state, START + MS);
        let seq = push(&mut state, ids[2], 20 * MS);
        let Status::Pending { earliest_ns } = status(&state, ids[2], seq) else {
            panic!("it is done at once");
        };
        look(&mut state, START + 1_000 * MS);
        let Status::Done { end_ns, .. } = status(&state, ids[2], seq) else {
            panic!("it is not done");
        };
        assert!(earliest_ns <= end_ns, "seed {seed}: {earliest_ns} {end_ns}");
    }
}
