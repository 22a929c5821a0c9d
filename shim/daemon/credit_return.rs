//! Returns unused credit to the daemon: immediately on a recall, and when it is idle.
//!
//! Credit saves round trips, but credit of one process is not available to another. No allocation may fail
//! while unused credit exists elsewhere: when the daemon *recalls* credit (it increments `recall` in the page
//! and wakes the gate thread), the process returns all unused credit and requests more when it needs it.
//! Credit that has not changed for 200 ms is returned without a recall, so that an idle container's ledger
//! equals the bytes held.
//!
//! One background thread does both. It never waits for the connection's lock: the thread that holds it is
//! sending a request, and a request for credit answers a recall as well.

use super::session::{Session, request};
use super::{reservation, sys};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::ACCOUNTS_MAX;
use gpuslice_wire::tenant::Request;
use gpuslice_wire::units::{Bytes, Instant};

/// Credit unchanged for this long is idle, ns.
const IDLE_NS: u64 = 200_000_000;

/// The recalls and the idle credit of a process, for one thread.
#[derive(Debug, Default)]
pub struct CreditReturn {
    /// The daemon that recalled, by its page's epoch: the next one counts recalls from 0 again.
    epoch: AtomicU64,
    /// Its last recall answered, by lane.
    answered: [AtomicU32; ACCOUNTS_MAX],
    /// Credit at the last check, by lane, bytes.
    credit: [AtomicU64; ACCOUNTS_MAX],
    /// Time of that check, ns.
    looked: AtomicU64,
}

impl CreditReturn {
    /// Of a process that has just attached: it has no credit that an earlier recall could mean.
    #[must_use]
    pub fn new(session: &Session) -> CreditReturn {
        let credit_return = CreditReturn::default();
        credit_return.follow_daemon(session);
        for lane in session.all_lanes() {
            let recall = session.facts(lane).recall.load(Relaxed);
            credit_return.answered[usize::from(lane.0)].store(recall, Relaxed);
        }
        credit_return
    }

    /// Of a restarted daemon no recall is answered yet.
    fn follow_daemon(&self, session: &Session) {
        let epoch = session.container().epoch.load(Relaxed);
        if self.epoch.swap(epoch, Relaxed) != epoch {
            self.answered.iter().for_each(|it| it.store(0, Relaxed));
        }
    }

    fn recall(&self, session: &Session, lane: Lane) -> Option<u32> {
        let recall = session.facts(lane).recall.load(Relaxed);
        (self.answered[usize::from(lane.0)].load(Relaxed) != recall).then_some(recall)
    }

    /// Answers every pending recall, after `reclaim` has released unused memory; `false` if the caller must
    /// retry soon.
    pub fn answer_recalls(&self, session: &Session, reclaim: impl FnOnce()) -> bool {
        self.follow_daemon(session);
        let mut lanes = session.all_lanes();
        if lanes.all(|lane| self.recall(session, lane).is_none()) {
            return true;
        }
        if session.try_lock().is_none() {
            return false;
        }
        reclaim();
        session.all_lanes().all(|lane| match self.recall(session, lane) {
            Some(recall) => self.return_recalled(session, lane, recall),
            None => true,
        })
    }

    fn return_recalled(&self, session: &Session, lane: Lane, recall: u32) -> bool {
        let Some(mut conn) = session.try_lock() else {
            return false;
        };
        let bytes = Bytes(take_all_credit(session, lane));
        let answer = Request::Yield { lane, recall, bytes };
        let _ = request(&mut conn, |open, deadline| open.tell(&answer, deadline));
        self.answered[usize::from(lane.0)].store(recall, Relaxed);
        true
    }

    /// Whether it is time to look for idle credit.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let now = sys::now();
        let due = now.since(Instant(self.looked.load(Relaxed))).0 >= IDLE_NS;
        if due {
            self.looked.store(now.0, Relaxed);
        }
        due
    }

    /// Returns all credit that has not changed since the last check.
    pub fn return_idle(&self, session: &Session) {
        for lane in session.all_lanes() {
            let credit = session.account(lane).credit();
            let before = self.credit[usize::from(lane.0)].swap(credit, Relaxed);
            if credit > 0 && credit == before {
                return_all_credit(session, lane);
            }
        }
    }
}

fn return_all_credit(session: &Session, lane: Lane) {
    let Some(mut conn) = session.try_lock() else {
        return;
    };
    let bytes = take_all_credit(session, lane);
    if bytes > 0 {
        // Without a daemon, the next attach reports the smaller total.
        let returned = reservation::release(lane, bytes);
        let _ = request(&mut conn, |open, deadline| open.tell(&returned, deadline));
    }
}

/// Takes all credit from the account, and updates the claims before the daemon reads them. The caller holds
/// the connection.
fn take_all_credit(session: &Session, lane: Lane) -> u64 {
    let bytes = session.account(lane).take_all();
    session.claim(lane);
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, LANE};
    use super::*;
    use core::sync::atomic::Ordering::SeqCst;
    use gpuslice_wire::units::MIB;

    /// A session that holds 1 MiB and has 8 MiB of credit.
    fn with_credit() -> Fake {
        let fake = Fake::new();
        fake.daemon.grants(1, 9 * MIB);
        fake.session.reserve(LANE, MIB).expect("granted").commit();
        assert_eq!(fake.daemon.asked().len(), 1);
        fake
    }

    #[test]
    fn credit_is_idle_once_it_is_the_same_at_two_looks() {
        let (Fake { session, daemon, .. }, credit_return) =
            (with_credit(), CreditReturn::default());
        credit_return.return_idle(&session);
        session.release(LANE, MIB / 2);
        credit_return.return_idle(&session);
        assert_eq!(daemon.asked(), [], "it changed");
        credit_return.return_idle(&session);
        assert_eq!(daemon.asked(), [reservation::release(LANE, 8 * MIB + MIB / 2)]);
        credit_return.return_idle(&session);
        credit_return.return_idle(&session);
        assert_eq!(daemon.asked(), [], "there is none");
        assert_eq!(session.account(LANE).granted(), MIB / 2);
    }

    #[test]
    fn looks_for_idle_credit_have_a_pace() {
        let credit_return = CreditReturn::default();
        assert!(credit_return.is_due());
        let looked = credit_return.looked.load(Relaxed);
        assert!(looked > 0 && looked <= sys::now().0);
        let later = looked + 3_600_000_000_000;
        credit_return.looked.store(later, Relaxed);
        assert!(!credit_return.is_due());
        assert_eq!(credit_return.looked.load(Relaxed), later);
    }

    #[test]
    fn a_recall_of_before_is_not_answered() {
        let Fake { session, daemon, container, .. } = Fake::new();
        container.lane[0].recall.store(5, SeqCst);
        let credit_return = CreditReturn::new(&session);
        assert!(credit_return.answer_recalls(&session, || panic!("nothing is recalled")));
        container.lane[0].recall.store(6, SeqCst);
        assert!(credit_return.answer_recalls(&session, || ()));
        let answer = Request::Yield { lane: LANE, recall: 6, bytes: Bytes::ZERO };
        assert_eq!(daemon.asked(), [answer]);
    }

    /// Another thread attached to it, and its first recall has the number of one that was answered.
    #[test]
    fn the_first_recall_of_a_restarted_daemon_is_answered() {
        let Fake { session, daemon, container, .. } = Fake::new();
        let credit_return = CreditReturn::new(&session);
        for epoch in [0, 9, 10] {
            container.lane[0].recall.store(0, SeqCst);
            container.epoch.store(epoch, SeqCst);
            container.lane[0].recall.store(1, SeqCst);
            assert!(credit_return.answer_recalls(&session, || ()));
            let answer = Request::Yield { lane: LANE, recall: 1, bytes: Bytes::ZERO };
            assert_eq!(daemon.asked(), [answer], "{epoch}");
        }
    }

    #[test]
    fn a_recall_is_answered_once_with_all_credit() {
        let (Fake { session, daemon, container, .. }, credit_return) =
            (with_credit(), CreditReturn::default());
        assert!(credit_return.answer_recalls(&session, || panic!("no recall")));
        for (recall, bytes) in [(1, Bytes(8 * MIB)), (2, Bytes::ZERO)] {
            container.lane[0].recall.store(recall, SeqCst);
            assert!(credit_return.answer_recalls(&session, || ()));
            assert_eq!(daemon.asked(), [Request::Yield { lane: LANE, recall, bytes }]);
            assert!(credit_return.answer_recalls(&session, || panic!("answered")));
        }
        container.lane[0].recall.store(3, SeqCst);
        let busy = session.lock();
        assert!(!credit_return.answer_recalls(&session, || panic!("a request is under way")));
        drop(busy);
        assert_eq!(daemon.asked(), []);
    }
}
