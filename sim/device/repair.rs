//! Repair of the state after a process was killed while it changed it.
//!
//! Every change of [`State`] is a few stores; a process can be killed between any two. Nothing needs
//! to be undone, because all counts can be recomputed from the few facts that are single stores:
//! the block that a page names, whether that is on the host, whether a context lives, where its work
//! begins and ends, and which pieces of it have ended. A block that was being made or freed at that moment
//! belongs to the dead process. The repair makes it whole enough to be dropped with the rest of that process.

use crate::layout::{Gpu, HELD, Page, SCRUB, Slot, State};
use crate::limits::{MAX_CONTEXTS, MAX_GPUS};
use crate::memory::account;

/// Makes the state consistent again; blocks without holders are assigned to `scrubber` for wiping.
pub(crate) fn repair(state: &mut State, scrubber: usize) {
    for slot in &mut state.slots {
        (slot.used_pages, slot.managed_pages) = ([0; MAX_GPUS], [0; MAX_GPUS]);
    }
    for (index, gpu) in state.gpus.iter_mut().enumerate() {
        if gpu.total_pages != 0 {
            repair_pages(gpu, index, &mut state.slots, scrubber);
        }
    }
    for context in state.contexts.iter_mut().filter(|context| context.live != 0) {
        context.tail = context.tail.max(context.head);
        context.relink();
    }
    repair_queues(state);
}

fn repair_pages(gpu: &mut Gpu, index: usize, slots: &mut [Slot], scrubber: usize) {
    let total = gpu.frames;
    // Pages whose block has no head, or whose head is free, were being linked or unlinked.
    for at in 0..total as usize {
        let block = gpu.pages[at].block;
        let head = block.wrapping_sub(1) as usize;
        let known = block == 0 || gpu.pages.get(head).is_some_and(|page| page.block == block);
        let phase = gpu.blocks.get(head).map_or(0, |block| block.phase);
        if !known || !matches!(phase, HELD | SCRUB) {
            gpu.pages[at] = Page { block: 0, next: 0 };
        }
    }
    let mut pages: Vec<u32> = vec![0; total as usize];
    (gpu.scrub_pages, gpu.exported, gpu.away_pages) = (0, 0, 0);
    let mut used = 0;
    for at in 0..total as usize {
        if let Some(head) = gpu.pages[at].block.checked_sub(1) {
            pages[head as usize] += 1;
            match gpu.blocks[head as usize].away {
                0 => used += 1,
                _ => gpu.away_pages += 1,
            }
        }
    }
    gpu.free_pages = gpu.total_pages.saturating_sub(used);
    for head in (0..total).filter(|&head| pages[head as usize] != 0) {
        let found = pages[head as usize];
        // The order of a chain is the order of its bytes: only a broken one is made anew.
        if found != chain_length(gpu, head) || found != gpu.blocks[head as usize].pages {
            relink(gpu, head);
        }
        let block = &mut gpu.blocks[head as usize];
        if block.phase == HELD && block.exported != 0 {
            gpu.exported += 1;
        } else if block.phase == HELD && !block.is_held() {
            (block.phase, block.owner) = (SCRUB, scrubber as u32 + 1);
        } else if block.phase == SCRUB && block.owner == 0 {
            // Killed just before it named the scrubber.
            block.owner = scrubber as u32 + 1;
        }
        let owner = block.owner.checked_sub(1).map(|owner| owner as usize);
        if block.phase == HELD && !owner.is_some_and(|owner| block.is_holder(owner)) {
            block.owner = block.first_holder().map_or(0, |heir| heir as u32 + 1);
        }
        match (block.phase, block.owner.checked_sub(1)) {
            _ if block.away != 0 => {}
            (SCRUB, _) => gpu.scrub_pages += block.pages,
            (_, Some(owner)) => {
                if let Some(slot) = slots.get_mut(owner as usize) {
                    *account(slot, index, block.managed) += block.pages;
                }
            }
            _ => {}
        }
    }
}

fn chain_length(gpu: &Gpu, head: u32) -> u32 {
    let (mut at, mut length) = (head + 1, 0);
    while at != 0 && length <= gpu.frames {
        let Some(page) = gpu.pages.get((at - 1) as usize) else {
            return 0;
        };
        if page.block != head + 1 {
            return 0;
        }
        length += 1;
        at = page.next;
    }
    length
}

fn relink(gpu: &mut Gpu, head: u32) {
    let mut at = head;
    let mut count = 1;
    for other in 0..gpu.frames {
        if other != head && gpu.pages[other as usize].block == head + 1 {
            gpu.pages[at as usize].next = other + 1;
            at = other;
            count += 1;
        }
    }
    gpu.pages[at as usize].next = 0;
    gpu.blocks[head as usize].pages = count;
}

fn repair_queues(state: &mut State) {
    for (index, gpu) in state.gpus.iter_mut().enumerate() {
        gpu.queued = 0;
        gpu.slice_left_ns = gpu.slice_left_ns.min(gpu.slice.most_ns);
        for at in 0..MAX_CONTEXTS {
            let context = &state.contexts[at];
            let has_work = context.is_ready() && context.fault_xid == 0;
            if context.live != 0 && context.gpu as usize == index && has_work {
                gpu.queue[gpu.queued as usize] = at as u16;
                gpu.queued += 1;
            }
        }
        let resident = gpu.resident.checked_sub(1).map(|at| &state.contexts[at as usize]);
        if resident.is_some_and(|context| context.live == 0 || context.gpu as usize != index) {
            gpu.resident = 0;
        }
    }
}
