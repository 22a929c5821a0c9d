//! Series of a slice's wall time: one for each part, and for each container that it waited behind.

use super::text::{Pods, escaped, head};
use crate::wall_time::WallTime;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::waits::WaitBehind;
use std::fmt::Write;

/// Nanoseconds in a second.
const NS: f64 = 1e9;

const WALL: &str = "slice_wall_seconds_total";
const BEHIND: &str = "slice_waited_behind_seconds_total";
const OTHERS: &str = "slice_waited_behind_others_seconds_total";
const LONGEST: &str = "slice_longest_wait_seconds";

/// Adds all series of these rows.
pub fn add(text: &mut String, rows: &[Snapshot], pods: &Pods) {
    let all: Vec<WallTime> = rows.iter().filter_map(WallTime::of).collect();
    if all.is_empty() {
        return;
    }
    let line = |text: &mut String, name: &str, time: &WallTime, labels: &str, ns: u64| {
        let pod = pods.of_container(&time.container);
        line(text, name, time, &format!("{pod}{labels}"), ns);
    };
    head(text, WALL, "Wall time of the slice by where it went (part); the parts add up to it.");
    for time in &all {
        for (part, ns) in time.parts {
            line(text, WALL, time, &format!(",part=\"{part}\""), ns);
        }
    }
    let help = "Time spent waiting behind a container (behind): the three that cost it most.";
    behind(text, (BEHIND, help), &all, &line, |wait| (String::new(), wait.total_ns));
    head(text, OTHERS, "Time spent waiting behind all other containers.");
    all.iter().for_each(|time| line(text, OTHERS, time, "", time.others_ns));
    let help = "Longest single wait behind that container, and the cause of its larger part.";
    let longest =
        |wait: &WaitBehind| (format!(",cause=\"{}\"", wait.cause.name()), wait.longest_ns);
    behind(text, (LONGEST, help), &all, &line, longest);
}

/// A family with a series for each container that a slice waited behind: further labels and value, ns.
fn behind(
    text: &mut String,
    (name, help): (&str, &str),
    all: &[WallTime],
    line: &impl Fn(&mut String, &str, &WallTime, &str, u64),
    of: impl Fn(&WaitBehind) -> (String, u64),
) {
    if all.iter().all(|time| time.waits().next().is_none()) {
        return;
    }
    head(text, name, help);
    for time in all {
        for (container, wait) in time.waits() {
            let (labels, ns) = of(wait);
            let labels = format!(",behind=\"{}\"{labels}", escaped(container.as_str()));
            line(text, name, time, &labels, ns);
        }
    }
}

fn line(text: &mut String, name: &str, time: &WallTime, labels: &str, ns: u64) {
    let container = escaped(time.container.as_str());
    let (gpu, value) = (time.gpu, ns as f64 / NS);
    let own = format!("container=\"{container}\",gpu=\"{gpu}\"");
    // into a string: cannot fail
    let _ = writeln!(text, "gpuslice_{name}{{{own}{labels}}} {value}");
}
