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

    /// Takes so many tokens. Where it has fewer, it has none until it has gained the rest. What it lacked before counts
    /// only as far as a full bucket would pay for: tokens that are taken without a look at the bucket must not keep
    /// others from it for any longer.
    pub fn spend(&mut self, now: Instant, tokens: u64) {
        let most_lacking = now.plus(Duration(self.every.0.saturating_mul(2 * self.most)));
        let gained_after = Duration(self.every.0.saturating_mul(tokens));
        self.full = self.full.max(now).min(most_lacking).plus(gained_after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_unasked_keeps_others_waiting_for_no_longer_than_a_full_bucket_and_itself() {
        let (every, most) = (Duration(10), 100);
        let mut bucket = Bucket::new(every, most);
        let now = Instant(1_000_000);
        for _ in 0..1_000 {
            bucket.spend(now, 50);
        }
        assert_eq!(bucket.next(), now.plus(Duration(10 * (2 * most + 50 - (most - 1)))));
        assert!(!bucket.take(now) && bucket.take(bucket.next()));
        // What is taken by those that ask is paid for in full.
        let mut bucket = Bucket::new(every, most);
        let (mut now, mut spent) = (now, 0);
        while now < Instant(2_000_000) {
            bucket.spend(now, 1_000);
            (now, spent) = (bucket.next(), spent + 1_000);
        }
        assert!(spent <= 1_000_000 / every.0 + 1_000 + most, "{spent}");
    }
}
