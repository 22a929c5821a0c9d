//! Memory ledger of one account: a cap, a limit, and the bytes reserved.
//!
//! Memory is reserved before the driver is asked for it. So two processes that race for the last bytes are
//! decided one after the other, and only one can win. A grant stays until it is given back or its process
//! ends, used or not:
//! ```text
//! reserved = sum over processes of (granted + residual that no grant covers) + unattributed
//! ```
//! The cap is promised. The limit is mostly the cap; a larger one lets the account borrow what other accounts
//! leave unused (`memory::borrow`). Nothing is *granted* beyond the limit. Memory that exists without a grant is
//! counted beyond it too, and the account is then full. Such memory is:
//! * the memory a process held when the daemon restarted;
//! * NVML's figure for a process beyond its grants (*residual*), for all processes together beyond their
//!   grants (*hidden*), and for unattributed processes (*unattributed*);
//! * all of it above a cap that was lowered.
//!
//! The sum is wider than its parts, so that no false claim of any size overflows it.

use gpuslice_wire::limits::CONTEXT_BYTES_MAX;
use gpuslice_wire::units::{Bytes, Duration, Instant};

/// The ledger of one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryAccount {
    cap: Bytes,
    limit: Bytes,
    reserved: u128,
    /// What it held when its limit was lowered below that, and holds still.
    kept: Bytes,
}

impl MemoryAccount {
    pub(crate) const fn new(cap: Bytes) -> MemoryAccount {
        MemoryAccount { cap, limit: cap, reserved: 0, kept: Bytes::ZERO }
    }
    pub(crate) const fn cap(&self) -> Bytes {
        self.cap
    }
    /// The most that may be granted; not below the cap.
    pub(crate) const fn limit(&self) -> Bytes {
        self.limit
    }
    /// Changes cap and limit. What it holds within the old limit it may keep.
    pub(crate) fn set_cap(&mut self, cap: Bytes, limit: Bytes) {
        self.kept = self.rightful().min(self.reserved());
        (self.cap, self.limit) = (cap, limit.max(cap));
    }
    /// The most that it may hold: its limit, or what it held when that was lowered.
    pub(crate) fn rightful(&self) -> Bytes {
        self.limit.max(self.kept)
    }
    /// It was restored with these grants, and with memory beyond them that is measured later: less than a context.
    pub(crate) fn restored(&mut self) {
        if self.reserved() > self.limit {
            self.kept = self.reserved().saturating_add(Bytes(CONTEXT_BYTES_MAX));
        }
    }
    /// NVML was asked: what it has given back it may not take again. A measured amount may vary by less than a context.
    pub(crate) fn measured(&mut self) {
        self.kept = self.kept.min(self.reserved().saturating_add(Bytes(CONTEXT_BYTES_MAX)));
    }
    /// Bytes that are promised and not reserved.
    pub(crate) fn promised(&self) -> Bytes {
        self.cap.saturating_sub(self.reserved())
    }
    pub(crate) fn reserved(&self) -> Bytes {
        Bytes(u64::try_from(self.reserved).unwrap_or(u64::MAX))
    }
    /// The exact sum.
    pub(crate) const fn exactly(&self) -> u128 {
        self.reserved
    }
    /// Bytes that can still be granted.
    pub(crate) fn left(&self) -> Bytes {
        self.limit.saturating_sub(self.reserved())
    }
    /// Whether `need` would fit if `returned` were given back first.
    pub(crate) fn would_fit(&self, need: Bytes, returned: u128) -> bool {
        let kept = self.reserved.saturating_sub(returned);
        kept + u128::from(need.0) <= u128::from(self.limit.0)
    }

    /// Grants as much of `wish` as is left, and no more than `most`.
    ///
    /// # Errors
    /// The bytes left, if that is less than `need`; nothing is granted then.
    pub(crate) fn reserve(
        &mut self,
        need: Bytes,
        wish: Bytes,
        most: Bytes,
    ) -> Result<Bytes, Bytes> {
        let left = self.left().min(most);
        if need > left {
            return Err(left);
        }
        let granted = wish.max(need).min(left);
        self.hold(granted);
        Ok(granted)
    }

    /// Counts existing memory, whether it fits or not.
    pub(crate) fn hold(&mut self, bytes: Bytes) {
        self.reserved += u128::from(bytes.0);
    }

    /// Counts `now` instead of `was`.
    pub(crate) fn recount(&mut self, was: u128, now: u128) {
        self.reserved = self.reserved.saturating_sub(was) + now;
    }

    /// Releases bytes that were granted or counted.
    pub(crate) fn release(&mut self, bytes: Bytes) {
        self.reserved = self.reserved.saturating_sub(u128::from(bytes.0));
    }
}

/// Two measurements at least this far apart confirm each other.
const APART: Duration = Duration::from_millis(300);

/// A measured amount, charged as far as two measurements agree.
///
/// A measurement is not of one instant: NVML is asked, and the process's claim is read a little later.
/// Memory that it freed or took over meanwhile looks like memory outside its ledger. So an amount is
/// charged when it was measured twice; a smaller amount counts at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    charged: Bytes,
    /// A larger amount, and when it was first measured.
    more: Option<(Instant, Bytes)>,
}

impl Measured {
    /// So much is charged until a measurement shows less.
    pub(crate) const fn assumed(charged: Bytes) -> Measured {
        Measured { charged, more: None }
    }

    /// The charged amount.
    pub(crate) const fn charged(&self) -> Bytes {
        self.charged
    }

    /// Subtracts bytes that are known to be gone.
    pub(crate) fn reduce(&mut self, bytes: Bytes) {
        self.charged = self.charged.saturating_sub(bytes);
    }

    /// Takes in a measurement of `seen` at `now`.
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

/// Looks without excess that end a doubt.
const DOUBTED_LOOKS: u8 = 8;

/// The sum of an account's grants while NVML is asked, and whether one more look is needed; see `memory::look`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    /// The sum at the question, and the largest since.
    first: u128,
    most: u128,
    /// Looks for which growth still waits.
    pub(crate) doubt: u8,
}

impl Window {
    /// NVML is asked.
    pub(crate) fn open(&mut self, granted: u128) {
        (self.first, self.most) = (granted, granted);
    }
    /// The sum grew to `granted`.
    pub(crate) fn note(&mut self, granted: u128) {
        self.most = self.most.max(granted);
    }
    /// NVML shows `all`, with `granted` now; `held` if nothing could be granted meanwhile. Returns the excess.
    pub(crate) fn close(&mut self, all: u128, granted: u128, held: bool) -> u128 {
        let steady = self.first.max(granted);
        let most = self.most.max(granted);
        let beyond = all.saturating_sub(most);
        self.doubt = match self.doubt {
            _ if all > steady && most > steady => DOUBTED_LOOKS,
            0 => 0,
            _ if beyond > 0 => DOUBTED_LOOKS,
            looks => looks - u8::from(held),
        };
        beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve(ledger: &mut MemoryAccount, need: Bytes, wish: Bytes) -> Result<Bytes, Bytes> {
        ledger.reserve(need, wish, Bytes(u64::MAX))
    }

    #[test]
    fn a_limit_bounds_what_is_borrowed() {
        let mut ledger = MemoryAccount::new(Bytes(100));
        ledger.set_cap(Bytes(100), Bytes(150));
        assert_eq!(ledger.reserve(Bytes(90), Bytes(90), Bytes(200)), Ok(Bytes(90)));
        assert_eq!((ledger.promised(), ledger.reserved()), (Bytes(10), Bytes(90)));
        assert_eq!(ledger.reserve(Bytes(40), Bytes(40), Bytes(39)), Err(Bytes(39)));
        assert_eq!(ledger.reserve(Bytes(40), Bytes(90), Bytes(40)), Ok(Bytes(40)));
        assert_eq!((ledger.promised(), ledger.reserved()), (Bytes(0), Bytes(130)));
        assert_eq!(ledger.reserve(Bytes(21), Bytes(21), Bytes(200)), Err(Bytes(20)));
        assert!(ledger.would_fit(Bytes(21), 1) && !ledger.would_fit(Bytes(21), 0));
        ledger.set_cap(Bytes(120), Bytes(110));
        assert_eq!(ledger.limit(), Bytes(120), "never below the cap");
    }

    #[test]
    fn a_lowered_limit_leaves_what_is_held() {
        let mut ledger = MemoryAccount::new(Bytes(100));
        ledger.hold(Bytes(110));
        ledger.set_cap(Bytes(50), Bytes(50));
        assert_eq!(ledger.rightful(), Bytes(100), "10 were above the limit already");
        ledger.set_cap(Bytes(200), Bytes(200));
        ledger.set_cap(Bytes(50), Bytes(50));
        assert_eq!(ledger.rightful(), Bytes(110));
        ledger.set_cap(Bytes(200), Bytes(200));
        assert_eq!(ledger.rightful(), Bytes(200));
        let mut restored = MemoryAccount::new(Bytes(50));
        restored.hold(Bytes(50));
        restored.restored();
        assert_eq!(restored.rightful(), Bytes(50), "it fits");
        restored.hold(Bytes(CONTEXT_BYTES_MAX));
        restored.restored();
        assert_eq!(restored.rightful(), Bytes(50 + 2 * CONTEXT_BYTES_MAX));
        restored.release(Bytes(CONTEXT_BYTES_MAX));
        restored.measured();
        assert_eq!(restored.rightful(), Bytes(50 + CONTEXT_BYTES_MAX), "what was given back");
    }

    /// What is seen again and again counts; each amount from its own first look on.
    #[test]
    fn a_larger_measurement_counts_from_its_own_first_look() {
        let mut it = Measured::assumed(Bytes(10));
        let mut look = |halves: u64, seen| {
            it.look(Instant(halves * APART.0 / 2), Bytes(seen));
            it.charged().0
        };
        assert_eq!([look(0, 20), look(2, 20)], [10, 20]);
        // What was charged by then is no first look at more.
        assert_eq!([look(3, 30), look(4, 30), look(5, 30)], [20, 20, 30]);
    }

    /// An excess while nothing was granted is no doubt: no grant can explain it later.
    #[test]
    fn an_excess_beside_a_steady_sum_is_no_doubt() {
        let mut window = Window::default();
        window.open(10);
        assert_eq!((window.close(20, 10, false), window.doubt), (10, 0));
        window.open(10);
        window.note(15);
        assert_eq!((window.close(10, 10, false), window.doubt), (0, 0), "no excess");
        window.open(10);
        window.note(15);
        assert_eq!((window.close(20, 10, false), window.doubt), (5, DOUBTED_LOOKS));
    }

    #[test]
    fn grants_between_need_and_wish_and_never_above_the_cap() {
        let mut ledger = MemoryAccount::new(Bytes(100));
        assert_eq!(reserve(&mut ledger, Bytes(10), Bytes(40)), Ok(Bytes(40)));
        assert_eq!(reserve(&mut ledger, Bytes(10), Bytes(90)), Ok(Bytes(60)));
        assert_eq!(reserve(&mut ledger, Bytes(1), Bytes(1)), Err(Bytes(0)));
        assert_eq!(reserve(&mut ledger, Bytes(0), Bytes(5)), Ok(Bytes(0)));
        ledger.release(Bytes(7));
        assert_eq!(reserve(&mut ledger, Bytes(8), Bytes(u64::MAX)), Err(Bytes(7)));
        assert_eq!(reserve(&mut ledger, Bytes(7), Bytes(0)), Ok(Bytes(7)), "a wish below the need");
        assert_eq!(reserve(&mut ledger, Bytes(u64::MAX), Bytes(u64::MAX)), Err(Bytes(0)));
    }

    #[test]
    fn existing_memory_counts_even_above_the_cap_and_is_released_exactly() {
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
        ledger.set_cap(Bytes(80), Bytes::ZERO);
        assert_eq!((ledger.left(), ledger.reserved()), (Bytes(0), Bytes(90)));
        assert!(ledger.would_fit(Bytes(20), 30) && !ledger.would_fit(Bytes(21), 30));
    }

    #[test]
    fn more_counts_when_it_was_seen_twice_and_less_at_once() {
        let at = |ms: u64| Instant(ms * 1_000_000);
        let looks = |looks: &[(u64, u64)]| {
            let mut it = Measured::default();
            looks.iter().for_each(|&(ms, seen)| it.look(at(ms), Bytes(seen)));
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

    #[test]
    fn bytes_that_are_known_to_be_gone_count_no_longer() {
        let mut it = Measured { charged: Bytes(50), more: None };
        it.reduce(Bytes(20));
        assert_eq!(it.charged(), Bytes(30));
        it.reduce(Bytes(31));
        assert_eq!(it.charged(), Bytes::ZERO);
    }

    #[test]
    fn a_sum_that_moved_during_the_question_is_looked_at_again() {
        let mut window = Window::default();
        window.open(100);
        assert_eq!((window.close(130, 100, true), window.doubt), (30, 0), "it stood still");
        window.open(100);
        window.note(150);
        window.note(120);
        assert_eq!((window.close(150, 100, true), window.doubt), (0, DOUBTED_LOOKS));
        window.open(100);
        assert_eq!((window.close(100, 100, false), window.doubt), (0, DOUBTED_LOOKS), "not held");
        assert_eq!((window.close(100, 100, true), window.doubt), (0, DOUBTED_LOOKS - 1));
        assert_eq!((window.close(101, 100, true), window.doubt), (1, DOUBTED_LOOKS));
        window.open(100);
        assert_eq!((window.close(110, 110, true), window.doubt), (0, DOUBTED_LOOKS - 1), "it grew");
    }
}
