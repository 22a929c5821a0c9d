//! The reservation of one pool: the bytes charged for it, and the bytes set aside for calls in flight.
//!
//! # Problem
//! The driver decides when a pool takes memory from the device. A small allocation may grow the pool by
//! 32 MiB, a large one may not grow it at all, and a synchronisation may shrink it. The driver reports the
//! pool's reserved bytes, but only after the call, and for all threads together. Growth that is not charged
//! in advance could exceed the cap.
//!
//! # Idea
//! A call that may grow the pool first sets aside the largest possible growth: the size of the allocation,
//! rounded up to the driver's [`Step`]. After the call the pool is *settled*: growth since the last time is
//! charged against the bytes set aside, and a shrinkage is released. One thread settles for all, since
//! growth cannot be attributed to a call. Up to one step of unspent bytes stays for the next call, which
//! then needs no request. It is released with the process's idle credit, on a recall, and before a call that
//! needs more asks the daemon: another thread or process may need it while that call waits.
//!
//! # Near the cap
//! The cap may leave no step to set aside while the pool has plenty of freed memory. Counting then shows
//! which sizes surely fit: with a bounded number of gaps, the largest gap is at least the average
//! (`State::has_gap`). Such a call has exclusive use of the pool, so that no other call takes its gap. What a
//! stream has not freed yet is no gap: the driver may rather grow the pool. So gaps count once the streams have come
//! to the frees, for which the caller waits before it gives up. If no gap is certain then, the call is refused: a
//! fragmented pool may be unable to use its free memory, but no pool exceeds the cap.
//!
//! Waiting for exclusive use is bounded. The driver may block the exclusive call until a stream's queue has
//! room, and the stream may wait for a thread that waits here. A call that has waited long enough proceeds
//! with its own step set aside. No lock is held while the driver allocates.
//!
//! Unpredicted growth is charged immediately or rolled back. It occurs when the driver's step is larger than
//! any seen before, or when the driver does not use a gap. Only one thread at a time pays, since it may
//! have to ask the daemon. Growth that can be neither charged nor rolled back stays owed, and the next
//! growth fails until it is paid.
#![forbid(unsafe_code)]

use gpuslice_nvabi::types::CUresult;
use gpuslice_wire::units::MIB;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The granularity of allocations from a pool.
const GRAIN: u64 = 512;
/// The assumed step before the first growth is observed.
const STEP_GUESS: u64 = 32 * MIB;
const STEP_MIN: u64 = 2 * MIB;
const STEP_MAX: u64 = 64 * MIB;
/// How long other calls wait for an exclusive call.
const EXCLUSIVE_WAIT: Duration = Duration::from_millis(10);
/// How long a call that needs exclusive use waits for another exclusive call.
const ENTRY_WAIT: Duration = Duration::from_millis(100);

/// The smallest growth of pools on a device, as observed so far.
#[derive(Debug, Default)]
pub struct Step(AtomicU64);

impl Step {
    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self.0.load(Relaxed) {
            0 => STEP_GUESS,
            step => step,
        }
    }

    fn round(&self, bytes: u64) -> u64 {
        let whole = bytes.checked_next_multiple_of(self.bytes());
        whole.unwrap_or(u64::MAX)
    }

    /// Observes that an empty pool has grown to `reserved`: its step is at most that.
    fn observe_first(&self, reserved: u64) {
        let factor = 1 << reserved.trailing_zeros();
        let step = if reserved < self.bytes() {
            u64::clamp(factor, STEP_MIN, STEP_MAX)
        } else {
            self.bytes()
        };
        self.0.store(step, Relaxed);
    }

    /// Observes that a pool has grown by `more` bytes beyond the size of the allocation.
    fn observe_larger(&self, more: u64) {
        let step = more.clamp(STEP_MIN, STEP_MAX).next_power_of_two();
        self.0.store(step.max(self.bytes()), Relaxed);
    }
}

/// The account and the driver, as far as a pool uses them.
pub trait PoolBackend {
    /// Takes bytes from the account's credit, without a request to the daemon. Returns the number of bytes taken;
    /// `None`, and nothing is taken, if there are fewer.
    fn take(&self, bytes: u64) -> Option<u64>;
    /// Takes bytes from the account, asking the daemon if needed. Returns the number of bytes taken.
    ///
    /// # Errors
    /// Out of memory.
    fn reserve(&self, bytes: u64) -> Result<u64, CUresult>;
    /// Returns bytes to the account.
    fn release(&self, bytes: u64);
    /// Notes that the pool's charge changed by `bytes`.
    fn changed(&self, bytes: i64);
    /// The pool's reserved bytes as the driver reports them; `None` if the driver does not.
    fn reserved(&self) -> Option<u64>;
    /// The growth step of such pools.
    fn step(&self) -> &Step;
}

#[derive(Debug, Default)]
struct State {
    /// Bytes charged for the memory that the pool has reserved on the device.
    charged: u64,
    /// Bytes taken from the account and not charged yet.
    unspent: u64,
    /// The part of `unspent` that calls in flight have set aside.
    set_aside: u64,
    /// Bytes that may stay unspent beyond that.
    keep: u64,
    /// Calls in flight.
    in_flight: u64,
    /// One of them relies on a gap and has exclusive use.
    exclusive: bool,
    /// Threads waiting for its end; at 0 the wake-up, a system call, is skipped.
    waiting: u64,
    /// Bytes allocated and not freed, or being allocated.
    used: u64,
    /// Number of those allocations.
    live: u64,
    /// Number of frees.
    freed: u64,
    /// The number of frees before the program last waited for the streams of all of them.
    executed: u64,
    /// Contiguous bytes left in the pool's last growth, at least. Unknown (0) after a free: the driver may
    /// drop an unused block without notice.
    tail: u64,
    /// Number of calls begun.
    begun: u64,
    /// Bytes that the pool was seen to return to the device, in total.
    released: u64,
    /// Reserved bytes beyond the charge, at the last refresh.
    owed: u64,
    /// The driver has reported the reserved bytes.
    reported: bool,
    life: Life,
}

/// How far the end of a pool has come. Its handle is passed to the driver only while it is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Life {
    #[default]
    Open,
    /// The driver is destroying it, and may refuse.
    Closed,
    /// The driver has destroyed it. Its allocations still have their memory.
    Destroyed,
    /// Its last allocation is freed and its charge released.
    Released,
}

/// The result of settling a pool.
#[derive(Default)]
struct Settled {
    /// Bytes to return to the account.
    release: u64,
    /// Change of the charge, bytes.
    change: i64,
    /// Reserved bytes beyond the charge.
    owed: u64,
}

impl State {
    fn settle(&mut self, reserved: u64) -> Settled {
        let before = self.charged;
        let paid = reserved.saturating_sub(self.charged).min(self.unspent);
        self.unspent -= paid;
        self.charged += paid;
        let shrunk = self.charged.saturating_sub(reserved);
        self.charged -= shrunk;
        if shrunk > 0 {
            self.released = self.released.saturating_add(shrunk);
            self.tail = 0;
        }
        self.owed = reserved - self.charged;
        let idle = self.spare().saturating_sub(self.keep);
        self.unspent -= idle;
        Settled {
            release: shrunk + idle,
            change: self.charged as i64 - before as i64,
            owed: self.owed,
        }
    }

    /// Unspent bytes that no call in flight has set aside.
    fn spare(&self) -> u64 {
        self.unspent.saturating_sub(self.set_aside)
    }

    /// Whether the pool surely has a gap of `bytes` and no other call relies on one.
    ///
    /// A gap is certain up to the rest of the last growth, or up to the average gap. There is at most one
    /// gap for each step of the charge and one for each free, and allocations bound the latter number.
    fn has_gap(&self, bytes: u64, step: u64) -> bool {
        let (growths, room) = (self.charged.div_ceil(step), self.charged.saturating_sub(self.used));
        let gaps = (growths + self.freed.min(self.live)).max(1);
        let average = if self.executed == self.freed { room / gaps } else { 0 };
        !self.exclusive && self.owed == 0 && (bytes <= self.tail || bytes <= average)
    }

    /// Begins a call that allocates `bytes` and has set `set_aside` bytes aside.
    fn enter(&mut self, bytes: u64, set_aside: u64) -> PoolCall {
        self.in_flight += 1;
        self.begun += 1;
        if bytes > 0 {
            self.used = self.used.saturating_add(bytes);
            self.live += 1;
            self.tail = self.tail.saturating_sub(bytes);
        }
        PoolCall {
            bytes,
            set_aside,
            exclusive: false,
            sole: self.in_flight == 1,
            number: self.begun,
        }
    }

    fn enter_exclusively(&mut self, bytes: u64) -> PoolCall {
        self.exclusive = true;
        PoolCall { exclusive: true, ..self.enter(bytes, 0) }
    }

    /// Learns the step from a pool that has grown beyond `last` during `call`.
    fn learn_step(&mut self, step: &Step, call: &PoolCall, last: u64) {
        let reserved = self.charged + self.owed;
        if last == 0 {
            step.observe_first(reserved);
        }
        // No other call contributed to the growth.
        if call.sole && call.number == self.begun {
            let more = (reserved - last).saturating_sub(call.bytes);
            self.tail = more;
            if self.owed > 0 {
                step.observe_larger(more);
            }
        }
    }

    fn leave(&mut self, call: &PoolCall) {
        self.in_flight -= 1;
        self.set_aside = self.set_aside.saturating_sub(call.set_aside);
        self.exclusive &= !call.exclusive;
    }

    fn free(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
        self.live = self.live.saturating_sub(1);
        self.freed += 1;
        self.tail = 0;
    }
}

/// The reservation of one pool, for all threads.
#[derive(Debug, Default)]
pub struct PoolReservation {
    state: Mutex<State>,
    /// Signalled when an exclusive call ends.
    done: Condvar,
    /// Held by the thread that pays what is owed.
    paying: Mutex<()>,
}

/// A call in flight that may grow the pool; [`PoolReservation::end`] or [`PoolReservation::cancel`] must
/// follow.
#[derive(Debug)]
#[must_use]
pub struct PoolCall {
    /// Size of its allocation.
    pub bytes: u64,
    /// Bytes it has set aside.
    set_aside: u64,
    /// It relies on a gap and has exclusive use of the pool.
    exclusive: bool,
    /// No other call was in flight when it began.
    sole: bool,
    number: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PoolReservation {
    /// The state, once no call has exclusive use of the pool or after waiting for `long`.
    fn shared(&self, long: Duration) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        if !state.exclusive {
            return state;
        }
        state.waiting += 1;
        let waited = self.done.wait_timeout_while(state, long, |state| state.exclusive);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.waiting -= 1;
        state
    }

    /// Begins an allocation of `bytes`, before the driver is called.
    ///
    /// # Errors
    /// As [`PoolBackend::reserve`], when neither a step can be reserved nor a gap is certain.
    pub fn begin(&self, backend: &impl PoolBackend, bytes: u64) -> Result<PoolCall, CUresult> {
        let bytes = bytes.checked_next_multiple_of(GRAIN).unwrap_or(u64::MAX);
        let step = backend.step().bytes();
        let mut state = self.shared(EXCLUSIVE_WAIT);
        let need = backend.step().round(bytes);
        if state.spare() < need && state.has_gap(bytes, step) {
            // The driver may have released the free memory meanwhile.
            drop(state);
            self.refresh(backend);
            state = self.shared(EXCLUSIVE_WAIT);
            if state.has_gap(bytes, step) {
                return Ok(state.enter_exclusively(bytes));
            }
        }
        drop(state);
        match self.set_aside(backend, need) {
            Ok(set_aside) => Ok(lock(&self.state).enter(bytes, set_aside)),
            Err(refused) => {
                self.refresh(backend);
                let mut state = self.shared(ENTRY_WAIT);
                if state.has_gap(bytes, step) {
                    Ok(state.enter_exclusively(bytes))
                } else {
                    Err(refused)
                }
            }
        }
    }

    /// Begins a call that grows the pool by at most `bytes`, rounded up to a step, and by at most `limit`. It makes no
    /// allocation recorded here.
    ///
    /// # Errors
    /// As [`PoolBackend::reserve`].
    pub fn begin_growth(
        &self,
        backend: &impl PoolBackend,
        bytes: u64,
        limit: u64,
    ) -> Result<PoolCall, CUresult> {
        if lock(&self.state).owed > 0 {
            self.pay(backend)?;
        }
        let set_aside = self.set_aside(backend, backend.step().round(bytes).min(limit))?;
        Ok(lock(&self.state).enter(0, set_aside))
    }

    /// Sets `need` bytes aside, using spare bytes first. Returns the number set aside. If credit lacks the rest, the
    /// spare bytes become credit before the daemon is asked for the whole: meanwhile they are found there.
    fn set_aside(&self, backend: &impl PoolBackend, need: u64) -> Result<u64, CUresult> {
        {
            let mut state = lock(&self.state);
            let spare = state.spare().min(need);
            let rest = if spare == need { Some(0) } else { backend.take(need - spare) };
            if let Some(taken) = rest {
                state.unspent += taken;
                state.set_aside += spare + taken;
                return Ok(spare + taken);
            }
            if spare > 0 {
                state.unspent -= spare;
                backend.release(spare);
            }
        }
        let taken = backend.reserve(need)?;
        let mut state = lock(&self.state);
        state.unspent += taken;
        state.set_aside += taken;
        Ok(taken)
    }

    /// Ends a call in which the driver succeeded, and settles. On an error the caller must undo the
    /// allocation and then call [`PoolReservation::freed`].
    ///
    /// # Errors
    /// As [`PoolBackend::reserve`], for growth beyond the bytes set aside.
    pub fn end(&self, backend: &impl PoolBackend, call: &PoolCall) -> Result<(), CUresult> {
        let (owed, waiting) = {
            let mut state = lock(&self.state);
            let last = state.charged + state.owed;
            state.leave(call);
            state.keep = call.set_aside.min(backend.step().bytes());
            let owed = state.refresh(backend);
            let reserved = state.charged + state.owed;
            if reserved > last {
                state.learn_step(backend.step(), call, last);
            }
            (owed, state.waiting)
        };
        if call.exclusive && waiting > 0 {
            self.done.notify_all();
        }
        match owed {
            0 => Ok(()),
            _ => self.pay(backend),
        }
    }

    /// Ends a call that the driver refused.
    pub fn cancel(&self, backend: &impl PoolBackend, call: &PoolCall) {
        {
            let mut state = lock(&self.state);
            state.leave(call);
            if call.bytes > 0 {
                state.free(call.bytes);
            }
        }
        self.done.notify_all();
        self.settle(backend);
    }

    /// Notes that an allocation was freed. Returns whether its pool is destroyed.
    pub fn freed(&self, bytes: u64) -> bool {
        let mut state = lock(&self.state);
        state.free(bytes);
        state.life == Life::Destroyed
    }

    /// Whether streams may not have executed all frees.
    #[must_use]
    pub fn has_pending_frees(&self) -> bool {
        let state = lock(&self.state);
        state.life == Life::Open && state.executed != state.freed
    }

    /// Number of frees so far, for [`PoolReservation::executed`].
    #[must_use]
    pub fn frees(&self) -> u64 {
        lock(&self.state).freed
    }

    /// Notes that streams have executed the first `frees` frees.
    pub fn executed(&self, frees: u64) {
        let mut state = lock(&self.state);
        state.executed = state.executed.max(frees);
    }

    /// Brings the charge up to date from unspent bytes alone, without a request to the daemon, and keeps
    /// no bytes for later calls. Returns the bytes owed afterwards.
    pub fn settle(&self, backend: &impl PoolBackend) -> u64 {
        lock(&self.state).keep = 0;
        self.refresh(backend)
    }

    fn refresh(&self, backend: &impl PoolBackend) -> u64 {
        lock(&self.state).refresh(backend)
    }

    fn pay(&self, backend: &impl PoolBackend) -> Result<(), CUresult> {
        if self.settle(backend) == 0 {
            return Ok(());
        }
        let _paying = lock(&self.paying);
        loop {
            // Also after a refusal: another thread may have released bytes meanwhile.
            let owed = self.settle(backend);
            if owed == 0 {
                return Ok(());
            }
            match backend.reserve(owed) {
                Ok(taken) => lock(&self.state).unspent += taken,
                Err(_) if self.settle(backend) == 0 => return Ok(()),
                Err(refused) => return Err(refused),
            }
        }
    }

    /// Marks the pool as about to be destroyed: the driver is no longer asked about it.
    pub fn close(&self) {
        lock(&self.state).life = Life::Closed;
    }

    /// Notes that the driver has destroyed the pool.
    pub fn destroyed(&self) {
        lock(&self.state).life = Life::Destroyed;
    }

    /// Reverts [`PoolReservation::close`] when the driver refused to destroy the pool.
    pub fn reopen(&self) {
        lock(&self.state).life = Life::Open;
    }

    /// Releases the charge of a destroyed pool if its last allocation is freed. Returns whether it did: of two threads
    /// that come to the pool's end, one.
    pub fn release_destroyed(&self, backend: &impl PoolBackend) -> bool {
        let mut state = lock(&self.state);
        if state.life != Life::Destroyed || state.live > 0 {
            return false;
        }
        state.life = Life::Released;
        let (charged, unspent) = (state.charged, state.unspent);
        (state.charged, state.unspent) = (0, 0);
        backend.changed(-(charged as i64));
        backend.release(charged + unspent);
        true
    }

    /// Whether the pool may have unused memory.
    #[must_use]
    pub fn has_slack(&self) -> bool {
        let state = lock(&self.state);
        state.life == Life::Open && state.charged + state.owed > state.used
    }

    /// Bytes that the pool was seen to return to the device, in total. A pool that grows by as many bytes as this has
    /// increased by is at most as large as before.
    #[must_use]
    pub fn released(&self) -> u64 {
        lock(&self.state).released
    }

    /// Charged now, bytes.
    #[cfg(test)]
    #[must_use]
    pub fn charged(&self) -> u64 {
        lock(&self.state).charged
    }
}

impl State {
    /// Settles with what the driver reports, and changes the account under the same lock: a thread that finds
    /// nothing to settle reads an account that has it. Returns the bytes owed.
    fn refresh(&mut self, backend: &impl PoolBackend) -> u64 {
        if self.life != Life::Open {
            return 0;
        }
        let reserved = backend.reserved();
        self.reported |= reserved.is_some();
        // A driver that has reported may not do so without a context or after an error. What the pool has is then
        // unknown, and its memory outlives all contexts: the charge stays.
        let least = if self.reported { self.charged } else { 0 };
        let reserved = reserved.unwrap_or(self.used.max(least));
        self.settle(reserved).apply(backend)
    }
}

impl Settled {
    /// Applies the changes to the account and returns the bytes owed.
    fn apply(self, backend: &impl PoolBackend) -> u64 {
        if self.change != 0 {
            backend.changed(self.change);
        }
        if self.release > 0 {
            backend.release(self.release);
        }
        self.owed
    }
}
