//! Process lists and per-process utilisation: only the slice's own processes.
//!
//! NVML's lists share a convention: the caller gives room for `count` entries. With too little room the
//! result is INSUFFICIENT_SIZE and `count` the number needed; with no room the call asks for the count
//! (the result is INSUFFICIENT_SIZE too, but SUCCESS for video sessions). So the whole real list is read
//! into a buffer first, then filtered.

use super::peers::Peers;
use super::{Outcome, guard, lane};
use crate::real;
use gpuslice_nvabi::types::*;

/// Extra room beyond the reported count, for processes that start meanwhile.
const SLACK: u32 = 16;
/// More processes than run on any GPU.
const ENTRIES_MAX: u32 = 16_384;

/// An entry of one of the lists.
trait Entry: Copy {
    fn pid(&self) -> u32;
}

macro_rules! entries {
    ($($entry:ident)*) => {$(
        impl Entry for $entry {
            fn pid(&self) -> u32 {
                self.pid
            }
        }
    )*};
}
/// An entry of a list of video sessions, as words; the second is the pid.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct VideoSession<const WORDS: usize>([u32; WORDS]);

impl<const WORDS: usize> Entry for VideoSession<WORDS> {
    fn pid(&self) -> u32 {
        self.0[1]
    }
}

impl Entry for u32 {
    fn pid(&self) -> u32 {
        *self
    }
}

entries! {
    nvmlProcessInfo_v1_t nvmlProcessInfo_t nvmlProcessDetail_v1_t nvmlProcessUtilizationSample_t
    nvmlProcessUtilizationInfo_v1_t
}

/// The complete real list: `ask(count, room)` calls NVML, which writes both.
///
/// # Safety
/// `T` is the type of the entries that `ask` has written.
unsafe fn whole<T: Entry>(
    mut ask: impl FnMut(&mut u32, *mut T) -> nvmlReturn_t,
) -> Result<Vec<T>, nvmlReturn_t> {
    let mut count = 0;
    match ask(&mut count, core::ptr::null_mut()) {
        nvmlReturn_t::SUCCESS if count == 0 => return Ok(Vec::new()),
        nvmlReturn_t::SUCCESS | nvmlReturn_t::ERROR_INSUFFICIENT_SIZE => {}
        error => return Err(error),
    }
    loop {
        let room = count.saturating_add(SLACK).min(ENTRIES_MAX);
        let mut list = Vec::<T>::with_capacity(room as usize);
        count = room;
        match ask(&mut count, list.as_mut_ptr()) {
            nvmlReturn_t::SUCCESS => {
                // SAFETY: NVML wrote `count` entries, and no more than there was room for.
                unsafe { list.set_len(count.min(room) as usize) };
                return Ok(list);
            }
            nvmlReturn_t::ERROR_INSUFFICIENT_SIZE if room < ENTRIES_MAX && count > room => {}
            error => return Err(error),
        }
    }
}

/// Writes the slice's own entries to the caller's buffer, by NVML's convention. `none`: NVML's answer without entries.
///
/// # Safety
/// `count` is null or the caller's, `room` null or with room for `*count` entries.
unsafe fn hand_out<T: Entry>(
    list: Vec<T>,
    count: *mut u32,
    room: *mut T,
    none: nvmlReturn_t,
) -> Outcome {
    let peers = Peers::look();
    let ours: Vec<T> = list.into_iter().filter(|entry| peers.include(entry.pid())).collect();
    // SAFETY: as the function's head says; NVML has accepted it.
    let given = unsafe { core::mem::replace(&mut *count, ours.len() as u32) };
    if ours.is_empty() {
        return Ok(none);
    }
    if room.is_null() || (given as usize) < ours.len() {
        return Ok(nvmlReturn_t::ERROR_INSUFFICIENT_SIZE);
    }
    // SAFETY: there is room for `given` entries, and no more are written.
    unsafe { core::ptr::copy_nonoverlapping(ours.as_ptr(), room, ours.len()) };
    Ok(nvmlReturn_t::SUCCESS)
}

/// One process-list function: outside a slice the call itself, inside a slice its filtered result.
macro_rules! lists {
    ($($name:ident($room:ty) as $entry:ty $(, counted $without:ident room)?;)*) => {$(
        pub unsafe extern "C" fn $name(
            device: nvmlDevice_t,
            info_count: *mut u32,
            infos: *mut $room,
        ) -> nvmlReturn_t {
            guard(|| {
                if info_count.is_null() || lane(device)?.is_none() {
                    return Ok(real!($name(device, info_count, infos)));
                }
                let ask = |count: &mut u32, room: *mut $entry| {
                    real!($name(device, count, room.cast()))
                };
                // SAFETY: the entry type of this function; the application's own pointers.
                let given = unsafe {
                    hand_out(whole(ask)?, info_count, infos.cast::<$entry>(), nvmlReturn_t::SUCCESS)
                };
                $(
                    let $without = infos.is_null();
                    if $without && given == Ok(nvmlReturn_t::ERROR_INSUFFICIENT_SIZE) {
                        return Ok(nvmlReturn_t::SUCCESS);
                    }
                )?
                given
            })
        }
    )*};
}
lists! {
    nvmlDeviceGetComputeRunningProcesses(nvmlProcessInfo_v1_t) as nvmlProcessInfo_v1_t;
    nvmlDeviceGetComputeRunningProcesses_v2(c_void) as nvmlProcessInfo_t;
    nvmlDeviceGetComputeRunningProcesses_v3(nvmlProcessInfo_t) as nvmlProcessInfo_t;
    nvmlDeviceGetGraphicsRunningProcesses(nvmlProcessInfo_v1_t) as nvmlProcessInfo_v1_t;
    nvmlDeviceGetGraphicsRunningProcesses_v2(c_void) as nvmlProcessInfo_t;
    nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlProcessInfo_t) as nvmlProcessInfo_t;
    nvmlDeviceGetMPSComputeRunningProcesses(nvmlProcessInfo_v1_t) as nvmlProcessInfo_v1_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v2(c_void) as nvmlProcessInfo_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlProcessInfo_t) as nvmlProcessInfo_t;
    nvmlDeviceGetAccountingPids(u32) as u32;
    nvmlDeviceGetEncoderSessions(c_void) as VideoSession<8>, counted without room;
    nvmlDeviceGetFBCSessions(c_void) as VideoSession<12>, counted without room;
}

/// Statistics of one process: only of the slice's own processes; an ended process belongs to no slice.
fn past(device: nvmlDevice_t, pid: u32, call: impl FnOnce() -> nvmlReturn_t) -> Outcome {
    if lane(device)?.is_some() && !Peers::look().include(pid) {
        return Ok(nvmlReturn_t::ERROR_NOT_FOUND);
    }
    Ok(call())
}

pub unsafe extern "C" fn nvmlDeviceGetAccountingStats(
    device: nvmlDevice_t,
    pid: u32,
    stats: *mut nvmlAccountingStats_t,
) -> nvmlReturn_t {
    let call = || real!(nvmlDeviceGetAccountingStats(device, pid, stats));
    guard(|| past(device, pid, call))
}

pub unsafe extern "C" fn nvmlDeviceGetAccountingStats_v2(
    device: nvmlDevice_t,
    stats: *mut c_void,
) -> nvmlReturn_t {
    let call = || real!(nvmlDeviceGetAccountingStats_v2(device, stats));
    guard(|| {
        if stats.is_null() {
            return Ok(call());
        }
        // SAFETY: the application's own, as NVML would read it: the process comes first.
        let pid = unsafe { stats.cast::<u32>().read_unaligned() };
        past(device, pid, call)
    })
}

pub unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    utilization: *mut nvmlProcessUtilizationSample_t,
    process_samples_count: *mut u32,
    last_seen_time_stamp: u64,
) -> nvmlReturn_t {
    guard(|| {
        let since = last_seen_time_stamp;
        if process_samples_count.is_null() || lane(device)?.is_none() {
            return Ok(real!(nvmlDeviceGetProcessUtilization(
                device,
                utilization,
                process_samples_count,
                since
            )));
        }
        let ask = |count: &mut u32, room: *mut nvmlProcessUtilizationSample_t| {
            real!(nvmlDeviceGetProcessUtilization(device, room, count, since))
        };
        // SAFETY: the entry type of this function; the application's own pointers.
        unsafe {
            hand_out(whole(ask)?, process_samples_count, utilization, nvmlReturn_t::ERROR_NOT_FOUND)
        }
    })
}

/// One function whose list is described by a structure with a count and a pointer, and its answer without entries.
macro_rules! described {
    ($($name:ident($structure:ty: $count:ident, $room:ident: $entry:ty) or $none:ident;)*) => {$(
        pub unsafe extern "C" fn $name(
            device: nvmlDevice_t,
            described: *mut $structure,
        ) -> nvmlReturn_t {
            guard(|| {
                if described.is_null() || lane(device)?.is_none() {
                    return Ok(real!($name(device, described)));
                }
                // SAFETY: the application's own, as NVML would read it.
                let described = unsafe { &mut *described };
                let ask = |count: &mut u32, room: *mut $entry| {
                    let mut asked = *described;
                    (asked.$count, asked.$room) = (*count, room);
                    let result = real!($name(device, &raw mut asked));
                    *count = asked.$count;
                    result
                };
                // SAFETY: the entry type of this function.
                let entries = unsafe { whole(ask)? };
                // SAFETY: the application's own room, of the length it names.
                unsafe {
                    hand_out(entries, &raw mut described.$count, described.$room, nvmlReturn_t::$none)
                }
            })
        }
    )*};
}
described! {
    nvmlDeviceGetRunningProcessDetailList(
        nvmlProcessDetailList_t: num_proc_array_entries, proc_array: nvmlProcessDetail_v1_t
    ) or SUCCESS;
    nvmlDeviceGetProcessesUtilizationInfo(
        nvmlProcessesUtilizationInfo_t: process_samples_count, proc_util_array: nvmlProcessUtilizationInfo_v1_t
    ) or ERROR_NOT_FOUND;
}
