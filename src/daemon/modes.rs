//! The modes of a GPU in which it may have no slices.

use crate::mps::MpsProcess;
use gpuslice_engine::NoSlices;
use serde::{Deserialize, Serialize};

/// As NVML shows them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Modes {
    /// It is in MIG mode.
    pub mig: bool,
    /// Its compute mode admits one process at a time, or none.
    pub exclusive: bool,
    /// The processes by which MPS shows on it.
    pub mps: Vec<MpsProcess>,
}

impl Modes {
    /// Why it has no slices, if that is so. No process that `may_be_slices` counts as MPS.
    pub fn no_slices(&self, may_be_slices: impl Fn(&MpsProcess) -> bool) -> Option<NoSlices> {
        match () {
            () if self.mig => Some(NoSlices::Mig),
            () if self.mps.iter().any(|it| !may_be_slices(it)) => Some(NoSlices::Mps),
            () if self.exclusive => Some(NoSlices::Exclusive),
            () => None,
        }
    }
}
