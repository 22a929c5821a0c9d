//! The arithmetic of one pool: what it is charged, what is set aside for calls in flight.
//!
//! # Problem
//! A pool takes memory from the device when *it* wants: a small allocation may make it grow by 32 MiB,
//! a large one not at all, a synchronisation somewhere may shrink it. Only the driver knows, and it says
//! so when asked: so many bytes are reserved. But it is asked afterwards, and by many threads at once.
//!
//! # Idea
//! Each pool has a *pot*. A call that may make the pool grow first puts in what it allocates. After the
//! call somebody *settles*: what the pool has grown since the last time is paid out of the pot, and what
//! the pot lacks is reserved in addition; if it shrank, the difference goes back. Whoever settles does
//! so for all, since growth has no name on it. What is in the pot beyond what calls in flight put in
//! goes back too.
//!
//! Paying what the pot lacks may take a question to the daemon, which no lock of those that settle may be
//! held for: payers have one of their own, so that two of them never pay for the same growth. What
//! could not be paid stays owed; the next call on the pool fails until it is paid or given back.
#![forbid(unsafe_code)]

use gpuslice_nvabi::types::CUresult;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The unit in which drivers hand out parts of a pool.
const GRAIN: u64 = 512;

/// What a pool needs of the session and of the driver.
pub trait World {
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
    /// The part of it that no allocation uses.
    fn unused(&self) -> u64;
}

#[derive(Debug, Default)]
struct Pot {
    /// Charged for what the pool has of the device.
    charged: u64,
    /// Taken from the account and not charged yet.
    pot: u64,
    /// What calls in flight put into the pot.
    asked: u64,
    /// Allocated and not freed, or being allocated.
    used: u64,
    /// That many allocations.
    live: u64,
    /// How often the pool was seen to have shrunk.
    shrinks: u64,
    /// As of the last look, the pool had so much more than was charged.
    owed: u64,
    /// Destroyed: the driver may not be asked any more.
    over: bool,
}

/// What a look at the pool led to.
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
        self.shrinks += u64::from(shrunk > 0);
        self.owed = reserved - self.charged;
        let idle = self.pot.saturating_sub(self.asked);
        self.pot -= idle;
        Settled {
            back: shrunk + idle,
            change: self.charged as i64 - before as i64,
            owed: self.owed,
        }
    }
}

/// The charge of one pool, for all threads.
#[derive(Debug, Default)]
pub struct Charge {
    pot: Mutex<Pot>,
    /// Held by who pays what the pot lacks.
    paying: Mutex<()>,
}

/// A call in flight that may make the pool grow; [`Charge::end`] or [`Charge::cancel`] must follow.
#[derive(Debug)]
#[must_use]
pub struct Call {
    /// What it allocates, bytes.
    pub bytes: u64,
    asked: u64,
}

fn alone<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Charge {
    /// An allocation is about to be asked for. Nothing is set aside where the pool should have room
    /// for it: near the cap a pool that is full of freed memory must not have to beg for what it has.
    ///
    /// # Errors
    /// As [`World::reserve`].
    pub fn begin(&self, world: &impl World, bytes: u64) -> Result<Call, CUresult> {
        let bytes = bytes.checked_next_multiple_of(GRAIN).unwrap_or(u64::MAX);
        if alone(&self.pot).room_for(bytes) {
            return Ok(Call { bytes, asked: 0 });
        }
        let asked = match world.reserve(bytes) {
            Ok(taken) => taken,
            Err(_) if world.unused() >= bytes => 0,
            Err(refused) => return Err(refused),
        };
        let mut pot = alone(&self.pot);
        pot.used = pot.used.saturating_add(bytes);
        pot.live += 1;
        pot.put_in(asked);
        Ok(Call { bytes, asked })
    }

    /// Something is about to be asked for that makes the pool grow by `bytes` at most, and whose parts
    /// are not allocations of ours.
    ///
    /// # Errors
    /// As [`World::reserve`].
    pub fn begin_growth(&self, world: &impl World, bytes: u64) -> Result<Call, CUresult> {
        if alone(&self.pot).owed > 0 {
            self.pay(world)?;
        }
        let asked = match bytes {
            0 => 0,
            _ => match world.reserve(bytes) {
                Ok(taken) => taken,
                Err(_) if world.unused() >= bytes => 0,
                Err(refused) => return Err(refused),
            },
        };
        alone(&self.pot).put_in(asked);
        Ok(Call { bytes: 0, asked })
    }

    /// The driver did it: settles. What it made must be undone on an error, and then
    /// [`Charge::parted`] from.
    ///
    /// # Errors
    /// As [`World::reserve`], for growth beyond what was set aside.
    pub fn end(&self, world: &impl World, call: &Call) -> Result<(), CUresult> {
        alone(&self.pot).take_out(call.asked);
        self.pay(world)
    }

    /// The driver refused.
    pub fn cancel(&self, world: &impl World, call: &Call) {
        alone(&self.pot).take_out(call.asked);
        if call.bytes > 0 {
            self.parted(call.bytes);
        }
        self.settle(world);
    }

    /// An allocation is no more.
    pub fn parted(&self, bytes: u64) {
        let mut pot = alone(&self.pot);
        pot.used = pot.used.saturating_sub(bytes);
        pot.live = pot.live.saturating_sub(1);
    }

    /// Brings the charge up to date as far as the pot goes, and asks nobody but the driver. Gives what
    /// is owed then, bytes.
    pub fn settle(&self, world: &impl World) -> u64 {
        let settled = {
            let mut pot = alone(&self.pot);
            if pot.over {
                return 0;
            }
            let reserved = world.reserved().unwrap_or(pot.used);
            pot.settle(reserved)
        };
        if settled.change != 0 {
            world.changed(settled.change);
        }
        if settled.back > 0 {
            world.release(settled.back);
        }
        settled.owed
    }

    fn pay(&self, world: &impl World) -> Result<(), CUresult> {
        if self.settle(world) == 0 {
            return Ok(());
        }
        let _alone = alone(&self.paying);
        loop {
            // Also after a refusal: something may have been given back meanwhile.
            let owed = self.settle(world);
            if owed == 0 {
                return Ok(());
            }
            match world.reserve(owed) {
                Ok(taken) => alone(&self.pot).pot += taken,
                Err(_) if self.settle(world) == 0 => return Ok(()),
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
    pub fn bury(&self, world: &impl World) -> bool {
        let (charged, pot) = {
            let mut pot = alone(&self.pot);
            if !pot.over || pot.live > 0 {
                return false;
            }
            let (charged, left) = (pot.charged, pot.pot);
            (pot.charged, pot.pot) = (0, 0);
            (charged, left)
        };
        world.changed(-(charged as i64));
        world.release(charged + pot);
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
    /// Notes an allocation if the pool should have room for it.
    fn room_for(&mut self, bytes: u64) -> bool {
        let room = self.charged.saturating_sub(self.used) >= bytes;
        if room {
            self.used += bytes;
            self.live += 1;
        }
        room
    }

    fn put_in(&mut self, asked: u64) {
        self.pot += asked;
        self.asked += asked;
    }

    fn take_out(&mut self, asked: u64) {
        self.asked = self.asked.saturating_sub(asked);
    }
}
