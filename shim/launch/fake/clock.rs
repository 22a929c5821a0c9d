//! A test's own clock: time passes only where the test, or a wait of its thread, lets it pass.
//!
//! The gate on real threads shows that its parts work together. What it does at which instant is shown by a clock that
//! stands still between two steps. The clock is that of one thread: [`os::now`] reads it there, [`os::wait`] moves it
//! on, and at planned instants meanwhile the test acts as the daemon, or as another thread.
//!
//! [`os::now`]: crate::launch::os::now
//! [`os::wait`]: crate::launch::os::wait

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

/// More waits than a test has between two looks at them.
const WAITS_MAX: usize = 100_000;

type Act = Box<dyn FnOnce()>;

#[derive(Default)]
struct State {
    now: u64,
    /// What the test does later, by the instant, ns.
    planned: BTreeMap<u64, Act>,
    /// The words on which threads were woken.
    woken: Vec<*const AtomicU32>,
    /// The length of each wait so far, as asked for, ns.
    waits: Vec<u64>,
}

thread_local!(static STATE: RefCell<Option<State>> = const { RefCell::new(None) });

fn with<R>(look: impl FnOnce(&mut State) -> R) -> Option<R> {
    STATE.with_borrow_mut(|state| state.as_mut().map(look))
}

/// This thread's time, ns; `None` where it is the machine's.
pub fn now() -> Option<u64> {
    with(|state| state.now)
}

/// Waits by this thread's clock, if it has one: until `ns` are over, or a planned act wakes it.
pub fn wait(word: &AtomicU32, expected: u32, ns: u64) -> bool {
    let Some(end) = with(|state| {
        assert!(state.waits.len() < WAITS_MAX, "waits without end");
        state.waits.push(ns);
        state.now.saturating_add(ns)
    }) else {
        return false;
    };
    if word.load(SeqCst) != expected {
        return true; // as the kernel does
    }
    let before = with(|state| state.woken.len()).unwrap_or(0);
    let word = std::ptr::from_ref(word);
    let woken = || with(|state| state.woken.iter().skip(before).any(|it| *it == word));
    while woken() == Some(false) && act(end) {}
    if woken() == Some(false) {
        with(|state| state.now = end);
    }
    true
}

/// Performs the next planned act until `end`.
fn act(end: u64) -> bool {
    let next = with(|state| {
        let at = *state.planned.range(..=end).next()?.0;
        state.now = state.now.max(at);
        state.planned.remove(&at)
    });
    let Some(act) = next.flatten() else {
        return false;
    };
    act();
    true
}

/// Notes a wake-up.
pub fn wake(word: &AtomicU32) {
    with(|state| state.woken.push(std::ptr::from_ref(word)));
}

/// The clock of this thread, until it is dropped.
pub struct Clock(());

impl Clock {
    /// Stops this thread's time at `now`, ns.
    pub fn stopped_at(now: u64) -> Clock {
        STATE.set(Some(State { now, ..State::default() }));
        Clock(())
    }

    /// Lets `ns` pass.
    pub fn pass(&self, ns: u64) {
        let end = now().expect("stopped") + ns;
        while act(end) {}
        with(|state| state.now = end);
    }

    /// Plans an act for `ns` from now on.
    pub fn plan(&self, ns: u64, act: impl FnOnce() + 'static) {
        let earlier = with(|state| state.planned.insert(state.now + ns, Box::new(act)));
        assert!(earlier.flatten().is_none(), "one act at a time");
    }

    /// The waits since the last call, ns.
    pub fn waits(&self) -> Vec<u64> {
        with(|state| std::mem::take(&mut state.waits)).expect("stopped")
    }

    /// How often threads that wait on `word` were woken since the last call.
    pub fn wakes(&self, word: &AtomicU32) -> usize {
        let word = std::ptr::from_ref(word);
        with(|state| {
            let all = state.woken.len();
            state.woken.retain(|it| *it != word);
            all - state.woken.len()
        })
        .expect("stopped")
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        STATE.set(None);
    }
}
