//! The shim's cost per call: each injection method against the bare driver, on a stub driver whose
//! calls take nanoseconds.
//!
//! `gpuslice-bench DIR` expects the stub driver (`libcuda.so.1`, built from stub.c) in DIR and the two
//! shim libraries beside its own file. It runs bare, preload and mount alternately, each in a fresh
//! process, so that a machine that slows down slows all three. The result is the median over rounds
//! of the difference to bare in the same round. The exit status is 1 when a target is missed.

mod child;
mod daemon;
mod injection;
mod stats;

use injection::Injection;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const ROUNDS: usize = 7;
/// Thread counts. One and eight have targets; two show contention where each thread has its own core.
const THREADS: [usize; 3] = [1, 2, 8];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["child", library, capped, threads] => {
            child::run(library, capped == "capped", threads.parse().unwrap_or(1));
            ExitCode::SUCCESS
        }
        ["inside", directory, ref command @ ..] => injection::inside(Path::new(directory), command),
        [directory] => bench(Path::new(directory)).unwrap_or_else(|error| {
            eprintln!("gpuslice-bench: {error}");
            ExitCode::FAILURE
        }),
        _ => {
            eprintln!("usage: gpuslice-bench DIRECTORY-OF-THE-STUB-DRIVER");
            ExitCode::FAILURE
        }
    }
}

/// One row of the report: ns per call bare and added, per injection method.
struct Row {
    name: &'static str,
    threads: usize,
    bare: f64,
    added: Vec<(Injection, f64)>,
    promised: Option<f64>,
}

fn bench(directory: &Path) -> Result<ExitCode, String> {
    let directory: PathBuf = directory.canonicalize().map_err(|e| format!("{directory:?}: {e}"))?;
    let socket = directory.join("tenant.sock");
    let _ = std::fs::remove_file(&socket);
    daemon::serve(&socket).map_err(|error| format!("{}: {error}", socket.display()))?;
    let mut methods = vec![Injection::Bare, Injection::Preload, Injection::Mount];
    if let Err(why) = Injection::Mount.measure(&directory, 1) {
        eprintln!("mount injection not measured: {why}");
        methods.pop();
    }
    let mut rows = Vec::new();
    for threads in THREADS {
        let mut rounds: Vec<Vec<Vec<f64>>> = Vec::new();
        for round in 0..stats::rounds(ROUNDS) {
            rounds.push(measure(&methods, round, &directory, threads)?);
        }
        for (index, row) in child::ROWS.iter().enumerate() {
            let added = |injection: usize| {
                median(
                    rounds.iter().map(|round| round[injection][index] - round[0][index]).collect(),
                )
            };
            rows.push(Row {
                name: row.name,
                threads,
                bare: median(rounds.iter().map(|round| round[0][index]).collect()),
                added: (1..methods.len())
                    .map(|injection| (methods[injection], added(injection)))
                    .collect(),
                promised: match threads {
                    1 => row.promised.0,
                    8 => row.promised.1,
                    _ => None,
                },
            });
        }
    }
    let _ = std::fs::remove_file(&socket);
    Ok(report(&rows))
}

/// Measures one round, in the order of `methods`. Every second round runs backwards, so that drift
/// of the machine affects all methods alike.
fn measure(
    methods: &[Injection],
    round: usize,
    directory: &Path,
    threads: usize,
) -> Result<Vec<Vec<f64>>, String> {
    let one = |injection: &Injection| injection.measure(directory, threads);
    if round.is_multiple_of(2) {
        return methods.iter().map(one).collect();
    }
    let mut figures = methods.iter().rev().map(one).collect::<Result<Vec<_>, _>>()?;
    figures.reverse();
    Ok(figures)
}

fn median(mut values: Vec<f64>) -> f64 {
    stats::quantile(&mut values, 0.5)
}

/// Prints the table to standard error and one JSON object to standard output.
fn report(rows: &[Row]) -> ExitCode {
    let rounds = stats::rounds(ROUNDS);
    eprintln!("added ns per call over the bare stub driver, medians of {rounds} rounds");
    eprintln!("threads call                bare  injection      added  ratio  promised");
    let mut missed = false;
    let mut list = Vec::new();
    for row in rows {
        for (injection, added) in &row.added {
            let ratio = (row.bare + added) / row.bare;
            let miss = row.promised.is_some_and(|promised| *added > promised);
            missed |= miss;
            eprintln!(
                "{:>7} {:<17} {:>6.1}  {:<12} {:>7.1} {:>6.2}  {}",
                row.threads,
                row.name,
                row.bare,
                injection.name(),
                added,
                ratio,
                match (row.promised, miss) {
                    (Some(promised), true) => format!("{promised:.0}  MISSED"),
                    (Some(promised), false) => format!("{promised:.0}"),
                    (None, _) => String::from("-"),
                }
            );
            list.push(json!({
                "call": row.name, "threads": row.threads, "injection": injection.name(),
                "bare_ns": row.bare, "added_ns": added, "ratio": ratio,
                "target_ns": row.promised,
            }));
        }
    }
    let verdict = if missed { "fail" } else { "pass" };
    println!("{}", json!({ "bench": "shim", "rows": Value::Array(list), "verdict": verdict }));
    if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
