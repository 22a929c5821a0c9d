//! The driver's memory limits per control group: setting them, reading them, and finding this
//! process's group.

use super::Machine;
use crate::cgroup::{self, Chain, ROOT};
use crate::config::Limits;
use crate::error::LimitError;
use crate::layout::MemoryLimit;
use crate::limits::MAX_PROCESSES;
use crate::quota::{self, UNLIMITED};
use crate::types::MemoryLimits;
use caps::{CapSet, Capability};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

impl Machine {
    /// Sets the limits of the control group with this directory on a GPU; 0 and [`UNLIMITED`]
    /// take them away.
    ///
    /// # Errors
    /// See [`LimitError`].
    pub fn set_limits(
        &self,
        gpu: usize,
        group: &Path,
        soft: u64,
        hard: u64,
    ) -> Result<(), LimitError> {
        let gpu = self.limited_gpu(gpu)?;
        if !is_root() {
            return Err(LimitError::NotPermitted);
        }
        let total = self.gpus[gpu].total_bytes;
        if soft > hard || soft > total || (hard != UNLIMITED && hard > total) {
            return Err(LimitError::Invalid);
        }
        let (chain, group) = group_at(group)?;
        let limit = MemoryLimit { soft, hard };
        self.with(Some(gpu), |state, _| quota::set(state, gpu, &chain, &group, limit, self.limits))
    }

    /// The limits of the control group with this directory on a GPU, and its use.
    ///
    /// # Errors
    /// See [`LimitError`].
    pub fn limits_of(&self, gpu: usize, group: &Path) -> Result<MemoryLimits, LimitError> {
        let gpu = self.limited_gpu(gpu)?;
        let group = group_at(group)?.0[0];
        let (found, left) = self.with(Some(gpu), |state, now| {
            let left = self.reap(state, now);
            let found = quota::get(state, gpu, group, self.limits).map(|limit| MemoryLimits {
                soft: limit.soft,
                hard: limit.hard,
                used: quota::used_bytes(state, gpu, group),
            });
            (found, left)
        });
        if left {
            self.scrub();
        }
        found.ok_or(LimitError::NotFound)
    }

    fn limited_gpu(&self, gpu: usize) -> Result<usize, LimitError> {
        if self.limits == Limits::Off {
            return Err(LimitError::NotSupported);
        }
        self.gpu(gpu).map_err(|_| LimitError::NoSuchGpu)
    }

    /// Updates this process's control group. A process that has moved leaves its limits behind, and
    /// its memory goes along. The move is noticed when the process next takes or queries memory.
    pub(super) fn note_cgroup(&self) {
        if self.limits == Limits::Off || !self.is_mine() {
            return;
        }
        let head = cgroup::own_head();
        if self.cgroup.swap(head, Ordering::Relaxed) != head {
            let chain = cgroup::own();
            let mut state = self.lock();
            // The driver and NVML of one process have a place each.
            for slot in (0..MAX_PROCESSES).filter(|&slot| self.is_own(slot)) {
                state.slots[slot].cgroups = chain;
            }
        }
    }
}

/// The group with this directory, and the directory without links and detours.
fn group_at(group: &Path) -> Result<(Chain, PathBuf), LimitError> {
    let found = group.is_absolute().then(|| group.canonicalize().ok());
    let found = found.flatten().ok_or(LimitError::NoGroup)?;
    let chain = cgroup::chain(&found).ok_or(LimitError::NoGroup)?;
    if chain[0] == ROOT {
        return Err(LimitError::NotFound);
    }
    Ok((chain, found))
}

/// Whether a driver treats this thread as root: it mostly does not so treat a container's root.
fn is_root() -> bool {
    caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).unwrap_or(false)
}
