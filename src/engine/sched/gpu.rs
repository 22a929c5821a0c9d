//! A GPU: its turns, and what pages show of them.

use alloc::vec::Vec;
use gpuslice_wire::ids::{GpuUuid, NvmlIndex};
use gpuslice_wire::units::{Bytes, Instant};

use super::entity::Entity;
use super::{Note, Turns};
use crate::action::Mode;
use crate::lending::Lending;
use crate::no_slices::NoSlices;
use crate::unfreed::Beside;

/// A GPU of the node.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    pub(crate) uuid: GpuUuid,
    pub(crate) index: NvmlIndex,
    pub(crate) total: Bytes,
    /// Why no slice of it is given.
    pub(crate) no_slices: Option<NoSlices>,
    pub(crate) turns: Turns,
    /// What its memory is used for beside living processes.
    pub(crate) beside: Beside,
    /// What is lent of its memory.
    pub(crate) lending: Lending,
    /// The part that pages show of it; `None` before the first write.
    pub(crate) shown: Option<ToAll>,
    /// Notices and orders of its turns.
    pub(crate) notes: Vec<Note>,
}

/// The part of the page that is the same for all containers of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToAll {
    pub(crate) mode: Mode,
    pub(crate) window_us: u32,
    gates: bool,
}

/// The part of the page about a container's own turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToOne {
    pub(crate) turn: u32,
    pub(crate) turn_end: Instant,
    pub(crate) gates: bool,
    pub(crate) gate_open: bool,
}

impl Turns {
    pub(crate) fn to_all(&self) -> ToAll {
        ToAll { mode: self.mode(), window_us: self.window_us(), gates: self.gates() }
    }
}

impl ToAll {
    pub(crate) fn and_to(self, entity: &Entity) -> ToOne {
        ToOne {
            turn: entity.turn,
            turn_end: entity.turn_end,
            gates: self.gates && entity.may_have_gates(),
            gate_open: self.mode == Mode::Open || entity.passes_gates(),
        }
    }
}
