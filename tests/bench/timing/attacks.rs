//! What a tenant gains by pauses, long kernels and false claims, and that a share holds beside any weights.
//!
//! In each attack a tenant of weight 100 is always busy, and the attacker has weight 1. An attack may cost the honest
//! tenant one longest wait for a drain (`drain_max`, 2 s) at its first kernel. That is then owed, and the rest of the
//! time is divided by weight. So the honest tenant's due is 100/101 of the time of the measurement less 2 s.

use crate::node::Node;
use crate::{Error, Pace, Row};
use gpuslice_sim_device::now_ns;
use std::path::Path;
use std::time::Duration;

/// The longest wait for one drain.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Percent of its due that an honest tenant gets.
const HONEST: f64 = 95.0;
/// A tenant whose queue is always full.
const BUSY: &str = "--seconds 600 --kernel-us 500";

/// The attacks: kernels just shorter than the longest wait, with pauses just longer than turns last without a second
/// runnable tenant; and claims of work like that without any kernel.
///
/// # Errors
/// A node does not work.
pub fn attacks(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let kernels = "--seconds 600 --kernel-us 1900000 --pause-us 30000";
    let claims = "gpuslice-bench-time liar 1950 30";
    let all = [("kernels of 1.9 s", kernels), ("claims of 1.95 s", claims)];
    let row = |(name, attacker)| {
        let got = beside(parts, pace, attacker)?;
        Ok(Row::least(&format!("weight 100 beside {name}"), "% due", vec![got], HONEST))
    };
    all.map(row).into_iter().collect()
}

/// The honest tenant's GPU time beside this attacker, percent of its due.
fn beside(parts: &Path, pace: Pace, attacker: &str) -> Result<f64, Error> {
    let mut node = Node::start(parts, 1)?;
    let honest = [node.tenant(0, ("--weight 100", BUSY))?];
    std::thread::sleep(Duration::from_millis(300));
    let (from, before, turns) = (now_ns(), node.busy(&honest)[0], node.turns()?);
    node.process(0, ("", attacker))?;
    std::thread::sleep(pace.at_least(20.0, 8.0));
    let (to, after) = (now_ns(), node.busy(&honest)[0]);
    if node.turns()? == turns {
        return Err("the attack began no turns".into());
    }
    let due = (to - from).saturating_sub(DRAIN_MAX.as_nanos() as u64) as f64 * 100.0 / 101.0;
    Ok(100.0 * (after - before) as f64 / due)
}

/// Policies that take turns, and whether others are limited there, so that a share refers to the device's whole time.
const POLICIES: [(&str, bool); 5] =
    [("fair", true), ("preemptive", false), ("weighted", false), ("fixed", true), ("soft", false)];

/// A share of 50 beside weights 1 and 3: always busy, and with programs that wait for each kernel.
///
/// # Errors
/// A node does not work.
pub fn shares(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let steps = "loads steps --seconds 600 --kernel-us 1000 --pause-us 100 --launches 1";
    let mut node = Node::start(parts, 1)?;
    let one = [node.tenant(0, ("", steps))?];
    std::thread::sleep(Duration::from_millis(300));
    let alone = node.parts_of(&one, pace.at_least(1.0, 0.5))[0];
    drop(node);
    let mut rows = Vec::new();
    for (policy, of_device) in POLICIES {
        for (load, program) in [("busy", BUSY), ("steps", steps)] {
            let mut node = Node::start(parts, 1)?;
            node.gpuslice(&format!("policy all {policy}"))?;
            let mut contexts = Vec::new();
            for slice in ["--share 50", "", "--weight 3"] {
                contexts.push(node.tenant(0, (slice, program))?);
            }
            std::thread::sleep(Duration::from_millis(500));
            let got = node.parts_of(&contexts, pace.at_least(4.0, 1.0));
            let whole = if of_device { 1.0 } else { got.iter().sum() };
            // Its pauses are time of its own turns, which it cannot use for kernels alone either.
            let could = if of_device && load == "steps" { alone } else { 1.0 };
            let error = 100.0 * (got[0] / whole - 0.5 * could).abs();
            let name = format!("share 50 beside 1:3, {policy}, {load}");
            rows.push(Row::of(&name, "% GPU", vec![error], 1.0));
        }
    }
    Ok(rows)
}

/// A share-limit of 30 on a GPU without other tenants: never more, and nearly all of it. The pauses between its turns
/// are not its time, but the begin and the end of each turn are, although the GPU idles then.
///
/// # Errors
/// A node does not work.
pub fn limit(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let mut node = Node::start(parts, 1)?;
    let contexts = [node.tenant(0, ("--share-limit 30", BUSY))?];
    std::thread::sleep(Duration::from_millis(500));
    let got = 100.0 * node.parts_of(&contexts, pace.at_least(10.0, 3.0))[0];
    Ok(vec![
        Row::of("share-limit 30 alone", "% GPU", vec![got], 30.2),
        Row::least("share-limit 30 alone, of the limit", "%", vec![got / 0.3], HONEST),
    ])
}
