//! A token bucket: how often something may happen in the long run, and how often at once.

use gpuslice_wire::units::{Duration, Instant};

/// Gains a token every `every`, up to `most`.
#[derive(Debug)]
pub struct Bucket {
    every: Duration,
    most: u64,
    /// When it is full.
    full: Instant,
}

impl Bucket {
    /// A full one.
    pub const fn new(every: Duration, most: u64) -> Bucket {
        Bucket { every, most, full: Instant(0) }
    }

    /// When it has a token.
    pub fn next(&self) -> Instant {
        Instant(self.full.0.saturating_sub(self.every.0 * (self.most - 1)))
    }

    /// Takes a token if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let has_one = self.next() <= now;
        if has_one {
            self.spend(now, 1);
        }
        has_one
    }

    /// Takes so many tokens. Where it has fewer, it has none until it has gained the rest.
    pub fn spend(&mut self, now: Instant, tokens: u64) {
        let gained_after = Duration(self.every.0.saturating_mul(tokens));
        self.full = self.full.max(now).plus(gained_after);
    }
}
