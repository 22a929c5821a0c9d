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

/// The number of announced calls under way, and two bits.
static WORD: AtomicU32 = AtomicU32::new(0);
/// The bit that is set while the gate asks.
const ASKING: u32 = 1 << 31;
/// The bit that is set when a call waits for the end of that.
const WAITING: u32 = 1 << 30;
/// No call waits longer without a look, should the thread that asks be gone.
const LOOK_NS: u64 = 1_000_000;

/// Whether the process has ever begun a capture.
static CAPTURED: AtomicBool = AtomicBool::new(false);

/// An announced call under way.
struct Call;

impl Call {
    fn announce() -> Call {
        let mut word = WORD.load(SeqCst);
        loop {
            if word & ASKING != 0 {
                let waiting = WORD.fetch_or(WAITING, SeqCst) | WAITING;
                if waiting & ASKING != 0 {
                    os::wait(&WORD, waiting, LOOK_NS);
                }
                word = WORD.load(SeqCst);
                continue;
            }
            match WORD.compare_exchange_weak(word, word + 1, SeqCst, SeqCst) {
                Ok(_) => return Call,
                Err(now) => word = now,
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        WORD.fetch_sub(1, SeqCst);
    }
}

/// Makes a call that begins a capture.
pub fn begin<R>(call: impl FnOnce() -> R) -> R {
    CAPTURED.store(true, SeqCst);
    let _call = Call::announce();
    call()
}

/// Makes a call by which a stream may join a capture.
#[inline]
pub fn join<R>(call: impl FnOnce() -> R) -> R {
    // A program orders this call behind the one that began the capture it joins.
    let _call = CAPTURED.load(Relaxed).then(Call::announce);
    call()
}

/// Whether the process has ever begun a capture: while it has not, no stream need be asked.
#[inline]
pub fn ever() -> bool {
    CAPTURED.load(Relaxed)
}

/// The gate asks.
struct Question;

impl Drop for Question {
    fn drop(&mut self) {
        if WORD.fetch_and(!(ASKING | WAITING), SeqCst) & WAITING != 0 {
            os::wake(&WORD);
        }
    }
}

/// Asks by `ask` while no capture begins and no stream joins one; `None` where that is under way.
pub fn apart<R>(ask: impl FnOnce() -> R) -> Option<R> {
    let free = |word: u32| (word & !WAITING == 0).then_some(word | ASKING);
    WORD.fetch_update(SeqCst, SeqCst, free).ok()?;
    let _question = Question;
    Some(ask())
}

/// In the child of a fork: the threads that announced or asked are not there. Async-signal-safe.
pub fn in_child() {
    WORD.store(0, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Threads begin captures, join them and ask. A question and a call are never under way at the same time, and
    /// everything ends.
    #[test]
    fn a_question_and_a_call_never_meet() {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        static ASKED: AtomicU64 = AtomicU64::new(0);
        begin(|| ()); // from here on calls that may join one count
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for _ in 0..4_000 {
                        let call = || {
                            CALLS.fetch_add(1, SeqCst);
                            std::thread::yield_now(); // a question may begin, if it is allowed to
                            assert_eq!(ASKED.load(SeqCst) % 2, 0, "a question is under way");
                            CALLS.fetch_sub(1, SeqCst);
                        };
                        if thread % 2 == 0 {
                            begin(call);
                        } else {
                            join(call);
                        }
                        std::thread::yield_now();
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    // Calls end at last, so this does.
                    while ASKED.load(SeqCst) < 2_000 {
                        let ask = || {
                            ASKED.fetch_add(1, SeqCst);
                            std::thread::yield_now();
                            assert_eq!(CALLS.load(SeqCst), 0, "a call is under way");
                            ASKED.fetch_add(1, SeqCst);
                        };
                        apart(ask);
                    }
                });
            }
        });
        assert_eq!(WORD.load(SeqCst) & !WAITING, 0);
    }
}
