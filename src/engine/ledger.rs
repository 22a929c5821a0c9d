//! Memory books of one account: a cap, and what is reserved of it.
//!
//! Memory is reserved before the driver is asked for it. So two processes that race for the last
//! bytes meet here, one after the other, and only one can win. What is granted stays granted
//! until it is given back or its process ends, used or not:
//! ```text
//! reserved = sum over processes of (granted + residual) + stray
//! ```
//! Nothing is *granted* beyond the cap. What is there whether it was granted or not is counted
//! beyond it too, and the account is then simply full: what a process held when the daemon came
//! back, what NVML shows of a process beyond its grants (its *residual*), of all together beyond
//! theirs (*hidden*) and of strangers (*stray*), and all of it when the cap was lowered below it.
//!
//! The sum is kept wider than its parts, so that no lie of any size makes it forget anything.

use gpuslice_wire::units::{Bytes, Duration, Instant};

/// The books of one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryAccount {
    cap: Bytes,
    reserved: u128,
}

impl MemoryAccount {
    pub(crate) const fn new(cap: Bytes) -> MemoryAccount {
        MemoryAccount { cap, reserved: 0 }
    }
    pub(crate) const fn cap(&self) -> Bytes {
        self.cap
    }
    pub(crate) const fn set_cap(&mut self, cap: Bytes) {
        self.cap = cap;
    }
    pub(crate) fn reserved(&self) -> Bytes {
        Bytes(u64::try_from(self.reserved).unwrap_or(u64::MAX))
    }
    /// The sum itself.
    pub(crate) const fn exactly(&self) -> u128 {
        self.reserved
    }
    /// What can still be granted.
    pub(crate) fn left(&self) -> Bytes {
        self.cap.saturating_sub(self.reserved())
    }
    /// Whether `need` would fit if `returned` came back first.
    pub(crate) fn would_fit(&self, need: Bytes, returned: u128) -> bool {
        let kept = self.reserved.saturating_sub(returned);
        kept + u128::from(need.0) <= u128::from(self.cap.0)
    }

    /// Grants as much of `wish` as there is.
    ///
    /// # Errors
    /// What is left, if that is less than `need`; nothing is granted then.
    pub(crate) fn reserve(&mut self, need: Bytes, wish: Bytes) -> Result<Bytes, Bytes> {
        let left = self.left();
        if need > left {
            return Err(left);
        }
        let granted = wish.max(need).min(left);
        self.hold(granted);
        Ok(granted)
    }

    /// Counts what is there already, whether it fits or not.
    pub(crate) fn hold(&mut self, bytes: Bytes) {
        self.reserved += u128::from(bytes.0);
    }

    /// Counts `now` instead of `was`.
    pub(crate) fn recount(&mut self, was: u128, now: u128) {
        self.reserved = self.reserved.saturating_sub(was) + now;
    }

    /// Takes back what was granted or counted.
    pub(crate) fn release(&mut self, bytes: Bytes) {
        self.reserved = self.reserved.saturating_sub(u128::from(bytes.0));
    }
}

/// Looks at the same thing this far apart, at least, confirm each other.
const APART: Duration = Duration::from_millis(300);

/// An amount that is measured, and charged as far as two looks agree.
///
/// A look is not of one instant: NVML is asked, and what the process says is read a little later.
/// What it freed or took over meanwhile looks like something it has beside its books. So an
/// amount is charged when it was there twice, and less is believed at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    charged: Bytes,
    /// More than that was seen, first then.
    more: Option<(Instant, Bytes)>,
}

impl Measured {
    /// What counts.
    pub(crate) const fn charged(&self) -> Bytes {
        self.charged
    }

    /// Of what counts, so much is known to be gone.
    pub(crate) fn reduce(&mut self, bytes: Bytes) {
        self.charged = self.charged.saturating_sub(bytes);
    }

    /// A look at `now` shows `seen`.
    pub(crate) fn look(&mut self, now: Instant, seen: Bytes) {
        let (since, before) = self.more.unwrap_or((now, seen));
        if seen <= self.charged {
            (self.charged, self.more) = (seen, None);
        } else if now.since(since) >= APART {
            self.charged = self.charged.max(seen.min(before));
            self.more = (seen > self.charged).then_some((now, seen));
        } else {
            self.more = Some((since, seen.min(before)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_between_need_and_wish_and_never_above_the_cap() {
        let mut ledger = MemoryAccount::new(Bytes(100));
        assert_eq!(ledger.reserve(Bytes(10), Bytes(40)), Ok(Bytes(40)));
        assert_eq!(ledger.reserve(Bytes(10), Bytes(90)), Ok(Bytes(60)));
        assert_eq!(ledger.reserve(Bytes(1), Bytes(1)), Err(Bytes(0)));
        assert_eq!(ledger.reserve(Bytes(0), Bytes(5)), Ok(Bytes(0)));
        ledger.release(Bytes(7));
        assert_eq!(ledger.reserve(Bytes(8), Bytes(u64::MAX)), Err(Bytes(7)));
        assert_eq!(
            ledger.reserve(Bytes(7), Bytes(0)),
            Ok(Bytes(7)),
            "a wish below the need"
        );
        assert_eq!(
            ledger.reserve(Bytes(u64::MAX), Bytes(u64::MAX)),
            Err(Bytes(0))
        );
    }

    #[test]
    fn what_is_there_is_counted_even_above_the_cap_and_forgotten_exactly() {
        let mut ledger = MemoryAccount::new(Bytes(100));
        ledger.hold(Bytes(150));
        assert_eq!((ledger.left(), ledger.reserved()), (Bytes(0), Bytes(150)));
        ledger.hold(Bytes(u64::MAX));
        ledger.hold(Bytes(u64::MAX));
        ledger.release(Bytes(u64::MAX));
        assert_eq!(ledger.reserved(), Bytes(u64::MAX));
        ledger.release(Bytes(u64::MAX));
        ledger.release(Bytes(60));
        assert_eq!(ledger.left(), Bytes(10));
        ledger.set_cap(Bytes(80));
        assert_eq!((ledger.left(), ledger.reserved()), (Bytes(0), Bytes(90)));
        assert!(ledger.would_fit(Bytes(20), 30) && !ledger.would_fit(Bytes(21), 30));
    }

    #[test]
    fn more_counts_when_it_was_seen_twice_and_less_at_once() {
        let at = |ms: u64| Instant(ms * 1_000_000);
        let looks = |looks: &[(u64, u64)]| {
            let mut it = Measured::default();
            looks
                .iter()
                .for_each(|&(ms, seen)| it.look(at(ms), Bytes(seen)));
            it.charged().0
        };
        assert_eq!(looks(&[(0, 50)]), 0);
        assert_eq!(looks(&[(0, 50), (299, 50)]), 0, "too soon to confirm it");
        assert_eq!(looks(&[(0, 50), (299, 50), (300, 60)]), 50);
        assert_eq!(looks(&[(0, 50), (1000, 60), (2000, 60)]), 60);
        assert_eq!(looks(&[(0, 50), (1000, 0), (2000, 50)]), 0);
        assert_eq!(looks(&[(0, 50), (100, 20), (1000, 50)]), 20);
        assert_eq!(looks(&[(0, 50), (1000, 50), (1001, 10)]), 10);
        assert_eq!(looks(&[(0, 50), (1000, 50), (1001, 80), (1002, 50)]), 50);
    }
}
