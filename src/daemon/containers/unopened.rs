//! Restored slices that could not be opened yet, for want of descriptors or of room on a disk.
//!
//! The engine knows such a slice and the grants of its processes, so that nothing of it is promised again. Its
//! processes cannot attach again until its page and its socket are there: opening them is tried again, at every
//! heartbeat for one such slice. What the engine would have written to the page is kept until then.

use super::Containers;
use gpuslice_engine::{Grant, LaneView, Record};
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::owner::ClaimId;
use gpuslice_wire::units::Instant;
use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;

/// What is kept of such a slice.
#[derive(Debug)]
pub(super) struct Unopened {
    record: Record,
    /// The last views of its lanes, by their numbers.
    views: BTreeMap<u8, LaneView>,
    /// Whether these grants are all there are, and the grants of its processes.
    grants: (bool, Vec<(ClientId, Grant)>),
    /// The last reason, as the log has it.
    why: String,
}

/// What came of another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reopened {
    /// Its processes can attach again.
    Open(ContainerId),
    /// Its container has ended.
    Ended(ContainerId),
}

impl Containers {
    /// A restored slice could not be opened.
    pub fn open_later(&mut self, record: &Record, why: &io::Error) {
        let (record, why) = (record.clone(), why.to_string());
        let container = record.container;
        tracing::error!(%container, why, "the slice is restored, and its processes cannot connect yet; it is tried again");
        let (views, grants) = (BTreeMap::new(), (false, Vec::new()));
        self.unopened.insert(container, Unopened { record, views, grants, why });
    }

    /// Whether the engine knows a slice of this container, open or not.
    pub fn is_restored(&self, container: &ContainerId) -> bool {
        self.has(container) || self.unopened.contains_key(container)
    }

    /// Keeps what belongs on the page of a slice that is not open yet.
    pub fn keep_view(&mut self, container: &ContainerId, lane: Lane, view: LaneView) {
        let unopened = self.unopened.get_mut(container);
        unopened.into_iter().for_each(|it| _ = it.views.insert(lane.0, view));
    }

    /// Keeps the grants of a slice that is not open yet.
    pub(super) fn keep_grants(
        &mut self,
        container: &ContainerId,
        grants: (bool, Vec<(ClientId, Grant)>),
    ) {
        let unopened = self.unopened.get_mut(container);
        unopened.into_iter().for_each(|it| it.grants = grants.clone());
    }

    /// Tries again to open a slice: one at a time, each in its turn, because turns on the GPUs wait meanwhile.
    pub fn open_again(&mut self, now: Instant) -> Option<Reopened> {
        let after = |last| self.unopened.range((Bound::Excluded(last), Bound::Unbounded)).next();
        let next = self.tried_last.and_then(after).or_else(|| self.unopened.first_key_value());
        let (&container, unopened) = next?;
        let record = unopened.record.clone();
        self.tried_last = Some(container);
        if self.has_ended_meanwhile(&container) {
            return Some(Reopened::Ended(container));
        }
        if let Err(why) = self.reopen(now, &record) {
            let (unopened, why) = (self.unopened.get_mut(&container)?, why.to_string());
            if why != unopened.why {
                tracing::error!(%container, why, "the processes of a restored slice cannot connect yet");
                unopened.why = why;
            }
            return None;
        }
        let unopened = self.unopened.remove(&container)?;
        tracing::info!(%container, "the slice is open again: its processes can connect");
        if let Some(page) = self.page(&container) {
            unopened.views.iter().for_each(|(lane, view)| page.set_lane(Lane(*lane), view));
        }
        let (complete, taken) = unopened.grants;
        self.continue_grants(&container, complete, taken);
        if let Some(claim) = ClaimId::of_slice(&container) {
            self.link_members(&claim);
        }
        Some(Reopened::Open(container))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers::{Budget, PageSettings};
    use crate::poll::Poll;
    use crate::socket_closer::SocketCloser;
    use crate::state::State;
    use crate::state::tests::record;
    use std::fs;

    /// One that stays blocked keeps no other from being opened. All of them count, and none is called lost.
    #[test]
    fn slices_are_opened_one_at_a_time_and_in_turn() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = State::open(&dir.path().join("run")).expect("ours");
        let all = ["a", "b", "c"].map(record);
        for record in &all {
            state.keep(record, &[]).expect("kept");
        }
        let blocked = state.inside(&all[0].container);
        fs::remove_dir_all(&blocked).expect("removed");
        fs::write(&blocked, "").expect("in its place");
        let settings = PageSettings { epoch: 9, hard: true, foreign: 0, stop: false };
        let watch = Poll::new().expect("a poll").watch();
        let closer = SocketCloser::new(watch.clone());
        let budget = Budget::new(1 << 20, 3);
        let mut containers = Containers::new(state, settings, budget, (watch, closer));
        let why = || io::Error::other("no descriptors");
        all.iter().for_each(|record| containers.open_later(record, &why()));
        assert_eq!(containers.len(), 3);
        assert!(containers.has_room(&all[0].container).is_ok(), "the engine refuses it");
        let denied = containers.has_room(&record("d").container).expect_err("it is no room");
        assert_eq!(denied.0, gpuslice_wire::admin::Denial::Capacity, "{denied:?}");
        let mut beat = |number| {
            let now = Instant(1_000 * number);
            assert_eq!(containers.beat(now), number);
            containers.open_again(now)
        };
        let open = |at: usize| Some(Reopened::Open(all[at].container));
        assert_eq!([1, 2, 3, 4].map(&mut beat), [None, open(1), open(2), None]);
        fs::remove_file(&blocked).expect("removed");
        fs::create_dir(&blocked).expect("as before");
        assert_eq!([5, 6].map(&mut beat), [open(0), None]);
        assert_eq!((containers.len(), containers.unopened.len()), (3, 0));
    }
}
