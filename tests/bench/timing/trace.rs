//! The device's users over time, reconstructed from samples of each context's device time.
//!
//! The device's counters are exact, but samples come at arbitrary instants. With at most one hand-over
//! between two samples its instants are exact too: the growth of one context ended, that of the other
//! began, and the time without growth is the gap between them.

use crate::node::Node;
use gpuslice_sim_device::{ContextId, now_ns};
use std::time::Duration;

/// Sampling interval.
const STEP: Duration = Duration::from_micros(60);

/// The gaps, in µs, between the end of `from`'s work and the beginning of `to`'s, over `length`.
pub fn gaps(node: &Node, from: ContextId, to: ContextId, length: Duration) -> Vec<f64> {
    let both = [from, to];
    let (mut gaps, mut idle) = (Vec::new(), None);
    let start = now_ns();
    let (mut then, mut before) = (start, node.busy(&both));
    while then < start + length.as_nanos() as u64 {
        std::thread::sleep(STEP);
        let (now, busy) = (now_ns(), node.busy(&both));
        let first = busy[0].saturating_sub(before[0]);
        let second = busy[1].saturating_sub(before[1]);
        let nobody = (now - then).saturating_sub(first + second);
        idle = match (first > 0, second > 0, idle) {
            // Both grew between two samples; their order is unknown.
            (true, true, _) => None,
            (true, false, _) => Some(nobody),
            (false, true, Some(idle)) => {
                gaps.push((idle + nobody) as f64 / 1e3);
                None
            }
            (false, true, None) => None,
            (false, false, idle) => idle.map(|idle: u64| idle + nobody),
        };
        (then, before) = (now, busy);
    }
    gaps
}
