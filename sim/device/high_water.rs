//! The most memory that the processes of each slice ever held together: its high-water mark.
//!
//! A test that reads the device now and then can miss what a slice held in between. So each allocation compares the
//! sum over the slice's processes with the mark, in the step that takes the memory: nothing is sampled. All memory
//! counts that is charged to a process: contexts, modules, pools, allocations, managed memory, and that of processes
//! which have ended until it is free. Memory that processes share counts once, for the process that it is charged to.
//!
//! The device knows a slice by its name ([`crate::slice`]) and does not know its cap: the reader of the marks does.

use crate::layout::{DRIVER, Mark, Slot, State};
use crate::limits::{MAX_MARKS, PAGE_BYTES, SLICE_BYTES};
use crate::types::SliceMark;

impl Mark {
    fn name(&self) -> &[u8] {
        &self.name[..(self.name_len as usize).min(SLICE_BYTES)]
    }
}

/// The index of a slice's mark + 1; 0 if there are too many.
pub(crate) fn of(state: &mut State, name: &[u8]) -> u32 {
    let name = &name[..name.len().min(SLICE_BYTES)];
    let known = state.marks.iter().take_while(|mark| mark.name_len != 0);
    let at = known.take_while(|mark| mark.name() != name).count();
    if at == MAX_MARKS || name.is_empty() {
        return 0;
    }
    let mark = &mut state.marks[at];
    // The length last: a process that is killed before it leaves no entry.
    mark.name[..name.len()].copy_from_slice(name);
    mark.name_len = name.len() as u32;
    at as u32 + 1
}

/// Pages that a slice's processes hold now.
pub(crate) fn held(state: &State, gpu: usize, mark: u32) -> u32 {
    let slots = state.slots.iter().take(state.slots_used as usize);
    let its = slots.filter(|slot| slot.kind == DRIVER && slot.mark == mark);
    its.map(|slot: &Slot| slot.used_pages[gpu] + slot.managed_pages[gpu]).sum()
}

/// The most that they held so far.
pub(crate) fn most(state: &State, gpu: usize, mark: u32) -> u32 {
    state.marks[mark as usize - 1].most_pages[gpu]
}

/// Raises the mark to what they hold now.
pub(crate) fn raise(state: &mut State, gpu: usize, mark: u32) {
    let held = held(state, gpu, mark);
    let most = &mut state.marks[mark as usize - 1].most_pages[gpu];
    *most = held.max(*most);
}

pub(crate) fn all(state: &State, gpus: usize) -> Vec<SliceMark> {
    let known = state.marks.iter().take_while(|mark| mark.name_len != 0);
    let bytes = |pages: &u32| u64::from(*pages) * PAGE_BYTES;
    known
        .map(|mark| SliceMark {
            slice: String::from_utf8_lossy(mark.name()).into_owned(),
            most_bytes: mark.most_pages[..gpus].iter().map(bytes).collect(),
        })
        .collect()
}
