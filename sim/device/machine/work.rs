//! Contexts and the work queued on them.

use super::Machine;
use crate::clock::{now_ns, sleep_until_ns};
use crate::error::DeviceError;
use crate::layout::State;
use crate::limits::{MAX_PENDING, MAX_SLEEP_NS, PAGE_BYTES};
use crate::types::{ContextId, ContextInfo, Kind, Recalled, Seq, Status, Work};
use crate::{lock, process, time};
use std::sync::atomic::Ordering;

/// Pause between two looks for room where no end is foreseen.
const ROOM_LOOK_NS: u64 = 50_000;

impl Machine {
    /// Makes a context; it takes its overhead from the GPU's memory, and from now on the process
    /// shows in the GPU's process list.
    pub fn context_create(&self, gpu: usize) -> Result<ContextId, DeviceError> {
        let header = self.mapping.header();
        self.create_context(gpu, (header.context_pages, header.first_context_pages))
    }

    /// Makes what a context is while the driver creates it: it takes so many bytes, and shows as one.
    pub fn context_begin(&self, gpu: usize, bytes: u64) -> Result<ContextId, DeviceError> {
        self.create_context(gpu, (bytes.div_ceil(PAGE_BYTES) as u32, 0))
    }

    fn create_context(&self, gpu: usize, overhead: (u32, u32)) -> Result<ContextId, DeviceError> {
        let gpu = self.gpu(gpu)?;
        self.note_cgroup();
        self.retry_short(gpu, |state| {
            let made = process::create_context(state, gpu, self.slot, overhead);
            self.mark(state, gpu);
            made
        })
    }

    /// Ends a context; its queued work never completes. Its process's allocations stay.
    pub fn context_destroy(&self, id: ContextId) -> Result<(), DeviceError> {
        let left = self.with(None, |state, _| {
            let slot = process::context(state, id)?.slot;
            if slot != self.slot as u32 {
                return Err(DeviceError::StaleContext);
            }
            Ok(process::destroy_context(state, usize::from(id.index), self.slot))
        })?;
        if left {
            self.scrub();
        }
        Ok(())
    }

    /// Queues work behind all earlier work of its queue in the context.
    pub fn submit(&self, id: ContextId, work: Work) -> Result<Seq, DeviceError> {
        let mut xid_raised = false;
        let result = self.with_context(id, |state, now| {
            let index = usize::from(id.index);
            let context = &state.contexts[index];
            if context.fault_xid != 0 {
                return Err(DeviceError::Faulted { xid: context.fault_xid });
            }
            if u64::from(context.pending) >= MAX_PENDING {
                return Err(DeviceError::QueueFull);
            }
            let mut duration_ns = work.duration_ns;
            if work.kind == Kind::Kernel {
                let faults = self.faults.unwrap_or(state.faults);
                let slot = &mut state.slots[self.slot];
                slot.launches += 1;
                duration_ns = duration_ns.saturating_add(faults.slow_launch_ns);
                if faults.xid != 0 && slot.launches == faults.xid_at_launch {
                    xid_raised = true;
                    process::fault(state, index, faults.xid as u32, now);
                    return Err(DeviceError::Faulted { xid: faults.xid as u32 });
                }
            }
            let State { gpus, contexts, .. } = state;
            let gpu = &mut gpus[contexts[index].gpu as usize];
            let work = Work { duration_ns, ..work };
            Ok(time::push(gpu, &mut contexts[index], id.index, work))
        });
        if xid_raised {
            self.announce_event();
        }
        result
    }

    /// Takes back work from `from` on that has not begun, because a condition it depends on no longer
    /// holds.
    pub fn recall(&self, id: ContextId, from: Seq) -> Result<Recalled, DeviceError> {
        self.with_context(id, |state, _| {
            let index = usize::from(id.index);
            let State { contexts, gpus, .. } = state;
            let gpu = &mut gpus[contexts[index].gpu as usize];
            Ok(time::recall(gpu, &mut contexts[index], id.index, from.0))
        })
    }

    /// Where a piece of work of any process's context stands.
    pub fn poll(&self, id: ContextId, seq: Seq) -> Result<Status, DeviceError> {
        self.with_context(id, |state, _| {
            let gpu = &state.gpus[state.contexts[usize::from(id.index)].gpu as usize];
            Ok(time::status(gpu, &state.contexts, id.index, seq.0))
        })
    }

    /// Sleeps until the work is done or its context faulted.
    pub fn wait(&self, id: ContextId, seq: Seq) -> Result<Status, DeviceError> {
        loop {
            match self.poll(id, seq)? {
                Status::Pending { earliest_ns } => nap(earliest_ns),
                over => return Ok(over),
            }
        }
    }

    /// Sleeps until a full queue has room again.
    pub fn wait_for_room(&self, id: ContextId) -> Result<(), DeviceError> {
        loop {
            let info = self.context_info(id)?;
            if let Some(xid) = info.fault {
                return Err(DeviceError::Faulted { xid });
            }
            if info.pending < MAX_PENDING {
                return Ok(());
            }
            // Half the queue: waking for every single completion would cost more than it gives.
            match self.poll(id, Seq(info.completed + MAX_PENDING / 2))? {
                Status::Pending { earliest_ns } => nap(earliest_ns),
                // That has ended, and others have not.
                _ => nap(now_ns() + ROOM_LOOK_NS),
            }
        }
    }

    /// Kills a context of any process as the hardware does after a fault, with this Xid.
    pub fn kill_context(&self, id: ContextId, xid: u32) -> Result<(), DeviceError> {
        self.with_context(id, |state, now| {
            if state.contexts[usize::from(id.index)].fault_xid == 0 {
                process::fault(state, usize::from(id.index), xid, now);
            }
            Ok(())
        })?;
        self.announce_event();
        Ok(())
    }

    /// The device's own account of a context of any process.
    pub fn context_info(&self, id: ContextId) -> Result<ContextInfo, DeviceError> {
        self.with_context(id, |state, _| {
            let context = &state.contexts[usize::from(id.index)];
            Ok(ContextInfo {
                gpu: context.gpu as usize,
                busy_ns: context.busy_ns,
                completed: context.head,
                pending: u64::from(context.pending),
                fault: Some(context.fault_xid).filter(|&xid| xid != 0),
            })
        })
    }

    /// Watches the times between the ends of a context's work from now on. A context has one watch.
    pub fn watch_gaps(&self, id: ContextId) -> Result<(), DeviceError> {
        self.with_context(id, |state, now| {
            state.contexts[usize::from(id.index)].watch_gaps(now);
            Ok(())
        })
    }

    /// The longest time from one end to the next since the watch began, ns; one that lasts counts up to now.
    pub fn longest_gap_ns(&self, id: ContextId) -> Result<u64, DeviceError> {
        self.with_context(id, |state, now| {
            Ok(state.contexts[usize::from(id.index)].longest_gap(now))
        })
    }

    /// Does `work` with the context known to live and its GPU up to date.
    fn with_context<R>(
        &self,
        id: ContextId,
        work: impl FnOnce(&mut State, u64) -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        let state = self.lock();
        let gpu = process::context(&state, id)?.gpu as usize;
        self.look(state, Some(gpu), |state, now| {
            // Again: its process may just have been found dead.
            process::context(state, id)?;
            work(state, now)
        })
    }

    fn announce_event(&self) {
        let word = &self.mapping.header().events;
        word.fetch_add(1, Ordering::Release);
        lock::wake(word, i32::MAX);
    }
}

/// Sleeps towards `until`, but never so long that another process's death goes unnoticed.
fn nap(until: u64) {
    let now = now_ns();
    sleep_until_ns(until.min(now + MAX_SLEEP_NS));
}
