//! A cap changes while processes live.
//!
//! A larger cap is a new promise and follows the rules of admission. A smaller one takes no memory away:
//! bytes reserved beyond it stay, and no process grows until the account fits again. Credit that processes have and
//! do not use is recalled, or they could allocate from it, beyond the new cap.

use gpuslice_wire::admin::{MemoryAsk, NO_CAP};
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::limits::NAME_BYTES_MAX;
use gpuslice_wire::units::Bytes;

use crate::action::{Action, Actions, CapChange};
use crate::admission::beginning;
use crate::engine::Engine;
use crate::event::Token;
use crate::index::ContainerIndex;
use crate::refusal::Refusal;

impl Engine {
    pub(crate) fn resize(
        &mut self,
        token: Token,
        id: ContainerId,
        lane: Lane,
        memory: MemoryAsk,
        actions: &mut Actions,
    ) {
        match self.new_cap(id, lane, memory) {
            Ok((index, cap)) => {
                self.put_cap(token, index, lane, cap, actions);
                self.find_lenders();
                self.serve(index, lane, actions);
                self.recall_excess(index, lane);
            }
            Err(why) => actions.push(Action::Denied { token, why }),
        }
    }

    /// The new cap, if it can be promised.
    fn new_cap(
        &self,
        id: ContainerId,
        lane: Lane,
        memory: MemoryAsk,
    ) -> Result<(ContainerIndex, Bytes), Refusal> {
        let name = beginning(id, NAME_BYTES_MAX);
        let index = self.containers.find(id).ok_or(Refusal::NoSlice(name))?;
        let slices = self.containers.get(index).map(|it| &it.slices);
        let slice = slices.and_then(|slices| slices.get(lane));
        let Some(slice) = slice else {
            let gpus = slices.map_or(0, |slices| slices.gpus.len());
            return Err(Refusal::NoSuchLane { lane, gpus });
        };
        let cap = match (slice.gpu, memory) {
            (Some(gpu), _) => {
                let (old, limit) = (slice.account.cap(), slice.account.limit());
                let cap = self.capacities()[gpu].recap(old, memory, self.config.oversubscribe)?;
                if limit > old && cap > limit {
                    return Err(Refusal::LimitBelowCap { limit, cap });
                }
                cap
            }
            (None, MemoryAsk::Ratio { .. }) => return Err(Refusal::RatioOfHost),
            (None, MemoryAsk::Exactly(Bytes::ZERO)) => return Err(Refusal::PinnedZero),
            (None, MemoryAsk::Exactly(cap)) => cap,
        };
        Ok((index, cap))
    }

    fn put_cap(
        &mut self,
        token: Token,
        index: ContainerIndex,
        lane: Lane,
        cap: Bytes,
        actions: &mut Actions,
    ) {
        let Some(container) = self.containers.get_mut(index) else {
            return;
        };
        let Some(slice) = container.slices.get_mut(lane) else {
            return;
        };
        let (was, limit) = (slice.account.cap(), slice.account.limit());
        let former = limit;
        let limit = if limit == was { cap } else { limit };
        slice.account.set_cap(cap, limit);
        slice.note_grant(Bytes::ZERO); // grants beyond the old cap may be within the new one
        match container.record.lanes.get_mut(usize::from(lane.0)) {
            Some(promised) => (promised.cap, promised.limit) = (cap, limit),
            None => container.record.pinned = Some(cap).filter(|&cap| cap != NO_CAP),
        }
        actions.push(Action::Resized {
            token,
            record: container.record.clone().into(),
            change: CapChange { lane, was, cap, limit: former, reserved: slice.account.reserved() },
        });
        if cap > was {
            self.inherit_unfreed(index, lane);
        }
    }
}
