//! Credit goes home: at once when a sibling is short of it, soon when nobody uses it.
//!
//! Credit spares round trips, and what one process keeps of it another cannot have. So nobody
//! fails for want of what lies unused elsewhere: when the daemon *recalls* (the page's number grows
//! and the bell wakes us), all unused credit is given back, and the process asks again when it needs
//! more. And credit that did not change for a while is given back unasked, so that in quiet
//! `reserved` is what is held, and everybody who is asked says the same number.
//!
//! Both are the gate thread's work, and so is to look whether there still is a connection. It never waits
//! for the connection: the thread that has it is asking the daemon something just then, and an own request for
//! credit answers a recall as well.

use super::Session;
use super::session::REPLY_WAIT;
use super::sys;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::ACCOUNTS_MAX;
use gpuslice_wire::units::Instant;

/// Credit that did not change for so long is idle, ns.
const IDLE_NS: u64 = 200_000_000;

/// What the gate thread remembers.
#[derive(Debug, Default)]
pub struct Home {
    /// The last recall answered, by lane.
    answered: [AtomicU32; ACCOUNTS_MAX],
    /// The credit there was at the last look, by lane, bytes.
    credit: [AtomicU64; ACCOUNTS_MAX],
    /// When that was, ns.
    looked: AtomicU64,
}

impl Session {
    fn recall(&self, lane: Lane) -> Option<u32> {
        let recall = self.facts(lane).recall.load(Relaxed);
        (self.home.answered[usize::from(lane.0)].load(Relaxed) != recall).then_some(recall)
    }

    /// Answers every recall that was not answered yet; `false` if that must be tried again soon. For
    /// the gate thread alone.
    pub fn answer_recalls(&self) -> bool {
        if self.all_lanes().all(|lane| self.recall(lane).is_none()) {
            return true;
        }
        if self.conn.try_lock().is_err() {
            return false;
        }
        crate::hooks::reclaim(self);
        self.all_lanes().all(|lane| match self.recall(lane) {
            Some(recall) => self.yield_all(lane, recall),
            None => true,
        })
    }

    fn yield_all(&self, lane: Lane, recall: u32) -> bool {
        let Ok(mut conn) = self.conn.try_lock() else {
            return false;
        };
        let bytes = self.take_home(lane);
        let told = conn
            .as_mut()
            .is_none_or(|open| open.answer_recall(lane, recall, bytes, deadline()).is_ok());
        if !told {
            self.hang_up(&mut conn);
        }
        self.home.answered[usize::from(lane.0)].store(recall, Relaxed);
        true
    }

    /// Gives back all credit that did not change since an earlier look. For the gate thread alone.
    pub fn give_idle_back(&self) {
        let now = sys::now();
        if now.since(Instant(self.home.looked.load(Relaxed))).0 < IDLE_NS {
            return;
        }
        self.home.looked.store(now.0, Relaxed);
        // A connection that the application closed, or the daemon ended, tells the daemon nothing: nothing else would find out
        // while nothing is asked, and nothing be known of this process's turns and credit.
        self.tend();
        crate::hooks::settle_all(self);
        for lane in self.all_lanes() {
            let credit = self.account(lane).credit();
            let before = self.home.credit[usize::from(lane.0)].swap(credit, Relaxed);
            if credit > 0 && credit == before {
                self.give_all_back(lane);
            }
        }
    }

    fn give_all_back(&self, lane: Lane) {
        let Ok(mut conn) = self.conn.try_lock() else {
            return;
        };
        let bytes = self.take_home(lane);
        // Without a daemon the smaller total is what the next attach will tell.
        let told = conn
            .as_mut()
            .is_none_or(|open| bytes == 0 || open.release(lane, bytes, deadline()).is_ok());
        if !told {
            self.hang_up(&mut conn);
        }
    }

    /// Takes all credit out of the account, and the claims up to date before the daemon looks at
    /// them. The caller holds the connection.
    fn take_home(&self, lane: Lane) -> u64 {
        let reserved = self.facts(lane).reserved.load(Relaxed);
        let account = self.account(lane);
        let bytes = account.empty();
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
