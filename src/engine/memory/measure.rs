//! What the driver says counts, granted or not.
//!
//! NVML shows what a process really has of a GPU. What it shows beyond what the process was
//! granted is the process's *residual*; what it shows of processes of the container that are not
//! attached is *stray*. Both were taken without being asked for, so they count even above the cap.
//!
//! A look is older than its answer, and a process that allocates and frees all the time has given
//! back by then what the look still showed. So it is compared with the most that the process was
//! granted since the look before the last: never is memory that was asked for taken for more. The process's own
//! word can only add to what counts: to say that NVML does not show something makes the residual larger.

use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use gpuslice_wire::units::Bytes;

use crate::action::Actions;
use crate::engine::Engine;
use crate::ledger::{Account, Measured};

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
        let Some(seat) = self.clients.get(client).map(|it| it.seat) else {
            return;
        };
        let Some((mine, slice)) = self.share(client, lane) else {
            return;
        };
        let Some(gpu) = slice.gpu else {
            return; // host memory is not the driver's to show
        };
        let beyond = mine.beyond(used);
        recount(&mut slice.account, &mut mine.residual, |it| {
            it.look(now, beyond);
        });
        let first = !mine.measured && mine.claims.held == Bytes::ZERO;
        mine.measured = true;
        if first {
            self.first_context(gpu, used);
        }
        self.serve(seat, lane, actions);
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
        let Some(seat) = self.containers.find(container) else {
            return;
        };
        let Some(slice) = self.account(seat, lane).filter(|it| it.gpu.is_some()) else {
            return;
        };
        recount(&mut slice.account, &mut slice.stray, |it| {
            it.look(now, used)
        });
        self.serve(seat, lane, actions);
    }

    /// A process that had nothing else has its first context, and this is what it takes. The
    /// least that was seen is right; more is something else that came with it.
    fn first_context(&mut self, gpu: usize, used: Bytes) {
        let known = self.gpus[gpu].context;
        if used == Bytes::ZERO || known.is_some_and(|least| least <= used) {
            return;
        }
        self.gpus[gpu].context = Some(used);
        let on_it = self.gpus[gpu].turns.entities.iter();
        self.changed.extend(on_it.map(|it| (it.seat, it.lane)));
    }
}

/// Counts what a look makes of a measured amount.
fn recount(account: &mut Account, amount: &mut Measured, look: impl FnOnce(&mut Measured)) {
    account.release(amount.charged());
    look(amount);
    account.hold(amount.charged());
}
