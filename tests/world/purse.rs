//! A process's memory on one account: grants, use, and answers to recalls.
//!
//! A process that needs more than its credit asks for the rest; one that frees keeps the credit for a
//! while; one that is recalled gives back what it does not use, unless it is late, silent or wrong.

use gpuslice_wire::units::{GIB, MIB};

use crate::rng::Rng;

/// One account of a process, by its own ledger.
#[derive(Clone, Copy, Debug, Default)]
pub struct Purse {
    /// Credit, used or not.
    pub granted: u64,
    /// Bytes in allocations.
    pub used: u64,
    /// The part of `used` that NVML does not show.
    pub unseen: u64,
    /// Memory that NVML shows beyond `used`.
    pub beyond: u64,
    /// A request is under way, for an allocation of this size.
    pub asks: Option<u64>,
}

/// A process's next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nothing that needs a message.
    Nothing,
    /// Asks for more.
    Reserve {
        /// The least useful amount.
        need: u64,
        /// The amount that saves round trips.
        wish: u64,
    },
    /// Gives back.
    Release(u64),
}

impl Purse {
    /// Credit that is not in use.
    #[must_use]
    pub fn unused(&self) -> u64 {
        self.granted - self.used
    }

    /// Asks for more, in the middle of an allocation, or does nothing.
    pub fn ask(&mut self, rng: &mut Rng) -> Want {
        if self.asks.is_some() || !rng.per_mille(300) {
            return Want::Nothing;
        }
        let size = self.unused() + rng.magnitude(1, GIB);
        self.asks = Some(size);
        let need = size - self.unused();
        Want::Reserve { need, wish: need }
    }

    /// Allocates or frees, or returns idle credit. An allocation is of this size, or of any.
    pub fn spend(&mut self, size: Option<u64>, rng: &mut Rng) -> Want {
        self.beyond = match rng.below(8) {
            0 => rng.magnitude(1, GIB),
            1 => 0,
            _ => self.beyond,
        };
        match rng.below(10) {
            0..2 => {
                self.used -= rng.range(0, self.used);
                self.unseen = self.unseen.min(self.used);
                Want::Nothing
            }
            2..4 => {
                let bytes = rng.range(0, self.unused());
                self.granted -= bytes;
                Want::Release(bytes)
            }
            _ if self.asks.is_some() => Want::Nothing,
            _ => {
                let size = size.unwrap_or_else(|| rng.magnitude(1, 2 * GIB));
                if size <= self.unused() {
                    self.take(size, rng);
                    return Want::Nothing;
                }
                self.asks = Some(size);
                let need = size - self.unused();
                let wish = need + rng.below(64 * MIB);
                Want::Reserve { need, wish }
            }
        }
    }

    fn take(&mut self, size: u64, rng: &mut Rng) {
        self.used += size.min(self.unused());
        if rng.per_mille(100) {
            self.unseen = rng.range(0, self.used);
        }
    }

    /// Credit came.
    pub fn credit(&mut self, bytes: u64, rng: &mut Rng) {
        self.granted += bytes;
        if let Some(size) = self.asks.take() {
            self.take(size, rng);
        }
    }
}
