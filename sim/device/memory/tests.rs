//! The page table, and its repair after a death half-way through a change.

use crate::config::Config;
use crate::error::DeviceError;
use crate::layout::{DRIVER, HELD, SCRUB, State};
use crate::limits::PAGE_BYTES;
use crate::mapping::state_for_test;
use crate::memory::Use;
use crate::{memory, process, repair};

const PAGES: u32 = 64;

fn machine() -> Box<State> {
    let mut state = state_for_test();
    state.initialise(&Config::parse("mem=128MiB").unwrap());
    for slot in 0..3 {
        process::enter(&mut state, slot, DRIVER);
    }
    state
}

fn take(state: &mut State, slot: usize, pages: u32) -> Result<u32, DeviceError> {
    let State { gpus, slots, .. } = state;
    memory::take(&mut gpus[0], slots, 0, slot, pages, Use::Plain)
}

fn free(state: &mut State, slot: usize, first: u32) -> bool {
    let State { gpus, slots, .. } = state;
    let last = memory::release(&mut gpus[0], slots, 0, first, slot, slot);
    if last {
        memory::finish_scrub(&mut gpus[0], first);
    }
    last
}

fn free_pages(state: &State) -> u32 {
    state.gpus[0].free_pages
}

#[test]
fn capacity_is_exact_even_in_pieces() {
    let mut state = machine();
    let singles: Vec<u32> = (0..PAGES).map(|_| take(&mut state, 0, 1).unwrap()).collect();
    assert_eq!(take(&mut state, 0, 1), Err(DeviceError::OutOfMemory));
    for &first in singles.iter().step_by(2) {
        assert!(free(&mut state, 0, first));
    }
    assert_eq!(take(&mut state, 1, PAGES / 2 + 1), Err(DeviceError::OutOfMemory));
    let scattered = take(&mut state, 1, PAGES / 2).unwrap();
    let extents = memory::extents(&state.gpus[0], scattered);
    assert_eq!(extents.len(), 32);
    assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), 32 * PAGE_BYTES);
    assert_eq!((free_pages(&state), state.slots[1].used_pages[0]), (0, 32));
}

#[test]
fn one_piece_is_preferred() {
    let mut state = machine();
    let a = take(&mut state, 0, 10).unwrap();
    let b = take(&mut state, 0, 20).unwrap();
    take(&mut state, 0, 4).unwrap();
    free(&mut state, 0, a);
    free(&mut state, 0, b);
    let whole = take(&mut state, 0, 30).unwrap();
    assert_eq!(memory::extents(&state.gpus[0], whole).len(), 1);
}

#[test]
fn a_block_lives_while_anybody_holds_it() {
    let mut state = machine();
    let first = take(&mut state, 0, 8).unwrap();
    let key = memory::key(&state.gpus[0], 0, first);
    state.gpus[0].blocks[first as usize].set_holder(1, true);
    assert!(!process::drop_process(&mut state, 0, 2));
    assert_eq!(memory::held(&state.gpus[0], key), Ok(first));
    assert_eq!(free_pages(&state), PAGES - 8);
    assert!(process::drop_process(&mut state, 1, 2));
    assert_eq!(memory::held(&state.gpus[0], key), Err(DeviceError::StaleMemory));
    assert_eq!(memory::to_scrub(&state.gpus[0], 2), vec![first]);
    assert_eq!(free_pages(&state), PAGES - 8);
    memory::finish_scrub(&mut state.gpus[0], first);
    assert_eq!(free_pages(&state), PAGES);
    let again = take(&mut state, 0, 8).unwrap();
    assert_eq!(again, first);
    assert_eq!(memory::held(&state.gpus[0], key), Err(DeviceError::StaleMemory));
}

#[test]
fn a_dead_scrubber_is_succeeded() {
    let mut state = machine();
    take(&mut state, 0, 8).unwrap();
    assert!(process::drop_process(&mut state, 0, 1));
    assert!(process::drop_process(&mut state, 1, 2));
    assert_eq!(memory::to_scrub(&state.gpus[0], 2).len(), 1);
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let mut state = machine();
    assert_eq!(take(&mut state, 0, 0), Err(DeviceError::BadSize));
    assert_eq!(take(&mut state, 0, PAGES + 1), Err(DeviceError::OutOfMemory));
    assert_eq!(take(&mut state, 0, u32::MAX), Err(DeviceError::OutOfMemory));
}

/// Whatever is half-done, repair makes the counters follow from the pages, and dropping the dead
/// process then frees all it had.
#[test]
fn repair_survives_any_half_done_change() {
    let damage: [fn(&mut State, u32); 6] = [
        |state, first| state.gpus[0].blocks[first as usize].phase = 0,
        |state, first| state.gpus[0].blocks[first as usize].holders = [0; _],
        |state, first| state.gpus[0].blocks[first as usize].pages = 7,
        |state, first| state.gpus[0].pages[first as usize + 1].block = 0,
        |state, first| state.gpus[0].pages[first as usize].block = 0,
        |state, _| {
            state.gpus[0].free_pages = 3;
            state.slots[1].used_pages[0] = 99;
            state.gpus[0].scrub_pages = 50;
        },
    ];
    for (index, hurt) in damage.iter().enumerate() {
        let mut state = machine();
        let kept = take(&mut state, 1, 5).unwrap();
        let first = take(&mut state, 0, 10).unwrap();
        hurt(&mut state, first);
        repair::repair(&mut state, 2);
        process::drop_process(&mut state, 0, 2);
        for first in memory::to_scrub(&state.gpus[0], 2) {
            memory::finish_scrub(&mut state.gpus[0], first);
        }
        assert_eq!(free_pages(&state), PAGES - 5, "damage {index}");
        assert_eq!(state.slots[1].used_pages[0], 5, "damage {index}");
        assert_eq!(state.gpus[0].scrub_pages, 0, "damage {index}");
        assert_eq!(memory::extents(&state.gpus[0], kept)[0].len, 5 * PAGE_BYTES);
        assert!(take(&mut state, 1, PAGES - 5).is_ok(), "damage {index}");
    }
}

/// A process that lets its last page go does it in several stores and may be killed after each.
#[test]
fn killed_between_letting_go_and_handing_over() {
    for (phase, owner) in [(HELD, 1), (HELD, 0), (SCRUB, 0)] {
        let mut state = machine();
        let first = take(&mut state, 0, 3).unwrap();
        let block = &mut state.gpus[0].blocks[first as usize];
        block.set_holder(0, false);
        (block.phase, block.owner) = (phase, owner);
        repair::repair(&mut state, 2);
        assert_eq!(memory::to_scrub(&state.gpus[0], 2), vec![first]);
        assert_eq!(state.slots[0].used_pages[0], 0);
        memory::finish_scrub(&mut state.gpus[0], first);
        assert_eq!(free_pages(&state), PAGES);
    }
}
