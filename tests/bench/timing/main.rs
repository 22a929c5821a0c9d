//! How exactly is a GPU's time divided, how fast does it change hands, and what does that cost?
//!
//! `gpuslice-bench-time PARTS` expects in PARTS a release build. A daemon, a simulated GPU and
//! tenants in slices are its own; what it measures is the *device's* account of who had it, by the
//! device's clock, so that neither the daemon's ledger nor the tenants' reports are used. Each row has
//! its median, its p99 and the bound on the latter. The machine's own noise stands above the table:
//! what is late there is late here. Exit status 1 when a bound is missed. `--quick` takes a fifth of
//! the time, for a look; a word behind the directory measures only what has it in its name.

mod cost;
mod gates;
mod handover;
mod node;
mod shares;
mod tier;
mod trace;

use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Whatever goes wrong, in words.
pub type Error = Box<dyn std::error::Error>;

/// One line of the table.
pub struct Row {
    /// What was measured.
    pub name: String,
    /// In what the figures are.
    pub unit: &'static str,
    /// Median.
    pub middle: f64,
    /// 99th percentile; of few samples the worst.
    pub high: f64,
    /// What `high` may be.
    pub bound: f64,
    /// Whether the bound is a lowest value.
    pub at_least: bool,
    /// Samples behind it.
    pub samples: usize,
}

impl Row {
    /// A row of samples that should be below `bound`.
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

    /// Missed also if nothing was measured.
    fn missed(&self) -> bool {
        let held = match self.at_least {
            true => self.high >= self.bound,
            false => self.high <= self.bound,
        };
        !held
    }
}

/// How much longer than asked for one long run takes: the whole bench, or a fifth of it.
#[derive(Clone, Copy)]
pub struct Pace(f64);

impl Pace {
    /// A length of time at this pace.
    pub fn seconds(self, whole: f64) -> Duration {
        Duration::from_secs_f64(whole * self.0)
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["--quick", parts] => bench(Path::new(parts), Pace(0.2), ""),
        ["--quick", parts, only] => bench(Path::new(parts), Pace(0.2), only),
        [parts] => bench(Path::new(parts), Pace(1.0), ""),
        [parts, only] => bench(Path::new(parts), Pace(1.0), only),
        _ => Err("usage: gpuslice-bench-time [--quick] DIRECTORY-OF-THE-BUILD [WORD]".into()),
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

/// Measures everything; whether every bound was kept.
fn bench(parts: &Path, pace: Pace, only: &str) -> Result<bool, Error> {
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split_whitespace().next().unwrap_or("?").to_owned();
    let noise = noise(pace);
    eprintln!(
        "this machine: load {load}; a sleep of 1 ms ends {:.0} µs late, p99 {:.0} µs",
        noise.middle, noise.high
    );
    eprintln!(
        "what is divided                          unit    samples   median      p99    bound"
    );
    let mut rows = Vec::new();
    let mut told = |what: &str, more: &dyn Fn() -> Result<Vec<Row>, Error>| {
        if !what.contains(only) {
            return;
        }
        // One that cannot be measured is one that is missed.
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
    told("tier", &|| tier::stopped(parts, pace));
    told("throughput", &|| cost::throughput(parts, pace));
    told("daemon", &|| cost::daemon(parts, pace));
    let missed = rows.iter().any(Row::missed);
    let list: Vec<Value> = rows.iter().map(as_json).collect();
    let verdict = if missed { "fail" } else { "pass" };
    println!(
        "{}",
        json!({
            "bench": "time", "load": load, "noise_us": [noise.middle, noise.high],
            "rows": list, "verdict": verdict,
        })
    );
    Ok(!missed)
}

/// How late a thread that sleeps wakes here.
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
        "{:<40} {:<6} {:>8} {:>8.2} {:>8.2} {} {:>6.2}{}",
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
