//! Memory: who has how much, who gets more, who gives back.
//!
//! A process asks for credit, far more at a time than it uses at once, so that most allocations
//! need no question. So memory can be short while siblings sit on credit that none of them uses:
//! then it is *recalled*, and a process is refused only when they have answered and it is not
//! there. What NVML shows beyond what was granted is counted too.
//!
//! | room | what it decides |
//! |---|---|
//! | `attach` | a process comes, with what it holds if it was here before |
//! | `again` | what processes were granted by an earlier life of the daemon |
//! | `part` | it loses its connection, and keeps what it was granted until it is gone |
//! | `grow` | requests, first come first served; what comes back goes to those who wait |
//! | `recall` | siblings are asked for what they do not use |
//! | `measure` | what the driver says counts, granted or not |
//! | `resize` | a cap becomes another |

mod again;
mod attach;
mod grow;
mod measure;
mod part;
mod recall;
mod resize;
#[cfg(test)]
mod tests;

pub(crate) use recall::Recall;

use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::tenant::Rejection;
use gpuslice_wire::units::Bytes;

use crate::action::{Action, Actions, Cut};
use crate::engine::Engine;
use crate::event::Event;
use crate::lifecycle::{ClientLane, ContainerIndex, Growth, Slice};

impl Engine {
    /// What happens to the books.
    pub(crate) fn memory(&mut self, event: Event, actions: &mut Actions) {
        if let Event::Reserve { client, .. }
        | Event::Release { client, .. }
        | Event::Yield { client, .. } = event
            && !self.clients.get(client).is_some_and(|it| it.connected)
        {
            return; // nobody speaks for it
        }
        match event {
            Event::Reserve {
                client,
                token,
                lane,
                need,
                wish,
            } => {
                let growth = Growth {
                    client,
                    token,
                    lane,
                    need,
                    wish,
                    after: 0,
                    waited: false,
                };
                self.reserve(growth, actions);
            }
            Event::Release {
                client,
                lane,
                bytes,
            } => self.release(client, lane, bytes, None, actions),
            Event::Yield {
                client,
                lane,
                recall,
                bytes,
            } => self.release(client, lane, bytes, Some(recall), actions),
            Event::RestoreProcess {
                token,
                container,
                process,
                granted,
            } => self.account_again(token, container, process, &granted, actions),
            Event::Complete { container } => self.complete(container, actions),
            Event::Left { client } => self.left(client, actions),
            Event::Gone { client } => self.forget(client, actions),
            Event::Measured { client, lane, used } => self.measured(client, lane, used, actions),
            Event::Looked { container, lane } => self.looked(container, lane, actions),
            Event::Unattributed {
                container,
                lane,
                used,
            } => self.strangers(container, lane, used, actions),
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

    /// Ends the connection of a process that broke a rule. What it holds it has still.
    fn cut(&mut self, client: ClientId, why: Rejection, actions: &mut Actions) {
        actions.push(Action::Disconnect {
            client,
            why: Cut::Broke(why),
        });
        self.part(client, actions);
    }

    /// Takes back what a process gives back; with the number of a recall, as its answer to it.
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
        let Some((mine, slice)) = self.share(client, lane) else {
            return self.cut(client, Rejection::NoSuchLane, actions);
        };
        if bytes > mine.granted {
            return self.cut(client, Rejection::Overdrawn, actions);
        }
        mine.granted = mine.granted.saturating_sub(bytes);
        slice.give_back(bytes);
        if recall.is_some_and(|number| number == slice.recall.number()) {
            slice.recall.answered(client);
        }
        self.serve(index, lane, actions);
    }
}
