//! A snapshot for programs: `gpuslice ps --json`.

use super::{Gpu, Row, View, tier_name, time_tier_name};
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
            "memory_residual": row.residual.0, "memory_over": row.is_over(),
            "memory_peak": row.peak.0, "lane": row.lane.0, "tier": tier_name(row.tier),
            "pinned": row.pinned.0, "pinned_cap": row.pinned_cap.map(|cap| cap.0),
            "denied": row.denied, "denied_need": row.last_denied.0.0,
            "denied_left": row.last_denied.1.0, "weight": row.weight,
            "share": row.share, "class": row.class.name(), "time_cap_ppm": row.cap_ppm,
            "clients": row.clients, "wanting": row.wanting, "share_due": view.due(row),
            "gpu_ns": row.gpu_ns, "wait_ns": row.wait_ns, "wanted_ns": row.wanted_ns,
            "turns": row.turns, "overruns": row.overruns, "preemptions": row.preemptions,
            "launches": row.launches, "gang": row.gang, "stops": row.kept.stops,
            "stops_missed": row.kept.stops_missed,
            "time_tier": time_tier_name(row.kept.tier),
            "time_slice_us": row.kept.slice_us, "time_slice_changes": row.kept.slice_changes,
        })
    };
    json!({
        "now_ns": view.now_ns,
        "gpus": view.gpus.iter().map(gpu).collect::<Vec<_>>(),
        "slices": view.rows.iter().map(slice).collect::<Vec<_>>(),
    })
}
