//! Programs as they really are, beside each other: `tests/apps/loads` in pairs by weight, share and class.
//!
//! In a *closed* loop a tenant begins its next unit of work when the last has ended. Its GPU time is judged as
//! [`due`](crate::due) says. In an *open* loop requests arrive at seeded random times, and their latency counts from
//! their arrival. A tenant whose requests need less than its part must get all it asks for, and its neighbour the rest.
//!
//! The simulated driver copies with a processor: the load `copy` is limited by that, alone as beside others.

use crate::due::Division;
use crate::handover::latency;
use crate::node::Node;
use crate::{Error, Pace, Row};
use std::path::Path;
use std::time::Duration;

/// Programs that fill the GPU by themselves, and the rate of requests with which each needs about a third of it.
const PROGRAMS: [(&str, u32); 5] =
    [("decode", 35), ("train", 40), ("streams", 200), ("copy", 500), ("serve", 500)];

/// A pair in closed loops.
struct Pair {
    name: String,
    /// Arguments of `gpuslice run`, the program, its part.
    tenants: [(&'static str, String, f64); 2],
}

/// The pairs: two of the same program by weight, and different ones by weight and share.
fn pairs() -> Vec<Pair> {
    let by_weight = |name: String, one: &str, other: &str| Pair {
        name,
        tenants: [("", closed(one), 0.25), ("--weight 3", closed(other), 0.75)],
    };
    let same = |(program, _): (&str, u32)| by_weight(format!("{program} 1:3"), program, program);
    let mut all: Vec<Pair> = PROGRAMS.map(same).into();
    all.push(by_weight("train 1 : decode 3".into(), "train", "decode"));
    all.push(by_weight("decode 1 : train 3".into(), "decode", "train"));
    all.push(Pair {
        name: "train : decode with share 25".into(),
        tenants: [("", closed("train"), 0.75), ("--share 25", closed("decode"), 0.25)],
    });
    all
}

fn closed(program: &str) -> String {
    format!("loads {program} --seconds 600")
}

/// The rows of all closed pairs.
///
/// # Errors
/// A node does not work.
pub fn pairs_of_programs(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for pair in pairs() {
        let mut alone = Vec::new();
        for (slice, program, _) in &pair.tenants {
            let mut node = Node::start(parts, 1)?;
            let context = node.tenant(0, (slice, program))?;
            std::thread::sleep(Duration::from_millis(300));
            alone.push(node.parts_of(&[context], pace.at_least(1.0, 0.5))[0]);
        }
        let (mut node, mut contexts) = (Node::start(parts, 1)?, Vec::new());
        for (slice, program, _) in &pair.tenants {
            contexts.push(node.tenant(0, (slice, program))?);
        }
        std::thread::sleep(Duration::from_millis(500));
        let got = node.parts_of(&contexts, pace.at_least(4.0, 1.0));
        let part = pair.tenants.iter().map(|tenant| tenant.2).collect();
        // Unequal loads do not compete by kernels alone: the pauses of each count in its part of the time.
        let load = match pair.tenants[0].1 == pair.tenants[1].1 {
            true => vec![1.0; 2],
            false => vec![0.0; 2],
        };
        let division = Division { part, load, alone, got };
        let named = |what: &str| format!("{}, {what}", pair.name);
        let off = if division.competes() { "off its due" } else { "below its due" };
        rows.push(Row::of(&named(off), "%", vec![division.off()], 5.0));
        rows.push(Row::least(&named("together"), "%", vec![division.together()], 97.0));
    }
    Ok(rows)
}

/// What an open loop got, and its neighbour.
struct Open {
    /// Median and p99 of the latencies, µs, and the part of the GPU's time.
    alone: (f64, f64, f64),
    beside: (f64, f64, f64),
    /// The neighbour's part of the GPU's time, alone and beside it.
    neighbour: (f64, f64),
}

impl Open {
    /// The neighbour's GPU time, in percent of what the open loop leaves of what the neighbour gets alone.
    fn left(&self) -> f64 {
        100.0 * self.neighbour.1 / (self.neighbour.0 * (1.0 - self.beside.2))
    }
}

/// Runs `service` with these arguments of `gpuslice run`, alone and beside `other`.
fn open(
    parts: &Path,
    pace: Pace,
    service: (&str, &str),
    other: (&str, &str),
) -> Result<Open, Error> {
    let length = pace.at_least(6.0, 2.0);
    let program = format!("{} --seconds {}", service.1, length.as_secs_f64() + 1.0);
    let run = |node: &mut Node| -> Result<(f64, f64, f64), Error> {
        let (child, context) = node.started(0, (service.0, &program))?;
        std::thread::sleep(Duration::from_millis(300));
        let part = node.parts_of(&[context], length)[0];
        let said = child.wait_with_output()?.stdout;
        let (_, middle, high) = latency(&String::from_utf8_lossy(&said))?;
        Ok((middle, high, part))
    };
    let mut node = Node::start(parts, 1)?;
    let alone = run(&mut node)?;
    let mut node = Node::start(parts, 1)?;
    let neighbour = node.tenant(0, other)?;
    std::thread::sleep(Duration::from_millis(300));
    let without = node.parts_of(&[neighbour], pace.at_least(1.0, 0.5))[0];
    let (from, before) = (gpuslice_sim_device::now_ns(), node.busy(&[neighbour])[0]);
    let beside = run(&mut node)?;
    let (to, after) = (gpuslice_sim_device::now_ns(), node.busy(&[neighbour])[0]);
    let with = (after - before) as f64 / (to - from) as f64;
    Ok(Open { alone, beside, neighbour: (without, with) })
}

/// Open loops of weight 3 that need less than their part, beside training of weight 1.
///
/// # Errors
/// A node does not work.
pub fn open_loops(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for (program, rate) in PROGRAMS {
        let service = format!("loads {program} --rate {rate}");
        let other = closed("train");
        let it = open(parts, pace, ("--weight 3", &service), ("", &other))?;
        let asked = 100.0 * it.beside.2 / it.alone.2;
        let named = |what: &str| format!("{program} open 3 : train 1, {what}");
        rows.push(Row::least(&named("gets of its need"), "%", vec![asked], 95.0));
        rows.push(Row::least(&named("train of the rest"), "%", vec![it.left()], 95.0));
        rows.push(added(&named("latency added"), &it, f64::INFINITY, f64::INFINITY));
    }
    Ok(rows)
}

/// A row of latencies: what the median and the p99 are longer than alone, µs; the bounds are on both.
fn added(name: &str, it: &Open, middle: f64, high: f64) -> Row {
    let row = Row {
        middle: it.beside.0 - it.alone.0,
        high: it.beside.1 - it.alone.1,
        ..Row::of(name, "µs", Vec::new(), high)
    };
    // The table shows one bound: a median above its own counts as a miss of that.
    if row.middle > middle { Row { bound: f64::NEG_INFINITY, ..row } } else { row }
}

/// Services of the class `high` beside best-effort training.
///
/// # Errors
/// A node does not work.
pub fn services(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    let services = [("one kernel of 20 µs", 20, 1), ("20 kernels of 50 µs", 50, 20)];
    for (name, kernel_us, launches) in services {
        let sizes = format!("--kernel-us {kernel_us} --launches {launches} --pause-us 0");
        let service = format!("loads serve --rate 100 {sizes}");
        let other = "--seconds 600 --kernel-us 200";
        let it =
            open(parts, pace, ("--priority high", &service), ("--priority best-effort", other))?;
        let named = |what: &str| format!("high, {name}: {what}");
        rows.push(added(&named("added"), &it, 120.0, 300.0));
        rows.push(Row::least(&named("training"), "%", vec![it.left()], 97.0));
    }
    Ok(rows)
}
