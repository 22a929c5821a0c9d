//! One lane's words, the four threads that use them, and the invariants at the end.

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::panic::catch_unwind;

const OPEN: u32 = 0;
const TURNS: u32 = 1;

/// What each side does between its write and its read.
#[derive(Clone, Copy)]
struct Fences {
    process: bool,
    daemon: bool,
}

const BOTH: Fences = Fences { process: true, daemon: true };

/// Behind the lane's lock: what this process knows to be in flight.
#[derive(Default)]
struct Lane {
    in_flight: u32,
}

struct Pages {
    mode: AtomicU32,
    turn: AtomicU32,
    active: AtomicU32,
    drained: AtomicU32,
    lane: Mutex<Lane>,
    fences: Fences,
}

impl Pages {
    fn new(mode: u32, turn: u32, fences: Fences) -> Arc<Pages> {
        let (active, drained) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Pages {
            mode: AtomicU32::new(mode),
            turn: AtomicU32::new(turn),
            active,
            drained,
            lane: Mutex::new(Lane::default()),
            fences,
        })
    }

    /// A launch looks at the page, claims part, looks again, and goes or does not.
    fn launch(&self) -> bool {
        let mut lane = self.lane.lock().expect("nobody panics with it");
        let mode = self.mode.load(Acquire);
        let turn = self.turn.load(Acquire);
        if mode == TURNS && turn.is_multiple_of(2) {
            return false;
        }
        let claimed = self.active.load(Relaxed) == turn && self.drained.load(Relaxed) != turn;
        if !claimed {
            if self.drained.load(Relaxed) == turn {
                self.drained.store(turn.wrapping_sub(1), Release);
            }
            self.active.store(turn, Release);
        }
        if self.fences.process {
            fence(SeqCst);
        }
        let held = claimed || self.turn.load(Acquire) == turn;
        let free = mode == TURNS || self.mode.load(Acquire) == OPEN;
        lane.in_flight += u32::from(held && free);
        held && free
    }

    /// The gate thread reports a drained lane.
    fn tend(&self) {
        let lane = self.lane.lock().expect("nobody panics with it");
        let active = self.active.load(Relaxed);
        let (mode, turn) = (self.mode.load(Acquire), self.turn.load(Acquire));
        let over = turn != active || mode == TURNS && turn % 2 == 0;
        if over && lane.in_flight == 0 && self.drained.load(Relaxed) != active {
            self.drained.store(active, Release);
        }
    }

    /// The daemon closes the turn and reads the claims; whether it finds the lane drained.
    fn close(&self, turn: u32) -> bool {
        self.mode.store(TURNS, Release);
        self.turn.store(turn, Release);
        if self.fences.daemon {
            fence(SeqCst);
        }
        let active = self.active.load(Acquire);
        self.drained.load(Acquire) == active
    }
}

/// From `mode` and `turn` on, threads launch once each, the gate thread runs or not, the daemon closes.
/// A launch never ends here: if there was one, the daemon must not find the lane drained.
fn close_turn((mode, turn): (u32, u32), (launchers, gate): (usize, bool), fences: Fences) {
    let mut bounds = loom::model::Builder::new();
    bounds.preemption_bound = Some(3);
    bounds.check(move || {
        let pages = Pages::new(mode, turn, fences);
        let launch = || {
            let pages = Arc::clone(&pages);
            thread::spawn(move || pages.launch())
        };
        let launchers: Vec<_> = (0..launchers).map(|_| launch()).collect();
        let gate = gate.then(|| {
            let pages = Arc::clone(&pages);
            thread::spawn(move || pages.tend())
        });
        let drained = pages.close(turn + 2 - turn % 2);
        let launched = launchers.into_iter().map(|it| it.join().expect("a launch"));
        let launched = launched.fold(false, |any, it| any | it);
        gate.into_iter().for_each(|it| it.join().expect("a look"));
        assert!(!(drained && launched), "a launch the daemon has not seen");
    });
}

/// A turn, and the freedom without turns.
const BEFORE: [(u32, u32); 2] = [(TURNS, 1), (OPEN, 2)];
/// The threads beside the daemon: the number of launching ones, and whether there is a gate thread.
const THREADS: [(usize, bool); 2] = [(2, false), (1, true)];

#[test]
fn the_close_sees_every_launch() {
    for before in BEFORE {
        for threads in THREADS {
            close_turn(before, threads, BOTH);
        }
    }
}

/// The model can fail: with either order weaker it finds a launch that the daemon has not seen.
#[test]
fn a_weaker_order_is_found_out() {
    for (process, daemon) in [(false, true), (true, false)] {
        for before in BEFORE {
            let weak = move || close_turn(before, THREADS[0], Fences { process, daemon });
            assert!(catch_unwind(weak).is_err(), "{process} {daemon} {before:?}");
        }
    }
}
