//! The page table: the owner of each 2 MiB page of a GPU.
//!
//! An allocation (a *block*) is a chain of pages. It need not be contiguous, so every free page can
//! be used. A block is charged to the process that made it, and lives until its last holder releases
//! it: the maker, or a process that opened its IPC handle. Once the maker has released it, it is
//! charged to one of the other holders, so that each block is charged to exactly one process.
//!
//! A block that its last holder releases is not free at once. Its bytes must be wiped first, which
//! takes time and must not happen under the lock: the block is assigned to a *scrubber* (the process
//! that noticed), which wipes the pages and then frees them. If the scrubber dies, the next one
//! takes its blocks over.

use crate::error::DeviceError;
use crate::layout::{Block, Gpu, HELD, MOVES, Page, SCRUB, STAYS, Slot};
use crate::limits::PAGE_BYTES;
use crate::types::{Extent, MemoryKey};

/// What a block is: plain memory, or managed memory, which is charged to no process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Plain,
    Managed,
    /// Managed memory that moves: on the host at first.
    OnHost,
}

/// Takes `count` pages for the process `slot`; the block's first page names it. Of memory on the host, the caller has
/// made sure that there is room for it there.
pub(crate) fn take(
    gpu: &mut Gpu,
    slots: &mut [Slot],
    gpu_index: usize,
    slot: usize,
    count: u32,
    what: Use,
) -> Result<u32, DeviceError> {
    if count == 0 {
        return Err(DeviceError::BadSize);
    }
    let on_host = what == Use::OnHost;
    if on_host {
        gpu.frames = gpu.frames.max(gpu.total_pages + gpu.away_pages + count);
    } else if count > gpu.free_pages {
        return Err(DeviceError::OutOfMemory);
    }
    let start = contiguous(gpu, count).unwrap_or(gpu.hint);
    let first = chain(gpu, start, count).ok_or(DeviceError::OutOfMemory)?;
    let block = &mut gpu.blocks[first as usize];
    let generation = block.generation.wrapping_add(1);
    *block = Block {
        generation,
        pages: count,
        phase: HELD,
        owner: slot as u32 + 1,
        exported: 0,
        offered: 0,
        managed: match what {
            Use::Plain => 0,
            Use::Managed => STAYS,
            Use::OnHost => MOVES,
        },
        away: u32::from(on_host),
        used_ns: 0,
        holders: Block::held_by(slot),
    };
    if on_host {
        gpu.away_pages += count;
    } else {
        gpu.free_pages -= count;
        *account(&mut slots[slot], gpu_index, u32::from(what == Use::Managed)) += count;
    }
    Ok(first)
}

/// The count of a process's pages in which a block of managed memory, or of other memory, is.
pub(crate) fn account(slot: &mut Slot, gpu_index: usize, managed: u32) -> &mut u32 {
    let counts = if managed == 0 { &mut slot.used_pages } else { &mut slot.managed_pages };
    &mut counts[gpu_index]
}

/// Start of a run of `count` free pages, looked for from the hint on and then from the beginning.
fn contiguous(gpu: &Gpu, count: u32) -> Option<u32> {
    let find = |from: u32, to: u32| {
        let mut run = 0;
        for at in from..to {
            run = if gpu.pages[at as usize].block == 0 { run + 1 } else { 0 };
            if run == count {
                return Some(at + 1 - count);
            }
        }
        None
    };
    let hint = gpu.hint.min(gpu.frames);
    find(hint, gpu.frames).or_else(|| find(0, gpu.frames))
}

/// Chains the first `count` free pages found from `start` on, round the end.
fn chain(gpu: &mut Gpu, start: u32, count: u32) -> Option<u32> {
    let mut ends: Option<(u32, u32)> = None;
    let mut missing = count;
    for step in 0..gpu.frames {
        let at = (start + step) % gpu.frames;
        if gpu.pages[at as usize].block != 0 {
            continue;
        }
        let first = ends.map_or(at, |(first, _)| first);
        gpu.pages[at as usize] = Page { block: first + 1, next: 0 };
        if let Some((_, last)) = ends {
            gpu.pages[last as usize].next = at + 1;
        }
        ends = Some((first, at));
        missing -= 1;
        if missing == 0 {
            gpu.hint = at + 1;
            return Some(first);
        }
    }
    None
}

/// The pages of a block as pieces of the memory file.
pub(crate) fn extents(gpu: &Gpu, first: u32) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut at = first + 1;
    for _ in 0..gpu.blocks[first as usize].pages {
        let offset = u64::from(at - 1) * PAGE_BYTES;
        match extents.last_mut() {
            Some(last) if last.offset + last.len == offset => last.len += PAGE_BYTES,
            _ => extents.push(Extent { offset, len: PAGE_BYTES }),
        }
        at = gpu.pages[(at - 1) as usize].next;
        if at == 0 {
            break;
        }
    }
    extents
}

pub(crate) fn key(gpu: &Gpu, gpu_index: usize, first: u32) -> MemoryKey {
    let generation = gpu.blocks[first as usize].generation;
    MemoryKey { gpu: gpu_index as u16, block: first, generation }
}

/// The block that a key names, if it still has a holder and no checkpoint has moved it.
pub(crate) fn held(gpu: &Gpu, key: MemoryKey) -> Result<u32, DeviceError> {
    let block = gpu.blocks.get(key.block as usize).ok_or(DeviceError::StaleMemory)?;
    let is_here = block.away == 0 || block.managed == MOVES;
    let living = block.phase == HELD && block.generation == key.generation && is_here;
    if living { Ok(key.block) } else { Err(DeviceError::StaleMemory) }
}

/// Adds the process `slot` as a holder. A block that only descriptors held is then charged to it.
pub(crate) fn hold(gpu: &mut Gpu, slots: &mut [Slot], gpu_index: usize, first: u32, slot: usize) {
    let block = &mut gpu.blocks[first as usize];
    block.set_holder(slot, true);
    if block.owner == 0 {
        block.owner = slot as u32 + 1;
        if block.away == 0 {
            *account(&mut slots[slot], gpu_index, block.managed) += block.pages;
        }
    }
}

/// The process `slot` releases a block. Returns true if it was the last holder: the block is now
/// assigned to `scrubber`, which must wipe it and call [`finish_scrub`]. An exported block becomes
/// an orphan instead (see [`orphans`]).
pub(crate) fn release(
    gpu: &mut Gpu,
    slots: &mut [Slot],
    gpu_index: usize,
    first: u32,
    slot: usize,
    scrubber: usize,
) -> bool {
    let block = &mut gpu.blocks[first as usize];
    block.set_holder(slot, false);
    if block.owner == slot as u32 + 1 {
        let heir = block.first_holder();
        block.owner = heir.map_or(0, |heir| heir as u32 + 1);
        if block.away == 0 {
            let count = account(&mut slots[slot], gpu_index, block.managed);
            *count = count.saturating_sub(block.pages);
            if let Some(heir) = heir {
                *account(&mut slots[heir], gpu_index, block.managed) += block.pages;
            }
        }
    }
    if block.is_held() || block.exported != 0 {
        return false;
    }
    hand_over(gpu, first, scrubber);
    true
}

/// Assigns a block without holders to `scrubber`.
pub(crate) fn hand_over(gpu: &mut Gpu, first: u32, scrubber: usize) {
    let block = &mut gpu.blocks[first as usize];
    if std::mem::replace(&mut block.exported, 0) != 0 {
        gpu.exported = gpu.exported.saturating_sub(1);
    }
    block.phase = SCRUB;
    block.owner = scrubber as u32 + 1;
    if block.away == 0 {
        gpu.scrub_pages += block.pages;
    }
}

/// A descriptor is made of a block.
pub(crate) fn export(gpu: &mut Gpu, first: u32) {
    if std::mem::replace(&mut gpu.blocks[first as usize].exported, 1) == 0 {
        gpu.exported += 1;
    }
}

/// Exported blocks that no process holds: they live as long as a descriptor of theirs.
pub(crate) fn orphans(gpu: &Gpu) -> Vec<u32> {
    if gpu.exported == 0 {
        return Vec::new();
    }
    let is_orphan = |first: &u32| {
        let block = &gpu.blocks[*first as usize];
        block.phase == HELD && block.exported != 0 && !block.is_held()
    };
    heads(gpu).filter(is_orphan).collect()
}

/// Blocks that `scrubber` has to wipe.
pub(crate) fn to_scrub(gpu: &Gpu, scrubber: usize) -> Vec<u32> {
    if gpu.scrub_pages == 0 && gpu.away_pages == 0 {
        return Vec::new();
    }
    heads(gpu)
        .filter(|&first| {
            let block = &gpu.blocks[first as usize];
            block.phase == SCRUB && block.owner == scrubber as u32 + 1
        })
        .collect()
}

/// The first pages of all blocks.
pub(crate) fn heads(gpu: &Gpu) -> impl Iterator<Item = u32> + '_ {
    (0..gpu.frames).filter(|&at| gpu.pages[at as usize].block == at + 1)
}

/// Returns a wiped block's pages to the free ones.
pub(crate) fn finish_scrub(gpu: &mut Gpu, first: u32) {
    let block = &mut gpu.blocks[first as usize];
    if block.phase != SCRUB {
        return;
    }
    block.phase = 0;
    let (pages, mut at) = (block.pages, first + 1);
    let away = std::mem::replace(&mut block.away, 0) != 0;
    while at != 0 {
        let page = std::mem::replace(&mut gpu.pages[(at - 1) as usize], Page { block: 0, next: 0 });
        at = page.next;
    }
    if away {
        gpu.away_pages = gpu.away_pages.saturating_sub(pages);
    } else {
        gpu.scrub_pages = gpu.scrub_pages.saturating_sub(pages);
        gpu.free_pages += pages;
    }
    gpu.hint = first;
}

impl Block {
    fn held_by(slot: usize) -> [u64; crate::limits::MAX_PROCESSES.div_ceil(64)] {
        let mut holders = [0; _];
        holders[slot / 64] = 1 << (slot % 64);
        holders
    }

    pub(crate) fn set_holder(&mut self, slot: usize, holds: bool) {
        let bit = 1 << (slot % 64);
        let word = &mut self.holders[slot / 64];
        *word = if holds { *word | bit } else { *word & !bit };
    }

    pub(crate) fn first_holder(&self) -> Option<usize> {
        let (word, bits) = (self.holders.iter().enumerate()).find(|(_, word)| **word != 0)?;
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holders.iter().any(|&word| word != 0)
    }

    pub(crate) fn is_held_by_one(&self) -> bool {
        self.holders.iter().map(|word| word.count_ones()).sum::<u32>() == 1
    }

    pub(crate) fn is_holder(&self, slot: usize) -> bool {
        self.holders[slot / 64] >> (slot % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests;
