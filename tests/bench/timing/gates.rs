//! The time until best-effort work has left the GPU after a high-priority request, and its cost for the
//! best-effort tenant; with gates in its streams, and without.
//!
//! All times are on the device's clock. The high-priority tenant reports its requests, the device the begin
//! and end of best-effort kernels. The GPU has drained at the end of the last best-effort kernel that began
//! before the high-priority kernel. A row is the time from request to drained, 0 if the GPU was idle.

use crate::node::{Node, watched};
use crate::{Error, Pace, Row};
use gpuslice_sim_device::{ContextId, Seq, Status, now_ns};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Polling interval: the device keeps the times of a context's last 4,096 kernels.
const LOOK: Duration = Duration::from_millis(20);

/// Begin and end times of a context's kernels, collected continuously.
pub struct Log {
    context: ContextId,
    next: u64,
    /// So far.
    pub done: Vec<(u64, u64)>,
}

impl Log {
    /// From now on.
    pub fn of(node: &Node, context: ContextId) -> Log {
        let info = node.machine.context_info(context);
        Log { context, next: info.map_or(0, |info| info.completed), done: Vec::new() }
    }

    /// Begin of the first kernel after `want`.
    pub fn begins_after(&self, want: u64) -> Option<u64> {
        let first = self.done.partition_point(|(start, _)| *start < want);
        self.done.get(first).map(|(start, _)| *start)
    }

    /// What was done meanwhile.
    pub fn look(&mut self, node: &Node) {
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

/// Request to drained, without gates and with them, and the busy part of best-effort turns.
///
/// # Errors
/// The node does not work.
pub fn preempted(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let (plain, without) = measure(parts, pace, false)?;
    let (gated, with) = measure(parts, pace, true)?;
    let kept = |name: &str, part: f64, bound| Row {
        at_least: true,
        ..Row::of(name, "%", vec![part], bound)
    };
    Ok(vec![
        Row::of("high want to quiet, no gates", "µs", plain, f64::INFINITY),
        Row::of("high want to quiet, gates", "µs", gated, 150.0),
        kept("GPU busy in best effort's turns, no gates", without, 0.0),
        kept("GPU busy in best effort's turns, gates", with, 95.0),
    ])
}

/// Time to drained of each request, µs, and the busy part of best-effort turns, percent.
fn measure(parts: &Path, pace: Pace, gates: bool) -> Result<(Vec<f64>, f64), Error> {
    let config = format!("stream_gates = {gates}\n");
    let mut node = Node::configured(parts, 1, &config)?;
    let work = "--seconds 600 --kernel-us 50";
    let low = node.tenant(0, ("--priority best-effort", work))?;
    let seconds = pace.seconds(10.0).as_secs_f64();
    let pulse = format!("--seconds {seconds} --kernel-us 50 --pause-us 2000");
    let (child, high) = node.started(0, ("--priority high", &pulse))?;
    std::thread::sleep(Duration::from_millis(500));
    let (mut low, mut high) = (Log::of(&node, low), Log::of(&node, high));
    let from = now_ns();
    let said = watched(child, || {
        std::thread::sleep(LOOK);
        low.look(&node);
        high.look(&node);
    })?;
    let part = 100.0 * busy_part(&low.done, &high.done);
    let wants = wants(&said)?.into_iter().filter(|want| *want > from);
    let quiet = wants.filter_map(|want| quiet(want, &low.done, &high.done));
    Ok((quiet.collect(), part))
}

/// How much of the time from its first kernel to its last between two of `high` had one of `low`.
fn busy_part(low: &[(u64, u64)], high: &[(u64, u64)]) -> f64 {
    let (mut busy, mut all) = (0, 0);
    for pair in high.windows(2) {
        let between = |at: u64| low.partition_point(|(start, _)| *start < at);
        let turn = &low[between(pair[0].1)..between(pair[1].0)];
        if let (Some((start, _)), Some((_, end))) = (turn.first(), turn.last()) {
            busy += turn.iter().map(|(start, end)| end - start).sum::<u64>();
            all += end - start;
        }
    }
    busy as f64 / all as f64
}

/// How long after `want` the last kernel of `low` ended that began before that of `high`, µs.
pub fn quiet(want: u64, low: &[(u64, u64)], high: &[(u64, u64)]) -> Option<f64> {
    let first = high.partition_point(|(start, _)| *start < want);
    let (served, _) = *high.get(first)?;
    let before = low.partition_point(|(start, _)| *start < served);
    let (_, end) = *low.get(before.checked_sub(1)?)?;
    Some(end.saturating_sub(want) as f64 / 1e3)
}

/// The tenant's request times.
pub fn wants(said: &str) -> Result<Vec<u64>, Error> {
    let mut events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = events.find(|event| event["event"] == "wants");
    let found = found.ok_or("the tenant did not say when it asked")?;
    let list = found["ns"].as_array().ok_or("no list of wants")?;
    Ok(list.iter().filter_map(Value::as_u64).collect())
}
