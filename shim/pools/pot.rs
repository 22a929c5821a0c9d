//! The arithmetic of one pool: what it is charged, what is set aside for calls in flight.
//!
//! # Problem
//! A pool takes memory from the device when *it* wants: a small allocation may make it grow by 32 MiB,
//! a large one not at all, a synchronisation somewhere may shrink it. Only the driver knows, and it says
//! so when asked: so many bytes are reserved. But it is asked afterwards, and by many threads at once,
//! and a pool that grew before it was paid for was above the cap.
//!
//! # Idea
//! Each pool has a *pot*. A call that may make the pool grow first puts in the most that it can grow by:
//! what it allocates, rounded up to the driver's [`Step`]. After the call somebody *settles*: what the
//! pool has grown since the last time is paid out of the pot; if it shrank, the difference goes back.
//! Whoever settles does so for all, since growth has no name on it. A step's worth of what is left stays
//! in the pot for the next call, which then asks nobody; it goes home with the process's idle credit, and
//! at once when somebody is short.
//!
//! # Near the cap
//! There may be no step left to set aside, in a pool with plenty of freed memory. Then what fits is told
//! by counting: with so many gaps at most, the largest is at least the average (`Pot::has_a_gap`). Such a
//! call goes alone: others wait for it, so that nobody else takes its gap. Without that certainty it
//! is refused: a pool in splinters may be unable to use what it has, but no pool is above the cap.
//!
//! Waiting for who is alone is bounded: the driver may let that call wait for room in a stream's queue,
//! and the stream for something that a waiting thread is about to do. So whoever waited long enough goes
//! on, with its own step set aside. No lock is held while the driver allocates.
//!
//! What a pool grows by all the same (a driver whose step is larger than any seen before; or a gap that it
//! would not use) is paid for at once, by one payer at a time, since it may take a question
//! to the daemon, or undone. What can be neither stays owed; the next growth fails until it is paid.
#![forbid(unsafe_code)]

use gpuslice_nvabi::types::CUresult;
use gpuslice_wire::units::MIB;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The unit in which drivers hand out parts of a pool.
const GRAIN: u64 = 512;
/// What pools are taken to grow by before one was seen to.
const GUESS: u64 = 32 * MIB;
const STEP_MIN: u64 = 2 * MIB;
const STEP_MAX: u64 = 64 * MIB;
/// So long others wait for one that is alone.
const ALONE_WAIT: Duration = Duration::from_millis(10);
/// So long one that must be alone waits for another.
const TURN_WAIT: Duration = Duration::from_millis(100);

/// The least that pools of a device grow by, as far as seen.
#[derive(Debug, Default)]
pub struct Step(AtomicU64);

impl Step {
    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self.0.load(Relaxed) {
            0 => GUESS,
            step => step,
        }
    }

    fn round(&self, bytes: u64) -> u64 {
        let whole = bytes.checked_next_multiple_of(self.bytes());
        whole.unwrap_or(u64::MAX)
    }

    /// An empty pool was seen to have grown to `reserved`: it did so in steps of no more.
    fn first(&self, reserved: u64) {
        let factor = 1 << reserved.trailing_zeros();
        let step = if reserved < self.bytes() {
            u64::clamp(factor, STEP_MIN, STEP_MAX)
        } else {
            self.bytes()
        };
        self.0.store(step, Relaxed);
    }

    /// A pool was seen to have grown by so much more than was asked for.
    fn surprise(&self, more: u64) {
        let step = more.clamp(STEP_MIN, STEP_MAX).next_power_of_two();
        self.0.store(step.max(self.bytes()), Relaxed);
    }
}

/// What a pool needs of the session and of the driver.
pub trait PoolBackend {
    /// Takes bytes from the account, perhaps after asking the daemon: how many were taken.
    ///
    /// # Errors
    /// Out of memory.
    fn reserve(&self, bytes: u64) -> Result<u64, CUresult>;
    /// Puts bytes back into the account.
    fn release(&self, bytes: u64);
    /// So much more (or less) is charged for the pool.
    fn changed(&self, bytes: i64);
    /// What the driver says that the pool has of the device; `None` if it does not say.
    fn reserved(&self) -> Option<u64>;
    /// What such pools grow by.
    fn step(&self) -> &Step;
}

#[derive(Debug, Default)]
struct Pot {
    /// Charged for what the pool has of the device.
    charged: u64,
    /// Taken from the account and not charged yet.
    pot: u64,
    /// What calls in flight put into the pot.
    asked: u64,
    /// What may stay in the pot beside that.
    keep: u64,
    /// Calls in flight.
    flying: u64,
    /// One of them counts on a gap.
    alone: bool,
    /// So many wait for its end: to wake nobody is a system call too.
    waiting: u64,
    /// Allocated and not freed, or being allocated.
    used: u64,
    /// That many allocations.
    live: u64,
    /// That many were freed.
    freed: u64,
    /// The piece that the pool grew by last has at least so much left in one part. Known until something
    /// is freed: a piece that nothing uses may go without a word.
    tail: u64,
    /// That many calls have begun.
    begun: u64,
    /// How often the pool was seen to have shrunk.
    shrinks: u64,
    /// As of the last look, the pool had so much more than was charged.
    owed: u64,
    /// Destroyed: the driver may not be asked any more.
    over: bool,
}

/// What a look at the pool led to.
#[derive(Default)]
struct Settled {
    /// Goes back to the account.
    back: u64,
    /// So much more (or less) is charged.
    change: i64,
    /// The pool has that much more than is charged.
    owed: u64,
}

impl Pot {
    fn settle(&mut self, reserved: u64) -> Settled {
        let before = self.charged;
        let paid = reserved.saturating_sub(self.charged).min(self.pot);
        self.pot -= paid;
        self.charged += paid;
        let shrunk = self.charged.saturating_sub(reserved);
        self.charged -= shrunk;
        if shrunk > 0 {
            self.shrinks += 1;
            self.tail = 0;
        }
        self.owed = reserved - self.charged;
        let idle = self.spare().saturating_sub(self.keep);
        self.pot -= idle;
        Settled {
            back: shrunk + idle,
            change: self.charged as i64 - before as i64,
            owed: self.owed,
        }
    }

    /// In the pot, and of no call in flight.
    fn spare(&self) -> u64 {
        self.pot.saturating_sub(self.asked)
    }

    /// Whether the pool surely has a gap of that size, and nobody else counts on one: what is left of
    /// its last piece, or the average of all gaps, of which there is one for each piece and one for
    /// each free at most, and no more than allocations to part them. Where something was freed only a
    /// quarter is counted on: the streams may not have come to all of the frees.
    fn has_a_gap(&self, bytes: u64, step: u64) -> bool {
        let (pieces, room) = (
            self.charged.div_ceil(step),
            self.charged.saturating_sub(self.used),
        );
        let gaps = match self.freed.min(self.live) {
            0 if self.freed == 0 => pieces.max(1),
            freed => 4 * (pieces + freed).max(1),
        };
        let average = room / gaps;
        !self.alone && self.owed == 0 && (bytes <= self.tail || bytes <= average)
    }

    /// A call begins that allocates `bytes` and has put `asked` into the pot.
    fn enter(&mut self, bytes: u64, asked: u64) -> Call {
        self.flying += 1;
        self.begun += 1;
        if bytes > 0 {
            self.used = self.used.saturating_add(bytes);
            self.live += 1;
            self.tail = self.tail.saturating_sub(bytes);
        }
        Call {
            bytes,
            asked,
            alone: false,
            lonely: self.flying == 1,
            number: self.begun,
        }
    }

    fn enter_alone(&mut self, bytes: u64) -> Call {
        self.alone = true;
        Call {
            alone: true,
            ..self.enter(bytes, 0)
        }
    }

    /// The pool has more than `last` once `call` is over.
    fn learn(&mut self, step: &Step, call: &Call, last: u64) {
        let reserved = self.charged + self.owed;
        if last == 0 {
            step.first(reserved);
        }
        // Nobody else's growth is part of it.
        if call.lonely && call.number == self.begun {
            let more = (reserved - last).saturating_sub(call.bytes);
            self.tail = more;
            if self.owed > 0 {
                step.surprise(more);
            }
        }
    }

    fn leave(&mut self, call: &Call) {
        self.flying -= 1;
        self.asked = self.asked.saturating_sub(call.asked);
        self.alone &= !call.alone;
    }

    fn part(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
        self.live = self.live.saturating_sub(1);
        self.freed += 1;
        self.tail = 0;
    }
}

/// The charge of one pool, for all threads.
#[derive(Debug, Default)]
pub struct Charge {
    pot: Mutex<Pot>,
    /// Who was alone is so no more.
    done: Condvar,
    /// Held by who pays what the pot lacks.
    paying: Mutex<()>,
}

/// A call in flight that may make the pool grow; [`Charge::end`] or [`Charge::cancel`] must follow.
#[derive(Debug)]
#[must_use]
pub struct Call {
    /// What it allocates, bytes.
    pub bytes: u64,
    /// What it put into the pot.
    asked: u64,
    /// It counts on a gap.
    alone: bool,
    /// No other was in flight when it began.
    lonely: bool,
    number: u64,
}

fn alone<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Charge {
    /// The pot when nobody is alone with the pool, or after so long.
    fn shared(&self, long: Duration) -> MutexGuard<'_, Pot> {
        let mut pot = alone(&self.pot);
        if !pot.alone {
            return pot;
        }
        pot.waiting += 1;
        let waited = self.done.wait_timeout_while(pot, long, |pot| pot.alone);
        let mut pot = waited.unwrap_or_else(PoisonError::into_inner).0;
        pot.waiting -= 1;
        pot
    }

    /// An allocation is about to be asked for.
    ///
    /// # Errors
    /// As [`PoolBackend::reserve`], when there is neither a step left nor surely a gap in the pool.
    pub fn begin(&self, backend: &impl PoolBackend, bytes: u64) -> Result<Call, CUresult> {
        let bytes = bytes.checked_next_multiple_of(GRAIN).unwrap_or(u64::MAX);
        let step = backend.step().bytes();
        let mut pot = self.shared(ALONE_WAIT);
        let need = backend.step().round(bytes);
        if pot.spare() < need && pot.has_a_gap(bytes, step) {
            // The driver may have taken back what was free.
            drop(pot);
            self.look(backend);
            pot = self.shared(ALONE_WAIT);
            if pot.has_a_gap(bytes, step) {
                return Ok(pot.enter_alone(bytes));
            }
        }
        drop(pot);
        match self.set_aside(backend, need) {
            Ok(asked) => Ok(alone(&self.pot).enter(bytes, asked)),
            Err(refused) => {
                self.look(backend);
                let mut pot = self.shared(TURN_WAIT);
                if pot.has_a_gap(bytes, step) {
                    Ok(pot.enter_alone(bytes))
                } else {
                    Err(refused)
                }
            }
        }
    }

    /// Something is about to be asked for that makes the pool grow by `bytes` at most, and whose parts
    /// are not allocations of ours.
    ///
    /// # Errors
    /// As [`PoolBackend::reserve`].
    pub fn begin_growth(&self, backend: &impl PoolBackend, bytes: u64) -> Result<Call, CUresult> {
        if alone(&self.pot).owed > 0 {
            self.pay(backend)?;
        }
        let asked = match bytes {
            0 => 0,
            _ => self.set_aside(backend, backend.step().round(bytes))?,
        };
        Ok(alone(&self.pot).enter(0, asked))
    }

    /// Sets `need` aside in the pot, what is spare in it first. How much it was.
    fn set_aside(&self, backend: &impl PoolBackend, need: u64) -> Result<u64, CUresult> {
        let spare = {
            let mut pot = alone(&self.pot);
            let spare = pot.spare().min(need);
            pot.asked += spare;
            spare
        };
        if spare == need {
            return Ok(need);
        }
        let taken = backend.reserve(need - spare);
        let mut pot = alone(&self.pot);
        match taken {
            Ok(taken) => {
                pot.pot += taken;
                pot.asked += taken;
                Ok(spare + taken)
            }
            Err(refused) => {
                pot.asked = pot.asked.saturating_sub(spare);
                Err(refused)
            }
        }
    }

    /// The driver did it: settles. What it made must be undone on an error, and then
    /// [`Charge::parted`] from.
    ///
    /// # Errors
    /// As [`PoolBackend::reserve`], for growth beyond what was set aside.
    pub fn end(&self, backend: &impl PoolBackend, call: &Call) -> Result<(), CUresult> {
        let (settled, waiting) = {
            let mut pot = alone(&self.pot);
            let last = pot.charged + pot.owed;
            pot.leave(call);
            pot.keep = call.asked.min(backend.step().bytes());
            let settled = pot.look(backend);
            let reserved = pot.charged + pot.owed;
            if reserved > last {
                pot.learn(backend.step(), call, last);
            }
            (settled, pot.waiting)
        };
        if call.alone && waiting > 0 {
            self.done.notify_all();
        }
        match settled.apply(backend) {
            0 => Ok(()),
            _ => self.pay(backend),
        }
    }

    /// The driver refused.
    pub fn cancel(&self, backend: &impl PoolBackend, call: &Call) {
        {
            let mut pot = alone(&self.pot);
            pot.leave(call);
            if call.bytes > 0 {
                pot.part(call.bytes);
            }
        }
        self.done.notify_all();
        self.settle(backend);
    }

    /// An allocation is no more. Whether its pool is destroyed.
    pub fn parted(&self, bytes: u64) -> bool {
        let mut pot = alone(&self.pot);
        pot.part(bytes);
        pot.over
    }

    /// Brings the charge up to date as far as the pot goes, and asks nobody but the driver. Nothing is
    /// kept for calls to come. Gives what is owed then, bytes.
    pub fn settle(&self, backend: &impl PoolBackend) -> u64 {
        alone(&self.pot).keep = 0;
        self.look(backend)
    }

    fn look(&self, backend: &impl PoolBackend) -> u64 {
        let settled = alone(&self.pot).look(backend);
        settled.apply(backend)
    }

    fn pay(&self, backend: &impl PoolBackend) -> Result<(), CUresult> {
        if self.settle(backend) == 0 {
            return Ok(());
        }
        let _alone = alone(&self.paying);
        loop {
            // Also after a refusal: something may have been given back meanwhile.
            let owed = self.settle(backend);
            if owed == 0 {
                return Ok(());
            }
            match backend.reserve(owed) {
                Ok(taken) => alone(&self.pot).pot += taken,
                Err(_) if self.settle(backend) == 0 => return Ok(()),
                Err(refused) => return Err(refused),
            }
        }
    }

    /// The pool is about to be destroyed: from now on the driver is not asked about it.
    pub fn close(&self) {
        alone(&self.pot).over = true;
    }

    /// It was not destroyed after all.
    pub fn reopen(&self) {
        alone(&self.pot).over = false;
    }

    /// Gives back the charge of a destroyed pool if its last allocation is gone; whether it is.
    pub fn bury(&self, backend: &impl PoolBackend) -> bool {
        let (charged, pot) = {
            let mut pot = alone(&self.pot);
            if !pot.over || pot.live > 0 {
                return false;
            }
            let (charged, left) = (pot.charged, pot.pot);
            (pot.charged, pot.pot) = (0, 0);
            (charged, left)
        };
        backend.changed(-(charged as i64));
        backend.release(charged + pot);
        true
    }

    /// Whether the pool may have memory that nothing uses.
    #[must_use]
    pub fn has_slack(&self) -> bool {
        let pot = alone(&self.pot);
        !pot.over && pot.charged + pot.owed > pot.used
    }

    /// How often the pool was seen to have shrunk: while that does not change, what it had once it
    /// has still.
    #[must_use]
    pub fn shrinks(&self) -> u64 {
        alone(&self.pot).shrinks
    }

    /// Charged now, bytes.
    #[must_use]
    pub fn charged(&self) -> u64 {
        alone(&self.pot).charged
    }
}

impl Pot {
    fn look(&mut self, backend: &impl PoolBackend) -> Settled {
        if self.over {
            return Settled::default();
        }
        let reserved = backend.reserved().unwrap_or(self.used);
        self.settle(reserved)
    }
}

impl Settled {
    /// Gives what is owed.
    fn apply(self, backend: &impl PoolBackend) -> u64 {
        if self.change != 0 {
            backend.changed(self.change);
        }
        if self.back > 0 {
            backend.release(self.back);
        }
        self.owed
    }
}
