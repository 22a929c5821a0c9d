//! Memory that the driver shows counts, granted or not.
//!
//! NVML shows a process's real memory on a GPU. The part beyond the process's grants is its *residual*; the
//! memory of the container's processes that are not attached is *unattributed*. Both were taken without a request,
//! so they count even above the cap.
//!
//! A measurement is older than its answer. A process that allocates and frees all the time may have given
//! back by then what it shows. So it is compared with the largest grant since the measurement before the
//! last: memory that was requested is never taken for unrequested. A process's own claim can only add: to
//! claim memory that NVML does not show makes the residual larger, by no more than the process was granted.
//!
//! # Memory that is granted after it was taken
//! The driver takes a context's memory in steps, and may need seconds: samples charge the first steps as a residual.
//! When the context is there, its process requests a measurement and is then granted what that shows. From the answer
//! to the next sample, grants *cover* the residual: of it counts what the figure shows beyond the grants of this
//! instant. A request needs no room for what it will cover. So a process is charged at least what NVML has shown of it
//! last, and one that returns such a grant is charged its residual again in the same step. The residual itself stays
//! for the sample to confirm, which needs no second one: a grant whose memory was not in the figure hides it until
//! then, and no longer.

use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::units::Bytes;

use crate::action::Actions;
use crate::engine::Engine;
use crate::lifecycle::{ClientLane, Growth, Slice};

impl ClientLane {
    /// The part of its residual that grants of so much cover.
    fn covers(&self, granted: Bytes) -> Bytes {
        self.answered.map_or(Bytes::ZERO, |all| {
            self.residual.charged().saturating_sub(all.saturating_sub(granted))
        })
    }
}

impl Slice {
    /// The grants of a process changed, and with them the part of its residual that they cover.
    pub(crate) fn cover(&mut self, mine: &mut ClientLane) {
        self.uncover(mine);
        mine.covered = mine.covers(mine.granted);
        self.account.release(mine.covered);
    }

    /// Charges all of a process's residual again: `mine` is replaced, or covers nothing from now on.
    pub(crate) fn uncover(&mut self, mine: &ClientLane) {
        self.account.hold(mine.covered);
    }
}

impl Engine {
    /// What a request needs beside the residual of its process that the grant will cover: all of it where the account
    /// is above its limit, so that such an account is granted nothing.
    pub(crate) fn lacks(&self, growth: &Growth) -> Bytes {
        self.lacks_without(growth, Bytes::ZERO)
    }

    /// The same after requests of its process for `before`: what covers their grants covers no later one.
    pub(crate) fn lacks_after(&self, growth: &Growth, before: Bytes) -> Bytes {
        let lacks = |need| self.lacks(&Growth { need, ..*growth });
        lacks(before.saturating_add(growth.need)).saturating_sub(lacks(before))
    }

    /// What it needs as soon as `unfreed` of its account is free.
    pub(crate) fn lacks_without(&self, growth: &Growth, unfreed: Bytes) -> Bytes {
        let client = self.clients.get(growth.client);
        let slice = client.and_then(|it| self.containers.get(it.index)?.slices.get(growth.lane));
        let fits = slice.is_some_and(|it| it.account.would_fit(Bytes::ZERO, unfreed.0.into()));
        let mine = client.and_then(|it| it.lanes.get(growth.lane)).filter(|_| fits);
        let covers = mine.map_or(Bytes::ZERO, |mine| {
            let granted = mine.granted.saturating_add(growth.need);
            mine.covers(granted).saturating_sub(mine.covered)
        });
        growth.need.saturating_sub(covers)
    }

    /// NVML shows `used` of a process, which has asked itself or is one of a sample.
    pub(crate) fn measured(
        &mut self,
        client: ClientId,
        lane: Lane,
        (used, requested): (Bytes, bool),
        actions: &mut Actions,
    ) {
        let now = self.now;
        let Some(index) = self.clients.get(client).map(|it| it.index) else {
            return;
        };
        let Some((mine, slice)) = self.share(client, lane) else {
            return;
        };
        if slice.gpu.is_none() {
            return; // NVML does not show host memory
        }
        // It asks when its first context is made. A sample may show one that is half made.
        let made = requested && used > Bytes::ZERO;
        let first = made && mine.claims.held == Bytes::ZERO && !mine.asked;
        mine.asked |= made;
        let beyond = mine.beyond(used);
        let (covered, before) = (mine.covered, mine.residual.charged());
        mine.answered = None;
        slice.cover(mine);
        // Samples alone change a residual. A process is granted next the memory that it has measured, and may have
        // freed it by the next sample. So its measurement confirms neither a sample of a context half made nor its
        // earlier measurement.
        if !requested {
            slice.recount(&mut mine.residual, |it| it.look(now, beyond));
            // The sum over all processes is told after this: meanwhile what grants cover is not charged as hidden.
            slice.explain(covered.min(before.saturating_sub(mine.residual.charged())));
        }
        mine.answered = requested.then(|| mine.all());
        slice.cover(mine);
        if first {
            slice.note_first_context(used);
        }
        self.serve(index, lane, actions);
    }

    /// NVML shows `used` of a container's processes that are not attached.
    pub(crate) fn strangers(
        &mut self,
        container: ContainerId,
        lane: Lane,
        used: Bytes,
        actions: &mut Actions,
    ) {
        let now = self.now;
        let Some(index) = self.containers.find(container) else {
            return;
        };
        let Some(slice) = self.account(index, lane).filter(|it| it.gpu.is_some()) else {
            return;
        };
        slice.account.release(slice.unattributed.charged());
        slice.unattributed.look(now, used);
        slice.account.hold(slice.unattributed.charged());
        self.serve(index, lane, actions);
    }
}
