//! Accuracy of the division of a GPU's time, hand-over latency, and their cost.
//!
//! `gpuslice-bench-time PARTS` expects a release build in PARTS. It starts its own daemon, simulated GPU
//! and tenants in slices. It measures the *device's* record of its users, on the device's clock,
//! independent of the daemon's ledger and the tenants' reports. Each row has its median, its p99 and the
//! bound on the latter. The machine's wake-up latency is printed above the table, because it adds to every
//! row. The exit status is 1 when a bound is missed. `--quick` takes a fifth of the time; a word after the
//! directory restricts the run to measurements with that word in their names. `--real-time` gives the bench and all
//! that it starts a real-time priority, so that other programs of a busy machine do not decide the figures.
//!
//! The tenants are those that keep the GPU's queue full (`tests/apps/bin/tenant.rs`), those that wait for their work
//! (`tests/apps/loads`), and this program itself: one that lies ([`liar`]), attackers ([`attackers`]), and one that
//! measures how long a grant of memory takes ([`hostile::asks`]).

mod allocating;
mod attackers;
mod attacks;
mod client;
mod cost;
mod due;
mod floor;
#[path = "../../it/harness/fuse.rs"]
mod fuse;
mod gates;
mod handover;
mod hostile;
mod liar;
mod loads;
mod matrix;
mod node;
#[path = "../../it/daemon/old_kernel.rs"]
mod old_kernel;
mod preempt;
mod restart;
mod shares;
mod suspend;
mod trace;

use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// An error, as text.
pub type Error = Box<dyn std::error::Error>;

/// One line of the table.
pub struct Row {
    /// Name of the measurement.
    pub name: String,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Median.
    pub middle: f64,
    /// 99th percentile, or the worst of few samples.
    pub high: f64,
    /// The bound on `high`.
    pub bound: f64,
    /// Whether the bound is a lower one.
    pub at_least: bool,
    /// Number of samples.
    pub samples: usize,
}

impl Row {
    /// A row of samples with the upper bound `bound`.
    pub fn of(name: &str, unit: &'static str, mut samples: Vec<f64>, bound: f64) -> Row {
        samples.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let index = (samples.len() as f64 * part) as usize;
            samples.get(index).copied().unwrap_or(f64::NAN)
        };
        Row {
            name: name.to_owned(),
            unit,
            middle: at(0.5),
            high: at(0.99),
            bound,
            at_least: false,
            samples: samples.len(),
        }
    }

    /// A row of samples with the lower bound `bound`, on the least of them.
    pub fn least(name: &str, unit: &'static str, samples: Vec<f64>, bound: f64) -> Row {
        let least = samples.iter().copied().reduce(f64::min).unwrap_or(f64::NAN);
        Row { high: least, at_least: true, ..Row::of(name, unit, samples, bound) }
    }

    /// Whether the bound is missed; also true without samples.
    fn missed(&self) -> bool {
        let held = match self.at_least {
            true => self.high >= self.bound,
            false => self.high <= self.bound,
        };
        !held
    }
}

/// The bench's length: the whole, or a fifth of it.
#[derive(Clone, Copy)]
pub struct Pace(f64);

impl Pace {
    /// A length of time at this pace.
    pub fn seconds(self, whole: f64) -> Duration {
        Duration::from_secs_f64(whole * self.0)
    }

    /// Whether this is the shorter run.
    pub fn is_quick(self) -> bool {
        self.0 < 1.0
    }

    /// So many seconds in a whole run, so many in a quick one.
    pub fn at_least(self, whole: f64, quick: f64) -> Duration {
        Duration::from_secs_f64(if self.is_quick() { quick } else { whole })
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Some(at) = words.iter().position(|word| *word == "--real-time") {
        words.remove(at);
        if let Err(why) = real_time() {
            eprintln!("gpuslice-bench-time: --real-time: {why}");
            return ExitCode::FAILURE;
        }
    }
    let done = match words[..] {
        ["liar", claim_ms, quiet_ms] => liar::run(claim_ms, quiet_ms).map(|()| true),
        ["attack", name, word] => attackers::run(name, word).map(|()| true),
        ["asks"] => hostile::asks().map(|()| true),
        ["--quick", parts] => bench(Path::new(parts), Pace(0.2), ""),
        ["--quick", parts, only] => bench(Path::new(parts), Pace(0.2), only),
        [parts] => bench(Path::new(parts), Pace(1.0), ""),
        [parts, only] => bench(Path::new(parts), Pace(1.0), only),
        _ => {
            Err("usage: gpuslice-bench-time [--real-time] [--quick] DIRECTORY-OF-THE-BUILD [WORD]"
                .into())
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("gpuslice-bench-time: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Takes the lowest real-time priority, which children inherit.
fn real_time() -> std::io::Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: `priority` is ours; 0 is this process.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &priority) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Whether this process has a real-time priority.
fn is_real_time() -> bool {
    // SAFETY: 0 is this process.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_RR }
}

/// Measures everything; returns whether every bound is met.
fn bench(parts: &Path, pace: Pace, only: &str) -> Result<bool, Error> {
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split_whitespace().next().unwrap_or("?").to_owned();
    let noise = noise(pace);
    eprintln!(
        "this machine: load {load}; a sleep of 1 ms ends {:.0} µs late, p99 {:.0} µs",
        noise.middle, noise.high
    );
    eprintln!(
        "what is divided                                unit   samples   median      p99    bound"
    );
    let (mut rows, matrix) = (Vec::new(), RefCell::new(Value::Null));
    let mut told = |what: &str, more: &dyn Fn() -> Result<Vec<Row>, Error>| {
        if !what.contains(only) {
            return;
        }
        // A measurement that fails counts as missed.
        let more = more().unwrap_or_else(|why| {
            eprintln!("{what}: {why}");
            vec![Row::of(what, "-", Vec::new(), 0.0)]
        });
        more.iter().for_each(tell);
        rows.extend(more);
    };
    for case in shares::CASES {
        told(case.name, &|| shares::measure(parts, case, pace));
    }
    told("idle holder", &|| handover::idle(parts, pace));
    told("high priority", &|| handover::priority(parts, pace));
    told("gates", &|| gates::preempted(parts, pace));
    told("stopped work", &|| preempt::stopped(parts, pace));
    told("floor", &|| floor::wake_ups(pace));
    told("throughput", &|| cost::throughput(parts, pace));
    told("daemon", &|| cost::daemon(parts, pace));
    told("restart", &|| restart::measure(parts, pace));
    told("suspend", &|| suspend::measure(parts, pace));
    told("attacks", &|| attacks::attacks(parts, pace));
    for attack in hostile::ATTACKS {
        told(attack.name, &|| hostile::measure(parts, attack, pace));
    }
    told("share 50", &|| attacks::shares(parts, pace));
    told("share-limit alone", &|| attacks::limit(parts, pace));
    told("programs", &|| loads::pairs_of_programs(parts, pace));
    told("open loops", &|| loads::open_loops(parts, pace));
    told("services", &|| loads::services(parts, pace));
    told("matrix", &|| {
        let (rows, cells) = matrix::measure(parts, pace)?;
        matrix.replace(cells);
        Ok(rows)
    });
    let missed = rows.iter().any(Row::missed);
    let list: Vec<Value> = rows.iter().map(as_json).collect();
    let verdict = if missed { "fail" } else { "pass" };
    println!(
        "{}",
        json!({
            "bench": "time", "load": load, "real_time": is_real_time(), "noise_us": [noise.middle, noise.high],
            "rows": list, "matrix": matrix.into_inner(), "verdict": verdict,
        })
    );
    Ok(!missed)
}

/// Wake-up latency of a sleeping thread on this machine.
fn noise(pace: Pace) -> Row {
    let (start, mut late) = (Instant::now(), Vec::new());
    while start.elapsed() < pace.seconds(2.0) {
        let before = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        late.push(before.elapsed().as_secs_f64() * 1e6 - 1e3);
    }
    Row::of("noise", "µs", late, f64::INFINITY)
}

fn tell(row: &Row) {
    eprintln!(
        "{:<46} {:<6} {:>7} {:>8.2} {:>8.2} {} {:>6.2}{}",
        row.name,
        row.unit,
        row.samples,
        row.middle,
        row.high,
        if row.at_least { ">" } else { "<" },
        row.bound,
        if row.missed() { "  MISSED" } else { "" }
    );
}

fn as_json(row: &Row) -> Value {
    json!({
        "name": row.name, "unit": row.unit, "samples": row.samples, "median": row.middle,
        "p99": row.high, "bound": row.bound, "missed": row.missed(),
    })
}
