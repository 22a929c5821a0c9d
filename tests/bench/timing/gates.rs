//! How soon is the GPU free of best effort when somebody who goes first wants it, and what does that cost
//! best effort? With gates in its streams, and without.
//!
//! By the device's clock: the high-priority tenant says when it asked, the device when best effort's kernels
//! began and ended. Quiet is the end of the last that began before the high kernel did; what counts is how long
//! after the want that was, nothing if nobody was there.

use crate::node::Node;
use crate::{Error, Pace, Row};
use gpuslice_sim_device::{ContextId, Seq, Status, now_ns};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Between two looks at what was done: of 4,096 kernels of a context the times are kept.
const LOOK: Duration = Duration::from_millis(20);

/// Beginnings and ends of a context's work, as they come.
struct Log {
    context: ContextId,
    next: u64,
    done: Vec<(u64, u64)>,
}

impl Log {
    fn look(&mut self, node: &Node) {
        let Ok(info) = node.machine.context_info(self.context) else {
            return;
        };
        for seq in self.next..info.completed {
            if let Ok(Status::Done { start_ns, end_ns }) = node.machine.poll(self.context, Seq(seq))
            {
                self.done.push((start_ns, end_ns));
            }
        }
        self.next = info.completed;
    }
}

/// Want to quiet without gates and with them, and what best effort gets with gates of what it gets
/// without.
///
/// # Errors
/// The node does not work.
pub fn preempted(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let (plain, without) = measure(parts, pace, false)?;
    let (gated, with) = measure(parts, pace, true)?;
    let part = 100.0 * with / without;
    let name = "best effort with gates of without";
    let part = Row::of(name, "%", vec![part], 95.0);
    Ok(vec![
        Row::of("high want to quiet, no gates", "µs", plain, f64::INFINITY),
        Row::of("high want to quiet, gates", "µs", gated, 150.0),
        Row {
            at_least: true,
            ..part
        },
    ])
}

/// Every want's time to quiet, µs, and best effort's part of the time that is left, percent.
fn measure(parts: &Path, pace: Pace, gates: bool) -> Result<(Vec<f64>, f64), Error> {
    let config = format!("stream_gates = {gates}\n");
    let mut node = Node::configured(parts, 1, &config)?;
    let work = "--seconds 600 --kernel-us 50";
    let low = node.tenant(0, ("--priority best-effort", work))?;
    let seconds = pace.seconds(10.0).as_secs_f64();
    let pulse = format!("--seconds {seconds} --kernel-us 50 --pause-us 2000");
    let (mut child, high) = node.started(0, ("--priority high", &pulse))?;
    std::thread::sleep(Duration::from_millis(500));
    let log = |context| Log {
        context,
        next: node
            .machine
            .context_info(context)
            .map_or(0, |info| info.completed),
        done: Vec::new(),
    };
    let (mut low, mut high) = (log(low), log(high));
    let (from, before) = (now_ns(), node.busy(&[low.context, high.context]));
    let (mut to, mut after) = (from, before.clone());
    while child.try_wait()?.is_none() {
        std::thread::sleep(LOOK);
        low.look(&node);
        high.look(&node);
        let now = node.busy(&[low.context, high.context]);
        // Its context goes a moment before its process.
        if now[1] > after[1] {
            (to, after) = (now_ns(), now);
        }
    }
    let said = std::io::read_to_string(child.stdout.take().ok_or("no output")?)?;
    let left = (to - from) - (after[1] - before[1]);
    let part = 100.0 * (after[0] - before[0]) as f64 / left as f64;
    let wants = wants(&said)?;
    let wants = wants.into_iter().filter(|want| *want > from && *want < to);
    let quiet = wants.filter_map(|want| quiet(want, &low.done, &high.done));
    Ok((quiet.collect(), part))
}

/// How long after `want` the last kernel of `low` ended that began before that of `high`, µs.
fn quiet(want: u64, low: &[(u64, u64)], high: &[(u64, u64)]) -> Option<f64> {
    let first = high.partition_point(|(start, _)| *start < want);
    let (served, _) = *high.get(first)?;
    let before = low.partition_point(|(start, _)| *start < served);
    let (_, end) = *low.get(before.checked_sub(1)?)?;
    Some(end.saturating_sub(want) as f64 / 1e3)
}

/// When the tenant asked for its kernels.
fn wants(said: &str) -> Result<Vec<u64>, Error> {
    let mut events = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = events.find(|event| event["event"] == "wants");
    let found = found.ok_or("the tenant did not say when it asked")?;
    let list = found["ns"].as_array().ok_or("no list of wants")?;
    Ok(list.iter().filter_map(Value::as_u64).collect())
}
