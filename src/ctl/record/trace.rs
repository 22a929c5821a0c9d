//! A recording in the trace event format of Chrome, which Perfetto reads. Pure.
//!
//! A GPU is a process of the trace, a slice a thread of it, a stretch a complete event (`"ph": "X"`). Times are in µs
//! with three decimals, which are the nanoseconds.

use super::Recording;
use crate::out::document;
use serde_json::{Value, json};

fn us(ns: u64) -> Value {
    Value::from(ns as f64 / 1_000.0)
}

/// The sums of each slice.
pub fn summary(recording: &Recording) -> Value {
    let tracks = recording.gpus.iter().flat_map(|(gpu, _)| recording.on(*gpu));
    let slices = tracks.map(|(number, track)| {
        let of = recording.sums(number);
        json!({
            "container": track.container, "name": track.name, "gpu": track.gpu.to_string(),
            "turns": of.turns, "gpu_ns": of.gpu_ns, "longest_ns": of.longest, "late_ns": of.late,
        })
    });
    let all = json!({
        "began_unix_ns": recording.unix_ns, "length_ns": recording.length,
        "dropped": recording.dropped, "slices": slices.collect::<Vec<_>>(),
    });
    document("record", 1, all)
}

/// The trace.
pub fn trace(recording: &Recording) -> Value {
    let mut events = Vec::new();
    let name = |what: &str, (pid, tid): (u32, u32), name: &str| json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } });
    for (pid, (gpu, called)) in (1..).zip(&recording.gpus) {
        let tracks = recording.on(*gpu);
        if tracks.is_empty() {
            continue;
        }
        events.push(name("process_name", (pid, 0), called));
        for (number, track) in tracks {
            events.push(name("thread_name", (pid, number), &track.name));
            for it in recording.rows.iter().filter(|it| it.track == number) {
                events.push(json!({
                    "ph": "X", "name": it.kind.name(), "cat": "gpu", "pid": pid, "tid": number,
                    "ts": us(it.from), "dur": us(it.to - it.from), "args": { "charged_ns": it.gpu_ns },
                }));
            }
        }
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events, "otherData": summary(recording) })
}
