//! Memory credit: what the daemon has already granted and this process has not used yet.
//!
//! # Problem
//! Two processes of one slice must never both pass the cap, so somebody outside them has to decide,
//! before the driver is asked. A round trip per allocation would cost microseconds.
//!
//! # Idea
//! The daemon grants more than was asked for, as credit. Taking from credit and putting back is one
//! atomic operation on a word of this process; only an empty account goes to the daemon, and only
//! an account with far too much gives back. Nothing here decides what the cap is: all credit was
//! granted, so the sum over all processes can never pass it.
//!
//! `granted` changes only on the slow path (under the connection's lock), `credit` at any time;
//! `granted - credit` is what allocations and reservations in flight hold.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};
use gpuslice_wire::units::MIB;

/// What one process has of one lane.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Account {
    granted: AtomicU64,
    credit: AtomicU64,
    returned: AtomicU64,
    returned_when: AtomicU64,
}

/// What the daemon said to a request for credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This many bytes, at least what was needed.
    Granted(u64),
    /// The cap is reached.
    Refused,
    /// There is no daemon to ask just now.
    Gone,
}

/// What became of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The bytes are the caller's until put back.
    Taken,
    /// Out of memory.
    Refused,
    /// Not decided: ask again when the daemon is back.
    Gone,
}

/// How much more than needed is asked for: 1/128 of the cap, 2 to 32 MiB.
///
/// Two chunks are the most that a process keeps unused, so the credit of a few processes stays a
/// small part of the slice while most allocations need no round trip.
#[must_use]
pub fn chunk(cap: u64) -> u64 {
    (cap / 128).clamp(2 * MIB, 32 * MIB)
}

impl Account {
    /// Takes `bytes` from credit; gives the credit left, or `None`, and nothing taken, when there
    /// is less.
    #[inline]
    pub fn take(&self, bytes: u64) -> Option<u64> {
        let before = self
            .credit
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |credit| {
                credit.checked_sub(bytes)
            });
        before.ok().map(|credit| credit - bytes)
    }

    /// Puts `bytes` back into credit; gives the credit there is now.
    #[inline]
    pub fn put(&self, bytes: u64) -> u64 {
        self.credit
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes)
    }

    /// All that was granted and not given back, bytes.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    /// Unused credit, bytes.
    #[must_use]
    pub fn credit(&self) -> u64 {
        self.credit.load(Ordering::Relaxed)
    }

    /// Notes that `bytes` are being given back while the daemon's page says `reserved`.
    pub fn note_return(&self, bytes: u64, reserved: u64) {
        self.returned.store(bytes, Ordering::Relaxed);
        self.returned_when.store(reserved, Ordering::Relaxed);
    }

    /// What was given back and still counts in `reserved`, as the page says it now: all of the
    /// last return until the page changes.
    #[must_use]
    pub fn on_its_way(&self, reserved: u64) -> u64 {
        let seen = self.returned_when.load(Ordering::Relaxed) != reserved;
        if seen {
            0
        } else {
            self.returned.load(Ordering::Relaxed)
        }
    }

    /// What allocations and reservations in flight hold, bytes.
    #[inline]
    #[must_use]
    pub fn held(&self) -> u64 {
        self.granted().saturating_sub(self.credit())
    }

    /// Takes `bytes`, asking `ask(need, wish)` for what is missing. The caller holds the lock that
    /// makes it the only one here; fast takes and puts of other threads go on meanwhile.
    pub fn take_slowly(
        &self,
        bytes: u64,
        chunk: u64,
        ask: impl FnOnce(u64, u64) -> Answer,
    ) -> Verdict {
        // All of the credit goes into this request, or one near the cap would be refused although
        // credit and what is left would do together.
        let have = self.credit.swap(0, Ordering::Relaxed);
        let Some(need) = bytes.checked_sub(have).filter(|&need| need > 0) else {
            self.put(have - bytes);
            return Verdict::Taken;
        };
        match ask(need, need.saturating_add(chunk)) {
            Answer::Granted(granted) if granted >= need => {
                self.granted.fetch_add(granted, Ordering::Relaxed);
                self.put(granted - need);
                Verdict::Taken
            }
            // Less than needed is a daemon that breaks its own rule; it still counts as granted.
            Answer::Granted(granted) => {
                self.granted.fetch_add(granted, Ordering::Relaxed);
                self.put(have + granted);
                Verdict::Refused
            }
            Answer::Refused => {
                self.put(have);
                Verdict::Refused
            }
            Answer::Gone => {
                self.put(have);
                Verdict::Gone
            }
        }
    }

    /// Whether `credit` is enough above what is kept that giving back is worth a message.
    #[inline]
    #[must_use]
    pub fn is_rich(credit: u64, chunk: u64) -> bool {
        credit > 2 * chunk
    }

    /// Takes out what is to be given back to the daemon, down to one chunk of credit, so that the
    /// next few frees need no message either. The caller holds the slow path's lock.
    #[must_use]
    pub fn surplus(&self, chunk: u64) -> u64 {
        let mut extra = 0;
        let taken = self
            .credit
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |credit| {
                extra = credit.saturating_sub(chunk);
                Account::is_rich(credit, chunk).then_some(chunk)
            });
        if taken.is_err() {
            return 0;
        }
        self.granted.fetch_sub(extra, Ordering::Relaxed);
        extra
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// The daemon's ledger for one cap, as simple as it gets.
    struct Ledger {
        cap: u64,
        reserved: u64,
    }

    impl Ledger {
        fn reserve(&mut self, need: u64, wish: u64) -> Answer {
            let left = self.cap - self.reserved;
            if need > left {
                return Answer::Refused;
            }
            let granted = wish.min(left);
            self.reserved += granted;
            Answer::Granted(granted)
        }
    }

    fn reserve(account: &Account, ledger: &Mutex<Ledger>, bytes: u64, chunk: u64) -> bool {
        if account.take(bytes).is_some() {
            return true;
        }
        let mut ledger = ledger.lock().expect("no panic under it");
        account.take_slowly(bytes, chunk, |need, wish| ledger.reserve(need, wish)) == Verdict::Taken
    }

    fn release(account: &Account, ledger: &Mutex<Ledger>, bytes: u64, chunk: u64) {
        if Account::is_rich(account.put(bytes), chunk) {
            let mut ledger = ledger.lock().expect("no panic under it");
            ledger.reserved -= account.surplus(chunk);
        }
    }

    #[test]
    fn the_last_byte_under_the_cap_can_be_had() {
        let (account, ledger) = (
            Account::default(),
            Mutex::new(Ledger {
                cap: 100,
                reserved: 0,
            }),
        );
        assert!(reserve(&account, &ledger, 60, 30));
        assert!(
            reserve(&account, &ledger, 40, 30),
            "credit of 30 and 10 left make 40"
        );
        assert!(!reserve(&account, &ledger, 1, 30));
        assert_eq!((account.held(), account.credit()), (100, 0));
    }

    #[test]
    fn nobody_to_ask_loses_no_credit() {
        let account = Account::default();
        assert_eq!(
            account.take_slowly(10, 5, |_, _| Answer::Granted(15)),
            Verdict::Taken
        );
        assert_eq!(
            account.take_slowly(10, 5, |_, _| Answer::Gone),
            Verdict::Gone
        );
        assert_eq!(
            account.take_slowly(10, 5, |_, _| Answer::Granted(1)),
            Verdict::Refused
        );
        assert_eq!((account.granted(), account.credit()), (16, 6));
    }

    #[test]
    fn what_was_given_back_counts_until_the_page_changes() {
        let account = Account::default();
        assert_eq!(account.on_its_way(0), 0);
        account.note_return(70, 100);
        assert_eq!((account.on_its_way(100), account.on_its_way(30)), (70, 0));
    }

    #[test]
    fn chunks_have_bounds() {
        for (cap, expect) in [(0, 2 * MIB), (1 << 30, 8 * MIB), (u64::MAX, 32 * MIB)] {
            assert_eq!(chunk(cap), expect);
        }
    }

    /// Two processes of four threads each take and put random sizes against one ledger: the cap
    /// holds at every step and everything comes back at the end.
    #[test]
    fn racing_accounts_never_pass_the_cap() {
        const CAP: u64 = 10_000;
        const CHUNK: u64 = 200;
        let ledger = Mutex::new(Ledger {
            cap: CAP,
            reserved: 0,
        });
        let in_use = AtomicU64::new(0);
        let accounts = [Account::default(), Account::default()];
        std::thread::scope(|scope| {
            for seed in 0..8u64 {
                let (ledger, in_use, account) = (&ledger, &in_use, &accounts[seed as usize % 2]);
                scope.spawn(move || {
                    let (mut random, mut mine) = (seed * 2 + 1, Vec::new());
                    for _ in 0..20_000 {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let bytes = (random >> 33) % 1500 + 1;
                        if random >> 63 == 0 && reserve(account, ledger, bytes, CHUNK) {
                            let now = in_use.fetch_add(bytes, Ordering::SeqCst) + bytes;
                            assert!(now <= CAP, "{now} in use");
                            mine.push(bytes);
                        } else if let Some(bytes) = mine.pop() {
                            in_use.fetch_sub(bytes, Ordering::SeqCst);
                            release(account, ledger, bytes, CHUNK);
                        }
                    }
                    for bytes in mine {
                        in_use.fetch_sub(bytes, Ordering::SeqCst);
                        release(account, ledger, bytes, CHUNK);
                    }
                });
            }
        });
        let granted: u64 = accounts.iter().map(Account::granted).sum();
        assert_eq!(ledger.lock().expect("threads are gone").reserved, granted);
        assert!(
            accounts
                .iter()
                .all(|a| a.held() == 0 && a.credit() <= 2 * CHUNK)
        );
    }
}
