//! Event sets: a listener registers devices and waits for what happens to them. The only kind of
//! event a simulated GPU has is the Xid, a context killed by a fault.

use crate::abi::{Out, Outcome};
use crate::session::{gpu, handle, machine};
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::limits::MAX_GPUS;
use gpuslice_sim_device::now_ns;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A set: which GPUs it listens to, and how many events it has seen.
#[derive(Clone, Copy)]
struct Set {
    listens: [bool; MAX_GPUS],
    seen: u64,
}

/// Sets of this process; a handle is the place + 1. More than this many is a leak.
const MAX_SETS: usize = 1024;
static SETS: Mutex<Vec<Option<Set>>> = Mutex::new(Vec::new());

fn sets() -> MutexGuard<'static, Vec<Option<Set>>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn place(set: nvmlEventSet_t) -> usize {
    (set.0 as usize).wrapping_sub(1)
}

fn look_up(sets: &mut [Option<Set>], set: nvmlEventSet_t) -> Result<&mut Set, nvmlReturn_t> {
    let found = sets.get_mut(place(set)).and_then(Option::as_mut);
    found.ok_or(nvmlReturn_t::ERROR_INVALID_ARGUMENT)
}

pub(crate) fn nvmlEventSetCreate(set: Out<nvmlEventSet_t>) -> Outcome {
    let seen = machine()?.event_count();
    if set.is_null() {
        return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    let new = Some(Set { listens: [false; MAX_GPUS], seen });
    let mut sets = sets();
    let at = match sets.iter().position(Option::is_none) {
        Some(free) => free,
        None if sets.len() < MAX_SETS => {
            sets.push(None);
            sets.len() - 1
        }
        None => return Err(nvmlReturn_t::ERROR_INSUFFICIENT_RESOURCES),
    };
    sets[at] = new;
    set.put(nvmlEventSet_t((at + 1) as *mut _))
}

pub(crate) fn nvmlEventSetFree(set: nvmlEventSet_t) -> Outcome {
    machine()?;
    let mut sets = sets();
    look_up(&mut sets, set)?;
    sets[place(set)] = None;
    Ok(())
}

pub(crate) fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, types: Out<u64>) -> Outcome {
    gpu(device)?;
    types.put(nvmlEventTypeXidCriticalError)
}

pub(crate) fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    types: u64,
    set: nvmlEventSet_t,
) -> Outcome {
    let index = gpu(device)?.1.index;
    let mut sets = sets();
    let set = look_up(&mut sets, set)?;
    if types & !nvmlEventTypeXidCriticalError != 0 {
        return Err(nvmlReturn_t::ERROR_NOT_SUPPORTED);
    }
    set.listens[index] |= types != 0;
    Ok(())
}

pub(crate) fn nvmlEventSetWait(
    set: nvmlEventSet_t,
    data: Out<nvmlEventData_t>,
    timeout_ms: u32,
) -> Outcome {
    let machine = machine()?;
    if data.is_null() {
        return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    let deadline = now_ns() + u64::from(timeout_ms) * 1_000_000;
    loop {
        let Set { listens, seen } = *look_up(&mut sets(), set)?;
        let (event, now_seen) =
            machine.next_event(seen, deadline).ok_or(nvmlReturn_t::ERROR_TIMEOUT)?;
        look_up(&mut sets(), set)?.seen = now_seen;
        if listens[event.gpu] {
            return data.put(nvmlEventData_t {
                device: handle(event.gpu),
                event_type: nvmlEventTypeXidCriticalError,
                event_data: u64::from(event.xid),
                gpu_instance_id: u32::MAX,
                compute_instance_id: u32::MAX,
            });
        }
    }
}

pub(crate) fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: Out<nvmlEventData_t>,
    timeout_ms: u32,
) -> Outcome {
    nvmlEventSetWait(set, data, timeout_ms)
}
