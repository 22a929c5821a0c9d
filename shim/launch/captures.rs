//! Keeps the gate's questions apart from stream captures.
//!
//! The gate asks streams whether they have finished. To ask a stream that is being captured ends the capture
//! with an error in the program. Whether a stream is captured can be asked without harm, but a capture may begin
//! between the two questions. So the calls by which a capture begins, or another stream joins one, announce
//! themselves here: the gate asks only while none of them is under way, and they wait while it asks, which takes
//! microseconds.
//!
//! These calls run side by side: none of them waits for another one. A program that never captures pays one load
//! for a call that could join a capture.

use super::os;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};

/// The bit that is set while the gate asks.
const ASKING: u32 = 1 << 31;
/// The bit that is set when a call waits for the end of that.
const WAITING: u32 = 1 << 30;
/// No call waits longer without a look, should the thread that asks be gone.
const LOOK_NS: u64 = 1_000_000;

/// Those of this process.
static CAPTURES: Captures = Captures::new();

/// The captures of a process.
struct Captures {
    /// The number of announced calls under way, and two bits.
    word: AtomicU32,
    /// Whether one was ever begun.
    begun: AtomicBool,
}

impl Captures {
    const fn new() -> Captures {
        Captures { word: AtomicU32::new(0), begun: AtomicBool::new(false) }
    }

    fn announce(&self) -> Call<'_> {
        let mut word = self.word.load(SeqCst);
        loop {
            let asking = word & ASKING != 0;
            let next = if asking { word | WAITING } else { word + 1 };
            match self.word.compare_exchange_weak(word, next, SeqCst, SeqCst) {
                Ok(_) if asking => {
                    os::wait(&self.word, next, LOOK_NS);
                    word = self.word.load(SeqCst);
                }
                Ok(_) => return Call(self),
                Err(now) => word = now,
            }
        }
    }

    fn begin<R>(&self, call: impl FnOnce() -> R) -> R {
        self.begun.store(true, SeqCst);
        let _call = self.announce();
        call()
    }

    #[inline]
    fn join<R>(&self, call: impl FnOnce() -> R) -> R {
        // A program orders this call behind the one that began the capture it joins.
        let _call = self.begun.load(Relaxed).then(|| self.announce());
        call()
    }

    fn apart<R>(&self, ask: impl FnOnce() -> R) -> Option<R> {
        let free = |word: u32| (word & !WAITING == 0).then_some(word | ASKING);
        self.word.fetch_update(SeqCst, SeqCst, free).ok()?;
        let _question = Question(self);
        Some(ask())
    }
}

/// An announced call under way.
struct Call<'a>(&'a Captures);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.word.fetch_sub(1, SeqCst);
    }
}

/// The gate asks.
struct Question<'a>(&'a Captures);

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if self.0.word.fetch_and(!(ASKING | WAITING), SeqCst) & WAITING != 0 {
            os::wake(&self.0.word);
        }
    }
}

/// Makes a call that begins a capture.
pub fn begin<R>(call: impl FnOnce() -> R) -> R {
    CAPTURES.begin(call)
}

/// Makes a call by which a stream may join a capture.
#[inline]
pub fn join<R>(call: impl FnOnce() -> R) -> R {
    CAPTURES.join(call)
}

/// Whether the process has ever begun a capture: while it has not, no stream need be asked.
#[inline]
pub fn ever() -> bool {
    CAPTURES.begun.load(Relaxed)
}

/// Asks by `ask` while no capture begins and no stream joins one; `None` where that is under way.
pub fn apart<R>(ask: impl FnOnce() -> R) -> Option<R> {
    CAPTURES.apart(ask)
}

/// In the child of a fork: the threads that announced or asked are not there. Async-signal-safe.
pub fn in_child() {
    CAPTURES.word.store(0, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::super::fake::clock::{self, Clock};
    use super::*;
    use crate::daemon::fake;
    use std::sync::atomic::AtomicU64;

    /// It looks meanwhile, should the thread that asks be gone.
    #[test]
    fn a_call_waits_for_the_end_of_a_question() {
        let captures: &Captures = Box::leak(Box::new(Captures::new()));
        let clock = Clock::stopped_at(0);
        captures.word.store(ASKING, SeqCst);
        clock.plan(LOOK_NS * 3 / 2, || drop(Question(captures)));
        assert_eq!(captures.begin(clock::now), Some(LOOK_NS * 3 / 2));
        assert_eq!((clock.waits(), clock.wakes(&captures.word)), (vec![LOOK_NS; 2], 1));
        assert_eq!(captures.begin(|| captures.word.load(SeqCst)), 1, "the call is announced");
        assert_eq!((captures.word.load(SeqCst), clock.waits()), (0, vec![]));
    }

    /// This process has captures of other tests; a child's are its own.
    #[test]
    fn a_child_has_no_call_and_no_question_of_its_parent() {
        let tries = || {
            CAPTURES.word.store(ASKING | WAITING | 3, SeqCst);
            CAPTURES.begun.store(false, SeqCst);
            in_child();
            let before = (ever(), apart(|| 7));
            let during = begin(|| apart(|| 7));
            (before, during, ever()) == ((false, Some(7)), None, true)
        };
        assert!(fake::in_child(tries));
    }

    /// Threads begin captures, join them and ask. A question and a call are never under way at the same time, and
    /// everything ends.
    #[test]
    fn a_question_and_a_call_never_meet() {
        let captures = Captures::new(); // other tests use those of the process
        captures.begin(|| ()); // from here on calls that may join one count
        let (called, asked) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let call = || {
                called.fetch_add(1, SeqCst);
                std::thread::yield_now(); // a question may begin, if it is allowed to
                assert_eq!(asked.load(SeqCst) % 2, 0, "a question is under way");
                called.fetch_sub(1, SeqCst);
            };
            for thread in 0..4 {
                let captures = &captures;
                scope.spawn(move || {
                    for _ in 0..4_000 {
                        if thread % 2 == 0 {
                            captures.begin(call);
                        } else {
                            captures.join(call);
                        }
                        std::thread::yield_now();
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    // Calls end at last, so this does.
                    while asked.load(SeqCst) < 2_000 {
                        let ask = || {
                            asked.fetch_add(1, SeqCst);
                            std::thread::yield_now();
                            assert_eq!(called.load(SeqCst), 0, "a call is under way");
                            asked.fetch_add(1, SeqCst);
                        };
                        captures.apart(ask);
                    }
                });
            }
        });
        assert_eq!(captures.word.load(SeqCst) & !WAITING, 0);
    }
}
