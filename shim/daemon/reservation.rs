//! Reservations: bytes of a lane, taken from credit before the driver is called.
//!
//! Mostly the bytes are there, and taking them is one atomic operation. If they are not, the missing part is
//! requested from the daemon. Before a refusal reaches the application, the process releases the memory that
//! it does not use ([`Callbacks::reclaim`]), and requests once more. While the daemon is away, a request waits
//! for 30 s.
//!
//! [`Callbacks::reclaim`]: super::Callbacks::reclaim

use super::conn::Conn;
use super::credit::{
    BYTES_MAX, Change, CreditAccount, CreditReply, CreditRequest, Publish, TakeOutcome, chunk,
};
use super::session::{Session, request};
use super::sys::{self, Backoff};
use crate::guard::Uncancelled;
use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::DAEMON_WAIT_NS;
use gpuslice_wire::tenant::Request;
use gpuslice_wire::units::{Bytes, Duration, Instant};

/// The granularity of driver allocations; a smaller request costs as much.
const GRAIN: u64 = 512;

/// The cap is reached, or the daemon stayed away for 30 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// Memory taken from the account and not yet allocated; returned when dropped.
#[derive(Debug)]
#[must_use]
pub struct Reservation<'a> {
    session: &'a Session,
    /// Of this lane.
    pub lane: Lane,
    /// Its size, bytes.
    pub bytes: u64,
}

impl Reservation<'_> {
    /// Commits the reservation after a successful allocation, whose table entry now holds the bytes.
    pub fn commit(self) {
        core::mem::forget(self);
    }

    /// Changes the reservation to `bytes`, the amount that the driver actually took.
    ///
    /// # Errors
    /// As [`Session::reserve`]; the reservation is then as it was.
    pub fn adjust(&mut self, bytes: u64) -> Result<(), OutOfMemory> {
        let bytes = grains(bytes);
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.session.reserve(self.lane, more)?.commit(),
            None => self.session.release(self.lane, self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.session.release(self.lane, self.bytes);
    }
}

/// Runs `reclaim`, unless this thread is inside it: trimmed pools settle their charges, and may request
/// credit for that. Returns whether it may have released something: else a second request would be refused like the
/// first, and would count as another refusal.
fn reclaim_once(reclaim: impl FnOnce() -> bool) -> bool {
    thread_local!(static RECLAIMING: Cell<bool> = const { Cell::new(false) });
    let set = |to| RECLAIMING.try_with(|flag| flag.replace(to));
    if set(true) != Ok(false) {
        return false;
    }
    let found = reclaim();
    let _ = set(false);
    found
}

fn grains(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(GRAIN).unwrap_or(u64::MAX)
}

impl Session {
    /// Reserves `bytes` of a lane, before the driver is called.
    ///
    /// # Errors
    /// See [`OutOfMemory`].
    #[inline(always)] // a call of it costs as much as the account does
    pub fn reserve(&self, lane: Lane, bytes: u64) -> Result<Reservation<'_>, OutOfMemory> {
        let bytes = grains(bytes);
        if !self.take(lane, bytes) {
            self.reserve_uncredited(lane, bytes)?;
        }
        Ok(Reservation { session: self, lane, bytes })
    }

    /// Reserves `bytes` of a lane from credit, without a request to the daemon; `None` if there is less.
    pub fn reserve_credited(&self, lane: Lane, bytes: u64) -> Option<Reservation<'_>> {
        let bytes = grains(bytes);
        self.take(lane, bytes).then(|| Reservation { session: self, lane, bytes })
    }

    /// Takes `bytes` from credit, if it has them.
    #[inline(always)] // as `reserve`
    fn take(&self, lane: Lane, bytes: u64) -> bool {
        let taken = self.account(lane).take(bytes);
        if let Some(Publish::Yes(change)) = taken {
            self.publish_change(lane, change);
        }
        taken.is_some()
    }

    #[cold]
    fn reserve_uncredited(&self, lane: Lane, bytes: u64) -> Result<(), OutOfMemory> {
        // Another thread may have published what this one took for a moment.
        self.publish(lane);
        let done = self.reserve_slowly(lane, bytes);
        self.claim(lane);
        done
    }

    /// Releases `bytes` of a lane.
    #[inline(always)] // as `reserve`
    pub fn release(&self, lane: Lane, bytes: u64) {
        if let Some((credit, change)) = self.account(lane).put(bytes) {
            self.released(lane, credit, change);
        }
    }

    /// Publishes a release that left so much common credit, and returns what of that is surplus.
    #[inline(never)]
    fn released(&self, lane: Lane, credit: u64, change: Change) {
        self.publish_change(lane, change);
        if CreditAccount::has_surplus(credit, self.chunk(lane)) && !self.is_alone() {
            self.return_surplus(lane);
        }
    }

    /// Whether no other process of the container is attached. Credit that this one keeps is then missed by no
    /// other process, and a program that allocates and frees large blocks in turn needs no second request.
    fn is_alone(&self) -> bool {
        self.container().clients.load(Relaxed) <= 1
    }

    fn chunk(&self, lane: Lane) -> u64 {
        chunk(self.facts(lane).cap.load(Relaxed))
    }

    #[cold]
    fn reserve_slowly(&self, lane: Lane, bytes: u64) -> Result<(), OutOfMemory> {
        let _uncancelled = Uncancelled::begin();
        let grow = || self.grow(lane, bytes, sys::now());
        if grow()? || reclaim_once(self.callbacks.reclaim) && grow()? {
            return Ok(());
        }
        self.claims(lane).denied.fetch_add(1, Relaxed);
        Err(OutOfMemory)
    }

    /// Takes `bytes`, requesting the missing part from the daemon. Returns whether it was granted.
    ///
    /// # Errors
    /// The daemon is away [`DAEMON_WAIT_NS`] after `begin`.
    fn grow(&self, lane: Lane, bytes: u64, begin: Instant) -> Result<bool, OutOfMemory> {
        let deadline = begin.plus(Duration(DAEMON_WAIT_NS));
        if bytes > BYTES_MAX {
            return Ok(false);
        }
        (self.callbacks.credit_begins)();
        let (chunk, mut pause) = (self.chunk(lane), Backoff::default());
        let mut attached_anew = false;
        loop {
            let mut conn = self.lock();
            let ask = |asked| self.ask(&mut conn, lane, asked);
            let siblings = !self.is_alone();
            match self.account(lane).take_or_request(bytes, chunk, siblings, ask) {
                TakeOutcome::Taken => return Ok(true),
                // The daemon may still be counting the old connection too: retry after a pause.
                TakeOutcome::Refused if attached_anew => {
                    attached_anew = false;
                    drop(conn);
                    pause.nap();
                    continue;
                }
                TakeOutcome::Refused => return Ok(false),
                TakeOutcome::Gone if sys::now() >= deadline => return Err(OutOfMemory),
                TakeOutcome::Gone => {}
            }
            attached_anew = self.reattach(&mut conn);
            if attached_anew {
                continue;
            }
            drop(conn);
            pause.nap();
        }
    }

    /// Waits while the container's memory is on the host: until it is resumed, the daemon answers no request for
    /// credit, not even for none. Any amount would be a grant, which explains as much of what NVML shows of this
    /// process for a sample more. Without a daemon there is no wait.
    #[cold]
    pub fn await_resume(&self, lane: Lane) {
        let _uncancelled = Uncancelled::begin();
        let none = CreditRequest { returned: 0, need: 0, wish: 0 };
        let _answer = self.ask(&mut self.lock(), lane, none);
    }

    fn ask(&self, conn: &mut Option<Conn>, lane: Lane, asked: CreditRequest) -> CreditReply {
        self.claim(lane);
        let reply = request(conn, |open, deadline| {
            if asked.returned > 0 {
                open.tell(&release(lane, asked.returned), deadline)?;
            }
            open.reserve(lane, (asked.need, asked.wish), deadline, || self.is_stale())
        });
        reply.unwrap_or(CreditReply::Gone)
    }

    /// Returns surplus credit to the daemon, unless another thread holds the connection: a free never waits,
    /// and a later one returns the surplus.
    #[cold]
    fn return_surplus(&self, lane: Lane) {
        let _uncancelled = Uncancelled::begin();
        let Some(mut conn) = self.try_lock() else {
            return;
        };
        let extra = self.account(lane).take_surplus(self.chunk(lane));
        self.claim(lane);
        if extra > 0 {
            // Without a daemon, the next attach reports the smaller total.
            let _ = request(&mut conn, |open, deadline| open.tell(&release(lane, extra), deadline));
        }
    }
}

/// The request that returns `bytes` of credit.
pub(super) fn release(lane: Lane, bytes: u64) -> Request {
    let bytes = Bytes(bytes);
    Request::Release { lane, bytes }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, LANE, Socket};
    use super::*;
    use core::sync::atomic::Ordering::SeqCst;
    use gpuslice_wire::tenant::Reply;
    use gpuslice_wire::units::MIB;

    fn asks(need: u64, wish: u64) -> Request {
        Request::Reserve { lane: LANE, need: Bytes(need), wish: Bytes(wish) }
    }

    #[test]
    fn a_process_keeps_its_credit_unless_it_has_siblings() {
        let Fake { session, daemon, container, .. } = Fake::new();
        daemon.grants(1, 9 * MIB);
        session.reserve(LANE, MIB).expect("granted").commit();
        assert_eq!(daemon.asked(), [asks(MIB, 9 * MIB)]);
        daemon.grants(2, 8 * MIB);
        session.reserve(LANE, 16 * MIB).expect("granted").commit();
        assert_eq!(daemon.asked(), [asks(8 * MIB, 16 * MIB)], "8 of the 16 are there");
        container.clients.store(2, SeqCst);
        session.release(LANE, 4 * MIB);
        daemon.grants(4, 5 * MIB);
        session.reserve(LANE, 5 * MIB).expect("granted").commit();
        assert_eq!(daemon.asked(), [release(LANE, 4 * MIB), asks(5 * MIB, 13 * MIB)]);
        daemon.grants(5, MIB);
        session.reserve(LANE, MIB).expect("granted").commit();
        assert_eq!(daemon.asked(), [asks(MIB, 9 * MIB)], "nothing to return");
        let account = session.account(LANE);
        assert_eq!((account.granted(), account.credit()), (19 * MIB, 0));
        assert_eq!(session.claims(LANE).held.load(Relaxed), 19 * MIB);
        container.untracked[0].store(MIB, SeqCst);
        assert_eq!(session.used(LANE), 20 * MIB);
    }

    /// The driver took more, or less, than was asked for.
    #[test]
    fn a_reservation_is_adjusted_both_ways() {
        let Fake { session, daemon, .. } = Fake::new();
        daemon.grants(1, 8 * MIB);
        let mut reservation = session.reserve(LANE, 4096).expect("granted");
        for (bytes, held) in [(10_000, 10_240), (10_240, 10_240), (1, 512), (0, 0), (513, 1024)] {
            assert_eq!(reservation.adjust(bytes), Ok(()));
            assert_eq!((reservation.bytes, session.account(LANE).held()), (held, held));
        }
        drop(reservation);
        assert_eq!(session.account(LANE).held(), 0);
        assert_eq!(daemon.asked().len(), 1);
    }

    #[test]
    fn surplus_goes_back_if_there_are_siblings() {
        let Fake { session, daemon, container, .. } = Fake::new();
        daemon.grants(1, 64 * MIB);
        session.reserve(LANE, 64 * MIB).expect("granted").commit();
        session.release(LANE, 32 * MIB);
        assert_eq!(daemon.asked(), [asks(64 * MIB, 72 * MIB)], "alone");
        container.clients.store(2, SeqCst);
        session.release(LANE, 2 * MIB);
        assert_eq!(daemon.asked(), [release(LANE, 26 * MIB)], "all but a chunk");
        session.release(LANE, MIB);
        assert_eq!(daemon.asked(), []);
    }

    #[test]
    fn a_refusal_is_counted_and_an_absurd_request_is_not_sent() {
        let Fake { session, daemon, .. } = Fake::new();
        let (need, left) = (Bytes(MIB), Bytes(0));
        daemon.answers(1, &Reply::Refused { lane: LANE, need, left });
        assert_eq!(session.reserve(LANE, MIB).err(), Some(OutOfMemory));
        assert_eq!(daemon.asked(), [asks(MIB, 9 * MIB)]);
        daemon.answers(2, &Reply::Refused { lane: LANE, need, left });
        assert_eq!(session.reserve(LANE, BYTES_MAX).err(), Some(OutOfMemory));
        assert_eq!(daemon.asked(), [asks(BYTES_MAX, BYTES_MAX + 8 * MIB)], "the largest");
        assert_eq!(session.reserve(LANE, BYTES_MAX + 1).err(), Some(OutOfMemory));
        assert_eq!(session.reserve(LANE, u64::MAX).err(), Some(OutOfMemory));
        assert_eq!(daemon.asked(), []);
        assert_eq!(session.claims(LANE).denied.load(Relaxed), 4);
    }

    #[test]
    fn a_request_waits_30_s_for_a_daemon_that_is_away() {
        const S: u64 = 1_000_000_000;
        let Fake { session, daemon, .. } = Fake::new();
        drop(daemon);
        let begin = Instant(sys::now().0 - 30 * S + S / 5);
        assert_eq!(session.grow(LANE, MIB, begin), Err(OutOfMemory));
        let waited = sys::now().since(begin);
        assert!((30 * S..45 * S).contains(&waited.0), "{waited:?}");
    }

    /// It may be counting the old connection too.
    #[test]
    fn a_restarted_daemon_that_refuses_is_asked_once_more() {
        let socket = Socket::new(|daemon| {
            daemon.attaches();
            daemon.answers(2, &Reply::Refused { lane: LANE, need: Bytes(MIB), left: Bytes(0) });
            daemon.grants(3, MIB);
        });
        let Fake { session, daemon, .. } = Fake::at(&socket.0);
        drop(daemon);
        session.reserve(LANE, MIB).expect("granted").commit();
    }

    #[test]
    fn a_thread_that_reclaims_memory_does_not_begin_anew() {
        for found in [true, false] {
            let inside = || !reclaim_once(|| panic!("it is inside")) && found;
            assert_eq!(reclaim_once(inside), found);
        }
    }

    /// Any amount would be a grant.
    #[test]
    fn a_wait_for_the_resume_asks_for_nothing() {
        let Fake { session, daemon, .. } = Fake::new();
        daemon.grants(1, 0);
        session.await_resume(LANE);
        assert_eq!(daemon.asked(), [asks(0, 0)]);
    }

    /// Another thread's request holds the lock.
    #[test]
    fn credit_is_taken_without_a_lock_and_without_a_request() {
        let Fake { session, daemon, .. } = Fake::new();
        daemon.grants(1, 9 * MIB);
        session.reserve(LANE, MIB).expect("granted").commit();
        let busy = session.lock();
        let taken = session.reserve_credited(LANE, 5 * MIB).expect("8 are there");
        assert_eq!((taken.bytes, session.account(LANE).held()), (5 * MIB, 6 * MIB));
        assert!(session.reserve_credited(LANE, 4 * MIB).is_none(), "3 are there");
        session.reserve(LANE, 3 * MIB).expect("3 are there").commit();
        drop((taken, busy));
        assert_eq!((daemon.asked().len(), session.account(LANE).held()), (1, 4 * MIB));
    }

    #[test]
    fn no_surplus_is_returned_where_there_is_none() {
        let Fake { session, daemon, .. } = Fake::new();
        session.return_surplus(LANE);
        assert_eq!(daemon.asked(), []);
    }
}
