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
        let first = !mine.had_memory();
        let beyond = mine.beyond(used);
        slice.recount(&mut mine.residual, |it| it.look(now, beyond));
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
