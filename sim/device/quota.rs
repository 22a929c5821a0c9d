//! The driver's own memory limits, per control group and GPU.
//!
//! A *hard* limit bounds all memory of the group's processes on the GPU, in that group and those
//! below it: contexts, modules, pools, allocations of any library. Only managed memory is exempt.
//! A *soft* limit is a guarantee. It refuses no other group's allocation, but it is reserved in
//! every group above, and cannot be guaranteed twice.
//!
//! A group's use has no counter of its own: it is the sum over its processes, so that a death or a
//! crash leaves nothing to repair. Nor have reservations, with a trap that real drivers share: a
//! group deleted with its soft limit set leaves the reservation in the groups above.

use crate::cgroup::{self, Chain};
use crate::config::Limits;
use crate::error::{DeviceError, LimitError};
use crate::layout::{DRIVER, MemoryLimit, Quota, Slot, State};
use crate::limits::{CGROUP_PATH, MAX_GPUS, PAGE_BYTES};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// "No limit" as a hard limit.
pub const UNLIMITED: u64 = u64::MAX;

const OPEN: MemoryLimit = MemoryLimit { soft: 0, hard: UNLIMITED };

impl Quota {
    fn is_open(&self) -> bool {
        self.limits.iter().all(|limit| limit.soft == 0 && limit.hard == UNLIMITED)
    }

    fn is_gone(&self) -> bool {
        let path = &self.path[..(self.path_len as usize).min(CGROUP_PATH)];
        cgroup::id_of(Path::new(OsStr::from_bytes(path))) != Some(self.cgroup)
    }
}

fn quotas(state: &State) -> impl Iterator<Item = &Quota> {
    let used = state.quotas.iter().take(state.quotas_used as usize);
    used.filter(|quota| quota.cgroup != 0)
}

pub(crate) fn find(state: &State, group: u64) -> Option<&Quota> {
    quotas(state).find(|quota| quota.cgroup == group)
}

/// Whether a process is in the group or below it.
fn is_within(slot: &Slot, group: u64, own: Option<&Quota>) -> bool {
    slot.cgroups.contains(&group) || own.is_some_and(|own| own.parents.contains(&group))
}

/// Pages that the processes of a group have on a GPU.
fn used_pages(state: &State, gpu: usize, group: u64) -> u64 {
    let slots = state.slots.iter().take(state.slots_used as usize);
    slots
        .filter(|slot| slot.kind == DRIVER && slot.used_pages[gpu] != 0)
        .filter(|slot| is_within(slot, group, find(state, slot.cgroups[0])))
        .map(|slot| u64::from(slot.used_pages[gpu]))
        .sum()
}

pub(crate) fn used_bytes(state: &State, gpu: usize, group: u64) -> u64 {
    used_pages(state, gpu, group) * PAGE_BYTES
}

/// Whether a process may take so many pages more.
pub(crate) fn admit(state: &State, gpu: usize, slot: usize, pages: u32) -> Result<(), DeviceError> {
    let process = &state.slots[slot];
    let own = find(state, process.cgroups[0]);
    let bounds = quotas(state).filter(|quota| {
        quota.limits[gpu].hard != UNLIMITED && is_within(process, quota.cgroup, own)
    });
    for quota in bounds {
        let room = quota.limits[gpu].hard / PAGE_BYTES;
        if used_pages(state, gpu, quota.cgroup) + u64::from(pages) > room {
            return Err(DeviceError::OutOfMemory);
        }
    }
    Ok(())
}

/// Limit and use of the group a process is directly in, if it has a hard limit there.
pub(crate) fn own_limit(state: &State, gpu: usize, slot: usize) -> Option<(u64, u64)> {
    let quota = find(state, state.slots[slot].cgroups[0])?;
    let hard = quota.limits[gpu].hard;
    (hard != UNLIMITED).then(|| (hard, used_bytes(state, gpu, quota.cgroup)))
}

/// The pages reserved for a group: its own guarantee, or the sum of those below it if that is more.
pub(crate) fn reserved(state: &State, gpu: usize, group: u64) -> u64 {
    let own = find(state, group).map_or(0, |quota| quota.limits[gpu].soft);
    let is_next = |quota: &&Quota| {
        let mut above = quota.parents.iter().take_while(|&&parent| parent != 0);
        above.find(|&&parent| parent == group || find(state, parent).is_some()) == Some(&group)
    };
    let below = quotas(state).filter(is_next);
    let below = below.map(|quota| reserved(state, gpu, quota.cgroup));
    own.max(below.fold(0, u64::saturating_add))
}

/// The limits of a group in force, if it has any.
pub(crate) fn get(state: &State, gpu: usize, group: u64, limits: Limits) -> Option<MemoryLimit> {
    let own = find(state, group).map_or(OPEN, |quota| quota.limits[gpu]);
    let soft = match limits {
        Limits::Dmem => reserved(state, gpu, group),
        Limits::Misc | Limits::Off => own.soft,
    };
    let limit = MemoryLimit { soft, hard: own.hard };
    (limit.soft != 0 || limit.hard != UNLIMITED).then_some(limit)
}

/// Sets the limits of the group at the head of a chain; the path is where it was found.
pub(crate) fn set(
    state: &mut State,
    gpu: usize,
    chain: &Chain,
    path: &Path,
    limit: MemoryLimit,
    limits: Limits,
) -> Result<(), LimitError> {
    let index = match place(state, chain[0]) {
        Some(index) => index,
        None if limit.soft == 0 && limit.hard == UNLIMITED => return Ok(()),
        None => enter(state, chain, path)?,
    };
    let before = std::mem::replace(&mut state.quotas[index].limits[gpu], limit);
    if limits == Limits::Dmem && limit.soft > before.soft && is_too_much(state, gpu, index) {
        state.quotas[index].limits[gpu] = before;
    }
    let refused = state.quotas[index].limits[gpu].soft != limit.soft;
    if state.quotas[index].is_open() {
        state.quotas[index].cgroup = 0;
    }
    if refused { Err(LimitError::Invalid) } else { Ok(()) }
}

/// Whether more is reserved in a group above than it has.
fn is_too_much(state: &State, gpu: usize, index: usize) -> bool {
    let total = u64::from(state.gpus[gpu].total_pages) * PAGE_BYTES;
    let parents = state.quotas[index].parents;
    parents.into_iter().filter(|&parent| parent != 0).any(|parent| {
        let hard = find(state, parent).map_or(UNLIMITED, |quota| quota.limits[gpu].hard);
        reserved(state, gpu, parent) > hard.min(total)
    })
}

fn place(state: &State, group: u64) -> Option<usize> {
    state.quotas.iter().position(|quota| quota.cgroup == group)
}

/// A place for a group that has none yet; places of groups that were deleted are free, unless
/// they have left something reserved above.
fn enter(state: &mut State, chain: &Chain, path: &Path) -> Result<usize, LimitError> {
    let path = path.as_os_str().as_bytes();
    if path.len() > CGROUP_PATH {
        return Err(LimitError::Invalid);
    }
    let is_spent = |quota: &Quota| {
        let reserves = quota.limits.iter().any(|limit| limit.soft != 0);
        let lives = |slot: &Slot| slot.kind != 0 && slot.cgroups.contains(&quota.cgroup);
        !reserves && !state.slots.iter().any(lives) && quota.is_gone()
    };
    let free = place(state, 0).or_else(|| state.quotas.iter().position(is_spent));
    let index = free.ok_or(LimitError::TooMany)?;
    state.quotas_used = state.quotas_used.max(index as u64 + 1);
    let quota = &mut state.quotas[index];
    quota.cgroup = 0;
    quota.parents = [0; _];
    quota.parents[..chain.len() - 1].copy_from_slice(&chain[1..]);
    quota.limits = [OPEN; MAX_GPUS];
    quota.path_len = path.len() as u64;
    quota.path[..path.len()].copy_from_slice(path);
    quota.cgroup = chain[0];
    Ok(index)
}

#[cfg(test)]
mod tests;
