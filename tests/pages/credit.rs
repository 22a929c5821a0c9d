//! The common credit of a process, whose threads change it and publish the held memory: is the number that they write
//! last an old one?

use crate::atomic::Ordering::Relaxed;
use crate::atomic::{AtomicU64, Fence};
use crate::common::{Change, Common};
use crate::in_every_order;
use loom::sync::Arc;
use loom::thread;

/// Bytes granted to the process.
const GRANTED: u64 = 100;

struct Process {
    common: Common,
    /// What the other processes of the container read.
    slot: AtomicU64,
}

impl Process {
    fn new(credit: u64, fence: Fence) -> Arc<Process> {
        let word = |value| AtomicU64::new(value, fence);
        Arc::new(Process { common: Common(word(credit)), slot: word(GRANTED - credit) })
    }

    fn publish(&self) {
        loop {
            let seen = self.common.bytes();
            self.slot.store(GRANTED - seen, Relaxed);
            if self.common.publication_ends(seen) {
                return;
            }
        }
    }

    fn publish_change(&self, change: Change) {
        if change.first || !self.common.another_publishes() {
            self.publish();
        }
    }

    fn allocate(&self, bytes: u64) {
        let change = self.common.take(|there| there.checked_sub(bytes)).expect("credit");
        self.publish_change(change);
    }

    fn free(&self, bytes: u64) {
        self.publish_change(self.common.put(bytes));
    }
}

fn together(preemptions: usize, held: u64, threads: &'static [fn(&Process)]) {
    for fence in Fence::ALL {
        in_every_order(preemptions, move || {
            let process = Process::new(50, fence);
            let started = threads.iter().map(|&run| {
                let process = Arc::clone(&process);
                thread::spawn(move || run(&process))
            });
            let started: Vec<_> = started.collect();
            started.into_iter().for_each(|thread| thread.join().expect("it ends"));
            assert_eq!(process.slot.load(Relaxed), held);
            assert_eq!(process.common.bytes(), GRANTED - held);
        });
    }
}

#[test]
fn two_threads_that_change_the_credit() {
    together(3, 50 + 7 - 4, &[|it| it.allocate(7), |it| it.free(4)]);
}

/// The credit is twice the same, and another number is there between the two.
#[test]
fn a_thread_that_changes_it_back() {
    const BOTH: fn(&Process) = |it| {
        it.allocate(7);
        it.free(7);
    };
    together(3, 50 - 4, &[BOTH, |it| it.free(4)]);
    together(3, 50, &[BOTH, Process::publish]);
}

#[test]
fn three_threads_of_which_one_publishes_unasked() {
    together(2, 50 + 7 + 9, &[|it| it.allocate(7), |it| it.allocate(9), Process::publish]);
}

/// A thread was killed that had to publish.
#[test]
fn a_publication_that_no_thread_ends() {
    let killed = |it: &Process| {
        it.common.take(|there| there.checked_sub(7)).expect("credit");
    };
    for fence in Fence::ALL {
        in_every_order(3, move || {
            let process = Process::new(50, fence);
            killed(&process);
            let other = Arc::clone(&process);
            let other = thread::spawn(move || other.allocate(9));
            process.publish();
            other.join().expect("it ends");
            assert_eq!(process.slot.load(Relaxed), 50 + 7 + 9);
        });
    }
}
