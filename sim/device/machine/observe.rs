//! The view of NVML and tools.

use super::Machine;
use crate::alive::Holder;
use crate::clock::now_ns;
use crate::error::DeviceError;
use crate::events::{self, XidEvent};
use crate::faults::Faults;
use crate::layout::{DRIVER, State};
use crate::limits::{BUCKET_NS, PAGE_BYTES};
use crate::lock;
use crate::types::{ContextId, MemoryInfo, ProcessInfo};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Utilisation covers this many whole buckets.
const WINDOW: u64 = 10;

impl Machine {
    /// Processes with a context on the GPU, by slot; those the caller's pid namespace does not
    /// show are left out, as NVML does.
    pub fn processes(&self, gpu: usize) -> Result<Vec<ProcessInfo>, DeviceError> {
        self.listed(gpu, false)
    }

    fn listed(&self, gpu: usize, sampled: bool) -> Result<Vec<ProcessInfo>, DeviceError> {
        let gpu = self.gpu(gpu)?;
        let (slots, left) = self.with(Some(gpu), |state, now| {
            let left = self.reap(state, now);
            // One walk over the contexts, not one for each process.
            let mut slots: BTreeMap<usize, ProcessInfo> = BTreeMap::new();
            // A caller's memory grows with each context that it reads, so none is read for nothing.
            let has_driver = state.slots.iter().any(|one| one.kind == DRIVER && one.ended == 0);
            for context in state.contexts.iter().filter(|_| has_driver) {
                let slot = context.slot as usize;
                let shown = context.live != 0
                    && context.gpu == gpu as u32
                    && state
                        .slots
                        .get(slot)
                        .is_some_and(|one| one.kind == DRIVER && one.ended == 0);
                if !shown {
                    continue;
                }
                let pages = match sampled {
                    true => state.gpus[gpu].sample.used_pages[slot],
                    false => state.slots[slot].used_pages[gpu],
                };
                let info = slots.entry(slot).or_insert(ProcessInfo {
                    pid: 0,
                    used_bytes: u64::from(pages) * PAGE_BYTES,
                    contexts: 0,
                    busy_ns: 0,
                    utilisation: 0,
                });
                info.contexts += 1;
                info.busy_ns += context.busy_ns;
                info.utilisation = (info.utilisation + context.load.percent(now, WINDOW)).min(100);
            }
            (slots, left)
        });
        if left {
            self.scrub();
        }
        Ok(slots.into_iter().filter_map(|(slot, info)| self.with_pid(slot, info)).collect())
    }

    fn with_pid(&self, slot: usize, info: ProcessInfo) -> Option<ProcessInfo> {
        Some(ProcessInfo { pid: self.pid_of(slot)?, ..info })
    }

    /// The pid of a slot's process, if the caller's pid namespace shows it.
    pub(super) fn pid_of(&self, slot: usize) -> Option<u32> {
        if self.is_own(slot) {
            return Some(self.pid);
        }
        match self.locks.holder(slot) {
            Holder::Process(pid) => u32::try_from(pid).ok().filter(|pid| *pid > 0),
            Holder::None => None,
        }
    }

    /// Takes NVML's figures of a GPU, or of all, if it is time to. What happens next is not in them until it is
    /// time again, as with a card whose own processor samples.
    pub(super) fn sample(&self, state: &mut State, gpu: Option<usize>, now: u64) {
        let every = self.properties().late_ns;
        if every == 0 {
            return;
        }
        let used = (state.slots_used as usize).min(state.slots.len());
        let State { slots, gpus, .. } = state;
        for index in gpu.map_or(0..self.gpus.len(), |one| one..one + 1) {
            let gpu = &mut gpus[index];
            if gpu.sample.time_ns != 0 && now.saturating_sub(gpu.sample.time_ns) < every {
                continue;
            }
            (gpu.sample.time_ns, gpu.sample.free_pages) = (now, gpu.free_pages);
            for (slot, shown) in slots[..used].iter().zip(&mut gpu.sample.used_pages) {
                *shown = slot.used_pages[index];
            }
        }
    }

    /// [`Machine::mem_info`] as NVML tells it: of the last sample.
    ///
    /// # Errors
    /// There is no such GPU.
    pub fn sampled_mem_info(&self, gpu: usize) -> Result<MemoryInfo, DeviceError> {
        let info = self.mem_info(gpu)?;
        if self.properties().late_ns == 0 {
            return Ok(info);
        }
        let free = self.with(Some(gpu), |state, _| state.gpus[gpu].sample.free_pages);
        let free = (u64::from(free) * PAGE_BYTES).min(info.total);
        Ok(MemoryInfo { used: info.total - free, free, ..info })
    }

    /// [`Machine::processes`] as NVML tells it: of the last sample, in which a new process has no memory yet.
    ///
    /// # Errors
    /// There is no such GPU.
    pub fn sampled_processes(&self, gpu: usize) -> Result<Vec<ProcessInfo>, DeviceError> {
        self.listed(gpu, self.properties().late_ns != 0)
    }

    /// Living contexts of a GPU, of all processes.
    pub fn contexts(&self, gpu: usize) -> Result<Vec<ContextId>, DeviceError> {
        let gpu = self.gpu(gpu)?;
        Ok(self.with(Some(gpu), |state, _| {
            let living = state.contexts.iter().enumerate();
            let living =
                living.filter(|(_, context)| context.live != 0 && context.gpu == gpu as u32);
            living
                .map(|(index, context)| ContextId {
                    index: index as u16,
                    generation: context.generation,
                })
                .collect()
        }))
    }

    /// Percent of the last 200 ms the GPU was doing something.
    pub fn utilisation(&self, gpu: usize) -> Result<u32, DeviceError> {
        let gpu = self.gpu(gpu)?;
        Ok(self.with(Some(gpu), |state, now| state.gpus[gpu].load.percent(now, WINDOW)))
    }

    /// Time the GPU has worked since the device was made, context switches included.
    pub fn busy_ns(&self, gpu: usize) -> Result<u64, DeviceError> {
        let gpu = self.gpu(gpu)?;
        Ok(self.with(Some(gpu), |state, _| state.gpus[gpu].busy_ns))
    }

    /// Length of the window [`Machine::utilisation`] tells of.
    pub fn utilisation_window_ns() -> u64 {
        WINDOW * BUCKET_NS
    }

    /// How many Xid events there have been; where a new listener starts.
    pub fn event_count(&self) -> u64 {
        self.lock().event_count
    }

    /// The first Xid event after the `seen` first ones, with the new value for `seen`; waits for
    /// one at most until `deadline_ns`.
    pub fn next_event(&self, seen: u64, deadline_ns: u64) -> Option<(XidEvent, u64)> {
        let word = &self.mapping.header().events;
        loop {
            let before = word.load(Ordering::Acquire);
            if let Some(found) = events::next(&self.lock(), seen) {
                return Some(found);
            }
            let left = deadline_ns.saturating_sub(now_ns());
            if left == 0 {
                return None;
            }
            lock::wait(word, before, left.min(1_000_000_000) as i64);
        }
    }

    /// The faults of this process: its own, or those of all.
    pub(super) fn faults(&self) -> Faults {
        self.faults.unwrap_or_else(|| self.lock().faults)
    }

    /// Arms other faults for every process from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }
}
