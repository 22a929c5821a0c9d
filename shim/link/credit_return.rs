//! Returns unused credit to the daemon: immediately on a recall, and when it is idle.
//!
//! Credit saves round trips, but credit of one process is not available to another. No allocation may fail
//! while unused credit exists elsewhere: when the daemon *recalls* credit (it increments `recall` in the page
//! and wakes the gate thread), the process returns all unused credit and requests more when it needs it.
//! Credit that has not changed for 200 ms is returned without a recall. When idle, `reserved` therefore
//! equals the bytes held, and all interfaces report the same number.
//!
//! The gate thread does both, and checks the connection. It never waits for the connection's lock: the thread
//! that holds it is sending a request, and a request for credit answers a recall as well.

use super::Session;
use super::session::REPLY_WAIT;
use super::sys;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::ACCOUNTS_MAX;
use gpuslice_wire::units::Instant;

/// Credit unchanged for this long is idle, ns.
const IDLE_NS: u64 = 200_000_000;

/// State of the gate thread for returning credit.
#[derive(Debug, Default)]
pub struct CreditReturn {
    /// The last recall answered, by lane.
    answered: [AtomicU32; ACCOUNTS_MAX],
    /// Credit at the last check, by lane, bytes.
    credit: [AtomicU64; ACCOUNTS_MAX],
    /// Time of that check, ns.
    looked: AtomicU64,
}

impl Session {
    fn recall(&self, lane: Lane) -> Option<u32> {
        let recall = self.facts(lane).recall.load(Relaxed);
        (self.credit_return.answered[usize::from(lane.0)].load(Relaxed) != recall).then_some(recall)
    }

    /// Answers every pending recall; `false` if the caller must retry soon. For the gate thread alone.
    pub fn answer_recalls(&self) -> bool {
        if self.all_lanes().all(|lane| self.recall(lane).is_none()) {
            return true;
        }
        if self.conn.try_lock().is_err() {
            return false;
        }
        crate::hooks::reclaim(self);
        self.all_lanes().all(|lane| match self.recall(lane) {
            Some(recall) => self.return_recalled(lane, recall),
            None => true,
        })
    }

    fn return_recalled(&self, lane: Lane, recall: u32) -> bool {
        let Ok(mut conn) = self.conn.try_lock() else {
            return false;
        };
        let bytes = self.take_all_credit(lane);
        let sent = conn
            .as_mut()
            .is_none_or(|open| open.answer_recall(lane, recall, bytes, deadline()).is_ok());
        if !sent {
            self.hang_up(&mut conn);
        }
        self.credit_return.answered[usize::from(lane.0)].store(recall, Relaxed);
        true
    }

    /// Returns all credit that has not changed since the last check. For the gate thread alone.
    pub fn return_idle_credit(&self) {
        let now = sys::now();
        if now
            .since(Instant(self.credit_return.looked.load(Relaxed)))
            .0
            < IDLE_NS
        {
            return;
        }
        self.credit_return.looked.store(now.0, Relaxed);
        // Without requests, nothing else notices a connection that the application or the daemon closed, and the
        // daemon would not learn of this process's turns and credit.
        self.tend();
        crate::hooks::settle_all(self);
        for lane in self.all_lanes() {
            let credit = self.account(lane).credit();
            let before = self.credit_return.credit[usize::from(lane.0)].swap(credit, Relaxed);
            if credit > 0 && credit == before {
                self.return_all_credit(lane);
            }
        }
    }

    fn return_all_credit(&self, lane: Lane) {
        let Ok(mut conn) = self.conn.try_lock() else {
            return;
        };
        let bytes = self.take_all_credit(lane);
        // Without a daemon, the next attach reports the smaller total.
        let sent = conn
            .as_mut()
            .is_none_or(|open| bytes == 0 || open.release(lane, bytes, deadline()).is_ok());
        if !sent {
            self.hang_up(&mut conn);
        }
    }

    /// Takes all credit from the account, and updates the claims before the daemon reads them. The caller
    /// holds the connection.
    fn take_all_credit(&self, lane: Lane) -> u64 {
        let reserved = self.facts(lane).reserved.load(Relaxed);
        let account = self.account(lane);
        let bytes = account.take_all();
        if bytes > 0 {
            account.note_return(bytes, reserved);
        }
        self.publish(lane);
        bytes
    }
}

fn deadline() -> Instant {
    sys::now().plus(REPLY_WAIT)
}
