//! Memory: grants, refusals and returns.
//!
//! A process asks for credit, far more at a time than it uses at once, so that most allocations need no
//! round trip. So memory can be short while siblings hold unused credit: then the credit is *recalled*, and
//! a process is refused only when they have answered and the memory still does not suffice. Memory that
//! NVML shows beyond the grants is counted too.
//!
//! | module | decides |
//! |---|---|
//! | `attach` | a process attaches, with the memory it holds if it was attached before |
//! | `restore` | grants from before a restart of the daemon |
//! | `disconnect` | it loses its connection, and keeps its grants until it ends |
//! | `grow` | requests, in order of arrival; returned memory goes to waiting requests |
//! | `borrow` | containers with a larger limit use what others leave, and give it back |
//! | `recall` | siblings are asked for memory they do not use |
//! | `measure` | memory that NVML shows counts, granted or not |
//! | `look` | NVML's sum over all processes, against the sum of grants at that time |
//! | `left_behind` | memory that NVML shows of suspended containers |
//! | `on_host` | what such containers have on the host, whatever they give back in the ledger |
//! | `unfreed` | memory of ended processes counts until the driver has freed it |
//! | `resize` | a changed cap |

mod attach;
pub(crate) mod borrow;
mod disconnect;
mod grow;
mod left_behind;
mod look;
mod measure;
mod on_host;
mod recall;
mod resize;
mod restore;
#[cfg(test)]
mod tests;
mod unfreed;

pub use look::HOLD;

use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::tenant::Rejection;
use gpuslice_wire::units::Bytes;

use crate::action::{Action, Actions, Cut};
use crate::engine::Engine;
use crate::event::Event;
use crate::index::ContainerIndex;
use crate::lifecycle::{ClientLane, Growth, Slice};

impl Engine {
    /// Applies an event to the ledgers.
    pub(crate) fn memory(&mut self, event: Event, actions: &mut Actions) {
        if let Event::Reserve { client, .. }
        | Event::Release { client, .. }
        | Event::Yield { client, .. } = event
            && !self.clients.get(client).is_some_and(|it| it.connected)
        {
            return; // no process asks for it
        }
        if self.is_of_suspended(&event) {
            return self.note_left_behind(&event, actions);
        }
        match event {
            Event::Reserve { client, token, lane, need, wish } => {
                let growth = Growth {
                    client,
                    token,
                    lane,
                    need,
                    wish,
                    after: 0,
                    waited: false,
                    at: self.now,
                    claims_since: None,
                };
                self.reserve(growth, actions);
            }
            Event::Release { client, lane, bytes } => {
                self.release(client, lane, bytes, None, actions)
            }
            Event::Yield { client, lane, recall, bytes } => {
                self.release(client, lane, bytes, Some(recall), actions)
            }
            Event::RestoreProcess { token, container, process, granted } => {
                self.restore_process(token, container, process, &granted, actions)
            }
            Event::Complete { container } => self.complete(container, actions),
            Event::RestoreUntracked { container, untracked } => {
                self.restore_untracked(container, &untracked)
            }
            Event::Opened { container } => self.opened(container, actions),
            Event::Left { client } => self.left(client, actions),
            Event::Gone { client } => self.forget(client, actions),
            Event::Measured { client, lane, used, requested } => {
                self.measured(client, lane, (used, requested), actions)
            }
            Event::Looking { container, lane } => self.looking(container, lane),
            Event::Looked { container, lane } => self.looked(container, lane, actions),
            Event::DeviceLooked { gpu, asked, least, most } => {
                self.device_looked(gpu, asked, (least, most), actions)
            }
            Event::Outside { gpu, used } => self.outside(gpu, used),
            Event::Unattributed { container, lane, used } => {
                self.strangers(container, lane, used, actions)
            }
            _ => {}
        }
    }

    /// An account of a container.
    fn account(&mut self, index: ContainerIndex, lane: Lane) -> Option<&mut Slice> {
        self.containers.get_mut(index)?.slices.get_mut(lane)
    }

    /// An account of a process: its own part, and the container's.
    fn share(&mut self, client: ClientId, lane: Lane) -> Option<(&mut ClientLane, &mut Slice)> {
        let it = self.clients.get_mut(client)?;
        let slice = self.containers.get_mut(it.index)?.slices.get_mut(lane)?;
        Some((it.lanes.get_mut(lane)?, slice))
    }

    /// Ends the connection of a process that broke a rule. It keeps the memory it holds.
    fn cut(&mut self, client: ClientId, why: Rejection, actions: &mut Actions) {
        actions.push(Action::Disconnect { client, why: Cut::Broke(why) });
        self.disconnect(client, actions);
    }

    /// Releases memory a process gives back; with the number of a recall, as its answer to it.
    fn release(
        &mut self,
        client: ClientId,
        lane: Lane,
        bytes: Bytes,
        recall: Option<u32>,
        actions: &mut Actions,
    ) {
        let Some(index) = self.clients.get(client).map(|it| it.index) else {
            return;
        };
        let is_suspended = self.is_suspended(index);
        let Some((mine, slice)) = self.share(client, lane) else {
            return self.cut(client, Rejection::NoSuchLane, actions);
        };
        if bytes > mine.granted {
            return self.cut(client, Rejection::Overdrawn, actions);
        }
        if is_suspended && slice.gpu.is_some() {
            mine.keep();
        }
        mine.granted = mine.granted.saturating_sub(bytes);
        slice.give_back(bytes);
        slice.cover(mine);
        if recall.is_some_and(|number| number == slice.recall.number()) {
            slice.recall.answered(client);
        }
        self.serve(index, lane, actions);
    }
}
