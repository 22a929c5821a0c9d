//! Device memory: allocation, sharing, release and wiping.

use super::Machine;
use crate::clock::now_ns;
use crate::error::DeviceError;
use crate::layout::State;
use crate::limits::{MAX_PAGES, PAGE_BYTES};
use crate::memory::Use;
use crate::types::{Extent, Memory, MemoryInfo, MemoryKey, SliceMark};
use crate::{clock, high_water, managed, memory, quota, vram};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// How long an allocation waits for memory that other processes are wiping.
const SCRUB_PATIENCE_NS: u64 = 500_000_000;

impl Machine {
    /// Takes at least `bytes` of a GPU's memory, in whole pages; they read as zeros.
    pub fn mem_alloc(&self, gpu: usize, bytes: u64) -> Result<Memory, DeviceError> {
        self.take(gpu, bytes, Use::Plain)
    }

    /// The same for managed memory, which no process is shown to use and no control group's limit
    /// holds back.
    pub fn mem_alloc_managed(&self, gpu: usize, bytes: u64) -> Result<Memory, DeviceError> {
        let moves = self.properties().managed != 0;
        self.take(gpu, bytes, if moves { Use::OnHost } else { Use::Managed })
    }

    fn take(&self, gpu: usize, bytes: u64, what: Use) -> Result<Memory, DeviceError> {
        let gpu = self.gpu(gpu)?;
        let pages = bytes.div_ceil(PAGE_BYTES);
        if bytes == 0 {
            return Err(DeviceError::BadSize);
        }
        if pages > MAX_PAGES as u64 {
            return Err(DeviceError::OutOfMemory);
        }
        let injected = self.with(Some(gpu), |state, _| self.oom_is_due(state));
        if injected {
            return Err(DeviceError::OutOfMemory);
        }
        self.note_cgroup();
        self.retry_short(gpu, |state| {
            if what == Use::OnHost {
                let moved = [(gpu, 0, pages as u32)];
                self.extend_vram(state, &moved).map_err(|_| DeviceError::OutOfMemory)?;
            } else if what == Use::Plain {
                quota::admit(state, gpu, self.slot, pages as u32)?;
            }
            let State { gpus, slots, .. } = state;
            let first = managed::take(&mut gpus[gpu], slots, gpu, self.slot, pages as u32, what)?;
            self.mark(state, gpu);
            let gpu_state = &state.gpus[gpu];
            let extents = memory::extents(gpu_state, first);
            Ok(Memory { key: memory::key(gpu_state, gpu, first), extents })
        })
    }

    /// The GPU uses managed memory of this process: it is there from now on, if there is room. The bytes that moved.
    pub fn mem_come(&self, key: MemoryKey) -> Result<u64, DeviceError> {
        let gpu = self.gpu(usize::from(key.gpu))?;
        self.with(Some(gpu), |state, now| {
            let State { gpus, slots, .. } = state;
            let first = memory::held(&gpus[gpu], key)?;
            let pages = managed::come(&mut gpus[gpu], slots, gpu, first, now);
            self.mark(state, gpu);
            Ok(u64::from(pages) * PAGE_BYTES)
        })
    }

    /// Moves managed memory of this process to the host.
    pub fn mem_leave(&self, key: MemoryKey) -> Result<(), DeviceError> {
        let gpu = self.gpu(usize::from(key.gpu))?;
        self.with(Some(gpu), |state, _| {
            let State { gpus, slots, .. } = state;
            let first = memory::held(&gpus[gpu], key)?;
            managed::leave(&mut gpus[gpu], slots, gpu, first);
            Ok(())
        })
    }

    /// Runs `take`; when memory is short, first drops dead processes and waits for memory that is
    /// being wiped, so that capacity is exact.
    pub(super) fn retry_short<R: PartialEq>(
        &self,
        gpu: usize,
        take: impl Fn(&mut State) -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        match self.with(Some(gpu), |state, _| take(state)) {
            Err(DeviceError::OutOfMemory) => {}
            other => return other,
        }
        let deadline = now_ns() + SCRUB_PATIENCE_NS;
        loop {
            if self.with(Some(gpu), |state, now| self.reap(state, now)) {
                self.scrub();
            }
            let (result, scrubbing) =
                self.with(Some(gpu), |state, _| (take(state), state.gpus[gpu].scrub_pages));
            let now = now_ns();
            if result != Err(DeviceError::OutOfMemory) || scrubbing == 0 || now > deadline {
                return result;
            }
            clock::sleep_until_ns(now + 100_000);
        }
    }

    /// Raises the high-water mark of this process's slice, if its processes hold more than ever. Called within the
    /// step that takes memory, so that nothing can be freed before it is seen.
    pub(super) fn mark(&self, state: &mut State, gpu: usize) {
        let mark = state.slots[self.slot].mark;
        if mark == 0 || high_water::held(state, gpu, mark) <= high_water::most(state, gpu, mark) {
            return;
        }
        // The dead are dropped every few milliseconds only; what they held may be free.
        let now = now_ns();
        if self.reap(state, now) {
            self.wiping_due.store(true, Ordering::Relaxed);
        }
        high_water::raise(state, gpu, mark);
    }

    /// The most memory that each slice ever held. Memory of processes that have ended counts until it is free.
    pub fn slice_marks(&self) -> Vec<SliceMark> {
        high_water::all(&self.lock(), self.gpus.len())
    }

    fn oom_is_due(&self, state: &mut State) -> bool {
        let every = self.faults.unwrap_or(state.faults).oom_every;
        let slot = &mut state.slots[self.slot];
        slot.allocations += 1;
        every != 0 && slot.allocations.is_multiple_of(every)
    }

    /// Lets go of memory this process allocated or imported. With its last holder the memory is
    /// wiped and free. The caller has unmapped it.
    pub fn mem_free(&self, key: MemoryKey) -> Result<(), DeviceError> {
        let gpu = self.gpu(usize::from(key.gpu))?;
        // From the release to the end of wiping this thread wipes the block; the lock keeps another
        // thread's scrub() from wiping it, too.
        let scrubbing = self.scrubbing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (extents, left) = self.look_only(self.lock(), Some(gpu), |state, _| {
            let State { gpus, slots, .. } = state;
            let gpu_state = &mut gpus[gpu];
            let first = memory::held(gpu_state, key)?;
            if !gpu_state.blocks[first as usize].is_holder(self.slot) {
                return Err(DeviceError::StaleMemory);
            }
            let mut last = memory::release(gpu_state, slots, gpu, first, self.slot, self.slot);
            let block = &gpu_state.blocks[first as usize];
            let orphan = !last && block.exported != 0 && !block.is_held();
            if orphan && !self.exports.is_held(gpu, first) {
                memory::hand_over(gpu_state, first, self.slot);
                last = true;
            }
            Ok(if last { memory::extents(gpu_state, first) } else { Vec::new() })
        });
        let freed = extents.map(|extents| {
            if !extents.is_empty() {
                self.wipe(gpu, &extents);
                memory::finish_scrub(&mut self.lock().gpus[gpu], key.block);
            }
        });
        drop(scrubbing);
        if left {
            self.scrub();
        }
        freed
    }

    /// Holds another process's memory (or one's own again) by its key. Each process holds it once:
    /// one [`Machine::mem_free`] lets it go however often it was imported.
    pub fn mem_import(&self, key: MemoryKey) -> Result<Memory, DeviceError> {
        let gpu = self.gpu(usize::from(key.gpu))?;
        self.with(Some(gpu), |state, _| {
            let State { gpus, slots, .. } = state;
            let first = memory::held(&gpus[gpu], key)?;
            memory::hold(&mut gpus[gpu], slots, gpu, first, self.slot);
            self.mark(state, gpu);
            Ok(Memory { key, extents: memory::extents(&state.gpus[gpu], first) })
        })
    }

    /// A descriptor that keeps memory this process holds alive for as long as any copy of it is
    /// open anywhere; [`Machine::mem_named`] tells the memory of one.
    ///
    /// # Errors
    /// The memory is not held, or the process has no descriptors left.
    pub fn mem_export(&self, key: MemoryKey) -> Result<File, DeviceError> {
        let gpu = self.gpu(usize::from(key.gpu))?;
        self.with(Some(gpu), |state, _| {
            let gpu_state = &mut state.gpus[gpu];
            let first = memory::held(gpu_state, key)?;
            if !gpu_state.blocks[first as usize].is_holder(self.slot) {
                return Err(DeviceError::StaleMemory);
            }
            let file = self.exports.hold(key).map_err(|_| DeviceError::NoDescriptor)?;
            memory::export(gpu_state, first);
            Ok(file)
        })
    }

    /// Notes that another process may import memory that this process holds, by its key.
    pub fn mem_offer(&self, key: MemoryKey) -> Result<(), DeviceError> {
        let gpu = self.gpu(usize::from(key.gpu))?;
        self.with(Some(gpu), |state, _| {
            let first = memory::held(&state.gpus[gpu], key)?;
            state.gpus[gpu].blocks[first as usize].offered = 1;
            Ok(())
        })
    }

    /// The memory a descriptor of [`Machine::mem_export`] keeps alive.
    pub fn mem_named(&self, fd: BorrowedFd) -> Result<MemoryKey, DeviceError> {
        let named = self.exports.named(fd).ok_or(DeviceError::StaleMemory)?;
        let (gpu, first) = (self.gpu(named.0)?, named.1);
        self.with(Some(gpu), |state, _| {
            let gpu_state = &state.gpus[gpu];
            let key = memory::key(gpu_state, gpu, first);
            memory::held(gpu_state, key).map(|_| key)
        })
    }

    /// Assigns for wiping the blocks that only descriptors held and none holds any more; returns
    /// whether there were any.
    pub(super) fn end_exports(&self, state: &mut State) -> bool {
        let mut any = false;
        for (gpu, gpu_state) in state.gpus.iter_mut().enumerate() {
            for first in memory::orphans(gpu_state) {
                if !self.exports.is_held(gpu, first) {
                    memory::hand_over(gpu_state, first, self.slot);
                    any = true;
                }
            }
        }
        any
    }

    /// A GPU's total, used and free memory; memory that is being wiped counts as used. A process whose own
    /// control group has a hard limit sees that as the total; limits further up do not show.
    pub fn mem_info(&self, gpu: usize) -> Result<MemoryInfo, DeviceError> {
        let gpu = self.gpu(gpu)?;
        self.note_cgroup();
        let (total, free, limit) = self.with(Some(gpu), |state, _| {
            let limit = quota::own_limit(state, gpu, self.slot);
            (state.gpus[gpu].total_pages, state.gpus[gpu].free_pages, limit)
        });
        let (mut total, mut free) = (u64::from(total) * PAGE_BYTES, u64::from(free) * PAGE_BYTES);
        if let Some((hard, used)) = limit {
            (total, free) = (total.min(hard), free.min(hard.saturating_sub(used)));
        }
        Ok(MemoryInfo { total, used: total - free, free })
    }

    /// Bytes of a GPU that processes hold, those that have ended included until they are taken back: used memory
    /// without memory that is only being wiped.
    pub fn mem_held(&self, gpu: usize) -> Result<u64, DeviceError> {
        let gpu = self.gpu(gpu)?;
        let (held, left) = self.with(Some(gpu), |state, now| {
            let left = self.reap(state, now);
            let it = &state.gpus[gpu];
            (it.total_pages - it.free_pages - it.scrub_pages, left)
        });
        if left {
            self.scrub();
        }
        Ok(u64::from(held) * PAGE_BYTES)
    }

    /// Wipes the blocks that are assigned to this process.
    pub(super) fn scrub(&self) {
        let _scrubbing = self.scrubbing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for gpu in 0..self.gpus.len() {
            let blocks: Vec<(u32, Vec<Extent>)> = {
                let state = self.lock();
                let gpu_state = &state.gpus[gpu];
                let firsts = memory::to_scrub(gpu_state, self.slot).into_iter();
                firsts.map(|first| (first, memory::extents(gpu_state, first))).collect()
            };
            for (first, extents) in blocks {
                self.wipe(gpu, &extents);
                memory::finish_scrub(&mut self.lock().gpus[gpu], first);
            }
        }
    }

    fn wipe(&self, gpu: usize, extents: &[Extent]) {
        for &extent in extents {
            vram::wipe(&self.vram[gpu], extent);
        }
    }
}
