//! Enforcement levels in words, and those of a running daemon's slices.

use super::{Check, there};
use crate::table::{Row, View, memory_enforcement_name, time_enforcement_name};
use gpuslice_wire::snapshot::{MemoryEnforcement, TimeEnforcement};

/// Describes how a memory cap is enforced.
pub fn describe_memory(level: MemoryEnforcement) -> String {
    let how = match level {
        MemoryEnforcement::Shim => "the shim enforces caps",
        MemoryEnforcement::Accounted => "the shim enforces caps, and NVML's figures are charged",
        MemoryEnforcement::Driver => "the driver enforces caps",
    };
    format!("{}: {how}", memory_enforcement_name(level))
}

/// Describes how turns are enforced.
pub fn describe_time(level: TimeEnforcement) -> String {
    let how = match level {
        TimeEnforcement::Shim => "work in flight after a turn is waited for",
        TimeEnforcement::Timeslice => {
            "late work is waited for, and hardware time slices divide overlapping work by weight"
        }
        TimeEnforcement::Preempt => "late work is preempted on the GPU",
    };
    format!("{}: {how}", time_enforcement_name(level))
}

/// One check per slice of a running daemon: its actual enforcement levels.
pub fn of_slices(view: &View) -> Vec<Check> {
    let of = |row: &Row| {
        let over = if view.is_over(row) { ", held above the cap" } else { "" };
        let (caps, turns) =
            (describe_memory(row.memory_enforcement), describe_time(row.time_enforcement));
        let slices = describe_slice(row.time_slice_us, row.time_slice_changes);
        let gpu = view.called(row.gpu);
        let found = format!("{gpu}: {caps}{over}; {turns}{slices}");
        there(&format!("slice {}", row.name), found)
    };
    view.rows.iter().map(of).collect()
}

/// Describes the hardware time slice that was set, and whether a process changed it.
fn describe_slice(us: u64, changes: u64) -> String {
    let kept = match changes {
        0 => String::new(),
        times => format!("; its processes changed them {times} times: inspect the processes in it"),
    };
    match us {
        0 => kept,
        us => format!(", time slices of {us} µs{kept}"),
    }
}
