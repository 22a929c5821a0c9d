//! The time until a best-effort kernel of 5 s has left the GPU after a high-priority request; with
//! preemption, which stops the kernel, and without, where the request waits for its end.
//!
//! All times are on the device's clock. The high-priority tenant reports its requests, the device the
//! preemption of best-effort work or the end of its kernel. A request at an idle GPU is not counted.

use crate::gates::{Log, quiet, wants};
use crate::node::{Node, watched};
use crate::{Error, Pace, Row};
use gpuslice_sim_device::{ContextId, now_ns};
use std::path::Path;
use std::time::Duration;

/// Polling interval: the device keeps the last 64 stops.
const LOOK: Duration = Duration::from_millis(20);

/// Request to drained and request to first kernel with preemption; request to drained without.
///
/// # Errors
/// The node does not work.
pub fn stopped(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let with = measure(parts, pace.seconds(10.0), true)?;
    let without = measure(parts, pace.seconds(60.0), false)?;
    let free = f64::INFINITY;
    Ok(vec![
        Row::of("high want to quiet, 5 s kernel, preemption", "µs", with.quiet, 600.0),
        Row::of("high want to kernel, 5 s kernel, preemption", "µs", with.served, free),
        Row::of("high want to quiet, 5 s kernel, none", "µs", without.quiet, free),
    ])
}

/// Latency of each request, µs.
struct Waits {
    quiet: Vec<f64>,
    served: Vec<f64>,
}

fn measure(parts: &Path, long: Duration, preempts: bool) -> Result<Waits, Error> {
    let config = format!("preemption = \"{}\"\n", if preempts { "probe" } else { "off" });
    let mut node = Node::configured(parts, 1, &config)?;
    let work = "--seconds 600 --kernel-us 5000000";
    let low = node.tenant(0, ("--priority best-effort", work))?;
    let seconds = long.as_secs_f64();
    let pulse = format!("--seconds {seconds} --kernel-us 50 --pause-us 5000");
    let (child, high) = node.started(0, ("--priority high", &pulse))?;
    std::thread::sleep(Duration::from_millis(500));
    let mut stops = Stops { low, all: Vec::new() };
    let (mut low, mut high) = (Log::of(&node, low), Log::of(&node, high));
    let from = now_ns();
    let said = watched(child, || {
        std::thread::sleep(LOOK);
        stops.look(&node);
        low.look(&node);
        high.look(&node);
    })?;
    let wants = wants(&said)?.into_iter().filter(|want| *want > from);
    let mut waits = Waits { quiet: Vec::new(), served: Vec::new() };
    for want in wants {
        let Some(served) = high.begins_after(want) else {
            continue;
        };
        let us = |at: u64| at.saturating_sub(want) as f64 / 1e3;
        let quiet = match preempts {
            true => stops.between(want, served).map(us),
            false => quiet(want, &low.done, &high.done),
        };
        if let Some(quiet) = quiet {
            waits.quiet.push(quiet);
            waits.served.push(us(served));
        }
    }
    Ok(waits)
}

/// Times at which best-effort work was preempted.
struct Stops {
    low: ContextId,
    all: Vec<u64>,
}

impl Stops {
    fn look(&mut self, node: &Node) {
        let last = self.all.last().copied().unwrap_or(0);
        let now = node.machine.stops(self.low).unwrap_or_default();
        self.all.extend(now.into_iter().filter(|at| *at > last));
    }

    fn between(&self, from: u64, to: u64) -> Option<u64> {
        let first = self.all.partition_point(|at| *at < from);
        self.all.get(first).copied().filter(|at| *at <= to)
    }
}
