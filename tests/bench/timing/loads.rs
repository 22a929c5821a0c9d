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
use gpuslice_sim_device::ContextId;
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
        for (_, program, _) in &pair.tenants {
            let mut node = Node::start(parts, 1)?;
            // A share would limit it alone too.
            let context = node.tenant(0, ("", program))?;
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

/// What requests got at some rate.
struct Served {
    /// Median and p99 of the latencies, µs.
    latency: [f64; 2],
    /// Number of requests that were answered.
    answers: f64,
    /// Part of the GPU's time.
    part: f64,
}

/// What an open loop got, and its neighbour.
struct Open {
    alone: Served,
    beside: Served,
    /// The neighbour's part of the GPU's time, alone and beside it.
    neighbour: [f64; 2],
}

impl Open {
    /// Answers, in percent of those given alone. A server that batches needs less GPU time if requests wait.
    fn answered(&self) -> f64 {
        100.0 * self.beside.answers / self.alone.answers
    }

    /// The neighbour's GPU time, in percent of what the open loop leaves of what the neighbour gets alone.
    fn left(&self) -> f64 {
        100.0 * self.neighbour[1] / (self.neighbour[0] * (1.0 - self.beside.part))
    }

    /// Rows of what the median and the p99 of the latencies are longer than alone, with their bounds, µs.
    fn added(&self, name: &str, bounds: [f64; 2]) -> [Row; 2] {
        [0, 1].map(|at| {
            let name = format!("{name} {} added", ["p50", "p99"][at]);
            let added = self.beside.latency[at] - self.alone.latency[at];
            Row::of(&name, "µs", vec![added], bounds[at])
        })
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
    let run = |node: &mut Node, neighbour: &[ContextId]| -> Result<(Served, f64), Error> {
        let (child, context) = node.started(0, (service.0, &program))?;
        std::thread::sleep(Duration::from_millis(300));
        let parts = node.parts_of(&[&[context], neighbour].concat(), length);
        let (part, others) = (parts[0], parts[1..].iter().sum());
        let said = child.wait_with_output()?.stdout;
        let (count, middle, high) = latency(&String::from_utf8_lossy(&said))?;
        Ok((Served { latency: [middle, high], answers: count as f64, part }, others))
    };
    let mut node = Node::start(parts, 1)?;
    let (alone, _) = run(&mut node, &[])?;
    let mut node = Node::start(parts, 1)?;
    let neighbour = node.tenant(0, other)?;
    std::thread::sleep(Duration::from_millis(300));
    let without = node.parts_of(&[neighbour], pace.at_least(1.0, 0.5))[0];
    let (beside, with) = run(&mut node, &[neighbour])?;
    Ok(Open { alone, beside, neighbour: [without, with] })
}

/// Open loops of weight 3 that need less than their part, beside training of weight 1.
///
/// # Errors
/// A node does not work.
pub fn open_loops(parts: &Path, pace: Pace) -> Result<Vec<Row>, Error> {
    let (mut rows, free) = (Vec::new(), f64::INFINITY);
    for (program, rate) in PROGRAMS {
        let service = format!("loads {program} --rate {rate}");
        let other = closed("train");
        let it = open(parts, pace, ("--weight 3", &service), ("", &other))?;
        let named = |what: &str| format!("{program} open 3 : train 1, {what}");
        rows.push(Row::least(&named("answers"), "%", vec![it.answered()], 97.0));
        rows.push(Row::least(&named("train"), "%", vec![it.left()], 95.0));
        rows.extend(it.added(&named("latency"), [free, free]));
    }
    Ok(rows)
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
        let service = format!("loads steps --rate 100 {sizes}");
        let other = "--seconds 600 --kernel-us 200";
        let it =
            open(parts, pace, ("--priority high", &service), ("--priority best-effort", other))?;
        let named = |what: &str| format!("high, {name}: {what}");
        rows.extend(it.added(&named("latency"), [120.0, 300.0]));
        rows.push(Row::least(&named("training"), "%", vec![it.left()], 97.0));
    }
    Ok(rows)
}
