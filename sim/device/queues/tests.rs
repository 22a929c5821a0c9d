//! Work of several queues of a context, by its times on the device.

use crate::config::Config;
use crate::layout::{Context, DRIVER, State};
use crate::limits::{MAX_QUEUES, RING, WAVE_BLOCKS};
use crate::mapping::state_for_test;
use crate::properties::mix;
use crate::types::{ContextId, Kind, Seq, Status, Work};
use crate::{process, repair, time};

const MS: u64 = 1_000_000;
const START: u64 = 1_000 * MS;

/// A GPU with one context of each process.
struct Machine {
    state: Box<State>,
    contexts: Vec<ContextId>,
}

impl Machine {
    fn new(contexts: usize) -> Machine {
        let mut state = state_for_test();
        state.initialise(&Config::parse("overlap=on").unwrap());
        let contexts = (0..contexts)
            .map(|slot| {
                process::enter(&mut state, slot, DRIVER);
                process::create_context(&mut state, 0, slot, (0, 0)).unwrap()
            })
            .collect();
        let mut machine = Machine { state, contexts };
        machine.at(0);
        machine
    }

    fn at(&mut self, ns: u64) {
        time::advance(&mut self.state.gpus[0], &mut self.state.contexts, START + ns);
    }

    fn push_to(&mut self, of: usize, work: Work) -> Seq {
        let index = self.contexts[of].index;
        let context = &mut self.state.contexts[usize::from(index)];
        time::push(&mut self.state.gpus[0], context, index, work)
    }

    fn push(&mut self, work: Work) -> Seq {
        self.push_to(0, work)
    }

    fn status(&self, of: usize, seq: Seq) -> Status {
        time::status(&self.state.gpus[0], &self.state.contexts, self.contexts[of].index, seq.0)
    }

    /// Start and end after the machine's, once it has ended.
    fn times(&self, seq: Seq) -> Option<(u64, u64)> {
        match self.status(0, seq) {
            Status::Done { start_ns, end_ns } => Some((start_ns - START, end_ns - START)),
            _ => None,
        }
    }

    fn context(&mut self) -> &mut Context {
        &mut self.state.contexts[usize::from(self.contexts[0].index)]
    }

    fn busy(&mut self) -> u64 {
        self.context().busy_ns
    }
}

fn kernel(queue: u16, blocks: u16, ns: u64) -> Work {
    Work { blocks, queue, ..Work::new(Kind::Kernel, ns) }
}

fn copy(queue: u16, ns: u64) -> Work {
    Work { queue, ..Work::new(Kind::Copy, ns) }
}

/// A gap is from end to end; one that lasts counts, and none from before the watch does.
#[test]
fn the_longest_gap_is_known_however_seldom_it_is_asked_for() {
    let mut machine = Machine::new(1);
    machine.push(kernel(0, 1, 9 * MS));
    machine.at(10 * MS);
    machine.context().watch_gaps(START + 10 * MS);
    machine.push(kernel(0, 1, MS));
    machine.push(kernel(1, 1, 3 * MS));
    machine.at(20 * MS);
    machine.push(kernel(0, 1, 2 * MS));
    machine.at(25 * MS);
    let longest = |machine: &mut Machine, at| machine.context().longest_gap(START + at);
    assert_eq!(longest(&mut machine, 25 * MS), 9 * MS, "13 to 22 ms");
    assert_eq!(longest(&mut machine, 33 * MS), 11 * MS, "since 22 ms");
    machine.context().watch_gaps(START + 33 * MS);
    assert_eq!(longest(&mut machine, 34 * MS), MS);
}

#[test]
fn kernels_whose_grids_fit_run_at_the_same_time() {
    let mut machine = Machine::new(1);
    let (first, second) = (machine.push(kernel(0, 1, 3 * MS)), machine.push(kernel(1, 1, 2 * MS)));
    let behind = machine.push(kernel(0, 1, MS));
    machine.at(10 * MS);
    assert_eq!(machine.times(first), Some((0, 3 * MS)));
    assert_eq!(machine.times(second), Some((0, 2 * MS)));
    assert_eq!(machine.times(behind), Some((3 * MS, 4 * MS)), "of the same queue");
    assert_eq!(machine.busy(), 4 * MS, "time in which any of them ran");
}

#[test]
fn a_kernel_that_does_not_fit_waits_and_keeps_those_behind_it_waiting() {
    let mut machine = Machine::new(1);
    let half = WAVE_BLOCKS / 2;
    let first = machine.push(kernel(0, half, 4 * MS));
    let large = machine.push(kernel(1, half + 1, MS));
    let small = machine.push(kernel(2, 1, MS));
    machine.at(10 * MS);
    assert_eq!(machine.times(first), Some((0, 4 * MS)));
    assert_eq!(machine.times(large), Some((4 * MS, 5 * MS)));
    assert_eq!(machine.times(small), Some((4 * MS, 5 * MS)));
}

#[test]
fn copies_run_beside_kernels_two_at_a_time() {
    let mut machine = Machine::new(1);
    let large = machine.push(kernel(0, u16::MAX, 6 * MS));
    let copies = [1, 2, 3].map(|queue| machine.push(copy(queue, 2 * MS)));
    machine.at(10 * MS);
    assert_eq!(machine.times(large), Some((0, 6 * MS)));
    let times = copies.map(|seq| machine.times(seq).unwrap());
    assert_eq!(times, [(0, 2 * MS), (0, 2 * MS), (2 * MS, 4 * MS)]);
}

#[test]
fn work_waits_for_work_of_another_queue() {
    let mut machine = Machine::new(1);
    let awaited = machine.push(kernel(0, 1, 2 * MS));
    let more = machine.push(kernel(0, 1, 5 * MS));
    let after = Some((0, awaited));
    let join = machine.push(Work { after, queue: 1, blocks: 0, ..Work::new(Kind::Marker, 0) });
    let next = machine.push(kernel(1, 1, MS));
    assert_eq!(machine.status(0, next), Status::Pending { earliest_ns: START + 3 * MS });
    machine.at(4 * MS);
    assert_eq!(machine.times(join), Some((2 * MS, 2 * MS)));
    assert_eq!(machine.times(next), Some((2 * MS, 3 * MS)));
    assert_eq!(machine.times(more), None);
}

#[test]
fn what_has_begun_is_not_taken_back() {
    let mut machine = Machine::new(1);
    let first = machine.push(kernel(0, 1, 4 * MS));
    let behind = machine.push(kernel(0, 1, 4 * MS));
    let beside = machine.push(kernel(1, 1, 8 * MS));
    let last = machine.push(kernel(1, 1, MS));
    machine.at(MS);
    let index = machine.contexts[0].index;
    let context = &mut machine.state.contexts[usize::from(index)];
    let recalled = time::recall(&mut machine.state.gpus[0], context, index, 0);
    assert_eq!(
        [first, behind, beside, last].map(|seq| recalled.has(seq)),
        [false, true, false, true]
    );
    let again = machine.push(kernel(0, 1, MS));
    machine.at(20 * MS);
    assert_eq!(machine.times(beside), Some((0, 8 * MS)));
    assert_eq!(machine.times(again), Some((4 * MS, 5 * MS)));
}

/// Pieces of other queues end beside one that runs, more than the ring has places.
#[test]
fn a_piece_that_runs_for_ever_keeps_its_place_and_no_other_one() {
    let mut machine = Machine::new(1);
    let ever = machine.push(kernel(0, 1, u64::MAX));
    machine.at(MS);
    let mut last = ever;
    for round in 0..5 * RING {
        let seq = machine.push(kernel(1, 1, 1_000));
        assert!(seq > last && seq.0 % RING != ever.0 % RING, "{seq:?}");
        last = seq;
        machine.at(MS + (round + 1) * 1_000);
        assert_eq!(machine.times(seq), Some((MS + round * 1_000, MS + (round + 1) * 1_000)));
    }
    assert_eq!(machine.times(ever), None);
    let context = &machine.state.contexts[usize::from(machine.contexts[0].index)];
    assert_eq!((context.pending, context.head), (1, ever.0));
    repair::repair(&mut machine.state, 0);
    let next = machine.push(kernel(1, 1, MS));
    machine.at(1_000 * MS);
    assert!(machine.times(next).is_some() && machine.times(ever).is_none());
}

/// A process is killed between the two stores by which a piece ends.
#[test]
fn a_piece_that_has_ended_is_none_after_a_repair() {
    let mut machine = Machine::new(1);
    let seq = machine.push(kernel(0, 1, MS));
    machine.at(2 * MS);
    machine.state.contexts[usize::from(machine.contexts[0].index)].head -= 1;
    repair::repair(&mut machine.state, 0);
    machine.at(4 * MS);
    assert_eq!(machine.times(seq), Some((0, MS)));
    let next = machine.push(kernel(0, 1, MS));
    machine.at(10 * MS);
    assert_eq!(machine.times(next), Some((4 * MS, 5 * MS)));
}

/// An estimate waits for room and for other queues as the device does, so a thread that waits does not look in vain.
#[test]
fn estimates_count_what_a_piece_waits_for() {
    let mut machine = Machine::new(1);
    machine.push(kernel(0, 1, 100 * MS));
    let full = machine.push(kernel(1, WAVE_BLOCKS, MS));
    machine.push(copy(2, 10_000));
    let join = machine.push(Work { after: Some((1, full)), ..kernel(3, 1, MS) });
    let next = machine.push(Work { after: Some((3, join)), ..kernel(4, 1, MS) });
    for (seq, ms) in [(full, 101), (join, 102), (next, 103)] {
        let earliest_ns = START + ms * MS;
        assert_eq!(machine.status(0, seq), Status::Pending { earliest_ns }, "{seq:?}");
    }
}

/// A walk over random work of two contexts, looked at at random moments: the times do not depend on the looks, no
/// estimate is later than the end, and no rule of the queues is broken.
#[test]
fn walks() {
    for seed in 0..60 {
        let (often, seldom) = (walk(seed, true), walk(seed, false));
        let times =
            |pieces: &[Piece]| pieces.iter().map(|it| (it.start, it.end)).collect::<Vec<_>>();
        assert_eq!(times(&often), times(&seldom), "seed {seed}");
        for piece in &often {
            check(seed, piece, &often);
        }
    }
}

struct Piece {
    work: Work,
    seq: Seq,
    /// Earliest end, when it was pushed.
    earliest: u64,
    start: u64,
    end: u64,
}

fn walk(seed: u64, often: bool) -> Vec<Piece> {
    let mut machine = Machine::new(2);
    let (mut now, mut pieces) = (0, Vec::<Piece>::new());
    let mut at = 0;
    let mut random = |below: u64| {
        at += 1;
        mix(seed, at) % below
    };
    for _ in 0..100 {
        let pause = random(3) * random(MS);
        if often {
            (1..5).for_each(|part| machine.at(now + pause * part / 5));
        }
        now += pause;
        machine.at(now);
        if random(4) == 0 {
            machine.push_to(1, kernel(0, 1, random(3 * MS)));
        }
        let queue = random(u64::from(MAX_QUEUES)) as u16 % 6;
        let mut work = match random(3) {
            0 => copy(queue, random(2 * MS)),
            1 => kernel(queue, 1 + random(u64::from(WAVE_BLOCKS)) as u16, random(2 * MS)),
            _ => kernel(queue, 1 + random(20) as u16, random(2 * MS)),
        };
        let other = random(pieces.len() as u64 + 1) as usize;
        if let Some(other) = pieces.get(other).filter(|other| other.work.queue != queue) {
            work.after = Some((other.work.queue, other.seq));
        }
        let seq = machine.push(work);
        let earliest = match machine.status(0, seq) {
            Status::Pending { earliest_ns } => earliest_ns - START,
            _ => now,
        };
        pieces.push(Piece { work, seq, earliest, start: 0, end: 0 });
    }
    machine.at(now + 1_000 * MS);
    for piece in &mut pieces {
        (piece.start, piece.end) = machine.times(piece.seq).expect("all has ended");
    }
    pieces
}

fn check(seed: u64, piece: &Piece, all: &[Piece]) {
    let say = format!("seed {seed}, piece {:?}", piece.seq);
    assert!(piece.earliest <= piece.end, "{say}: {} is later than {}", piece.earliest, piece.end);
    assert!(piece.end - piece.start >= piece.work.duration_ns, "{say} is cut short");
    let behind = |it: &&Piece| it.seq < piece.seq && it.work.queue == piece.work.queue;
    assert!(all.iter().filter(behind).all(|it| it.end <= piece.start), "{say} is early");
    let awaited = piece.work.after.map_or(0, |(_, seq)| all[seq.0 as usize].end);
    assert!(awaited <= piece.start, "{say} did not wait");
    // All that runs as it begins.
    let beside = |it: &&Piece| it.start <= piece.start && piece.start < it.end;
    let kernels = || all.iter().filter(beside).filter(|it| it.work.kind == Kind::Kernel);
    assert!(
        kernels().map(|it| u32::from(it.work.blocks)).sum::<u32>() <= u32::from(WAVE_BLOCKS),
        "{say}"
    );
    assert!(
        all.iter().filter(beside).filter(|it| it.work.kind == Kind::Copy).count() <= 2,
        "{say}"
    );
}
