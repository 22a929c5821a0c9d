//! Memory credit: what the daemon has already granted and this process has not used yet.
//!
//! # Problem
//! Two processes of one slice must never both pass the cap, so somebody outside them has to decide,
//! before the driver is asked. A round trip per allocation would cost microseconds.
//!
//! # Idea
//! The daemon grants more than was asked for, as credit. Taking from credit and putting back is one
//! atomic operation on a word of this process; only an empty account goes to the daemon. What is
//! far too much goes back at once if the container has other processes, and all of it when one of
//! them is short or nothing happens for a while ([`crate::link`]). Nothing here decides what the cap
//! is: all credit was granted, so the sum over all processes can never pass it.
//!
//! Threads that take and put at once would pass that word's cache line to and fro, at ten times the
//! price of the operation itself. So each has a *pocket* of small change, on a line of its own, and
//! goes to the common credit by the handful. Pockets are bounded, and who finds too little in the
//! common credit turns them all out before asking the daemon: the last byte can still be had.
//!
//! `granted` changes only on the slow path (under the connection's lock), credit at any time;
//! what was granted and is not credit is what allocations and reservations in flight hold.
#![forbid(unsafe_code)]

use crate::sync::seat;
use core::sync::atomic::{AtomicU64, Ordering};
use gpuslice_wire::units::MIB;

/// Pockets of an account; threads beyond that many share.
const POCKETS: usize = 8;
/// Most in one pocket, bytes. All pockets together are half of the smallest chunk.
const POCKET: u64 = MIB / POCKETS as u64;
/// What goes from the common credit into a pocket at once, and what an overfull one keeps.
const HANDFUL: u64 = POCKET / 2;
const _: () = assert!(POCKETS as u64 * POCKET * 2 <= CHUNK_MIN);
/// No request is larger: no address space has so much, and sums of some of them do not overflow.
pub const BYTES_MAX: u64 = 1 << 56;
/// Bounds of [`chunk`].
const CHUNK_MIN: u64 = 2 * MIB;
const CHUNK_MAX: u64 = 32 * MIB;

/// What one process has of one lane.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Account {
    granted: AtomicU64,
    common: AtomicU64,
    returned: AtomicU64,
    returned_last: AtomicU64,
    returned_when: AtomicU64,
    pockets: [Pocket; POCKETS],
}

/// Two cache lines, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Pocket(AtomicU64);

impl Pocket {
    #[inline]
    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, to)
    }

    /// Adds `bytes` if there is room for them.
    #[inline]
    fn fits(&self, bytes: u64) -> bool {
        let full = |there: u64| there.checked_add(bytes).filter(|&sum| sum <= POCKET);
        self.change(full).is_ok()
    }
}

/// How far a change of credit went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// No further than the thread's pocket.
    Pocket,
    /// To the common credit, of which there is so much now, bytes.
    Common(u64),
}

/// What the daemon is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// To be given back first, bytes.
    pub given: u64,
    /// The least that is of use, bytes.
    pub need: u64,
    /// What would save further questions, bytes.
    pub wish: u64,
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
/// Two chunks are the most that a process with siblings keeps unused, so the credit of a few
/// processes stays a small part of the slice while most allocations need no round trip.
#[must_use]
pub fn chunk(cap: u64) -> u64 {
    (cap / 128).clamp(CHUNK_MIN, CHUNK_MAX)
}

impl Account {
    /// Takes `bytes` from credit; `None`, and nothing taken, when there is less at hand.
    #[inline]
    pub fn take(&self, bytes: u64) -> Option<Reach> {
        let pocket = &self.pockets[seat() % POCKETS];
        match pocket.change(|there| there.checked_sub(bytes)) {
            Ok(_) => Some(Reach::Pocket),
            Err(_) => self.take_common(pocket, bytes),
        }
    }

    /// Takes `bytes` from the common credit, and a handful for the pocket if they are few.
    #[inline(never)]
    fn take_common(&self, pocket: &Pocket, bytes: u64) -> Option<Reach> {
        let handful = if bytes <= HANDFUL { HANDFUL } else { 0 };
        let both = |there: u64| {
            let left = there.checked_sub(bytes)?;
            Some(left.checked_sub(handful).unwrap_or(left))
        };
        let relaxed = Ordering::Relaxed;
        let before = self.common.fetch_update(relaxed, relaxed, both).ok()?;
        let mut left = before - bytes;
        if left >= handful && handful > 0 {
            left -= handful;
            if !pocket.fits(handful) {
                left = self.put_common(handful);
            }
        }
        Some(Reach::Common(left))
    }

    /// Puts `bytes` back into credit.
    #[inline]
    pub fn put(&self, bytes: u64) -> Reach {
        let pocket = &self.pockets[seat() % POCKETS];
        if pocket.fits(bytes) {
            return Reach::Pocket;
        }
        self.put_beyond(pocket, bytes)
    }

    /// Puts `bytes` into the common credit, and what the pocket has beyond a handful if they are few.
    #[inline(never)]
    fn put_beyond(&self, pocket: &Pocket, bytes: u64) -> Reach {
        let keep = |there: u64| (bytes <= HANDFUL && there > HANDFUL).then_some(HANDFUL);
        let spilt = pocket.change(keep).map_or(0, |there| there - HANDFUL);
        Reach::Common(self.put_common(bytes.saturating_add(spilt)))
    }

    /// Gives the common credit there is now.
    fn put_common(&self, bytes: u64) -> u64 {
        let before = self.common.fetch_add(bytes, Ordering::Relaxed);
        before.saturating_add(bytes)
    }

    /// Takes out all credit, to be given back to the daemon. The caller holds the slow path's lock.
    #[must_use]
    pub fn empty(&self) -> u64 {
        let credit = self.turn_out();
        self.granted.fetch_sub(credit, Ordering::Relaxed);
        credit
    }

    /// Takes out all credit, wherever it is.
    fn turn_out(&self) -> u64 {
        let pockets = self.pockets.iter().map(|pocket| &pocket.0);
        let words = core::iter::once(&self.common).chain(pockets);
        words.map(|word| word.swap(0, Ordering::Relaxed)).sum()
    }

    /// All that was granted and not given back, bytes.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    /// Unused credit, bytes. What another thread is just moving may be counted twice, or not.
    #[must_use]
    pub fn credit(&self) -> u64 {
        let pockets = self.pockets.iter().map(|pocket| &pocket.0);
        let words = pockets.chain(core::iter::once(&self.common));
        words.map(|word| word.load(Ordering::Relaxed)).sum()
    }

    /// Notes that `bytes` are being given back while the daemon's page says `reserved`. Returns that the
    /// page does not show yet add up. The caller holds the slow path's lock.
    pub fn note_return(&self, bytes: u64, reserved: u64) {
        let before = self.on_its_way(reserved);
        self.returned_last.store(bytes, Ordering::Relaxed);
        self.returned.store(before + bytes, Ordering::Relaxed);
        self.returned_when.store(reserved, Ordering::Relaxed);
    }

    /// What was given back and still counts in `reserved`, as the page says it now: all until the page
    /// changes, and the last return until that is all that the page does not show.
    #[must_use]
    pub fn on_its_way(&self, reserved: u64) -> u64 {
        let (returned, when) = (&self.returned, &self.returned_when);
        let (all, when) = (
            returned.load(Ordering::Relaxed),
            when.load(Ordering::Relaxed),
        );
        let last = self.returned_last.load(Ordering::Relaxed);
        if reserved == when {
            all
        } else if all > last && reserved == when.saturating_sub(all - last) {
            last
        } else {
            0
        }
    }

    /// What allocations and reservations in flight hold, bytes.
    #[inline]
    #[must_use]
    pub fn held(&self) -> u64 {
        self.granted().saturating_sub(self.credit())
    }

    /// Takes `bytes`, asking for what is missing. The caller holds the lock that makes it the only
    /// one here; fast takes and puts of other threads go on meanwhile.
    ///
    /// Credit that does not suffice goes into the request, or one near the cap would be refused
    /// although credit and what is left would do together. With `siblings` it goes home first: two
    /// that are short at the same time would otherwise sit on what could serve one of them.
    pub fn take_slowly(
        &self,
        bytes: u64,
        chunk: u64,
        siblings: bool,
        ask: impl FnOnce(Question) -> Answer,
    ) -> Verdict {
        let have = self.turn_out();
        if let Some(left) = have.checked_sub(bytes) {
            self.put_common(left);
            return Verdict::Taken;
        }
        let (mut kept, given) = if siblings { (0, have) } else { (have, 0) };
        let need = bytes - kept;
        self.granted.fetch_sub(given, Ordering::Relaxed);
        match ask(Question {
            given,
            need,
            wish: need.saturating_add(chunk),
        }) {
            Answer::Granted(granted) if granted >= need => {
                self.granted.fetch_add(granted, Ordering::Relaxed);
                self.put_common(granted - need);
                Verdict::Taken
            }
            // Less than needed is a daemon that breaks its own rule; it still counts as granted.
            Answer::Granted(granted) => {
                self.granted.fetch_add(granted, Ordering::Relaxed);
                self.put_common(kept + granted);
                Verdict::Refused
            }
            Answer::Refused => {
                // A handful may have been on its way between common credit and pocket.
                kept += self.turn_out();
                let left = kept.checked_sub(bytes);
                self.put_common(left.unwrap_or(kept));
                left.map_or(Verdict::Refused, |_| Verdict::Taken)
            }
            // What was given back may have arrived: to say that we have it still could be more than the
            // daemon knows of.
            Answer::Gone => {
                self.put_common(kept);
                Verdict::Gone
            }
        }
    }

    /// Whether so much common credit is enough above what is kept that giving back is worth a
    /// message. With full pockets, two chunks are the most that is never given back.
    #[inline]
    #[must_use]
    pub fn is_rich(common: u64, chunk: u64) -> bool {
        common > 2 * chunk - POCKETS as u64 * POCKET
    }

    /// Takes out what is to be given back to the daemon, down to one chunk of common credit, so that
    /// the next few frees need no message either. The caller holds the slow path's lock.
    #[must_use]
    pub fn surplus(&self, chunk: u64) -> u64 {
        let rich = |common| Account::is_rich(common, chunk).then_some(chunk);
        let relaxed = Ordering::Relaxed;
        let Ok(before) = self.common.fetch_update(relaxed, relaxed, rich) else {
            return 0;
        };
        self.granted.fetch_sub(before - chunk, relaxed);
        before - chunk
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
        account.take_slowly(bytes, chunk, chunk.is_multiple_of(2), |asked| {
            ledger.reserved -= asked.given;
            ledger.reserve(asked.need, asked.wish)
        }) == Verdict::Taken
    }

    fn release(account: &Account, ledger: &Mutex<Ledger>, bytes: u64, chunk: u64) {
        if let Reach::Common(credit) = account.put(bytes)
            && Account::is_rich(credit, chunk)
        {
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

    /// The daemon may have heard the first half of a question.
    #[test]
    fn what_was_given_back_is_never_counted_again() {
        let account = Account::default();
        let _ = account.take_slowly(10, 5, true, |asked| Answer::Granted(asked.wish));
        assert_eq!((account.granted(), account.credit()), (15, 5));
        let gone = account.take_slowly(10, 5, true, |asked| {
            assert_eq!(asked.given, 5);
            Answer::Gone
        });
        assert_eq!(gone, Verdict::Gone);
        assert_eq!((account.granted(), account.credit()), (10, 0));
    }

    #[test]
    fn nobody_to_ask_loses_no_credit() {
        let account = Account::default();
        assert_eq!(
            account.take_slowly(10, 5, false, |_| Answer::Granted(15)),
            Verdict::Taken
        );
        assert_eq!(
            account.take_slowly(10, 5, false, |_| Answer::Gone),
            Verdict::Gone
        );
        assert_eq!(
            account.take_slowly(10, 5, false, |_| Answer::Granted(1)),
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
        // Another before the page shows the first: one after the other is seen to arrive.
        account.note_return(20, 100);
        let seen = [100, 30, 10].map(|reserved| account.on_its_way(reserved));
        assert_eq!(seen, [90, 20, 0]);
    }

    #[test]
    fn one_thread_s_small_change_stays_in_its_pocket() {
        let account = Account::default();
        let granted = account.take_slowly(4096, CHUNK_MIN, false, |asked| {
            assert_eq!((asked.need, asked.wish), (4096, 4096 + CHUNK_MIN));
            Answer::Granted(asked.wish)
        });
        assert_eq!(granted, Verdict::Taken);
        assert_eq!(
            account.take(4096),
            Some(Reach::Common(CHUNK_MIN - 4096 - HANDFUL))
        );
        for _ in 0..100 {
            assert_eq!(account.take(4096), Some(Reach::Pocket));
            assert_eq!(account.put(4096), Reach::Pocket);
        }
        assert_eq!(
            (account.held(), account.credit()),
            (8192, CHUNK_MIN - 4096),
            "whatever is where"
        );
        // Large ones pass the pocket by, and an overfull pocket keeps a handful.
        assert_eq!(account.take(MIB), Some(Reach::Common(MIB - 4096 - HANDFUL)));
        assert_eq!(account.put(MIB), Reach::Common(CHUNK_MIN - 4096 - HANDFUL));
        assert_eq!(account.put(HANDFUL), Reach::Pocket);
        assert_eq!(account.put(4096), Reach::Common(CHUNK_MIN));
        assert_eq!(
            account.pockets[seat() % POCKETS].0.load(Ordering::Relaxed),
            HANDFUL
        );
    }

    #[test]
    fn pockets_are_turned_out_before_the_daemon_is_asked() {
        let account = Account::default();
        let _ = account.take_slowly(MIB, 0, false, |asked| Answer::Granted(asked.need));
        for pocket in &account.pockets {
            assert!(pocket.fits(POCKET) && !pocket.fits(1));
        }
        assert_eq!(account.take(MIB), None);
        let nobody = |_: Question| -> Answer { panic!("credit was enough") };
        assert_eq!(account.take_slowly(MIB, 0, true, nobody), Verdict::Taken);
        assert_eq!(account.credit(), 0);
    }

    #[test]
    fn a_recall_takes_all_credit_wherever_it_is() {
        let account = Account::default();
        assert_eq!(account.empty(), 0);
        let _ = account.take_slowly(5 * MIB, MIB, false, |asked| Answer::Granted(asked.wish));
        assert_eq!(account.put(4096), Reach::Pocket);
        assert_eq!(account.empty(), MIB + 4096);
        assert_eq!(
            (account.granted(), account.held(), account.credit()),
            (5 * MIB - 4096, 5 * MIB - 4096, 0)
        );
        assert_eq!(account.take(1), None);
    }

    #[test]
    fn chunks_have_bounds() {
        for (cap, expect) in [(0, 2 * MIB), (1 << 30, 8 * MIB), (u64::MAX, 32 * MIB)] {
            assert_eq!(chunk(cap), expect);
        }
    }

    /// Two processes of four threads each take and put random sizes against one ledger, while their
    /// credit is recalled again and again: the cap holds at every step and everything comes back at the
    /// end.
    #[test]
    fn racing_accounts_never_pass_the_cap() {
        const CAP: u64 = 40 * MIB;
        const CHUNK: u64 = CHUNK_MIN;
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
                        let bytes = ((random >> 33) % 1500 + 1) << (random >> 50 & 12);
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
            for account in &accounts {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let mut ledger = ledger.lock().expect("no panic under it");
                        ledger.reserved -= account.empty();
                        drop(ledger);
                        std::thread::yield_now();
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
