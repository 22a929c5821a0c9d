//! Suspended containers: their GPU memory is on the host, and their processes wait.
//!
//! # Problem
//! A container that does nothing for minutes keeps its memory on the GPU. The driver can move the memory of a whole
//! process to the host and back, from outside, and the process does not notice. While it is away, the GPU's memory is
//! free for others, and the container must take no turns.
//!
//! # Idea
//! ```text
//!            suspend             drained, or `drain_max`         moved
//!   None --------------> Draining -------------------> Leaving --------> Away
//!    ^                                                   | not moved      |  ^
//!    +---------------------------------------------------+         resume |  | not moved
//!    +------------------------------- Returning <-------------------------+  |
//!                  moved                  +------------------------------------+
//! ```
//! Outside `None` the container counts as not runnable, so it gets no turn. While its memory moves, its gate is closed
//! too, even if no other container has work: a launch between two steps of the move would keep the driver from
//! locking its process. `Away`, the driver holds it back, and the GPU needs no turns for it.
//!
//! Its ledger stays as it is: its grants are still its own, and NVML, which shows nothing of memory on the host, does
//! not change it meanwhile. So requests for more wait until the state is `None` again, and what its processes give back
//! still counts where its memory is (`memory::on_host`). What NVML nevertheless shows of it, `Away`, is of processes
//! that took memory after the move (`memory::left_behind`). A process of which the driver does not tell that its memory
//! was moved counts as being on the GPU with all that it was granted, until NVML shows less. For others, its memory
//! counts to a host account with a limit of its own. Its cap stays promised, so there is room for its return at any
//! time, unless the node oversubscribes, or memory is borrowed (`memory::borrow`).
//!
//! `Draining` also lasts until each process has told whether it shares memory, which the driver may not move back.
//!
//! A restart of the daemon keeps the states `None` and `Away`. From `Leaving` and `Returning` the container goes back
//! to `Draining`: its memory counts as on the GPU until the move to the host, ordered again, is done.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane, NvmlIndex};
use gpuslice_wire::limits::NAME_BYTES_MAX;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::{Bytes, Duration, Instant};

use crate::action::{Action, Actions};
use crate::admission::beginning;
use crate::engine::Engine;
use crate::event::{Event, Token};
use crate::index::ContainerIndex;
use crate::lifecycle::{Container, Stage, Suspension};
use crate::refusal::Refusal;

/// A container that the engine suspended to reclaim memory stays so for this long, or for the grace: each move costs
/// as much as its memory is large.
const RESUME_AFTER: Duration = Duration::from_millis(1_000);
/// The next attempt, after one that failed.
const RESUME_AGAIN: Duration = Duration::from_millis(10_000);

/// What a resume takes of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeNeed {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its index.
    pub index: NvmlIndex,
    /// The memory.
    pub bytes: Bytes,
}

/// Why a container is not suspended another time, if it is suspended or on the way to or from it.
fn suspended(container: &Container) -> Option<Refusal> {
    let name = beginning(container.record.container, NAME_BYTES_MAX);
    match container.suspension {
        Suspension::None => None,
        Suspension::Away if container.resume.is_none() => Some(Refusal::Suspended(name)),
        Suspension::Draining { .. } | Suspension::Leaving { .. } => Some(Refusal::Leaving(name)),
        Suspension::Away | Suspension::Returning { .. } => Some(Refusal::Returning(name)),
    }
}

/// Refuses a move. That there is no room for it is worth an event: a repeated command may succeed later.
fn refuse(token: Token, container: ContainerId, why: Refusal, actions: &mut Actions) {
    if matches!(why, Refusal::HostFull { .. } | Refusal::NoRoom { .. }) {
        actions.push(Action::NoRoomToMove { token, container, why });
    }
    actions.push(Action::Denied { token, why });
}

impl Engine {
    /// Begins to suspend a container.
    pub(crate) fn suspend(&mut self, token: Token, id: ContainerId, actions: &mut Actions) {
        if let Err(why) = self.begin_suspension(token, id) {
            refuse(token, id, why, actions);
        }
    }

    /// Begins to suspend a container, in a step in which all its GPUs decide on turns.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(crate) fn begin_suspension(
        &mut self,
        token: Token,
        id: ContainerId,
    ) -> Result<(), Refusal> {
        let index = self.may_suspend(id)?;
        let until = self.now.plus(self.config.drain_max);
        let until = match self.containers.get(index).map(|it| it.stage) {
            Some(Stage::Returning { until: attached }) => until.max(attached),
            _ => until,
        };
        self.drain(index, Suspension::Draining { token, until, again: false });
        Ok(())
    }

    fn drain(&mut self, index: ContainerIndex, draining: Suspension) {
        self.keep_strangers(index);
        self.set_suspension(index, draining);
        self.draining.push(index);
    }

    fn may_suspend(&self, id: ContainerId) -> Result<ContainerIndex, Refusal> {
        let (index, container) = self.named(id)?;
        if let Some(why) = suspended(container) {
            return Err(why);
        }
        let away = self.containers.iter().filter(|(_, it)| it.suspension != Suspension::None);
        let away = away.map(|(of, _)| self.kept_by(of)).fold(Bytes::ZERO, Bytes::saturating_add);
        let (memory, limit) = (self.kept_by(index), self.config.suspended_memory);
        let left = limit.saturating_sub(away);
        match memory > left {
            true => Err(Refusal::HostFull { memory, left, limit }),
            false => Ok(index),
        }
    }

    /// Begins to resume a container, at once or when other containers have given back what is promised to it.
    pub(crate) fn end_suspension(&mut self, token: Token, id: ContainerId, actions: &mut Actions) {
        if self.named(id).is_ok_and(|(_, it)| it.resume.is_some()) {
            let why = Refusal::Returning(beginning(id, NAME_BYTES_MAX));
            return refuse(token, id, why, actions);
        }
        match self.may_return(id) {
            Ok(found) => self.begin_return(token, found, actions),
            Err(Refusal::NoRoom { .. }) if self.claims_return(id) => {
                let (now, index) = (self.now, self.containers.find(id));
                let container = index.and_then(|index| self.containers.get_mut(index));
                let Some(container) = container else { return };
                container.resume = Some((token, now));
                for gpu in container.slices.gpus.iter().filter_map(|slice| slice.gpu) {
                    self.gpus[gpu].lending.due = Some(now);
                }
            }
            Err(why) => refuse(token, id, why, actions),
        }
    }

    fn begin_return(
        &mut self,
        token: Token,
        (index, memory): (ContainerIndex, Bytes),
        actions: &mut Actions,
    ) {
        self.set_suspension(index, Suspension::Returning { token });
        let container = self.containers.get(index).map(|it| it.record.container);
        let order = |container| Action::MoveMemory { token, container, away: false, memory };
        actions.extend(container.map(order));
    }

    /// Whether all of a suspended container's memory is promised to it, and others have borrowed some of that.
    fn claims_return(&self, id: ContainerId) -> bool {
        let Ok((index, container)) = self.named(id) else {
            return false;
        };
        let mut lanes = (0..).map(Lane).zip(&container.slices.gpus);
        let mut gpus = container.slices.gpus.iter().filter_map(|slice| slice.gpu);
        lanes.all(|(lane, slice)| self.kept(index, lane) <= slice.account.cap())
            && gpus.any(|gpu| self.is_lent(gpu, index))
    }

    /// Begins the waiting resumes for which there is room now. Returns whether there was one.
    pub(crate) fn begin_returns(&mut self, actions: &mut Actions) -> bool {
        let mut any = false;
        let waiting = self.containers.iter().filter(|(_, it)| it.resume.is_some());
        let waiting: Vec<_> = waiting.map(|(index, it)| (index, it.record.container)).collect();
        for (index, id) in waiting {
            let Ok(found) = self.may_return(id) else { continue };
            let container = self.containers.get_mut(index);
            if let Some((token, _)) = container.and_then(|it| it.resume.take()) {
                self.begin_return(token, found, actions);
                any = true;
            }
        }
        any
    }

    /// A resume has waited for long enough: it is refused.
    pub(crate) fn end_resume(
        &mut self,
        index: ContainerIndex,
        (gpu, memory, left): (usize, Bytes, Bytes),
        actions: &mut Actions,
    ) {
        let container = self.containers.get_mut(index);
        let Some((container, (token, _))) = container.and_then(|it| {
            let resume = it.resume.take()?;
            Some((it.record.container, resume))
        }) else {
            return;
        };
        let why = Refusal::NoRoom { gpu: self.gpus[gpu].index, memory, left };
        refuse(token, container, why, actions);
    }

    /// A container ends: a move that was asked for is not done.
    pub(crate) fn drop_move(&mut self, index: ContainerIndex, actions: &mut Actions) {
        let Some(container) = self.containers.get(index) else {
            return;
        };
        let asked = match container.suspension {
            Suspension::Draining { token, .. }
            | Suspension::Leaving { token }
            | Suspension::Returning { token } => Some(token),
            Suspension::None | Suspension::Away => container.resume.map(|resume| resume.0),
        };
        let why = Refusal::NoSlice(beginning(container.record.container, NAME_BYTES_MAX));
        let asked = asked.filter(|token| *token != Token::NONE);
        actions.extend(asked.map(|token| Action::Denied { token, why }));
    }

    /// What the resume of a container takes of each GPU: its memory that is not there.
    pub fn resume_needs(&self, id: ContainerId) -> Vec<ResumeNeed> {
        let Ok((index, container)) = self.named(id) else {
            return Vec::new();
        };
        let lanes = (0..).map(Lane).zip(&container.slices.gpus);
        let needs = lanes.filter_map(|(lane, slice)| {
            let gpu = &self.gpus[slice.gpu?];
            let bytes = self.kept(index, lane).saturating_sub(self.unmoved(index, lane));
            Some(ResumeNeed { gpu: gpu.uuid, index: gpu.index, bytes })
        });
        needs.collect()
    }

    fn may_return(&self, id: ContainerId) -> Result<(ContainerIndex, Bytes), Refusal> {
        let (index, container) = self.named(id)?;
        if container.suspension != Suspension::Away {
            let not = Refusal::NotSuspended(beginning(id, NAME_BYTES_MAX));
            return Err(suspended(container).unwrap_or(not));
        }
        for (lane, slice) in (0..).map(Lane).zip(&container.slices.gpus) {
            let Some(at) = slice.gpu else { continue };
            let gpu = &self.gpus[at];
            let others = self.present_on(at).saturating_sub(self.unmoved(index, lane));
            // A restore that finds too little memory can never be repeated (drivers 580 and 595).
            let left = gpu.total.saturating_sub(others.saturating_add(self.taken_beside(at)));
            let memory = self.kept(index, lane);
            if memory > left {
                return Err(Refusal::NoRoom { gpu: gpu.index, memory, left });
            }
        }
        Ok((index, self.kept_by(index)))
    }

    /// Memory of all containers on a GPU, without what is on the host.
    pub(crate) fn present_on(&self, gpu: usize) -> Bytes {
        let present = self.slices_on(gpu).map(|(index, lane, slice)| match self.is_away(index) {
            true => slice.stays(),
            false => self.kept(index, lane),
        });
        present.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    fn named(&self, id: ContainerId) -> Result<(ContainerIndex, &Container), Refusal> {
        let index = self.containers.find(id);
        let found = index.and_then(|index| Some((index, self.containers.get(index)?)));
        found.ok_or(Refusal::NoSlice(beginning(id, NAME_BYTES_MAX)))
    }

    /// A container's memory was moved, or not.
    pub(crate) fn memory_moved(
        &mut self,
        id: ContainerId,
        away: bool,
        stays: Option<&[ClientId]>,
        actions: &mut Actions,
    ) {
        let Ok((index, container)) = self.named(id) else {
            return;
        };
        let (Suspension::Leaving { token } | Suspension::Returning { token }) =
            container.suspension
        else {
            return;
        };
        let memory = self.kept_by(index);
        let leaves = matches!(container.suspension, Suspension::Leaving { .. });
        self.note_reclaimed(index, token, (leaves, away));
        match stays {
            Some(stays) if away => self.expect_left_behind(index, stays),
            _ => {}
        }
        if away {
            self.resume_stopped(index, actions);
        }
        self.set_suspension(index, if away { Suspension::Away } else { Suspension::None });
        let left = if away { self.left_behind(index) } else { Bytes::ZERO };
        actions.push(Action::SuspensionSettled { token, container: id, away, memory, left });
        if !away {
            self.forget_kept(index, actions);
            self.wait_anew(index);
            self.count_strangers(index, actions);
        }
        // Requests wait while it is away, and one may have waited for what this container itself had borrowed.
        self.serve_all(index, actions);
    }

    /// A container whose memory is on the host takes no turn that would resume its stopped work.
    fn resume_stopped(&self, index: ContainerIndex, actions: &mut Actions) {
        let Some(container) = self.containers.get(index) else {
            return;
        };
        for (lane, slice) in (0..).map(Lane).zip(&container.slices.gpus) {
            let turns = slice.gpu.map(|gpu| &self.gpus[gpu].turns);
            if turns.is_some_and(|turns| turns.may_be_stopped(index)) {
                actions.push(Action::Resume { container: container.record.container, lane });
            }
        }
    }

    /// Requests waited for the resume, and borrowers were not asked for them. If these are asked now, they have the
    /// whole grace.
    fn wait_anew(&mut self, index: ContainerIndex) {
        let slices = self.containers.get_mut(index).map(|it| it.slices.iter_mut());
        let waiting = slices.into_iter().flatten().flat_map(|(_, slice)| &mut slice.waiting);
        waiting.for_each(|growth| growth.claims_since = None);
    }

    /// Notes which containers the engine itself suspended: it resumes them.
    fn note_reclaimed(&mut self, index: ContainerIndex, token: Token, moved: (bool, bool)) {
        self.reclaimed.retain(|(_, of)| *of != index);
        let now = self.now;
        let wait = match moved {
            (true, true) => self.config.reclaim_grace.max(RESUME_AFTER),
            (_, true) => RESUME_AGAIN,
            (leaves, false) => {
                let container = self.containers.get_mut(index).filter(|_| leaves);
                container.into_iter().for_each(|it| it.not_moved = Some(now));
                return;
            }
        };
        if token == Token::NONE {
            self.reclaimed.push((now.plus(wait), index));
        }
    }

    /// A container was suspended before the daemon's restart. Where its move is not known to be done, that is ordered
    /// again, once its processes are known: until the driver has told of each, its memory counts as on the GPU.
    pub(crate) fn was_suspended(&mut self, id: ContainerId, token: Token, moved: bool) {
        let Some(index) = self.containers.find(id) else {
            return;
        };
        if !moved {
            let until = self.now.plus(self.config.restore_grace);
            return self.drain(index, Suspension::Draining { token, until, again: true });
        }
        self.set_suspension(index, Suspension::Away);
        if token == Token::NONE {
            self.reclaimed.push((self.now.plus(RESUME_AGAIN), index));
        }
    }

    /// Whether a container's memory is on the host.
    pub(crate) fn is_away(&self, index: ContainerIndex) -> bool {
        self.containers.get(index).is_some_and(|it| it.suspension == Suspension::Away)
    }

    /// Whether a container is suspended, or on the way to or from it.
    pub(crate) fn is_suspended(&self, index: ContainerIndex) -> bool {
        self.containers.get(index).is_some_and(|it| it.suspension != Suspension::None)
    }

    /// Whether growth of an account waits until its container is resumed.
    pub(crate) fn waits_for_resume(&self, index: ContainerIndex, lane: Lane) -> bool {
        lane != Lane::HOST && self.is_suspended(index)
    }

    fn set_suspension(&mut self, index: ContainerIndex, suspension: Suspension) {
        if let Some(container) = self.containers.get_mut(index) {
            container.suspension = suspension;
            self.report_all(index);
        }
    }

    /// Orders the move of containers that have drained, or were waited for long enough: the driver waits for the rest.
    /// Before that the processes tell whether they share memory, and after a restart of the daemon attach again for it.
    /// The driver may hold those of a move that an earlier daemon began: only their grants are waited for.
    pub(crate) fn move_drained(&mut self, actions: &mut Actions) {
        let now = self.now;
        let ready = |index: &ContainerIndex| {
            let container = self.containers.get(*index)?;
            let Suspension::Draining { token, until, again } = container.suspension else {
                return None;
            };
            let waits = if again { self.must_wait(*index) } else { self.has_untold(*index) };
            let mut gpus = container.slices.gpus.iter().filter_map(|slice| slice.gpu);
            let drained = gpus.all(|gpu| self.gpus[gpu].turns.has_drained(*index));
            (drained && !waits || now >= until).then_some((*index, token))
        };
        let ready: Vec<_> = self.draining.iter().filter_map(ready).collect();
        for (index, token) in ready {
            self.draining.retain(|of| *of != index);
            let memory = self.kept_by(index);
            if let Some(container) = self.containers.get_mut(index) {
                container.suspension = Suspension::Leaving { token };
                let container = container.record.container;
                actions.push(Action::MoveMemory { token, container, away: true, memory });
            }
        }
    }

    /// Whether processes of a container may still tell whether they share memory.
    fn has_untold(&self, index: ContainerIndex) -> bool {
        self.returns(index) || self.clients_of(index).any(|it| it.connected && !it.told)
    }

    /// When the first of them is waited for no longer.
    pub(crate) fn drained_until(&self) -> Option<Instant> {
        let until = |index: &ContainerIndex| match self.containers.get(*index)?.suspension {
            Suspension::Draining { until, .. } => Some(until),
            _ => None,
        };
        self.draining.iter().filter_map(until).min()
    }

    /// Whether an event has NVML's figures of a container whose memory is on the host, or on the way.
    pub(crate) fn is_of_suspended(&self, event: &Event) -> bool {
        let index = match *event {
            Event::Measured { client, .. } => self.clients.get(client).map(|it| it.index),
            Event::Looking { container, .. }
            | Event::Looked { container, .. }
            | Event::Unattributed { container, .. } => self.containers.find(container),
            _ => None,
        };
        index.is_some_and(|index| self.is_suspended(index))
    }

    /// The rows of suspended containers, as [`Engine::snapshot`] has them.
    pub fn suspensions(&self) -> impl Iterator<Item = Snapshot> + '_ {
        let reclaimed = self.reclaimed.iter().filter_map(|(_, index)| {
            let container = self.containers.get(*index)?.record.container;
            Some(Snapshot::Reclaimed { container })
        });
        let all = self.containers.iter().filter_map(|(index, it)| {
            let (state, container) = (it.suspension.shown()?, it.record.container);
            Some(Snapshot::Suspension { container, state, memory: self.kept_by(index) })
        });
        all.chain(reclaimed)
    }
}

#[cfg(test)]
mod tests;
