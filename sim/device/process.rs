//! The table of processes, and the cleanup after dead ones.

use crate::error::DeviceError;
use crate::layout::{Context, SCRUB, Slot, State};
use crate::limits::{CGROUP_DEPTH, MAX_CONTEXTS, MAX_GPUS};
use crate::types::ContextId;
use crate::{events, managed, memory, quota, time};

/// Enters a process into a slot whose byte it has just locked. The remains of a dead process in
/// that slot must have been dropped before.
pub(crate) fn enter(state: &mut State, slot: usize, kind: u32) {
    state.slots[slot] = Slot {
        kind,
        ended: 0,
        gone_ns: 0,
        launches: 0,
        allocations: 0,
        used_pages: [0; MAX_GPUS],
        managed_pages: [0; MAX_GPUS],
        mark: 0,
        cgroups: [0; CGROUP_DEPTH],
    };
    state.slots_used = state.slots_used.max(slot as u64 + 1);
}

/// Ends the contexts of a process that has died, with everything queued in them. Their memory stays charged to it.
pub(crate) fn end_contexts(state: &mut State, dead: usize) {
    for index in 0..MAX_CONTEXTS {
        let context = &state.contexts[index];
        if context.live != 0 && context.slot == dead as u32 {
            unqueue(state, index);
            state.contexts[index].live = 0;
        }
    }
}

/// Takes everything from a process that has died. Its memory goes to `scrubber` for wiping;
/// returns whether there is any.
pub(crate) fn drop_process(state: &mut State, dead: usize, scrubber: usize) -> bool {
    end_contexts(state, dead);
    let mut left = false;
    for gpu_index in 0..MAX_GPUS {
        let gpu = &mut state.gpus[gpu_index];
        gpu.sample.used_pages[dead] = 0;
        if gpu.free_pages == gpu.total_pages && gpu.away_pages == 0 {
            continue;
        }
        let firsts: Vec<u32> = memory::heads(gpu).collect();
        for first in firsts {
            let block = &mut gpu.blocks[first as usize];
            if block.phase == SCRUB && block.owner == dead as u32 + 1 {
                block.owner = scrubber as u32 + 1;
                left = true;
            } else if block.phase != SCRUB && block.is_holder(dead) {
                left |= memory::release(gpu, &mut state.slots, gpu_index, first, dead, scrubber);
            }
        }
    }
    state.slots[dead].kind = 0;
    left
}

/// Makes a context on an up-to-date GPU; it is charged the first number of pages, and the second
/// as well if its process has no other one there.
pub(crate) fn create_context(
    state: &mut State,
    gpu_index: usize,
    slot: usize,
    (overhead, first): (u32, u32),
) -> Result<ContextId, DeviceError> {
    let index = state
        .contexts
        .iter()
        .position(|context| context.live == 0)
        .ok_or(DeviceError::TooManyContexts)?;
    let has_one = state.contexts.iter().any(|context| {
        context.live != 0 && context.slot == slot as u32 && context.gpu == gpu_index as u32
    });
    let block = match if has_one { overhead } else { overhead + first } {
        0 => 0,
        pages => {
            quota::admit(state, gpu_index, slot, pages)?;
            managed::take(
                &mut state.gpus[gpu_index],
                &mut state.slots,
                gpu_index,
                slot,
                pages,
                memory::Use::Plain,
            )? + 1
        }
    };
    let context = &mut state.contexts[index];
    context.generation = context.generation.wrapping_add(1);
    (context.gpu, context.slot, context.overhead) = (gpu_index as u32, slot as u32, block);
    (context.head, context.tail, context.busy_ns) = (0, 0, 0);
    (context.last_end_ns, context.longest_gap_ns) = (0, 0);
    context.relink();
    context.fault_xid = 0;
    (context.group, context.channel, context.disabled) = (0, 0, 0);
    (context.saves, context.slice_ns) = (0, 0);
    context.load.buckets = [crate::layout::Bucket { period: 0, busy_ns: 0 }; _];
    context.live = 1;
    Ok(ContextId { index: index as u16, generation: context.generation })
}

/// Ends a context with everything it has queued; returns whether memory is left to be wiped.
pub(crate) fn destroy_context(state: &mut State, index: usize, scrubber: usize) -> bool {
    unqueue(state, index);
    let context = &mut state.contexts[index];
    context.live = 0;
    let (gpu_index, slot) = (context.gpu as usize, context.slot as usize);
    let Some(first) = context.overhead.checked_sub(1) else {
        return false;
    };
    let gpu = &mut state.gpus[gpu_index];
    memory::release(gpu, &mut state.slots, gpu_index, first, slot, scrubber)
}

/// Kills a context as the hardware does after a fault: its work never completes, it cannot be
/// used again, and an Xid event reports it. Its memory stays until its process releases it.
pub(crate) fn fault(state: &mut State, index: usize, xid: u32, now: u64) {
    unqueue(state, index);
    let context = &mut state.contexts[index];
    context.fault_xid = xid;
    let (gpu, slot) = (context.gpu, context.slot);
    events::record(state, now, gpu, xid, slot);
}

fn unqueue(state: &mut State, index: usize) {
    let gpu = &mut state.gpus[state.contexts[index].gpu as usize];
    time::leave(gpu, index as u16);
    if gpu.resident == index as u32 + 1 {
        gpu.resident = 0;
        gpu.switch_left_ns = 0;
    }
}

/// The living context an id names.
pub(crate) fn context(state: &State, id: ContextId) -> Result<&Context, DeviceError> {
    state
        .contexts
        .get(usize::from(id.index))
        .filter(|context| context.live != 0 && context.generation == id.generation)
        .ok_or(DeviceError::StaleContext)
}
