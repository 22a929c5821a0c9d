//! NVML owes a process the figure that it has asked for, after it made a first context.
//!
//! # Problem
//! A context takes hundreds of MiB that only NVML shows. Its process asks for the figure when the context is made, and
//! is answered without one if NVML is late. As long as none of the container's contexts was measured, its cost is not
//! known either: the context would be charged nothing, and the container could be granted all of its cap beside it.
//!
//! # Idea
//! Until NVML has answered, growth of the container on that GPU waits, for at most [`OWED`]. Requests for nothing wait,
//! too: by one, the process itself waits for the answer. The late figure counts at once, before any other request is
//! decided, since a second one may be seconds away. The process then asks again, and its grant for the context covers
//! the figure that it is told ([`super::measure`]). The late one covers nothing: a grant could be for other memory.
//!
//! A late answer without a figure ends the wait: that NVML tells none, so the context is charged what is known. The
//! growth of a container that has had a context measured does not wait: its contexts are charged what that one cost.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::limits::DAEMON_WAIT_NS;
use gpuslice_wire::units::{Duration, Instant};

use crate::action::Actions;
use crate::engine::Engine;
use crate::index::ContainerIndex;

/// Longest time that growth waits for a late figure: as long as a process waits for an absent daemon.
pub const OWED: Duration = Duration(DAEMON_WAIT_NS);

impl Engine {
    /// NVML is late with a process's figure (`owes`), or owes it none any more.
    pub(crate) fn owed(&mut self, client: ClientId, lane: Lane, owes: bool, actions: &mut Actions) {
        let Some(index) = self.clients.get(client).map(|it| it.index) else {
            return;
        };
        let Some(slice) = self.account(index, lane).filter(|it| it.gpu.is_some()) else {
            return;
        };
        let unknown = slice.context.is_none();
        if owes && unknown && !self.is_owed(client, lane) {
            self.owed.push((self.now.plus(OWED), client, lane));
        } else if !owes {
            self.owed.retain(|&(_, of, at)| (of, at) != (client, lane));
            self.serve(index, lane, actions);
        }
    }

    /// Whether growth waits for this process's figure.
    pub(crate) fn is_owed(&self, client: ClientId, lane: Lane) -> bool {
        self.owed.iter().any(|&(_, of, at)| (of, at) == (client, lane))
    }

    /// Whether growth of an account waits for the figure of one of its processes.
    pub(crate) fn awaits_figure(&self, index: ContainerIndex, lane: Lane) -> bool {
        let home = |client| self.clients.get(client).map(|it| it.index);
        self.owed.iter().any(|&(_, of, at)| at == lane && home(of) == Some(index))
    }

    /// Decides on growth that has waited for a figure for too long.
    pub(crate) fn end_owed(&mut self, actions: &mut Actions) {
        let over = self.owed.extract_if(.., |(until, ..)| *until <= self.now);
        let over: Vec<_> = over.collect();
        for (_, client, lane) in over {
            self.owed(client, lane, false, actions);
        }
    }

    /// The deadline of the first such wait.
    pub(crate) fn owed_until(&self) -> Option<Instant> {
        self.owed.iter().map(|&(until, ..)| until).min()
    }
}
