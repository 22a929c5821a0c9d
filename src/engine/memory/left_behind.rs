//! Memory on the GPU of a container whose memory is on the host.
//!
//! # Problem
//! A driver moves the processes that a container has at that moment. A later one, or one that goes around the shim, can
//! still take memory of the GPU. If it counted nowhere, that memory would be lent or promised to others.
//!
//! # Idea
//! The container's ledger is of memory on the host, and NVML does not change it. What NVML shows of the container
//! counts as memory that is not free on the GPU, and for nothing else. Its figures may be older than the move, so two
//! looks must agree.

use gpuslice_wire::units::Bytes;

use crate::action::Actions;
use crate::engine::Engine;
use crate::event::Event;
use crate::index::ContainerIndex;

impl Engine {
    /// An event has NVML's figures of a suspended container.
    pub(crate) fn note_left_behind(&mut self, event: &Event, actions: &mut Actions) {
        match *event {
            Event::Measured { client, lane, used } => {
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
                    slice.left_behind.look(now, attached.saturating_add(slice.strangers_left));
                }
                self.serve(index, lane, actions);
            }
            _ => {}
        }
    }

    /// A container's memory is on the host from now on: what NVML showed until now was that.
    pub(crate) fn forget_left_behind(&mut self, index: ContainerIndex) {
        let Some(container) = self.containers.get_mut(index) else {
            return;
        };
        for (_, slice) in container.slices.iter_mut() {
            (slice.strangers_left, slice.left_behind) = Default::default();
        }
        for client in container.clients.clone() {
            let lanes = self.clients.get_mut(client).map(|it| it.lanes.iter_mut());
            lanes.into_iter().flatten().for_each(|(_, mine)| mine.left_behind = Bytes::ZERO);
        }
    }
}
