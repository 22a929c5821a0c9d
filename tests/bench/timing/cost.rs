//! The cost of turns: GPU time lost in hand-overs, and the daemon's processor time.

use crate::node::Node;
use crate::{Error, Pace, Row};
use gpuslice_sim_device::{ContextId, now_ns};
use std::path::Path;
use std::time::Duration;

/// Throughput of two busy tenants together, in percent of one alone.
///
/// # Errors
/// The node does not work.
pub fn throughput(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let work = "--seconds 600 --kernel-us 200";
    let mut node = Node::start(parts, 1)?;
    let mut contexts = vec![node.tenant(0, ("", work))?];
    std::thread::sleep(Duration::from_secs(1));
    let alone = done(&node, &contexts, pace);
    contexts.push(node.tenant(0, ("", work))?);
    std::thread::sleep(Duration::from_secs(1));
    let both = done(&node, &contexts, pace);
    let parts = both.iter().zip(&alone).map(|(two, one)| 100.0 * two / one);
    let mut parts: Vec<f64> = parts.collect();
    parts.sort_by(f64::total_cmp);
    let low = parts.first().copied().unwrap_or(f64::NAN);
    let middle = parts.get(parts.len() / 2).copied().unwrap_or(f64::NAN);
    Ok(vec![Row {
        name: "two busy tenants of one alone (worst s)".to_owned(),
        unit: "%",
        middle,
        high: low,
        bound: 98.5,
        at_least: true,
        samples: parts.len(),
    }])
}

/// The part of each second in which the device worked for these.
fn done(node: &Node, contexts: &[ContextId], pace: Pace) -> Vec<f64> {
    let all = || (now_ns(), node.busy(contexts).iter().sum::<u64>());
    let (mut parts, mut before) = (Vec::new(), all());
    for _ in 0..pace.seconds(10.0).as_secs().max(1) {
        std::thread::sleep(Duration::from_secs(1));
        let now = all();
        parts.push((now.1 - before.1) as f64 / (now.0 - before.0) as f64);
        before = now;
    }
    parts
}

/// Processor time of the daemon with 64 tenants on 8 GPUs, in percent of a core: with kernels of 10 ms, so
/// that each is a turn, and idle; and per hand-over.
///
/// # Errors
/// The node does not work.
pub fn daemon(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let (used, turns) = spent(parts, pace, "--seconds 600 --kernel-us 10000")?;
    let (idle, _) = spent(parts, pace, "--seconds 600 --idle")?;
    let each = used.iter().zip(&turns);
    let each = each.map(|(percent, turns)| percent / 100.0 * 1e6 / turns);
    let (each, none) = (each.collect(), f64::INFINITY);
    Ok(vec![
        Row::of("daemon, 64 tenants on 8 GPUs", "% core", used, 2.0),
        Row::of("daemon, hand-overs", "/s", turns, none),
        Row::of("daemon, a hand-over", "µs", each, none),
        Row::of("daemon, 64 idle tenants on 8 GPUs", "% core", idle, 2.0),
    ])
}

/// The daemon's processor time in each of several seconds, in percent of a core, and the turns it grants.
fn spent(parts: &Path, pace: Pace, program: &str) -> Result<(Vec<f64>, Vec<f64>), Error> {
    let mut node = Node::start(parts, 8)?;
    for tenant in 0..64 {
        node.tenant(tenant % 8, ("", program))?;
    }
    std::thread::sleep(Duration::from_secs(1));
    let look = || Ok::<_, Error>((now_ns(), processor_ns(node.daemon())?, node.turns()?));
    let (mut used, mut turns, mut before) = (Vec::new(), Vec::new(), look()?);
    for _ in 0..pace.seconds(10.0).as_secs().max(1) {
        std::thread::sleep(Duration::from_secs(1));
        let now = look()?;
        let passed = (now.0 - before.0) as f64;
        used.push(100.0 * (now.1 - before.1) as f64 / passed);
        turns.push(1e9 * (now.2 - before.2) as f64 / passed);
        before = now;
    }
    Ok((used, turns))
}

/// Processor time of a process's threads, ns.
fn processor_ns(pid: u32) -> Result<u64, Error> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let told = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = told.split_whitespace().next().unwrap_or_default();
        sum += first.parse::<u64>()?;
    }
    Ok(sum)
}
