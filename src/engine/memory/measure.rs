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
//!
//! Each process of a container could be granted all of the cap for a moment, one after the other, and
//! keep as much without having asked for it. So what NVML shows of all of them together is compared,
//! too, with the most that all were granted *together* at one instant, which is never beyond the cap.
//! What that finds and is charged to no single process is *hidden*: it is the container's, and counts
//! until a look at all of them shows less, or no process is left. A process's own question, whose
//! moment it chooses, never makes the two together less.

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
        let Some(gpu) = slice.gpu else {
            return; // host memory is not the driver's to show
        };
        let first = mine.seen.is_none() && mine.claims.held == Bytes::ZERO;
        let beyond = mine.beyond(used);
        slice.recount(&mut mine.residual, |it| it.look(now, beyond));
        if first {
            self.first_context(gpu, used);
        }
        self.serve(index, lane, actions);
    }

    /// All processes of a container were measured in one look.
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
        slice.account.release(slice.stray.charged());
        slice.stray.look(now, used);
        slice.account.hold(slice.stray.charged());
        self.serve(index, lane, actions);
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
        self.changed.extend(on_it.map(|it| (it.index, it.lane)));
    }
}
