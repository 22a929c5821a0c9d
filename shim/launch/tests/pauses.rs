//! Which gaps between pieces of work end the turn of a program.

use super::*;
use crate::launch::gaps::CHANGE_NS;

/// A kernel of 50 us, `meanwhile`, and the call that waits for its end. Returns whether all was done so soon that it is
/// no reason to keep a turn: where the machine lets this thread wait, that counts as work.
fn waits_for_a_kernel(rig: &Rig, meanwhile: impl FnOnce()) -> bool {
    let began = os::now();
    rig.launch(1, 5, 50 * US);
    meanwhile();
    let (since, end) = (os::now(), rig.fake.gpu().busy_until);
    while os::now() < end {
        std::hint::spin_loop();
    }
    rig.gate.waited(since);
    os::now() - began < CHANGE_NS
}

/// Once its gaps are known to be long, a program that waits for its work ends its turn in the call that waits. A try in
/// which the machine kept this thread from running says nothing.
#[test]
fn a_program_with_long_gaps_ends_its_turn_as_its_work_ends() {
    let try_once = || {
        let rig = Rig::new(MODE_TURNS);
        rig.turn(1, 60_000_000 * US);
        for _ in 0..8 {
            if !waits_for_a_kernel(&rig, || {}) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        rig.gate.stop(); // from here on, no other thread can end it
        let mut rings = 0;
        let in_time = waits_for_a_kernel(&rig, || {
            assert_eq!(rig.claims().runnable.load(SeqCst), 1);
            rings = rig.fake.rings.load(SeqCst);
        });
        if in_time {
            assert_eq!(rig.claims().runnable.load(SeqCst), 0);
            assert_eq!(rig.claims().drained.load(SeqCst), 1);
            assert!(rig.fake.rings.load(SeqCst) > rings, "the daemon is not told");
        }
        in_time
    };
    let start = Instant::now();
    while !try_once() {
        let goes_on = start.elapsed() < Duration::from_secs(60);
        assert!(goes_on, "this thread was kept from running in each try");
    }
}

/// A program of five long kernels and short gaps, which waits for their ends or not: whether it kept its turn, and the
/// longest gap, ns.
fn short_gaps(rig: &Rig, waits: bool) -> (bool, u64) {
    rig.page().lane[0].idle_us.store(60_000_000, SeqCst);
    rig.turn(1, 60_000_000 * US);
    rig.launch(1, 5, 400_000 * US);
    let mut longest = 0;
    let kept = std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            for _ in 0..4 {
                let (since, end) = (os::now(), rig.fake.gpu().busy_until);
                std::thread::sleep(Duration::from_nanos(end.saturating_sub(os::now())));
                if waits {
                    rig.gate.waited(since);
                }
                std::thread::sleep(Duration::from_millis(2));
                rig.launch(1, 5, 400_000 * US);
                longest = longest.max(os::now().saturating_sub(end));
            }
        });
        let mut kept = true;
        while !busy.is_finished() {
            kept &= rig.claims().runnable.load(SeqCst) == 1;
            std::thread::sleep(Duration::from_micros(100));
        }
        kept
    });
    (kept, longest)
}

/// A program with short gaps keeps its turn over them, and ends it when it stops. A try whose gaps the machine
/// made long says nothing.
#[test]
fn a_program_with_short_gaps_keeps_its_turn() {
    for waits in [true, false] {
        let tries = (0..20).map(|_| Rig::new(MODE_TURNS));
        let mut judged = tries.map(|rig| (short_gaps(&rig, waits), rig));
        let found = judged.find(|((_, longest), _)| *longest < 100_000 * US);
        let ((kept, _), rig) = found.expect("no gap was short");
        assert!(kept, "it lost its turn; waits: {waits}");
        eventually("runnable is cleared", || rig.claims().runnable.load(SeqCst) == 0);
    }
}
