//! How time is divided becomes another, while containers run: a GPU's policy, a slice's weight, hard
//! share and class.
//!
//! Nobody's past changes with it: see [`crate::sched`]. A larger hard share is a new promise and
//! follows the rules of admission.

use alloc::vec::Vec;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::NAME_BYTES_MAX;
use gpuslice_wire::policy::{Policy, ShareAsk};
use gpuslice_wire::select::GpuSelector;

use crate::action::{Action, Actions};
use crate::admission::{Room, beginning, find};
use crate::engine::Engine;
use crate::event::{Terms as Wanted, Token};
use crate::lifecycle::Seat;
use crate::record::Record;
use crate::refusal::Refusal;

impl Engine {
    pub(crate) fn set_policy(
        &mut self,
        token: Token,
        gpus: GpuSelector,
        policy: Policy,
        actions: &mut Actions,
    ) {
        let chosen: Result<Vec<usize>, Refusal> = match gpus {
            GpuSelector::Any | GpuSelector::All if self.gpus.is_empty() => Err(Refusal::NoGpu),
            GpuSelector::Any | GpuSelector::All => Ok((0..self.gpus.len()).collect()),
            GpuSelector::List(list) => {
                let rooms = self.rooms();
                let named = list.iter().flatten();
                named.map(|&asked| find(&rooms, asked)).collect()
            }
        };
        match chosen {
            Ok(chosen) => {
                let was = chosen.iter().map(|&at| {
                    let gpu = &mut self.gpus[at];
                    let was = (gpu.uuid, gpu.turns.policy());
                    gpu.turns.set_policy(policy);
                    was
                });
                let was = was.collect();
                actions.push(Action::PolicySet { token, policy, was });
            }
            Err(why) => actions.push(Action::Denied { token, why }),
        }
    }

    pub(crate) fn retune(
        &mut self,
        token: Token,
        id: ContainerId,
        wanted: Wanted,
        actions: &mut Actions,
    ) {
        match self.retuned(id, wanted) {
            Ok((seat, was)) => {
                let Some(container) = self.containers.get(seat) else {
                    return;
                };
                let record = container.record.clone();
                let gpus = container.slices.gpus.iter().filter_map(|slice| slice.gpu);
                for gpu in gpus {
                    self.gpus[gpu].turns.retune(seat, record.terms());
                }
                actions.push(Action::Retuned { token, record, was });
            }
            Err(why) => actions.push(Action::Denied { token, why }),
        }
    }

    /// Changes the record, if the new share can be promised; gives what it said before.
    fn retuned(&mut self, id: ContainerId, wanted: Wanted) -> Result<(Seat, Wanted), Refusal> {
        let name = beginning(id, NAME_BYTES_MAX);
        let seat = self.containers.find(id).ok_or(Refusal::NoSlice(name))?;
        let rooms = self.rooms();
        let Some(container) = self.containers.get_mut(seat) else {
            return Err(Refusal::NoSlice(name));
        };
        let record = &mut container.record;
        let share = match wanted.share {
            ShareAsk::Keep => record.share,
            ShareAsk::None => None,
            ShareAsk::Hard(share) => Some(share),
        };
        let old = record.share.map_or(0, |share| share.get());
        for slice in &container.slices.gpus {
            let Some(room) = slice.gpu.and_then(|gpu| rooms.get(gpu)) else {
                continue;
            };
            let without = Room {
                shares: room.shares.saturating_sub(old),
                ..*room
            };
            without.take_share(share)?;
        }
        let was = said(record);
        record.share = share;
        record.weight = wanted.weight.unwrap_or(record.weight);
        record.class = wanted.class.unwrap_or(record.class);
        Ok((seat, was))
    }
}

/// What a record says, as a wish for just that.
fn said(record: &Record) -> Wanted {
    Wanted {
        weight: Some(record.weight),
        share: record.share.map_or(ShareAsk::None, ShareAsk::Hard),
        class: Some(record.class),
    }
}
