//! Checkpoints: another process moves all device memory of a process to the host, and back.
//!
//! ```text
//!            lock              checkpoint
//!   Running ------> Locked ---------------> Checkpointed         Failed: a checkpoint or restore
//!           <------        <---------------                      that ended half-way
//!            unlock            restore
//! ```
//! A lock holds back new calls of the process and waits for the work that it has submitted, callbacks included.
//! Its threads on the CPU go on. Managed memory refuses a checkpoint. Memory that other processes hold or may open
//! is no obstacle to drivers before release 610, and fatal: [`Sharing`].
//!
//! The simulated memory of a GPU is a file, which is memory of the host. So a checkpoint takes the time of the copy
//! and changes whose room the pages take: they keep their places in the file, and no other page gets these. Addresses
//! and bytes stay the same by construction, as a real driver's restore has them.

use super::Machine;
use crate::alive::Holder;
use crate::clock::{now_ns, sleep_until_ns};
use crate::error::CheckpointError;
use crate::layout::{DRIVER, HELD, State};
use crate::limits::{
    LINK_BYTES_PER_US, MAX_FRAMES, MAX_GPUS, MAX_PROCESSES, MAX_SLEEP_NS, PAGE_BYTES,
};
use crate::properties::Properties;
use crate::{memory, quota};
use std::sync::atomic::Ordering;

/// Pause between two looks at a state that another process changes.
pub(super) const LOOK_NS: u64 = 200_000;
/// Values of `Header::frozen`. New calls wait; submitted work goes on.
const LOCKING: u32 = 1;
/// The device is out of the process's reach.
const LOCKED: u32 = 2;
const CHECKPOINTED: u32 = 3;
const FAILED: u32 = 4;
/// Checkpointed, and no restore is possible.
const KEPT: u32 = 5;
/// Failed, and the process's next call ends it.
const LOST: u32 = 6;

/// How far the checkpoint of a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    Running,
    Locked,
    Checkpointed,
    Failed,
    /// Failed, and its next call ends it.
    Lost,
}

/// What a checkpoint does to a process that shares memory with another one, by the CUDA version of the driver.
///
/// Measured once with each of 580.178.04 and 595.84 (`validation/FINDINGS.md` of github.com/VivianSobers/gpunap). The
/// release of a version between them, and the code of the failure, are assumptions. From release 610 on it is supported
/// (github.com/NVIDIA/cuda-checkpoint, issue 56), which is not simulated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// The memory is moved, each restore is refused as invalid, and the process stays stuck.
    Kept,
    /// The call fails after half a minute, and the process ends.
    Fatal,
    /// The call is refused.
    Refused,
}

impl Sharing {
    fn with(driver: (u32, u32)) -> Self {
        match driver {
            (..=12, _) | (13, 0 | 1) => Self::Kept,
            (13, 2) => Self::Fatal,
            _ => Self::Refused,
        }
    }
}

type Done<T = ()> = Result<T, CheckpointError>;

/// A process, and not a later one in the same slot.
#[derive(Clone, Copy)]
struct Target {
    slot: usize,
    identity: u64,
}

/// The direction of a move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    Away,
    Back,
}

impl Machine {
    /// How far the checkpoint of process `pid` is, in the caller's pid namespace.
    ///
    /// # Errors
    /// [`CheckpointError`], as of all calls here.
    pub fn process_state(&self, pid: i32) -> Done<ProcessState> {
        Ok(state_of(self.frozen(self.target(pid)?.slot)))
    }

    /// How far the checkpoint of this process is, once no lock of it is under way.
    pub fn own_state(&self) -> ProcessState {
        loop {
            match self.frozen(self.slot) {
                LOCKING => sleep_until_ns(now_ns() + LOOK_NS),
                frozen => return state_of(frozen),
            }
        }
    }

    /// Locks a running process once its work is done, within `timeout_ms`; 0 for as long as it takes.
    pub fn lock_process(&self, pid: i32, timeout_ms: u32) -> Done {
        let target = self.target(pid)?;
        self.faulty("lock", target)?;
        self.pass(target, 0, LOCKING)?;
        let deadline = now_ns() + u64::from(timeout_ms) * 1_000_000;
        loop {
            let busy = self.with(None, |state, _| {
                self.check(target)?;
                let busy = self.is_busy(state, target.slot);
                if !busy {
                    self.set(target.slot, LOCKED);
                }
                Ok(busy)
            })?;
            let now = now_ns();
            if !busy {
                return Ok(());
            }
            if timeout_ms != 0 && now >= deadline {
                self.pass(target, LOCKING, 0)?;
                return Err(CheckpointError::TimedOut);
            }
            sleep_until_ns(now + LOOK_NS);
        }
    }

    /// Moves all device memory of a locked process to the host.
    pub fn checkpoint_process(&self, pid: i32) -> Done {
        let target = self.target(pid)?;
        let shares = self.with(None, |state, _| shares(state, target.slot));
        if !shares || self.frozen(target.slot) != LOCKED {
            return self.move_memory(target, Move::Away, CHECKPOINTED);
        }
        match Sharing::with(self.driver()) {
            Sharing::Kept => self.move_memory(target, Move::Away, KEPT),
            Sharing::Fatal => self.lose(target),
            Sharing::Refused => Err(CheckpointError::NotSupported),
        }
    }

    /// Moves it back.
    pub fn restore_process(&self, pid: i32) -> Done {
        let target = self.target(pid)?;
        match self.frozen(target.slot) {
            KEPT => Err(CheckpointError::Shared),
            _ => self.move_memory(target, Move::Back, LOCKED),
        }
    }

    /// Lets a locked process go on.
    pub fn unlock_process(&self, pid: i32) -> Done {
        let target = self.target(pid)?;
        self.faulty("unlock", target)?;
        // Left by a process that died while it locked this one.
        if self.pass(target, LOCKING, 0).is_ok() {
            return Ok(());
        }
        self.pass(target, LOCKED, 0)
    }

    /// Whether a checkpoint keeps this process from the device.
    pub(super) fn is_frozen(&self) -> bool {
        matches!(self.frozen(self.slot), LOCKED | CHECKPOINTED | KEPT)
    }

    /// Waits until no checkpoint holds back calls of this process: it runs, or one has failed.
    pub fn wait_for_unlock(&self) -> ProcessState {
        loop {
            match self.frozen(self.slot) {
                frozen @ (0 | FAILED | LOST) => return state_of(frozen),
                _ => sleep_until_ns(now_ns() + LOOK_NS),
            }
        }
    }

    /// Notes whether submitted work needs a thread of this process.
    pub fn note_unsettled(&self, unsettled: bool) {
        let word = &self.mapping.header().unsettled[self.slot];
        word.store(u32::from(unsettled), Ordering::Release);
    }

    fn frozen(&self, slot: usize) -> u32 {
        self.mapping.header().frozen[slot].load(Ordering::Acquire)
    }

    fn set(&self, slot: usize, frozen: u32) {
        self.mapping.header().frozen[slot].store(frozen, Ordering::Release);
    }

    fn identity(&self, slot: usize) -> u64 {
        self.mapping.header().identities[slot].load(Ordering::Relaxed)
    }

    fn target(&self, pid: i32) -> Done<Target> {
        let slots = self.with(None, |state, _| {
            let used = (state.slots_used as usize).min(MAX_PROCESSES);
            let drivers = (0..used).filter(|&slot| state.slots[slot].kind == DRIVER);
            drivers.collect::<Vec<_>>()
        });
        let is_its =
            |slot: &usize| *slot != self.slot && self.locks.holder(*slot) == Holder::Process(pid);
        let slot = slots.into_iter().find(is_its).filter(|_| pid > 0);
        let slot = slot.ok_or(CheckpointError::NoProcess)?;
        Ok(Target { slot, identity: self.identity(slot) })
    }

    /// Whether it is still the same process, and lives.
    fn check(&self, target: Target) -> Done {
        let lives = self.identity(target.slot) == target.identity && self.is_alive(target.slot);
        if lives { Ok(()) } else { Err(CheckpointError::NoProcess) }
    }

    fn pass(&self, target: Target, from: u32, to: u32) -> Done {
        self.with(None, |_, _| {
            self.check(target)?;
            if self.frozen(target.slot) != from {
                return Err(CheckpointError::WrongState);
            }
            self.set(target.slot, to);
            Ok(())
        })
    }

    /// Hangs or refuses, where a fault asks for that.
    fn faulty(&self, call: &str, target: Target) -> Done {
        self.hang_if_asked(call, target.slot);
        let faults = self.faults.unwrap_or_else(|| self.lock().faults);
        if faults.refuses(call) { Err(CheckpointError::NotSupported) } else { Ok(()) }
    }

    /// Whether a process has submitted work that is not done.
    fn is_busy(&self, state: &State, slot: usize) -> bool {
        let unsettled = self.mapping.header().unsettled[slot].load(Ordering::Acquire) != 0;
        let mut its = state.contexts.iter().filter(|it| it.live != 0 && it.slot == slot as u32);
        unsettled || its.any(|it| it.fault_xid == 0 && it.head != it.tail)
    }

    /// A checkpoint fails, late, and ends the process.
    fn lose(&self, target: Target) -> Done {
        self.faulty("checkpoint", target)?;
        let Properties { shared, seed, .. } = *self.properties();
        self.pause(target, shared.draw(seed, target.identity))?;
        self.pass(target, LOCKED, LOST)?;
        Err(CheckpointError::Failed)
    }

    /// Waits while a process lives.
    fn pause(&self, target: Target, ns: u64) -> Done {
        let end = now_ns() + ns;
        while now_ns() < end {
            sleep_until_ns(end.min(now_ns() + MAX_SLEEP_NS));
            self.check(target)?;
        }
        Ok(())
    }

    /// Moves the memory of a process, whose state is `after` that.
    fn move_memory(&self, target: Target, to: Move, after: u32) -> Done {
        let (call, from) = match to {
            Move::Away => ("checkpoint", LOCKED),
            Move::Back => ("restore", CHECKPOINTED),
        };
        if self.frozen(target.slot) != from {
            return Err(CheckpointError::WrongState);
        }
        self.faulty(call, target)?;
        let half = self.faults.unwrap_or_else(|| self.lock().faults).is_half(call);
        let pages = self.with(None, |state, _| -> Done<u64> {
            self.check(target)?;
            may_move(state, target.slot, to)?;
            Ok(blocks(state, target.slot, to).map(|(.., pages)| u64::from(pages)).sum())
        })?;
        self.pause(target, pages * PAGE_BYTES * 1_000 / LINK_BYTES_PER_US)?;
        self.with(None, |state, _| {
            self.check(target)?;
            if self.frozen(target.slot) != from {
                return Err(CheckpointError::WrongState);
            }
            // Others may have taken the room meanwhile.
            may_move(state, target.slot, to)?;
            let moved: Vec<_> = blocks(state, target.slot, to).collect();
            let count = if half { moved.len() / 2 } else { moved.len() };
            self.extend_vram(state, &moved)?;
            moved[..count].iter().for_each(|&it| move_block(state, target.slot, it, to));
            self.set(target.slot, if half { FAILED } else { after });
            if half { Err(CheckpointError::Failed) } else { Ok(()) }
        })
    }

    /// Memory files need a place for each page on the GPU or away from it, before a page has it.
    fn extend_vram(&self, state: &State, moved: &[(usize, u32, u32)]) -> Done {
        for (gpu, file) in self.vram.iter().enumerate() {
            let it = &state.gpus[gpu];
            let pages = moved.iter().filter(|(at, ..)| *at == gpu).map(|(.., pages)| pages);
            let frames = it.total_pages + it.away_pages + pages.sum::<u32>();
            let bytes = u64::from(frames) * PAGE_BYTES;
            let len = file.metadata().map(|facts| facts.len());
            if len.is_ok_and(|len| len < bytes) && file.set_len(bytes).is_err() {
                return Err(CheckpointError::OutOfMemory);
            }
        }
        Ok(())
    }
}

fn state_of(frozen: u32) -> ProcessState {
    match frozen {
        LOCKING | LOCKED => ProcessState::Locked,
        CHECKPOINTED | KEPT => ProcessState::Checkpointed,
        FAILED => ProcessState::Failed,
        LOST => ProcessState::Lost,
        _ => ProcessState::Running,
    }
}

/// Whether a process has memory that another one holds, or may open.
fn shares(state: &State, slot: usize) -> bool {
    let of_gpu = |gpu| {
        let its = memory::heads(gpu).map(|first| &gpu.blocks[first as usize]);
        let mut its = its.filter(|block| block.phase == HELD && block.is_holder(slot));
        its.any(|block| block.exported != 0 || block.offered != 0 || !block.is_held_by_one())
    };
    state.gpus.iter().any(of_gpu)
}

/// The blocks of a process that a move concerns: GPU, first page, number of pages. Those that other processes hold
/// stay where they are.
fn blocks(state: &State, slot: usize, to: Move) -> impl Iterator<Item = (usize, u32, u32)> + '_ {
    let away = u32::from(to == Move::Back);
    state.gpus.iter().enumerate().flat_map(move |(at, gpu)| {
        let its = memory::heads(gpu).filter(move |&first| {
            let block = &gpu.blocks[first as usize];
            let its = block.phase == HELD && block.is_holder(slot) && block.is_held_by_one();
            its && block.away == away
        });
        its.map(move |first| (at, first, gpu.blocks[first as usize].pages))
    })
}

/// Whether all of a process's memory can be moved.
fn may_move(state: &State, slot: usize, to: Move) -> Done {
    let mut pages = [0_u32; MAX_GPUS];
    for (gpu, first, count) in blocks(state, slot, to) {
        let block = &state.gpus[gpu].blocks[first as usize];
        if to == Move::Away && block.managed != 0 {
            return Err(CheckpointError::NotSupported);
        }
        pages[gpu] += count;
    }
    for (gpu, &count) in pages.iter().enumerate().filter(|(_, count)| **count != 0) {
        let it = &state.gpus[gpu];
        let lacks = match to {
            Move::Away => it.total_pages + it.away_pages + count > MAX_FRAMES as u32,
            Move::Back => count > it.free_pages || quota::admit(state, gpu, slot, count).is_err(),
        };
        if lacks {
            return Err(CheckpointError::OutOfMemory);
        }
    }
    Ok(())
}

fn move_block(state: &mut State, slot: usize, (gpu, first, pages): (usize, u32, u32), to: Move) {
    let (it, used) = (&mut state.gpus[gpu], &mut state.slots[slot].used_pages[gpu]);
    it.blocks[first as usize].away = u32::from(to == Move::Away);
    match to {
        Move::Away => {
            it.free_pages += pages;
            it.away_pages += pages;
            *used = used.saturating_sub(pages);
            it.frames = it.frames.max(it.total_pages + it.away_pages);
        }
        Move::Back => {
            it.free_pages -= pages;
            it.away_pages -= pages;
            *used += pages;
        }
    }
}
