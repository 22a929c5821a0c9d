//! NVML's sum over all processes of a container, against the sum of their grants while NVML was asked.
//!
//! Each process of a container could be granted all of the cap for a moment, one after the other, and keep
//! as much without a request. So NVML's sum over all of them is compared, too, with the sum of their grants.
//! An excess that is charged to no single process is *hidden*: it belongs to the container, and counts until a
//! measurement of all of them shows less, or no process is left. A query at a moment that a process chooses
//! never lowers the two together.
//!
//! # Which grants
//! Memory is granted before the driver is asked for it, and given back after the driver has freed it. So at
//! every instant as much is granted as the driver has confirmed. NVML's figure is of one instant between its
//! question and its answer, and the largest sum of grants in that time explains it. No earlier grant does.
//!
//! A program that reserves and releases all the time has a large sum in every such time, however little of
//! the time it has it. Whether the driver ever confirmed such a grant only the process could say, and a liar
//! would. So where a figure is explained by a grant that had not been there at the question, the container is
//! in *doubt*: at the next looks its growth waits for NVML's answer, at most for [`HOLD`], whether NVML answers or is
//! asked again. Then the sum can only fall, the one at the question decides, and the time of the question is not known
//! to the container.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::units::{Bytes, Duration, Instant};

use crate::action::Actions;
use crate::engine::Engine;
use crate::index::ContainerIndex;

/// Longest time that growth waits for NVML's answer.
pub const HOLD: Duration = Duration(100_000_000);

impl Engine {
    /// NVML is about to be asked for all processes of a container.
    pub(crate) fn looking(&mut self, container: ContainerId, lane: Lane) {
        let Some(index) = self.containers.find(container) else {
            return;
        };
        let until = self.now.plus(HOLD);
        let waits = self.is_held_back(index, lane);
        let Some(slice) = self.account(index, lane).filter(|it| it.gpu.is_some()) else {
            return;
        };
        slice.window.open(slice.explained());
        if slice.window.doubt > 0 && !waits {
            self.held_back.push((until, index, lane));
        }
    }

    /// All processes of a container were measured in one query.
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
        let held = self.release_growth(index, lane);
        let Some(slice) = self.account(index, lane).filter(|it| it.gpu.is_some()) else {
            return;
        };
        let beyond = own.max(slice.window.close(all, slice.granted, held));
        slice.window.open(slice.explained());
        slice.looked(now, Bytes(u64::try_from(beyond).unwrap_or(u64::MAX)));
        slice.account.measured();
        self.serve(index, lane, actions);
    }

    /// Whether the growth of an account waits for NVML's answer.
    pub(crate) fn is_held_back(&self, index: ContainerIndex, lane: Lane) -> bool {
        self.held_back.iter().any(|&(_, of, at)| (of, at) == (index, lane))
    }

    /// Ends that wait; returns whether there was one.
    fn release_growth(&mut self, index: ContainerIndex, lane: Lane) -> bool {
        let before = self.held_back.len();
        self.held_back.retain(|&(_, of, at)| (of, at) != (index, lane));
        self.held_back.len() < before
    }

    /// Decides on growth that has waited for NVML for too long.
    pub(crate) fn end_held_back(&mut self, actions: &mut Actions) {
        let over = self.held_back.iter().filter(|(until, ..)| *until <= self.now);
        let over: Vec<_> = over.map(|&(_, index, lane)| (index, lane)).collect();
        for (index, lane) in over {
            self.release_growth(index, lane);
            self.serve(index, lane, actions);
        }
    }

    /// The deadline of the first such wait.
    pub(crate) fn held_back_until(&self) -> Option<Instant> {
        self.held_back.iter().map(|&(until, ..)| until).min()
    }
}
