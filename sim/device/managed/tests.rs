//! Managed memory that moves, beside plain memory.

use super::{come, leave};
use crate::config::Config;
use crate::error::DeviceError;
use crate::layout::{DRIVER, State};
use crate::mapping::state_for_test;
use crate::memory::{self, Use};
use crate::properties::mix;
use crate::{process, repair};

const PAGES: u32 = 64;

fn machine() -> Box<State> {
    let mut state = state_for_test();
    state.initialise(&Config::parse("mem=128MiB,managed=moves").unwrap());
    (0..3).for_each(|slot| process::enter(&mut state, slot, DRIVER));
    state
}

fn take(state: &mut State, slot: usize, pages: u32, what: Use) -> Result<u32, DeviceError> {
    let State { gpus, slots, .. } = state;
    super::take(&mut gpus[0], slots, 0, slot, pages, what)
}

fn uses(state: &mut State, first: u32, now: u64) -> u32 {
    let State { gpus, slots, .. } = state;
    come(&mut gpus[0], slots, 0, first, now)
}

fn is_here(state: &State, first: u32) -> bool {
    state.gpus[0].blocks[first as usize].away == 0
}

#[test]
fn it_takes_room_when_it_is_used_and_gives_way_to_what_is_used_later() {
    let mut state = machine();
    let managed = [0, 1, 0].map(|slot| take(&mut state, slot, 30, Use::OnHost).unwrap());
    assert_eq!(state.gpus[0].free_pages, PAGES);
    assert_eq!(uses(&mut state, managed[0], 1), 30);
    assert_eq!(uses(&mut state, managed[1], 2), 30);
    assert_eq!(uses(&mut state, managed[0], 3), 0, "it is there");
    assert_eq!(state.slots[0].managed_pages[0], 30);
    assert_eq!(uses(&mut state, managed[2], 4), 30);
    let here = |state: &State| managed.map(|first| is_here(state, first));
    assert_eq!(here(&state), [true, false, true]);
    assert_eq!((state.slots[0].managed_pages[0], state.slots[1].managed_pages[0]), (60, 0));
    // Plain memory is never refused for it.
    let plain = take(&mut state, 1, 34, Use::Plain).unwrap();
    assert_eq!(here(&state), [false, false, true]);
    assert_eq!(take(&mut state, 1, 31, Use::Plain), Err(DeviceError::OutOfMemory));
    assert_eq!(uses(&mut state, managed[1], 5), 30, "in the place of the third");
    assert_eq!(state.gpus[0].free_pages, 0);
    assert!(is_here(&state, plain));
}

#[test]
fn what_is_larger_than_the_gpu_stays_on_the_host() {
    let mut state = machine();
    let small = take(&mut state, 0, 10, Use::OnHost).unwrap();
    let large = take(&mut state, 0, PAGES + 1, Use::OnHost).unwrap();
    assert_eq!(uses(&mut state, small, 1), 10);
    assert_eq!(uses(&mut state, large, 2), 0);
    assert!(is_here(&state, small) && !is_here(&state, large));
}

/// After each step of a walk the counts are those of the blocks, as a repair computes them.
#[test]
fn walks() {
    for seed in 0..200 {
        let (mut state, mut blocks) = (machine(), Vec::new());
        for step in 0..60 {
            let random = |of: u64, below: u64| mix(seed * 1_000 + of, step) % below;
            let slot = random(0, 3) as usize;
            let what = [Use::Plain, Use::Managed, Use::OnHost][random(1, 3) as usize];
            let pages = 1 + random(2, 20) as u32;
            let chosen = (!blocks.is_empty()).then(|| random(3, blocks.len() as u64) as usize);
            match (random(4, 4), chosen) {
                (0, Some(at)) => drop(uses(&mut state, blocks[at], step)),
                (1, Some(at)) => {
                    let State { gpus, slots, .. } = &mut *state;
                    leave(&mut gpus[0], slots, 0, blocks[at]);
                }
                (2, Some(at)) => {
                    let first: u32 = blocks.swap_remove(at);
                    let State { gpus, slots, .. } = &mut *state;
                    let owner = gpus[0].blocks[first as usize].owner as usize - 1;
                    assert!(memory::release(&mut gpus[0], slots, 0, first, owner, owner));
                    memory::finish_scrub(&mut gpus[0], first);
                }
                _ => blocks.extend(take(&mut state, slot, pages, what)),
            }
            let counts = |state: &State| {
                let gpu = &state.gpus[0];
                let slots =
                    state.slots[..3].iter().map(|it| (it.used_pages[0], it.managed_pages[0]));
                (gpu.free_pages, gpu.away_pages, gpu.scrub_pages, slots.collect::<Vec<_>>())
            };
            let before = counts(&state);
            repair::repair(&mut state, 0);
            assert!(state.gpus[0].frames >= PAGES + state.gpus[0].away_pages);
            assert_eq!(before, counts(&state), "seed {seed}, step {step}");
        }
    }
}
