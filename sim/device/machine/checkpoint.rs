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
//!
//! A driver copies in the process whose memory it is, and goes on when the caller is killed. Here a move that has begun
//! is due at an instant, and whichever process takes the lock then ends it. A restore takes its room at the beginning,
//! a checkpoint gives it at the end. Meanwhile a question for the state waits, as measured with 580 and 595.

use super::Machine;
use crate::alive::Holder;
use crate::clock::{now_ns, sleep_until_ns};
use crate::error::CheckpointError;
use crate::layout::{DRIVER, Gpu, HELD, State};
use crate::limits::{MAX_FRAMES, MAX_GPUS, MAX_PROCESSES, MAX_SLEEP_NS, PAGE_BYTES};
use crate::properties::Properties;
use crate::{managed, memory, quota};
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
/// Checkpointed, and a restore has found too little memory: what it got stays taken, and no other restore is possible
/// (drivers 580 and 595: github.com/NVIDIA/cuda-checkpoint, issue 44; the study named at [`Sharing`], 7 of 7 times).
const SPENT: u32 = 7;
/// On the way to `CHECKPOINTED`, `KEPT` and, back, to `LOCKED`.
const LEAVING: u32 = 8;
const LEAVING_TO_STAY: u32 = 9;
const RETURNING: u32 = 10;

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
        let target = self.target(pid)?;
        self.moved(target)?;
        Ok(state_of(self.frozen(target.slot)))
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
            return self.move_away(target, LEAVING);
        }
        match Sharing::with(self.driver()) {
            Sharing::Kept => self.move_away(target, LEAVING_TO_STAY),
            Sharing::Fatal => self.lose(target),
            Sharing::Refused => Err(CheckpointError::NotSupported),
        }
    }

    /// Moves it back.
    pub fn restore_process(&self, pid: i32) -> Done {
        let target = self.target(pid)?;
        match self.frozen(target.slot) {
            KEPT => Err(CheckpointError::Shared),
            SPENT => Err(CheckpointError::Spent),
            _ => self.move_back(target),
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
        !matches!(self.frozen(self.slot), 0 | LOCKING | FAILED | LOST)
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
        let faults = self.faults();
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

    /// Begins to move the memory of a locked process to the host, on its way `via`, and waits for the end.
    fn move_away(&self, target: Target, via: u32) -> Done {
        let half = self.may_begin(target, LOCKED, "checkpoint")?;
        self.with(None, |state, now| {
            self.check(target)?;
            if self.frozen(target.slot) != LOCKED {
                return Err(CheckpointError::WrongState);
            }
            may_leave(state, target.slot)?;
            let leaves: Vec<_> = blocks(state, target.slot, Move::Away).collect();
            self.extend_vram(state, &leaves)?;
            self.go(state, target, (via, now), (&leaves, self.properties().checkpoint_speed));
            if half {
                let it = &leaves[..leaves.len() / 2];
                it.iter().for_each(|&it| move_block(state, target.slot, it, Move::Away));
                self.set(target.slot, FAILED);
                return Err(CheckpointError::Failed);
            }
            Ok(())
        })?;
        self.moved(target)
    }

    /// The same back. What finds room before the rest lacks it stays on the GPU.
    fn move_back(&self, target: Target) -> Done {
        let half = self.may_begin(target, CHECKPOINTED, "restore")?;
        self.with(None, |state, now| {
            self.check(target)?;
            if self.frozen(target.slot) != CHECKPOINTED {
                return Err(CheckpointError::WrongState);
            }
            let returns: Vec<_> = blocks(state, target.slot, Move::Back).collect();
            let count = if half { returns.len() / 2 } else { returns.len() };
            for &block in &returns[..count] {
                if !has_room(state, target.slot, block) {
                    self.set(target.slot, SPENT);
                    return Err(CheckpointError::OutOfMemory);
                }
                move_block(state, target.slot, block, Move::Back);
            }
            if half {
                self.set(target.slot, FAILED);
                return Err(CheckpointError::Failed);
            }
            self.go(state, target, (RETURNING, now), (&returns, self.properties().restore_speed));
            Ok(())
        })?;
        self.moved(target)
    }

    /// Whether a process is in the state from which the call begins, and no fault refuses that; true if a fault ends
    /// it half-way.
    fn may_begin(&self, target: Target, from: u32, call: &str) -> Done<bool> {
        self.moved(target)?;
        if self.frozen(target.slot) != from {
            return Err(CheckpointError::WrongState);
        }
        self.faulty(call, target)?;
        Ok(self.faults().is_half(call))
    }

    /// A process is on its way for as long as so many blocks take at so many bytes each second.
    fn go(
        &self,
        state: &mut State,
        target: Target,
        (via, now): (u32, u64),
        (moved, speed): (&[(usize, u32, u32)], u64),
    ) {
        let pages: u64 = moved.iter().map(|(.., pages)| u64::from(*pages)).sum();
        let ns = u128::from(pages * PAGE_BYTES) * 1_000_000_000 / u128::from(speed.max(1));
        let due = now.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX));
        self.mapping.header().moves_due_ns[target.slot].store(due, Ordering::Relaxed);
        state.moves = 1;
        self.set(target.slot, via);
    }

    /// Waits until a process is not on its way.
    fn moved(&self, target: Target) -> Done {
        loop {
            let now = self.with(None, |_, now| now);
            self.check(target)?;
            if !is_on_the_way(self.frozen(target.slot)) {
                return Ok(());
            }
            let due = self.mapping.header().moves_due_ns[target.slot].load(Ordering::Relaxed);
            sleep_until_ns(due.min(now + MAX_SLEEP_NS));
        }
    }

    /// Ends the moves that are due.
    pub(super) fn end_moves(&self, state: &mut State, now: u64) {
        if state.moves == 0 {
            return;
        }
        let used = (state.slots_used as usize).min(MAX_PROCESSES);
        let mut left = 0;
        for slot in (0..used).filter(|&slot| is_on_the_way(self.frozen(slot))) {
            if self.mapping.header().moves_due_ns[slot].load(Ordering::Relaxed) > now {
                left = 1;
                continue;
            }
            let after = match self.frozen(slot) {
                RETURNING => LOCKED,
                via => {
                    let leaves: Vec<_> = blocks(state, slot, Move::Away).collect();
                    leaves.into_iter().for_each(|it| move_block(state, slot, it, Move::Away));
                    if via == LEAVING { CHECKPOINTED } else { KEPT }
                }
            };
            self.set(slot, after);
        }
        state.moves = left;
    }

    /// Memory files need a place for each page on the GPU or away from it, before a page has it.
    pub(super) fn extend_vram(&self, state: &State, moved: &[(usize, u32, u32)]) -> Done {
        for (gpu, file) in self.vram.iter().enumerate() {
            let it = &state.gpus[gpu];
            let leaving =
                (0..state.slots_used as usize).filter(|slot| is_leaving(self.frozen(*slot)));
            let leaving = leaving.flat_map(|slot| blocks(state, slot, Move::Away));
            let all = moved.iter().copied().chain(leaving).filter(|(at, ..)| *at == gpu);
            let places = managed::places(it, all.map(|(.., pages)| pages).sum());
            let bytes = u64::from(places) * PAGE_BYTES;
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
        CHECKPOINTED | KEPT | SPENT | LEAVING | LEAVING_TO_STAY | RETURNING => {
            ProcessState::Checkpointed
        }
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

fn is_leaving(frozen: u32) -> bool {
    matches!(frozen, LEAVING | LEAVING_TO_STAY)
}

fn is_on_the_way(frozen: u32) -> bool {
    is_leaving(frozen) || frozen == RETURNING
}

/// Whether all of a process's memory can be moved to the host.
fn may_leave(state: &State, slot: usize) -> Done {
    let mut pages = [0_u32; MAX_GPUS];
    let is_managed =
        |(gpu, first, _): (usize, u32, u32)| state.gpus[gpu].blocks[first as usize].managed != 0;
    // That which is on the host counts, too.
    if blocks(state, slot, Move::Away).chain(blocks(state, slot, Move::Back)).any(is_managed) {
        return Err(CheckpointError::NotSupported);
    }
    for (gpu, _, count) in blocks(state, slot, Move::Away) {
        pages[gpu] += count;
    }
    let lacks = |(gpu, count): (&Gpu, u32)| managed::places(gpu, count) > MAX_FRAMES as u32;
    match state.gpus.iter().zip(pages).any(lacks) {
        true => Err(CheckpointError::OutOfMemory),
        false => Ok(()),
    }
}

/// Whether a block of a process can return to its GPU, where managed memory gives way.
fn has_room(state: &mut State, slot: usize, (gpu, _, pages): (usize, u32, u32)) -> bool {
    let State { gpus, slots, .. } = &mut *state;
    managed::make_room(&mut gpus[gpu], slots, gpu, pages);
    pages <= state.gpus[gpu].free_pages && quota::admit(state, gpu, slot, pages).is_ok()
}

fn move_block(state: &mut State, slot: usize, (gpu, first, pages): (usize, u32, u32), to: Move) {
    let (it, used) = (&mut state.gpus[gpu], &mut state.slots[slot].used_pages[gpu]);
    // The places first: a repair after a kill in between needs them.
    if to == Move::Away {
        it.frames = it.frames.max(it.total_pages + it.away_pages + pages);
    }
    it.blocks[first as usize].away = u32::from(to == Move::Away);
    match to {
        Move::Away => {
            it.free_pages += pages;
            it.away_pages += pages;
            *used = used.saturating_sub(pages);
        }
        Move::Back => {
            it.free_pages -= pages;
            it.away_pages -= pages;
            *used += pages;
        }
    }
}
