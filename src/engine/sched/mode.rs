//! Whether launches wait for turns, and when turns end.
//!
//! # Problem
//! In open mode a launch does not wait: the engine learns of it afterwards. So a container that pauses for
//! longer than `open_after` would find the GPU open whenever it comes back, however much it has used
//! before. Kernels of 1.9 s with pauses of 30 ms gave 98 % of a GPU to a container of weight 1 beside one
//! of weight 100 that was always runnable. A claim of work without any kernel did the same.
//!
//! # Idea
//! Finish tags record each container's use; open mode must not discard that. A *debt* is GPU time that a
//! container used ahead of its queue, that is while another one was runnable. Turns go on until every
//! attached container has a debt of at most a shortest turn: the others have had as much by weight, or the
//! debtor is no longer attached. The debtor's next launch waits at the gate until its queue position comes.
//!
//! What is no debt:
//! * Time in open mode: the queue follows the container that runs alone, see [`Turns::advance`].
//! * Time in turns while no other container is runnable: the queue follows each turn's start. So the only
//!   competing container owes nothing, however long its turn takes.
//!
//! While no container is runnable, a debt needs no turns: the debtor would get one at once. The debt stays,
//! and the first launch of a container to which time is owed begins turns again.
//!
//! Debts end, because every run advances the queue. A debt `d` at weight `w` is paid when a container of
//! weight `v` has had `d * v / w`.

use alloc::vec::Vec;
use gpuslice_wire::units::Duration;

use super::entity::Entity;
use super::preempt::Preemption;
use super::{Note, Phase, Turns};
use crate::index::ContainerIndex;

impl Turns {
    /// A debt small enough to ignore: about what one turn leaves behind.
    pub(super) fn tolerance(&self) -> Duration {
        self.config.turn_min
    }

    /// Whether `entity` used so much ahead of its queue that others go first.
    pub(super) fn owes(&self, entity: &Entity) -> bool {
        entity.debt(self.queue_time(entity)) > self.tolerance()
    }

    /// Whether launches must wait for turns.
    fn needs_turns(&self) -> bool {
        if !self.policy.rules().turns {
            return false;
        }
        if self.entities.iter().any(|it| it.held_back && it.reported.attached) {
            return true;
        }
        // asked at every step: the cheap and most frequent case comes first
        let competing = self.entities.iter().filter(|e| e.competes()).take(2).count();
        let mut attached = self.entities.iter().filter(|e| e.reported.attached);
        let owes = |e: &Entity| !e.competes() && self.owes(e);
        if competing >= 2 || competing == 1 && attached.clone().any(owes) {
            return true;
        }
        let capped = attached.clone().any(|e| e.bucket.cap().limits());
        let queue = |e: &Entity| (e.class, e.reserved);
        let first = attached.next().map(queue);
        capped || attached.any(|e| Some(queue(e)) != first)
    }

    /// Sets whether launches of `index` wait, although it may be the only container.
    pub(crate) fn hold_back(&mut self, index: ContainerIndex, held: bool) {
        if let Some(entity) = self.find_mut(index) {
            entity.held_back = held;
        }
    }

    /// Whether `index` may not launch, and has nothing in flight. Stopped work is in flight until it is resumed.
    /// Without turns, nothing is known.
    pub(crate) fn has_drained(&self, index: ContainerIndex) -> bool {
        let entity = self.find(index);
        let off = entity.is_none_or(|it| {
            it.is_off() && it.untracked.is_none() && it.preemption == Preemption::None
        });
        off && self.on_gpu() != Some(index) || !self.policy.rules().turns
    }

    /// Whether work of `index` is stopped, or ordered to be.
    pub(crate) fn may_be_stopped(&self, index: ContainerIndex) -> bool {
        let preemption = self.find(index).map(|it| it.preemption);
        matches!(preemption, Some(Preemption::Stopping | Preemption::Stopped))
    }

    pub(super) fn choose_mode(&mut self, notes: &mut Vec<Note>) {
        let needs = self.needs_turns();
        self.lone = if needs { None } else { self.lone.or(Some(self.now)) };
        let over = self.lone.is_some_and(|since| self.now >= since.plus(self.config.open_after));
        match self.phase {
            Phase::Open if needs => self.revoke(notes),
            Phase::Idle | Phase::Held { .. } if over => {
                self.ask_late(notes);
                self.open();
            }
            _ => {}
        }
    }

    /// Turns end, and with them the turn of the holder. An overrun holder is read once more: what was read
    /// before the turn's end says nothing about that turn, and the holder would be charged until it happens
    /// to report.
    fn ask_late(&self, notes: &mut Vec<Note>) {
        if let Phase::Held { index, .. } = self.phase
            && self.find(index).is_some_and(|it| it.overrun.is_some())
        {
            notes.push(Note::Closed(index));
        }
    }

    /// Begins open mode. A container that has a turn goes on launching without it.
    pub(super) fn open(&mut self) {
        if let Phase::Held { index, .. } = self.phase
            && let Some(entity) = self.find_mut(index)
        {
            entity.turn = entity.turn.wrapping_add(1);
        }
        self.entities.iter_mut().for_each(|it| (it.untracked, it.guest) = (None, false));
        self.phase = Phase::Open;
    }
}
