//! A snapshot as JSON: `gpuslice ps --json`.

use super::{Gpu, Row, View, memory_enforcement_name, time_enforcement_name};
use serde_json::{Value, json};

/// A snapshot as one JSON object; sizes in bytes, times in ns.
pub fn json(view: &View) -> Value {
    let gpu = |gpu: &Gpu| {
        json!({
            "uuid": gpu.uuid.to_string(), "simulated": gpu.uuid.is_simulated(),
            "index": gpu.index, "memory_total": gpu.total.0,
            "memory_promised": gpu.promised.0, "slices": gpu.slices,
            "policy": gpu.policy.name(), "policy_number": gpu.policy.number(),
        })
    };
    let slice = |row: &Row| {
        json!({
            "container": row.container, "name": row.name, "gpu": row.gpu.to_string(),
            "simulated": row.gpu.is_simulated(),
            "memory_cap": row.cap.0, "memory_reserved": row.reserved.0, "memory_used": row.used.0,
            "memory_untracked": row.untracked.0, "memory_over": row.is_over(),
            "memory_peak": row.peak.0, "lane": row.lane.0,
            "memory_enforcement": memory_enforcement_name(row.memory_enforcement),
            "pinned": row.pinned.0, "pinned_cap": row.pinned_cap.map(|cap| cap.0),
            "denied": row.denied, "denied_need": row.last_denied.0.0,
            "denied_left": row.last_denied.1.0, "weight": row.weight,
            "share": row.share, "share_limit": row.share_limit, "class": row.class.name(), "time_cap_ppm": row.cap_ppm,
            "clients": row.clients, "runnable": row.runnable, "share_due": view.due(row),
            "gpu_ns": row.gpu_ns, "wait_ns": row.wait_ns, "runnable_ns": row.runnable_ns,
            "turns": row.turns, "late_turns": row.late_turns, "closed_early": row.closed_early,
            "launches": row.launches, "gang": row.gang, "stops": row.time.stops,
            "stops_missed": row.time.stops_missed,
            "time_enforcement": time_enforcement_name(row.time.enforcement),
            "time_slice_us": row.time.slice_us, "time_slice_changes": row.time.slice_changes,
        })
    };
    json!({
        "now_ns": view.now_ns,
        "gpus": view.gpus.iter().map(gpu).collect::<Vec<_>>(),
        "slices": view.rows.iter().map(slice).collect::<Vec<_>>(),
    })
}
