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
//!     conformance [--list] [--only PREFIX]... [--without NAME]... [--part K/N] [--each SECONDS] [--json]
//!
//! `--part 2/8` runs every eighth case from the second on: eight programs, each in a slice of its own,
//! then run all cases at the same time. On a bare device cases must not run beside each other.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
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
struct Options {
    list: bool,
    json: bool,
    /// Beginnings of names; empty for all cases.
    only: Vec<String>,
    /// Cases that are left out, by their whole names.
    without: Vec<String>,
    /// The first case of this part, from 0, and the number of parts.
    part: (usize, usize),
    /// How long a case may take.
    each: Duration,
}

fn options(words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        list: false,
        json: false,
        only: Vec::new(),
        without: Vec::new(),
        part: (0, 1),
        each: child::LONGEST,
    };
    let mut words = words;
    while let Some(word) = words.next() {
        let mut value = |what: &str| words.next().ok_or(format!("{word} needs {what}"));
        match word.as_str() {
            "--list" => options.list = true,
            "--json" => options.json = true,
            "--only" => options.only.push(value("the beginning of a name")?),
            "--without" => {
                let name = value("the name of a case")?;
                if !cases().any(|case| case.name == name) {
                    return Err(format!("no case {name}; --list names them"));
                }
                options.without.push(name);
            }
            "--part" => {
                let part = value("a part, as in 2/8")?;
                options.part = parsed_part(&part).ok_or(format!("{part} is no part; write 2/8"))?;
            }
            "--each" => {
                let seconds = value("seconds")?;
                let whole = seconds.parse().ok().filter(|seconds| *seconds > 0);
                options.each =
                    Duration::from_secs(whole.ok_or(format!("{seconds} is no number of seconds"))?);
            }
            _ => {
                return Err(format!(
                    "unknown option {word}; there are --list, --only PREFIX, --without NAME, \
                     --part K/N, --each SECONDS and --json"
                ));
            }
        }
    }
    Ok(options)
}

/// The first case from 0 and the number of parts, of a part as in 2/8.
fn parsed_part(word: &str) -> Option<(usize, usize)> {
    let (part, parts) = word.split_once('/')?;
    let (part, parts) = (part.parse::<usize>().ok()?, parts.parse::<usize>().ok()?);
    (1..=parts).contains(&part).then(|| (part - 1, parts))
}

fn cases() -> impl Iterator<Item = &'static Case> {
    FAMILIES.iter().flat_map(|family| family.iter())
}

/// The cases that the options choose.
fn chosen(options: &Options) -> impl Iterator<Item = &'static Case> {
    let (first, parts) = options.part;
    cases()
        .filter(|case| {
            let begins = |only: &String| case.name.starts_with(only.as_str());
            options.only.is_empty() || options.only.iter().any(begins)
        })
        .filter(|case| !options.without.iter().any(|name| name == case.name))
        .skip(first)
        .step_by(parts)
}

/// Runs one case in this process; its last line is the verdict.
fn one(name: &str) -> ExitCode {
    let Some(case) = cases().find(|case| case.name == name) else {
        eprintln!("conformance: no case {name}; --list names them");
        return ExitCode::from(2);
    };
    words::ALONE.store(true, std::sync::atomic::Ordering::Relaxed);
    let verdict = match (case.run)() {
        Ok(()) => format!("pass {}", words::noted()),
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
    if options.list {
        let names: Vec<&str> = chosen(&options).map(|case| case.name).collect();
        return report::list(&names);
    }
    let done = report::all(chosen(&options), options.each, options.json);
    child::forget();
    done
}
