//! What a process holds and what it was granted, which its threads change: is memory that went back to the daemon in
//! use, and what do other processes see?

use crate::atomic::Ordering::SeqCst;
use crate::atomic::{AtomicU64, Fence};
use crate::balance::Balance;
use crate::in_every_order;
use gpuslice_wire::usage::slot_bytes;
use loom::sync::Arc;
use loom::thread;

struct Process {
    balance: Balance,
    /// What other processes read.
    copy: AtomicU64,
}

impl Process {
    /// It was granted 100 bytes and holds 50.
    fn new(fence: Fence) -> Arc<Process> {
        let word = || AtomicU64::new(0, fence);
        let balance = Balance { granted: word(), held: word() };
        let process = Process { balance, copy: word() };
        process.balance.raise(100, 50);
        process.balance.publish(&process.copy);
        Arc::new(process)
    }

    /// Returns the bytes taken.
    fn take(&self, bytes: u64) -> u64 {
        match self.balance.take(|credit| (bytes <= credit).then_some(bytes)) {
            Some((taken, change)) => {
                self.balance.publish_change(&self.copy, change);
                taken
            }
            None => {
                self.balance.publish(&self.copy);
                0
            }
        }
    }

    /// Returns what is added to the bytes held.
    fn put(&self, bytes: u64) -> u64 {
        let (_, change) = self.balance.put(bytes);
        self.balance.publish_change(&self.copy, change);
        bytes.wrapping_neg()
    }

    fn published(&self) -> u64 {
        slot_bytes(self.copy.load(SeqCst))
    }
}

/// What a thread does. Returns what it has added to the bytes held.
type Run = fn(&Process) -> u64;

/// Runs the threads and, on this one, `main`, which returns what it has added to the bytes held and to those granted.
fn together(preemptions: usize, threads: &'static [Run], main: fn(&Process) -> (u64, u64)) {
    for fence in Fence::ALL {
        in_every_order(preemptions, move || {
            let process = Process::new(fence);
            let started = threads.iter().map(|&run| {
                let process = Arc::clone(&process);
                thread::spawn(move || run(&process))
            });
            let started: Vec<_> = started.collect();
            let (mine, granted) = main(&process);
            let ended = started.into_iter().map(|thread| thread.join().expect("it ends"));
            let held = ended.fold(50_u64.wrapping_add(mine), u64::wrapping_add);
            let granted = 100_u64.wrapping_add(granted);
            assert_eq!((process.balance.held(), process.balance.granted()), (held, granted));
            assert!(held <= granted, "{held} held, {granted} granted");
            assert_eq!(process.balance.credit(), granted - held);
            assert_eq!(process.published(), held);
        });
    }
}

#[test]
fn threads_share_the_credit() {
    together(3, &[|it| it.take(30), |it| it.take(30)], |_| (0, 0));
    together(2, &[|it| it.take(30), |it| it.put(20)], |it| (it.take(30), 0));
}

#[test]
fn credit_that_is_returned_is_not_in_use() {
    let all = |it: &Process| (0, it.balance.lower(|credit| credit).wrapping_neg());
    together(4, &[|it| it.take(30)], all);
    together(3, &[|it| it.take(30), |it| it.take(15)], all);
}

/// What is held is the same before and after.
#[test]
fn credit_that_is_returned_while_as_much_is_held_as_before() {
    const BOTH: Run = |it| {
        let taken = it.take(30);
        it.put(taken);
        it.take(30)
    };
    let some = |it: &Process| (0, it.balance.lower(|credit| credit.min(20)).wrapping_neg());
    together(3, &[BOTH], some);
    together(2, &[BOTH, |it| it.take(40)], some);
}

/// A request: credit is taken out, and comes back with more, of which the one that asked has its part.
#[test]
fn credit_that_comes_goes_to_the_thread_that_asked() {
    let asks = |it: &Process| {
        let kept = it.balance.lower(|credit| credit);
        it.balance.raise(kept + 5, kept + 5);
        it.balance.publish(&it.copy);
        (kept + 5, 5)
    };
    together(3, &[|it| it.take(20)], asks);
    together(2, &[|it| it.take(20), |it| it.put(10)], asks);
}

/// When a call has returned, what it changed is there, and no older number comes after it.
#[test]
fn a_change_is_seen_when_its_call_has_returned() {
    let watches = |it: &Process| {
        let before = it.take(20);
        let seen = it.published();
        assert!((50 + before..=100).contains(&seen), "{seen} after {before}");
        assert!(it.published() >= seen, "{seen}, and less afterwards");
        (before, 0)
    };
    together(3, &[|it| it.take(5)], watches);
    together(3, &[|it| it.take(5), |it| it.take(7)], watches);
}

/// A thread was killed that had to publish, and another process has written into the copy.
#[test]
fn a_publication_that_is_missing() {
    for fence in Fence::ALL {
        in_every_order(3, move || {
            let process = Process::new(fence);
            let other = Arc::clone(&process);
            let other = thread::spawn(move || {
                let _ = other.balance.put(20);
                other.copy.store(7, SeqCst);
            });
            process.take(9);
            other.join().expect("it ends");
            process.balance.publish(&process.copy);
            assert_eq!((process.published(), process.balance.held()), (39, 39));
        });
    }
}
