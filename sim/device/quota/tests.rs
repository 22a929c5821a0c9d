//! Hard limits and guarantees over generated trees of groups.

use crate::cgroup::Chain;
use crate::config::{Config, Limits};
use crate::error::{DeviceError, LimitError};
use crate::layout::{DRIVER, MemoryLimit, State};
use crate::limits::{CGROUP_PATH, MAX_QUOTAS, PAGE_BYTES};
use crate::mapping::state_for_test;
use crate::memory::Use;
use crate::quota::{self, UNLIMITED};
use crate::{memory, process, repair};
use std::path::Path;

const NOWHERE: &str = "/sys/fs/cgroup/no such group";

/// A GPU of 64 pages, and a process in each of these groups.
fn machine(groups: &[&[u64]]) -> Box<State> {
    let mut state = state_for_test();
    state.initialise(&Config::parse("mem=128MiB").unwrap());
    for (slot, groups) in groups.iter().enumerate() {
        process::enter(&mut state, slot, DRIVER);
        state.slots[slot].cgroups = chain(groups);
    }
    state
}

fn chain(groups: &[u64]) -> Chain {
    let mut chain = [0; _];
    chain[..groups.len()].copy_from_slice(groups);
    chain
}

fn take(state: &mut State, slot: usize, pages: u32) -> Result<u32, DeviceError> {
    quota::admit(state, 0, slot, pages)?;
    let State { gpus, slots, .. } = state;
    memory::take(&mut gpus[0], slots, 0, slot, pages, Use::Plain)
}

/// Limits in pages; a hard limit of `None` is none.
fn set(state: &mut State, groups: &[u64], soft: u64, hard: Option<u64>) -> Result<(), LimitError> {
    let limit = MemoryLimit {
        soft: soft * PAGE_BYTES,
        hard: hard.map_or(UNLIMITED, |hard| hard * PAGE_BYTES),
    };
    let path = Path::new(NOWHERE);
    quota::set(state, 0, &chain(groups), path, limit, Limits::Dmem)
}

fn reserved(state: &State, group: u64) -> u64 {
    quota::reserved(state, 0, group) / PAGE_BYTES
}

#[test]
fn a_wall_holds_all_processes_of_the_group_and_those_below() {
    let mut state = machine(&[&[7, 5, 1], &[8, 5, 1], &[5, 1], &[9, 1], &[50, 1]]);
    set(&mut state, &[5, 1], 0, Some(10)).unwrap();
    take(&mut state, 0, 4).unwrap();
    take(&mut state, 1, 4).unwrap();
    assert_eq!(take(&mut state, 2, 3), Err(DeviceError::OutOfMemory));
    take(&mut state, 2, 2).unwrap();
    assert_eq!(quota::used_bytes(&state, 0, 5), 10 * PAGE_BYTES);
    take(&mut state, 3, 20).unwrap();
    take(&mut state, 4, 20).unwrap();
    assert_eq!(quota::own_limit(&state, 0, 0), None, "it does not show below");
    let shown = quota::own_limit(&state, 0, 2);
    assert_eq!(shown, Some((10 * PAGE_BYTES, 10 * PAGE_BYTES)));
}

#[test]
fn the_lowest_wall_counts_and_a_limit_may_be_below_the_use() {
    let mut state = machine(&[&[7, 5, 1]]);
    set(&mut state, &[5, 1], 0, Some(10)).unwrap();
    set(&mut state, &[7, 5, 1], 0, Some(6)).unwrap();
    take(&mut state, 0, 6).unwrap();
    assert_eq!(take(&mut state, 0, 1), Err(DeviceError::OutOfMemory));
    set(&mut state, &[7, 5, 1], 0, Some(2)).unwrap();
    assert_eq!(quota::used_bytes(&state, 0, 7), 6 * PAGE_BYTES);
    set(&mut state, &[7, 5, 1], 0, None).unwrap();
    assert!(quota::get(&state, 0, 7, Limits::Dmem).is_none());
    take(&mut state, 0, 4).unwrap();
    assert_eq!(take(&mut state, 0, 1), Err(DeviceError::OutOfMemory));
}

#[test]
fn a_process_that_sees_only_its_own_group_is_held_by_those_above() {
    let mut state = machine(&[&[7]]);
    set(&mut state, &[5, 1], 0, Some(4)).unwrap();
    take(&mut state, 0, 4).unwrap();
    assert_eq!(quota::used_bytes(&state, 0, 5), 0, "not noticed yet");
    set(&mut state, &[7, 5, 1], 0, Some(64)).unwrap();
    assert_eq!(quota::used_bytes(&state, 0, 5), 4 * PAGE_BYTES);
    assert_eq!(take(&mut state, 0, 1), Err(DeviceError::OutOfMemory));
}

#[test]
fn a_process_that_leaves_its_group_leaves_its_limit() {
    let mut state = machine(&[&[7, 1]]);
    set(&mut state, &[7, 1], 0, Some(4)).unwrap();
    take(&mut state, 0, 4).unwrap();
    assert_eq!(take(&mut state, 0, 1), Err(DeviceError::OutOfMemory));
    state.slots[0].cgroups = chain(&[8, 1]);
    take(&mut state, 0, 1).unwrap();
    assert_eq!(quota::used_bytes(&state, 0, 7), 0);
}

#[test]
fn guarantees_are_reserved_above_and_not_twice() {
    let mut state = machine(&[]);
    set(&mut state, &[7, 5, 1], 20, Some(20)).unwrap();
    set(&mut state, &[8, 5, 1], 20, None).unwrap();
    assert_eq!((reserved(&state, 5), reserved(&state, 1)), (40, 40));
    let above = quota::get(&state, 0, 5, Limits::Dmem).unwrap();
    assert_eq!((above.soft, above.hard), (40 * PAGE_BYTES, UNLIMITED));
    assert!(quota::get(&state, 0, 5, Limits::Misc).is_none());
    set(&mut state, &[5, 1], 50, None).unwrap();
    assert_eq!(reserved(&state, 1), 50, "its own covers those below");
    set(&mut state, &[5, 1], 30, None).unwrap();
    assert_eq!(reserved(&state, 1), 40, "those below are more");
    assert_eq!(set(&mut state, &[9, 1], 25, None), Err(LimitError::Invalid));
    assert!(quota::find(&state, 9).is_none(), "a refusal leaves nothing");
    set(&mut state, &[9, 1], 24, None).unwrap();
    set(&mut state, &[5, 1], 0, Some(40)).unwrap();
    assert_eq!(set(&mut state, &[8, 5, 1], 21, None), Err(LimitError::Invalid));
    assert_eq!(reserved(&state, 8), 20, "a refusal changes nothing");
}

#[test]
fn a_deleted_group_leaves_its_guarantee_behind() {
    let mut state = machine(&[]);
    set(&mut state, &[7, 5, 1], 60, None).unwrap();
    // Deleting a group tells the driver nothing; the next container has a group of its own.
    assert_eq!(set(&mut state, &[8, 5, 1], 10, None), Err(LimitError::Invalid));
    // Zeroed first, as one should:
    set(&mut state, &[7, 5, 1], 0, None).unwrap();
    set(&mut state, &[8, 5, 1], 10, None).unwrap();
    assert_eq!(reserved(&state, 5), 10);
}

#[test]
fn places_of_deleted_groups_are_used_again() {
    let mut state = machine(&[&[1000, 1]]);
    for group in 0..MAX_QUOTAS as u64 {
        set(&mut state, &[1000 + group, 1], 0, Some(1)).unwrap();
    }
    assert_eq!(take(&mut state, 0, 2), Err(DeviceError::OutOfMemory));
    // None of these directories exists; but a process lives in the first.
    set(&mut state, &[2000, 1], 0, Some(1)).unwrap();
    assert!(quota::find(&state, 1000).is_some() && quota::find(&state, 1001).is_none());
    for quota in &mut state.quotas {
        quota.limits[0].soft = 1;
    }
    let full = set(&mut state, &[2001, 1], 0, Some(1));
    assert_eq!(full, Err(LimitError::TooMany), "what is reserved stays");
    set(&mut state, &[2001, 1], 0, None).unwrap();
}

#[test]
fn a_path_too_long_to_keep_is_refused() {
    let mut state = machine(&[]);
    let path = "x".repeat(CGROUP_PATH + 1);
    let limit = MemoryLimit { soft: 0, hard: 0 };
    let set = quota::set(&mut state, 0, &chain(&[7]), Path::new(&path), limit, Limits::Misc);
    assert_eq!(set, Err(LimitError::Invalid));
    assert!(quota::find(&state, 7).is_none());
}

#[test]
fn managed_memory_is_not_behind_the_wall_and_stays_out_of_the_books() {
    let mut state = machine(&[&[7, 1]]);
    set(&mut state, &[7, 1], 0, Some(1)).unwrap();
    let State { gpus, slots, .. } = &mut *state;
    let first = memory::take(&mut gpus[0], slots, 0, 0, 30, Use::Managed).unwrap();
    assert_eq!((gpus[0].free_pages, slots[0].used_pages[0]), (34, 0));
    repair::repair(&mut state, 0);
    assert_eq!(state.slots[0].used_pages[0], 0);
    assert_eq!(quota::used_bytes(&state, 0, 7), 0);
    let State { gpus, slots, .. } = &mut *state;
    assert!(memory::release(&mut gpus[0], slots, 0, first, 0, 0));
    assert_eq!(slots[0].used_pages[0], 0);
}

#[test]
fn memory_is_charged_to_one_who_holds_it() {
    let mut state = machine(&[&[7], &[8], &[9]]);
    let first = take(&mut state, 0, 5).unwrap();
    let used = |state: &State| [0, 1, 2].map(|slot| state.slots[slot].used_pages[0]);
    let State { gpus, slots, .. } = &mut *state;
    for slot in [1, 2] {
        memory::hold(&mut gpus[0], slots, 0, first, slot);
    }
    assert_eq!(used(&state), [5, 0, 0]);
    let drop = |state: &mut State, slot| {
        let State { gpus, slots, .. } = state;
        memory::release(&mut gpus[0], slots, 0, first, slot, 2)
    };
    assert!(!drop(&mut state, 0));
    assert_eq!(used(&state), [0, 5, 0]);
    // Killed just after its release: the repair counts from the remaining facts.
    state.gpus[0].blocks[first as usize].set_holder(1, false);
    repair::repair(&mut state, 2);
    assert_eq!(used(&state), [0, 0, 5]);
    assert!(drop(&mut state, 2));
    assert_eq!(used(&state), [0, 0, 0]);
}
