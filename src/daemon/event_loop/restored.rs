//! Slices and claims of an earlier daemon: at the start, and what could not be opened then.

use super::Daemon;
use crate::containers::{Containers, Reopened};
use gpuslice_engine::{Event, Record};
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::owner::ClaimId;
use gpuslice_wire::units::Instant;

impl Daemon {
    /// Restores a slice from its record, unless its container has ended.
    pub fn restore(&mut self, record: &Record) {
        crate::restore::restore(&mut self.engine, &mut self.duties, record);
        self.settle();
        // Before it may end: processes that its first one leaves behind go on. A claim has no first process.
        if ClaimId::of_slice(&record.container).is_none() {
            self.duties.restore_over_cap(record);
        }
        self.end_if_over(record.container);
    }

    /// Ends a restored slice whose container's first process has exited.
    fn end_if_over(&mut self, container: ContainerId) {
        if self.duties.containers.has_ended_meanwhile(&container) {
            tracing::info!(%container, "its container ended while no daemon ran; slice ended");
            self.dismiss(container);
        }
    }

    /// Restores claims after the slices: the containers that lived in them, and, after a reboot, their slices.
    pub fn restore_claims(&mut self, joined: &[(ContainerId, ClaimId)]) {
        let duties = &mut self.duties;
        for (container, claim) in joined {
            if let Err(why) = duties.containers.rejoin(*container, *claim) {
                tracing::error!(%container, %claim, %why, "a container in a claim is not restored: its new processes are refused");
            }
        }
        let known = duties.claims.reserved().copied();
        let (containers, is_there) = (&duties.containers, Containers::is_restored);
        let lost = known.filter(|it| !is_there(containers, &it.claim.slice()));
        let lost: Vec<_> = lost.collect();
        for words in lost {
            match self.duties.reserve_again(words) {
                Ok(event) => self.deliver(event),
                Err((_, why)) => self.duties.claims.note_broken(&words.claim, why),
            }
        }
        self.duties.end_orphans();
        self.settle();
    }

    /// Opens a restored slice that could not be opened before.
    pub(super) fn open_again(&mut self, now: Instant) {
        let container = match self.duties.containers.open_again(now) {
            None => return,
            Some(Reopened::Ended(container)) => return self.dismiss(container),
            Some(Reopened::Open(container)) => container,
        };
        self.deliver(Event::Opened { container });
        self.end_if_over(container);
        self.show_memory(&container);
        if ClaimId::of_slice(&container).is_some() {
            self.duties.end_orphans();
        }
        self.settle();
    }
}
