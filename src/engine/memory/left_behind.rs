//! Memory on the GPU of a container whose memory is on the host.
//!
//! # Problem
//! A driver moves the processes that a container has at that moment. A later one, or one that goes around the shim, can
//! still take memory of the GPU. A process may be left out of the move: the driver does not know it, or it has ended
//! and a child that it forked keeps its memory. If that counted nowhere, it would be lent or promised to others.
//!
//! # Idea
//! The container's ledger is of memory on the host, and NVML does not change it. What NVML shows of the container
//! counts as memory that is not free on the GPU, and for nothing else. Its figures may be older than the move, so two
//! looks must agree on more than is counted.
//!
//! After a move, each process that the driver does not report as moved counts with all that is charged to it, until
//! NVML is asked and shows less. A claim that lacks this memory waits for that answer. NVML has no figure for a process
//! that has ended: what a child keeps of it counts until the child's connection ends, or the container is resumed.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::units::Bytes;

use crate::action::Actions;
use crate::engine::Engine;
use crate::event::Event;
use crate::index::ContainerIndex;
use crate::lanes::ByLane;
use crate::ledger::Measured;

impl Engine {
    /// An event has NVML's figures of a suspended container.
    pub(crate) fn note_left_behind(&mut self, event: &Event, actions: &mut Actions) {
        match *event {
            Event::Measured { client, lane, used, .. } => {
                let mine = self.clients.get_mut(client).and_then(|it| it.lanes.get_mut(lane));
                mine.into_iter().for_each(|mine| mine.left_behind = used);
            }
            Event::Unattributed { container, lane, used } => {
                let index = self.containers.find(container);
                let slice = index.and_then(|index| self.account(index, lane));
                slice.into_iter().for_each(|slice| slice.strangers_left = used);
            }
            Event::Looked { container, lane } => {
                let Some(index) = self.containers.find(container) else { return };
                let attached = self.lanes_of(index, lane).map(|mine| mine.left_behind);
                let attached = attached.fold(Bytes::ZERO, Bytes::saturating_add);
                let now = self.now;
                if let Some(slice) = self.account(index, lane) {
                    slice.assumed = false;
                    slice.left_behind.look(now, attached.saturating_add(slice.strangers_left));
                }
                self.serve(index, lane, actions);
            }
            _ => {}
        }
    }

    /// A container's memory is on the host from now on, but for that of these processes: what NVML showed until now of
    /// the others was that.
    pub(crate) fn expect_left_behind(&mut self, index: ContainerIndex, stays: &[ClientId]) {
        let Some(container) = self.containers.get_mut(index) else {
            return;
        };
        let sees = self.config.sees_devices;
        let mut left: ByLane<Bytes> = container.slices.map(|_, slice| slice.strangers_left);
        for &id in &container.clients {
            let Some(client) = self.clients.get_mut(id) else { continue };
            let all = client.lanes.iter_mut().zip(left.iter_mut());
            for ((_, mine), (_, left)) in all {
                let charged = Bytes(u64::try_from(mine.kept()).unwrap_or(u64::MAX));
                mine.left_behind = if stays.contains(&id) { charged } else { Bytes::ZERO };
                *left = left.saturating_add(mine.left_behind);
            }
        }
        for ((_, slice), (_, left)) in container.slices.iter_mut().zip(left.iter()) {
            slice.left_behind = Measured::assumed(*left);
            slice.assumed = sees && *left > slice.strangers_left;
        }
    }

    /// The part of what is charged to a suspended container that is on the GPU and need not return: of processes that
    /// were not moved, and of ended ones. What its processes have taken since is charged when it is resumed.
    pub(crate) fn unmoved(&self, index: ContainerIndex, lane: Lane) -> Bytes {
        let slice = self.containers.get(index).and_then(|it| it.slices.get(lane));
        let Some(slice) = slice else { return Bytes::ZERO };
        let bytes = |kept| Bytes(u64::try_from(kept).unwrap_or(u64::MAX));
        let attached = self.lanes_of(index, lane).map(|it| it.left_behind.min(bytes(it.kept())));
        let strangers = slice.strangers_left.min(slice.unattributed.charged());
        let charged = attached.fold(strangers, Bytes::saturating_add);
        slice.left_behind.charged().min(charged).saturating_add(slice.unfreed.sum())
    }

    /// What counts as left behind of a container, on all its GPUs.
    pub(crate) fn left_behind(&self, index: ContainerIndex) -> Bytes {
        let slices = self.containers.get(index).map(|it| it.slices.gpus.iter());
        let left = slices.into_iter().flatten().map(|slice| slice.left_behind.charged());
        left.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// A container begins to be suspended: what is charged for its processes that are not attached is not moved.
    pub(crate) fn keep_strangers(&mut self, index: ContainerIndex) {
        let slices = self.containers.get_mut(index).map(|it| it.slices.iter_mut());
        for (_, slice) in slices.into_iter().flatten() {
            slice.strangers_left = slice.unattributed.charged();
        }
    }

    /// A container goes on: its ledger takes in what NVML has shown of such processes meanwhile.
    pub(crate) fn count_strangers(&mut self, index: ContainerIndex, actions: &mut Actions) {
        let Some(container) = self.containers.get(index) else {
            return;
        };
        let id = container.record.container;
        let left: Vec<(Lane, Bytes)> =
            container.slices.iter().map(|(lane, slice)| (lane, slice.strangers_left)).collect();
        left.into_iter().for_each(|(lane, used)| self.strangers(id, lane, used, actions));
    }
}
