//! Memory that the driver shows counts, granted or not.
//!
//! NVML shows a process's real memory on a GPU. The part beyond the process's grants is its *residual*; the
//! memory of the container's processes that are not attached is *unattributed*. Both were taken without a request,
//! so they count even above the cap.
//!
//! A measurement is older than its answer. A process that allocates and frees all the time may have given
//! back by then what it shows. So it is compared with the largest grant since the measurement before the
//! last: memory that was requested is never taken for unrequested. A process's own claim can only add: to
//! claim memory that NVML does not show makes the residual larger.
//!
//! Each process of a container could be granted all of the cap for a moment, one after the other, and keep
//! as much without a request. So NVML's sum over all of them is compared, too, with the largest sum of
//! grants at one instant, which is never beyond the cap. An excess that is charged to no single process is
//! *hidden*: it belongs to the container, and counts until a measurement of all of them shows less, or no
//! process is left. A query at a moment that a process chooses never lowers the two together.

use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::units::Bytes;

use crate::action::Actions;
use crate::engine::Engine;

impl Engine {
    /// NVML shows `used` of a process.
    pub(crate) fn measured(
        &mut self,
        client: ClientId,
        lane: Lane,
        used: Bytes,
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
        let first = mine.seen.is_none() && mine.claims.held == Bytes::ZERO;
        let beyond = mine.beyond(used);
        slice.recount(&mut mine.residual, |it| it.look(now, beyond));
        if first {
            slice.note_first_context(used);
        }
        self.serve(index, lane, actions);
    }

    /// All processes of a container were measured in one query.
    pub(crate) fn looked(&mut self, container: ContainerId, lane: Lane, actions: &mut Actions) {
        let now = self.now;
        let Some(index) = self.containers.find(container) else {
            return;
        };
        let (mut all, mut own) = (0, 0);
        for mine in self.lanes_of(index, lane) {
            all += u128::from(mine.all().0);
            own += u128::from(mine.own.0);
        }
        let Some(slice) = self.account(index, lane).filter(|it| it.gpu.is_some()) else {
            return;
        };
        let beyond = own.max(all.saturating_sub(slice.most()));
        slice.looked(now, Bytes(u64::try_from(beyond).unwrap_or(u64::MAX)));
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
