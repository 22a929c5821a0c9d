//! Does this device behave as a device of its size? Named cases, each in a process of its own.
//!
//! A slice must behave as a card of its size: the same refusals, the same numbers, the same codes for
//! bad input. So the program does not depend on slices: it reads the device's size from
//! `cuMemGetInfo` and tries every way to take memory, to give it back, and to be refused. It runs
//! unchanged on a bare device, behind either injection method, on the simulated GPU and on a real one.
//!
//! A case is a short function in the file of its family; a table there names it. It runs in a child
//! process, so that a crash, a hang or a leak is one failed case and nothing more. Each case also
//! tests the end of a process once more.
//!
//!     conformance [--list] [--only PREFIX] [--json]

use std::io::Write;
use std::process::ExitCode;
use words::{Case, Stop};

mod alloc;
mod array;
mod capture;
mod child;
mod context;
mod exact;
mod external;
mod graph;
mod host;
mod ipc;
mod lookup;
mod managed;
mod nvml;
mod pitch;
mod pool;
mod pool_limits;
mod processes;
mod query;
mod report;
mod sparse;
mod threads;
mod vmm;
mod vmm_place;
mod vmm_share;
mod words;

/// All cases, family by family.
const FAMILIES: &[&[Case]] = &[
    alloc::CASES,
    pitch::CASES,
    managed::CASES,
    pool::CASES,
    pool_limits::CASES,
    vmm::CASES,
    vmm_place::CASES,
    vmm_share::CASES,
    array::CASES,
    sparse::CASES,
    graph::CASES,
    capture::CASES,
    ipc::CASES,
    external::CASES,
    host::CASES,
    context::CASES,
    nvml::CASES,
    query::CASES,
    lookup::CASES,
    processes::CASES,
    threads::CASES,
    exact::CASES,
];

/// The command line's options.
#[derive(Default)]
struct Options {
    list: bool,
    json: bool,
    only: String,
}

fn options(words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    let mut words = words;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--list" => options.list = true,
            "--json" => options.json = true,
            "--only" => {
                options.only = words.next().ok_or("--only needs the beginning of a name")?;
            }
            _ => {
                return Err(format!(
                    "unknown option {word}; there are --list, --only PREFIX and --json"
                ));
            }
        }
    }
    Ok(options)
}

fn cases() -> impl Iterator<Item = &'static Case> {
    FAMILIES.iter().flat_map(|family| family.iter())
}

/// Runs one case in this process; its last line is the verdict.
fn one(name: &str) -> ExitCode {
    let Some(case) = cases().find(|case| case.name == name) else {
        eprintln!("conformance: no case {name}; --list names them");
        return ExitCode::from(2);
    };
    words::ALONE.store(true, std::sync::atomic::Ordering::Relaxed);
    let verdict = match (case.run)() {
        Ok(()) => "pass".to_owned(),
        Err(Stop::Skip(why)) => format!("skip {why}"),
        Err(Stop::Fail(why)) => format!("fail {why}"),
    };
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "{verdict}").and_then(|()| out.flush());
    if said.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    match words.peek().map(String::as_str) {
        Some(child::CASE) => return one(&words.nth(1).unwrap_or_default()),
        Some(child::ROLE) => return child::role(&words.skip(1).collect::<Vec<_>>()),
        _ => {}
    }
    let options = match options(words) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("conformance: {why}");
            return ExitCode::from(2);
        }
    };
    let chosen = cases().filter(|case| case.name.starts_with(&options.only));
    if options.list {
        let names: Vec<&str> = chosen.map(|case| case.name).collect();
        return report::list(&names);
    }
    let done = report::all(chosen, options.json);
    child::forget();
    done
}
