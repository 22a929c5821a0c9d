//! How soon is the GPU free of a kernel of 5 s when somebody who goes first wants it? With the hardware tier,
//! which stops it, and without, where it is waited for.
//!
//! By the device's clock: the high-priority tenant says when it asked, the device when best effort was taken
//! off the GPU, or when its kernel ended. A want at which nobody else was on the GPU counts for nothing.

use crate::gates::{Log, quiet, wants};
use crate::node::Node;
use crate::{Error, Pace, Row};
use gpuslice_sim_device::{ContextId, now_ns};
use std::path::Path;
use std::time::Duration;

/// Between two looks: the device remembers the last 64 stops.
const LOOK: Duration = Duration::from_millis(20);

/// Want to quiet, and want to the kernel that was wanted, with the tier; want to quiet without.
///
/// # Errors
/// The node does not work.
pub fn stopped(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let with = measure(parts, pace.seconds(10.0), true)?;
    let without = measure(parts, pace.seconds(60.0), false)?;
    let free = f64::INFINITY;
    Ok(vec![
        Row::of(
            "high want to quiet, 5 s kernel, tier",
            "µs",
            with.quiet,
            600.0,
        ),
        Row::of(
            "high want to kernel, 5 s kernel, tier",
            "µs",
            with.served,
            free,
        ),
        Row::of(
            "high want to quiet, 5 s kernel, none",
            "µs",
            without.quiet,
            free,
        ),
    ])
}

/// What every want took, µs.
struct Waits {
    quiet: Vec<f64>,
    served: Vec<f64>,
}

fn measure(parts: &Path, long: Duration, tier: bool) -> Result<Waits, Error> {
    let config = format!("preemption = \"{}\"\n", if tier { "probe" } else { "off" });
    let mut node = Node::configured(parts, 1, &config)?;
    let work = "--seconds 600 --kernel-us 5000000";
    let low = node.tenant(0, ("--priority best-effort", work))?;
    let seconds = long.as_secs_f64();
    let pulse = format!("--seconds {seconds} --kernel-us 50 --pause-us 5000");
    let (mut child, high) = node.started(0, ("--priority high", &pulse))?;
    std::thread::sleep(Duration::from_millis(500));
    let mut stops = Stops {
        low,
        all: Vec::new(),
    };
    let (mut low, mut high) = (Log::of(&node, low), Log::of(&node, high));
    let from = now_ns();
    while child.try_wait()?.is_none() {
        std::thread::sleep(LOOK);
        stops.look(&node);
        low.look(&node);
        high.look(&node);
    }
    let said = std::io::read_to_string(child.stdout.take().ok_or("no output")?)?;
    let wants = wants(&said)?.into_iter().filter(|want| *want > from);
    let mut waits = Waits {
        quiet: Vec::new(),
        served: Vec::new(),
    };
    for want in wants {
        let Some(served) = high.begins_after(want) else {
            continue;
        };
        let us = |at: u64| at.saturating_sub(want) as f64 / 1e3;
        let quiet = match tier {
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

/// When best effort was taken off the GPU.
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
