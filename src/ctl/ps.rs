//! `gpuslice ps`: the node's slices as a table or as JSON.

use crate::admin::Admin;
use crate::columns::{self, Column, DropOrder};
use crate::elsewhere;
use crate::out;
use crate::table::{self, View};
use crate::why::with_dir;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Interval between two drawings of the table.
const REFRESH: Duration = Duration::from_secs(1);
/// Interval over which the table's shares are measured.
const SAMPLE: Duration = Duration::from_millis(250);

/// Below the heading of an empty table.
const NO_SLICES: &str = "no slices on this node";

/// Options of `gpuslice ps`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Print one JSON object: counters since the slice's or the daemon's start, sizes in bytes, times in ns
    #[arg(long, conflicts_with_all = ["output", "wide"])]
    json: bool,
    /// Add ids, limits, turns and the last refused allocation of each slice
    #[arg(long, short, conflicts_with = "output")]
    wide: bool,
    /// Format: wide, json, or columns such as NAME,DUE,GOT,WHY
    #[arg(long, short, value_name = "FORMAT", value_parser = parse_format, add = crate::complete::columns())]
    output: Option<Format>,
    /// Refresh every second until interrupted
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const HELP: &str = "\
A pipe or a file gets all columns. A terminal shows those that it has room for, and a line below names the others: the
ordinary table loses CAP-BY first, then UNTRACKED, DENIED, PROCS and WEIGHT, before them the columns that -o wide adds;
of columns that you name, the last ones are lost. Names are whole in a pipe, and among columns that you name; the
ordinary table on a terminal gives them the room that is left.

Columns; -o wide adds ID, LIMIT, TURNS, LATE, PREEMPTED, TIME-BY, STOPS, LAST-REFUSED and POD; others by name:
  NAME, ID, CONTAINER    display name, beginning of the id, id
  GPU, UUID              the GPU's index and identity
  CAP, USED, LEFT, PEAK  memory cap, memory allocated, memory left under the cap, most memory allocated so far
  UNTRACKED              memory that NVML shows beyond that
  CAP-BY, TIME-BY        how cap and turns are enforced
  DENIED, LAST-REFUSED   refused allocations; what the last one needed, and what was left
  WEIGHT, PRIO, LIMIT    share-limit+weight; priority; most of the GPU's time that it may get
  MEM-LIMIT, WANTED      memory limit; what it should give back of the memory beyond its cap
  DUE                    part of the GPU's time that it is due beside the work that others had; without work, what it would be due
  GOT                    part of the GPU's time that it got: its turns; without turns, as when it is alone on the GPU, what NVML's
                         utilisation of the last second or less shows, - if NVML does not tell it
  WAIT                   part of the time in which it had work and not the GPU, because of others or of its limit
  IDLE                   part of the time in which it had no work
  WHY                    what keeps it from the GPU (gpuslice explain)
  PROCS, LAUNCHES        processes attached, launches so far
  TURNS, LATE            turns so far, and those after which its work did not end in time
  PREEMPTED, STOPS       turns that ended early for a higher class, stops of its work on the GPU
  POD                    namespace, pod and container in Kubernetes

DUE, GOT, WAIT, IDLE and WHY are of the 250 ms that the command measures, with --watch of a second. Kernels of 300 ms make
turns as long, so that GOT differs between two calls: gpuslice explain measures 2 s, gpuslice plot shows minutes.
Counts (DENIED, LAUNCHES, TURNS, LATE, PREEMPTED, STOPS) and LAST-REFUSED are since the slice's start or the daemon's,
whichever was later: a restart of the daemon begins them anew.

Marks after the columns:
  N suspended            its memory, N, is on the host; gpuslice resume moves it back (suspending, resuming: on the way)
  N borrowed             it holds N beyond its cap, of memory that others leave unused
  N wanted back          it should give back N of the memory beyond its cap, because others need what they were promised
  frozen                 gpuslice has frozen its processes, because it is over its cap (over_cap_freeze_s)
  over                   it holds more than its memory limit, and can allocate no more
  gang                   its GPUs take turns together
  time slice changed     one of its processes had another time slice on the GPU than the one that was set
  simulated              the GPU is simulated; a terminal shows it once below the table if all are";

/// What is printed.
#[derive(Clone)]
enum Format {
    Json,
    Wide,
    Chosen(Vec<Column>),
}

fn parse_format(text: &str) -> Result<Format, String> {
    match text {
        "json" => Ok(Format::Json),
        "wide" => Ok(Format::Wide),
        columns => columns::parse(columns).map(Format::Chosen),
    }
}

/// Runs `gpuslice ps`.
///
/// # Errors
/// No daemon answers.
pub fn main(options: &Options) -> Result<ExitCode> {
    let admin = elsewhere::connect(options.runtime_dir.as_deref())?;
    let first = View::of(admin.list()?);
    let shown = match &options.output {
        Some(Format::Chosen(columns)) => (columns.clone(), DropOrder::LastFirst),
        Some(Format::Wide) => (columns::standard(true), DropOrder::Known),
        Some(Format::Json) if options.watch => bail!("--watch shows a table, not JSON"),
        Some(Format::Json) => return print_json(&first),
        None if options.json => return print_json(&first),
        None => (columns::standard(options.wide), DropOrder::Known),
    };
    if options.watch {
        return watch(&admin, first, &shown);
    }
    std::thread::sleep(SAMPLE);
    let now = View::of(admin.list_again()?);
    let mut told = lines((&first, &now), &shown);
    if now.rows.is_empty() {
        told.pop();
        told.push(none(&now, options.runtime_dir.as_deref()));
    }
    told.iter().try_for_each(|line| out::line(line))?;
    Ok(ExitCode::SUCCESS)
}

/// The text for a node without slices: its GPUs if they are simulated, and the command that begins a slice.
fn none(now: &View, dir: Option<&Path>) -> String {
    let gpus = match now.simulated() {
        simulated if simulated.is_empty() => simulated,
        simulated => format!(", whose GPUs are {simulated}"),
    };
    let run = with_dir(Some("gpuslice run --memory 1GiB".to_owned()), dir).unwrap_or_default();
    format!("{NO_SLICES}{gpus}; try: {run} -- COMMAND")
}

/// The table between two views: on a terminal, what it has room for. Without slices its last line says so.
pub fn lines(
    (before, now): (&View, &View),
    (columns, order): &(Vec<Column>, DropOrder),
) -> Vec<String> {
    let mut all = match out::terminal() {
        Some((width, _)) => columns::fitted((before, now), columns, (width, *order)),
        None => columns::lines(before, now, columns),
    };
    all.extend(now.rows.is_empty().then(|| NO_SLICES.to_owned()));
    all
}

fn print_json(view: &View) -> Result<ExitCode> {
    out::line(&table::json(view).to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Draws the table until the output is closed.
fn watch(admin: &Admin, mut before: View, shown: &(Vec<Column>, DropOrder)) -> Result<ExitCode> {
    let mut drawn = 0;
    loop {
        std::thread::sleep(REFRESH);
        let now = View::of(admin.list_again()?);
        if !out::draw(&lines((&before, &now), shown), &mut drawn)? {
            return Ok(ExitCode::SUCCESS);
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that is drawn again and again says so too.
    #[test]
    fn an_empty_table_says_that_there_are_no_slices() {
        let shown = (columns::standard(false), DropOrder::Known);
        let view = View::default();
        let told = lines((&view, &view), &shown);
        assert_eq!(told.last().map(String::as_str), Some("no slices on this node"));
        assert!(told[0].starts_with("NAME"), "{told:?}");
    }

    #[test]
    fn the_hint_is_for_the_daemon_that_was_asked() {
        let told = |dir: Option<&str>| none(&View::default(), dir.map(Path::new));
        let hint = "no slices on this node; try: gpuslice run --memory 1GiB";
        assert_eq!(told(None), format!("{hint} -- COMMAND"));
        assert_eq!(told(Some("/d")), format!("{hint} --runtime-dir /d -- COMMAND"));
    }
}
