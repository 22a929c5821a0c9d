//! Managed memory that moves: where the machine has `managed=moves`, it takes no room on the GPU until the GPU uses
//! it, and gives way to other memory.
//!
//! A block's place in the memory file stays its own, as in a checkpoint, so its bytes and all mappings of them stay
//! what they are; only what is counted moves. A block moves as a whole. Where the GPU has no room, the blocks that were
//! not used for the longest time leave it; a block larger than what can be free stays on the host, where the GPU uses
//! it over the link.

use crate::error::DeviceError;
use crate::layout::{Gpu, HELD, MOVES, Slot};
use crate::limits::MAX_FRAMES;
use crate::memory::{self, Use, account, heads};

/// As [`memory::take`]; managed memory that moves gives way to what is to be on the GPU.
pub(crate) fn take(
    gpu: &mut Gpu,
    slots: &mut [Slot],
    index: usize,
    slot: usize,
    count: u32,
    what: Use,
) -> Result<u32, DeviceError> {
    if what == Use::OnHost && places(gpu, count) > MAX_FRAMES as u32 {
        return Err(DeviceError::OutOfMemory);
    }
    if what != Use::OnHost && count <= gpu.total_pages {
        make_room(gpu, slots, index, count);
    }
    memory::take(gpu, slots, index, slot, count, what)
}

/// Places for pages that the memory file needs once so many pages more are on the host, or may be: all managed memory
/// that moves can be there at once.
pub(crate) fn places(gpu: &Gpu, more: u32) -> u32 {
    let blocks = heads(gpu).map(|first| &gpu.blocks[first as usize]);
    let here = blocks.filter(|block| block.managed == MOVES && block.away == 0);
    let here: u32 = here.map(|block| block.pages).sum();
    gpu.total_pages.saturating_add(gpu.away_pages).saturating_add(here).saturating_add(more)
}

/// Takes managed memory off the GPU until so many pages are free; none where that would not do.
pub(crate) fn make_room(gpu: &mut Gpu, slots: &mut [Slot], index: usize, pages: u32) {
    if pages <= gpu.free_pages {
        return;
    }
    let moves = |first: &u32| {
        let block = &gpu.blocks[*first as usize];
        block.phase == HELD && block.managed == MOVES && block.away == 0
    };
    let mut firsts: Vec<u32> = heads(gpu).filter(moves).collect();
    let movable: u32 = firsts.iter().map(|first| gpu.blocks[*first as usize].pages).sum();
    if pages > gpu.free_pages + movable {
        return;
    }
    firsts.sort_by_key(|first| gpu.blocks[*first as usize].used_ns);
    for first in firsts {
        if pages <= gpu.free_pages {
            break;
        }
        leave(gpu, slots, index, first);
    }
}

/// Moves a block to the host.
pub(crate) fn leave(gpu: &mut Gpu, slots: &mut [Slot], index: usize, first: u32) {
    let block = &gpu.blocks[first as usize];
    if block.managed != MOVES || block.away != 0 {
        return;
    }
    let (pages, owner) = (block.pages, block.owner);
    // First: a repair after a kill in between needs it.
    gpu.frames = gpu.frames.max(gpu.total_pages + gpu.away_pages + pages);
    gpu.blocks[first as usize].away = 1;
    gpu.free_pages += pages;
    gpu.away_pages += pages;
    if let Some(owner) = owner.checked_sub(1) {
        let count = account(&mut slots[owner as usize], index, MOVES);
        *count = count.saturating_sub(pages);
    }
}

/// The GPU uses a block: it is there from now on, if there is room. The pages that were moved.
pub(crate) fn come(gpu: &mut Gpu, slots: &mut [Slot], index: usize, first: u32, now: u64) -> u32 {
    let block = &mut gpu.blocks[first as usize];
    block.used_ns = now;
    let (pages, owner) = (block.pages, block.owner);
    if block.managed != MOVES || block.away == 0 || pages > gpu.total_pages {
        return 0;
    }
    make_room(gpu, slots, index, pages);
    if pages > gpu.free_pages {
        return 0;
    }
    gpu.blocks[first as usize].away = 0;
    gpu.free_pages -= pages;
    gpu.away_pages -= pages;
    if let Some(owner) = owner.checked_sub(1) {
        *account(&mut slots[owner as usize], index, MOVES) += pages;
    }
    pages
}

#[cfg(test)]
mod tests;
