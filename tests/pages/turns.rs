//! A process and the daemon over turns that begin and end: is the GPU ever another container's while the process may
//! use it?

use crate::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::atomic::{AtomicU32, AtomicU64, Fence};
use crate::claim::ClaimWords;
use crate::in_every_order;
use crate::turn::{Claimed, LaneFacts, LaneWords, Verdict};
use gpuslice_wire::page::{MODE_OPEN, MODE_TURNS};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::sync::Mutex as Aside;

/// What really happens; no thread of the protocol looks at it.
#[derive(Default)]
struct Gpu {
    /// The process's launches that have not ended.
    in_flight: u32,
    /// When its last work ended: the number of its works that have.
    ended: u64,
    /// Another container has the GPU.
    elsewhere: bool,
}

/// Words that no thread writes here: the daemon lives, and says nothing about times.
struct Times {
    none: AtomicU32,
    ns: AtomicU64,
}

struct Lane {
    turn: AtomicU32,
    mode: AtomicU32,
    times: Times,
    active: AtomicU32,
    drained: AtomicU32,
    drained_ns: AtomicU64,
    /// What the process knows to be in flight, behind the lane's lock.
    known: Mutex<u32>,
    gpu: Aside<Gpu>,
}

impl Lane {
    fn new((mode, turn): (u32, u32), fence: Fence) -> Lane {
        let word = |value| AtomicU32::new(value, fence);
        Lane {
            turn: word(turn),
            mode: word(mode),
            times: Times { none: word(0), ns: AtomicU64::new(NOW, fence) },
            active: word(0),
            drained: word(0),
            drained_ns: AtomicU64::new(0, fence),
            known: Mutex::new(0),
            gpu: Aside::default(),
        }
    }

    fn words(&self) -> ClaimWords<'_> {
        ClaimWords {
            turn: &self.turn,
            mode: &self.mode,
            active: &self.active,
            drained: &self.drained,
            drained_ns: &self.drained_ns,
        }
    }

    fn facts(&self) -> LaneFacts {
        let Times { none, ns } = &self.times;
        LaneFacts::read(&LaneWords {
            mode: &self.mode,
            turn: &self.turn,
            turn_end_ns: ns,
            window_us: none,
            idle_us: none,
            heartbeat_ns: ns,
            hard: none,
        })
    }

    /// A launch: it looks at the page once, which may show it anything that was there, and claims what it sees.
    fn launch(&self) -> bool {
        let mut known = self.known.lock().expect("no thread panics with it");
        let claimed = self.facts().claim(&self.words(), NOW);
        let goes = matches!(claimed, Claimed::Kept(Verdict::Open | Verdict::Turn { .. }));
        if goes {
            *known += 1;
            let mut gpu = self.gpu.lock().expect("as above");
            gpu.in_flight += 1;
            assert!(!gpu.elsewhere, "launched in another container's turn");
        }
        goes
    }

    /// The work of a launch ends, and the process sees that.
    fn ends(&self) {
        let mut known = self.known.lock().expect("as above");
        let mut gpu = self.gpu.lock().expect("as above");
        *known -= 1;
        (gpu.in_flight, gpu.ended) = (gpu.in_flight - 1, gpu.ended + 1);
    }

    /// The gate thread looks: it reports a turn that is over, and with `gives_up` the present one too.
    fn look(&self, gives_up: bool) {
        let known = self.known.lock().expect("as above");
        let free = self.mode.load(Relaxed) == MODE_OPEN;
        if *known == 0 && (gives_up || self.words().owes_report(free)) {
            let ended = self.gpu.lock().expect("as above").ended;
            self.words().report_drained(ended);
        }
    }

    /// The daemon begins turns, or closes one, with the even word `turn`; then it reads the claims. If the process has
    /// drained, another container gets the GPU, for the time until the turn word `next`.
    fn close(&self, turn: u32, next: Option<u32>) -> bool {
        self.mode.store(MODE_TURNS, Release);
        self.turn.store(turn, SeqCst);
        let active = self.active.load(SeqCst);
        let drained = self.drained.load(Acquire) == active;
        let ended = self.drained_ns.load(Relaxed);
        if drained {
            let mut gpu = self.gpu.lock().expect("as above");
            assert_eq!((gpu.in_flight, ended), (0, gpu.ended), "work in flight, or an old report");
            gpu.elsewhere = true;
        }
        if let Some(next) = next {
            self.gpu.lock().expect("as above").elsewhere = false;
            self.turn.store(next, SeqCst);
        }
        drained
    }
}

/// The time of every look.
const NOW: u64 = 1;

/// A turn, the open mode before turns, and the last turn before the word wraps.
const BEFORE: [(u32, u32); 3] = [(MODE_TURNS, 1), (MODE_OPEN, 2), (MODE_TURNS, u32::MAX)];

/// Each of `before`, on each kind of machine.
fn machines(before: &[(u32, u32)]) -> impl Iterator<Item = ((u32, u32), Fence)> {
    before.iter().flat_map(|before| Fence::ALL.map(|fence| (*before, fence)))
}

/// The even word with which the daemon ends what began with `turn`.
fn closed(turn: u32) -> u32 {
    turn.wrapping_add(2 - turn % 2)
}

/// Two threads launch, and their work does not end: the daemon finds the process drained only if neither does.
#[test]
fn two_launches_against_a_close() {
    for (before, fence) in machines(&BEFORE) {
        in_every_order(2, move || {
            let lane = Arc::new(Lane::new(before, fence));
            let launchers = [0, 1].map(|_| {
                let lane = Arc::clone(&lane);
                thread::spawn(move || lane.launch())
            });
            let drained = lane.close(closed(before.1), None);
            let launched = launchers.map(|it| it.join().expect("a launch"));
            assert!(!(drained && launched.contains(&true)), "a launch the daemon has not seen");
        });
    }
}

/// Work that ends, a report of the gate thread, and a second launch, over two turns of the process.
#[test]
fn reports_against_launches_over_two_turns() {
    for (before, fence) in machines(&BEFORE[..2]) {
        in_every_order(2, move || {
            let lane = Arc::new(Lane::new(before, fence));
            let (launcher, gate) = (Arc::clone(&lane), Arc::clone(&lane));
            let launcher = thread::spawn(move || {
                if launcher.launch() {
                    launcher.ends();
                }
                launcher.launch();
            });
            let gate = thread::spawn(move || gate.look(false));
            let next = closed(before.1).wrapping_add(1);
            lane.close(closed(before.1), Some(next));
            lane.close(closed(next), None);
            launcher.join().expect("two launches");
            gate.join().expect("a look");
        });
    }
}

/// The process gave its turn back early, and launches in it after all: the daemon sees that the report is withdrawn.
#[test]
fn a_launch_after_an_early_report_is_seen() {
    for (before, fence) in machines(&BEFORE) {
        in_every_order(3, move || {
            let lane = Arc::new(Lane::new(before, fence));
            assert!(lane.launch());
            lane.ends();
            lane.look(true);
            let again = Arc::clone(&lane);
            let again = thread::spawn(move || again.launch());
            let drained = lane.close(closed(before.1), None);
            assert!(
                !(again.join().expect("a launch") && drained),
                "a launch the daemon has not seen"
            );
        });
    }
}

/// A thread is killed in the middle of a launch: its work counts as in flight for ever, and the lane's lock
/// is free. The daemon never finds the process drained.
#[test]
fn a_launch_whose_thread_has_gone_is_never_reported() {
    in_every_order(3, || {
        let lane = Arc::new(Lane::new(BEFORE[0], Fence::BehindStores));
        assert!(lane.launch());
        let gate = Arc::clone(&lane);
        let gate = thread::spawn(move || gate.look(true));
        assert!(!lane.close(2, None));
        gate.join().expect("a look");
    });
}

/// When all is over, a report is owed for each turn in which work ran, and for no other.
#[test]
fn a_report_is_owed_once() {
    in_every_order(1, || {
        let lane = Lane::new((MODE_TURNS, 5), Fence::BehindStores);
        assert!(lane.launch() && lane.launch() && !lane.words().owes_report(false));
        lane.turn.store(6, SeqCst);
        assert!(lane.words().owes_report(false) && !lane.launch());
        lane.look(false);
        assert!(lane.words().owes_report(false), "two works are in flight");
        lane.ends();
        lane.ends();
        lane.look(false);
        assert!(!lane.words().owes_report(false) && !lane.words().take(5));
        assert_eq!((lane.drained.load(Relaxed), lane.drained_ns.load(Relaxed)), (4, 2));
        // Claimed in vain: it owes a report, and gives it.
        lane.look(false);
        assert!(!lane.words().owes_report(false));
        // Parked work resumed in a turn that went by unseen.
        lane.turn.store(8, SeqCst);
        lane.words().took_before(8);
        assert_eq!(lane.active.load(Relaxed), 7);
        assert!(lane.words().owes_report(false));
        // The open mode ends with the next even word.
        lane.mode.store(MODE_OPEN, SeqCst);
        assert!(lane.launch() && !lane.words().owes_report(true));
        lane.turn.store(10, SeqCst);
        assert!(lane.words().owes_report(true));
        // A daemon that hangs: work goes without turns and claims the word of the closed turn.
        lane.mode.store(MODE_TURNS, SeqCst);
        assert!(lane.words().take(10) && lane.words().owes_report(false));
    });
}
