//! GPU memory that this process shares with others is counted in its page: by what is published of drivers before
//! release 610, a process that exports or imports memory cannot be moved to the host, or not back from there. So the
//! daemon suspends no container that has such a process.
//!
//! A call counts before the driver makes or opens the handle. While the container is suspended, or on the way, the
//! call waits: by then the daemon has looked.

use crate::launch;
use crate::slice;
use gpuslice_nvabi::types::CUresult;

/// Makes a call that exports memory of this process, or imports memory of another one.
pub(super) fn shared(call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(slice) = slice::attached() else {
        return call();
    };
    let is_held = || slice.is_suspended();
    counted(|change| slice.daemon.share(change), is_held, || launch::wait_for_resume(slice), call)
}

/// `is_held`: a call must not reach the driver now; `wait` returns when it may.
fn counted(
    count: impl Fn(i32),
    is_held: impl Fn() -> bool,
    wait: impl Fn(),
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    loop {
        count(1);
        // After the count: the daemon holds calls first, and looks at counts second.
        if !is_held() {
            break;
        }
        count(-1);
        wait();
    }
    let result = call();
    if result != CUresult::SUCCESS {
        count(-1);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// Makes a call with this result, held so many times; returns what happened, and the count at the end.
    fn made(result: CUresult, held: u32) -> (Vec<&'static str>, i32) {
        let (steps, number, held) = (RefCell::new(Vec::new()), Cell::new(0), Cell::new(held));
        let step = |what| steps.borrow_mut().push(what);
        let is_held = || {
            step("look");
            assert_eq!(number.get(), 1, "it counts before it looks");
            held.get() > 0
        };
        let wait = || {
            step("wait");
            assert_eq!(number.get(), 0, "one that waits shares nothing yet");
            held.set(held.get() - 1);
        };
        let call = || {
            step("call");
            assert_eq!(number.get(), 1);
            result
        };
        assert_eq!(counted(|it| number.set(number.get() + it), is_held, wait, call), result);
        (steps.into_inner(), number.get())
    }

    #[test]
    fn a_call_counts_before_it_looks_and_waits_while_it_is_held() {
        assert_eq!(made(CUresult::SUCCESS, 0), (vec!["look", "call"], 1));
        let held = vec!["look", "wait", "look", "wait", "look", "call"];
        assert_eq!(made(CUresult::SUCCESS, 2), (held, 1));
    }

    #[test]
    fn a_call_that_the_driver_refuses_shares_nothing() {
        assert_eq!(made(CUresult::ERROR_NOT_SUPPORTED, 0), (vec!["look", "call"], 0));
    }
}
