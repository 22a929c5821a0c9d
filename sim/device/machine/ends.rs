//! Beginning and end of processes, as the device sees them.
//!
//! A process has a slot, and the lock on the slot's byte tells whether it lives. What it held is not free at its
//! death: a driver that is strict waits until the last of the process's descriptors is closed, which a forked child
//! may keep, and then takes seconds. Until then the slot is taken, and no other process gets it.

use super::Machine;
use crate::alive::Locks;
use crate::error::Error;
use crate::layout::{DRIVER, State};
use crate::limits::MAX_PROCESSES;
use crate::mapping::Mapping;
use crate::process;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

impl Machine {
    /// Drops dead processes; returns whether this process must wipe memory.
    pub(super) fn reap(&self, state: &mut State, now: u64) -> bool {
        state.last_reap_ns = now;
        let used = (state.slots_used as usize).min(MAX_PROCESSES);
        let mut left = false;
        for slot in 0..used {
            let taken = self.mapping.header().taken[slot].load(Ordering::Relaxed) != 0;
            if taken && !self.is_alive(slot) && self.is_over(state, slot, now) {
                left |= process::drop_process(state, slot, self.slot);
                self.mapping.header().taken[slot].store(0, Ordering::Release);
            }
        }
        left | self.end_exports(state)
    }

    /// Whether what a dead process held is given back by now. Its work ends with its last descriptor.
    fn is_over(&self, state: &mut State, slot: usize, now: u64) -> bool {
        if state.slots[slot].kind != DRIVER {
            return true;
        }
        state.slots[slot].ended = 1;
        if state.slots[slot].gone_ns == 0 {
            let properties = self.properties();
            if properties.held != 0 && self.exports.is_process_held(slot) {
                return false;
            }
            process::end_contexts(state, slot);
            state.ends += 1;
            state.slots[slot].gone_ns = now + properties.exit.draw(properties.seed, state.ends);
        }
        now >= state.slots[slot].gone_ns
    }
}

/// Locks a free byte and writes this process's identity to its slot.
pub(super) fn free_slot(
    locks: Locks,
    map: &Mapping,
    identity: u64,
    dir: &Path,
) -> Result<usize, Error> {
    let header = map.header();
    let identities: &[AtomicU64; MAX_PROCESSES] = &header.identities;
    for (slot, signed) in identities.iter().enumerate() {
        let taken = &header.taken[slot];
        // Locking a byte twice succeeds within a process: another library of ours may have it.
        if signed.load(Ordering::Relaxed) == identity || taken.load(Ordering::Acquire) != 0 {
            continue;
        }
        let locked = locks.take(slot).map_err(|source| Error::Io {
            doing: "locking a place in",
            path: dir.into(),
            source,
        })?;
        if !locked {
            continue;
        }
        // Its process may have come and gone since the look above.
        if taken.swap(1, Ordering::AcqRel) != 0 {
            locks.leave(slot);
            continue;
        }
        signed.store(identity, Ordering::Relaxed);
        return Ok(slot);
    }
    Err(Error::TooManyProcesses { path: dir.into() })
}
