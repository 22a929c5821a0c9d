//! Hand-over latency of the GPU: when its holder becomes idle, and when a higher class becomes runnable.

use crate::node::Node;
use crate::trace::gaps;
use crate::{Error, Pace, Row};
use serde_json::Value;
use std::path::Path;

/// Time from the last kernel of a holder with long pauses to the first kernel of the next container, in ms. The
/// holder ends its turn at once, so this is the hand-over.
///
/// # Errors
/// The node does not work.
pub fn idle(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let mut node = Node::start(parts, 1)?;
    let pulse = "--seconds 600 --kernel-us 2000 --pause-us 10000";
    let from = node.tenant(0, ("--weight 4", pulse))?;
    let to = node.tenant(0, ("", "--seconds 600 --kernel-us 100"))?;
    let gaps = gaps(&node, from, to, pace.seconds(15.0));
    let gaps = gaps.into_iter().map(|us| us / 1e3).collect();
    Ok(vec![Row::of("idle holder to next in line", "ms", gaps, 0.75)])
}

/// Latency of a high-priority tenant's kernel of 50 µs beyond its own length, in µs: alone, and while a
/// best-effort tenant is busy with such kernels. The second figure contains request, drain, grant, launch
/// and wake-up. So its excess over the first is at least the drain time, and the bound is on that.
///
/// # Errors
/// The node does not work.
pub fn priority(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let mut node = Node::start(parts, 1)?;
    let seconds = pace.seconds(10.0).as_secs_f64();
    let pulse = format!("--seconds {seconds} --kernel-us 50 --pause-us 2000");
    let high = ("--priority high", pulse.as_str());
    let alone = latency(&node.told(0, high)?)?;
    let work = "--seconds 600 --kernel-us 50";
    node.tenant(0, ("--priority best-effort", work))?;
    let busy = latency(&node.told(0, high)?)?;
    let row = |name: &str, (count, middle, top): (usize, f64, f64), bound| Row {
        name: name.to_owned(),
        unit: "µs",
        middle,
        high: top,
        bound,
        at_least: false,
        samples: count,
    };
    let added = (busy.0, busy.1 - alone.1, busy.2 - alone.1);
    Ok(vec![
        row("high priority alone, kernel to end", alone, f64::INFINITY),
        row("high want to best effort quiet", added, 150.0),
    ])
}

/// Count, median and p99 in µs, as reported by a tenant about its kernels.
///
/// # Errors
/// It reported none.
pub fn latency(said: &str) -> Result<(usize, f64, f64), Error> {
    let lines = said.lines();
    let mut events = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = events.find(|event| event["event"] == "latency");
    let found = found.ok_or("the tenant did not say how long its kernels took")?;
    let us = |key: &str| found[key].as_f64().unwrap_or(f64::NAN) / 1e3;
    let count = found["count"].as_u64().unwrap_or(0) as usize;
    Ok((count, us("p50_ns"), us("p99_ns")))
}
