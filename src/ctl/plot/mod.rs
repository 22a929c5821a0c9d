//! `gpuslice plot`: the last minutes of the node or of a slice, as lines in a terminal, as a picture, or as CSV.

mod chart;
mod csv;
mod panel;
#[cfg(test)]
mod tests;

use crate::elsewhere;
use crate::node;
use crate::out;
use crate::past::{Past, Series, part};
use crate::rm::find;
use crate::spark::{resampled, sparkline};
use crate::table::View;
use crate::text::cut;
use crate::why::percent;
use anyhow::{Result, bail};
use chart::{GpuFacts, due_us, mean};
use gpuslice_wire::samples::Sample;
use gpuslice_wire::units::Bytes;
use gpuslice_wire::waits::WaitCause;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// The daemon's memory.
const LONGEST: Duration = Duration::from_secs(600);
/// Cells of a sparkline where there is room, and where there is none.
const CELLS: std::ops::RangeInclusive<usize> = 8..=40;
/// Cells beside a name and its sparkline: three figures, the memory, and the spaces between.
const FIGURES: usize = "    100 % 100 % 100 %  1048575MiB".len();

/// Options of `gpuslice plot`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// How far to look back: 30s, 5m; 10m at most
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_since)]
    since: Duration,
    /// Show this container only: its id, the beginning of that, or its name
    #[arg(long, value_name = "CONTAINER", add = crate::complete::slices())]
    slice: Option<String>,
    /// Write a picture (FILE.svg) or a table (FILE.csv) instead of lines
    #[arg(long, short, value_name = "FILE", value_parser = parse_file)]
    output: Option<PathBuf>,
    /// Print one JSON object: all samples; times in µs, sizes in bytes
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const HELP: &str = "\
The daemon remembers ten minutes, second by second, also of slices that have ended.
  GOT   the part of the GPU's time that the slice got: its turns; without turns, as when it is alone on the GPU, no more than
        NVML's utilisation shows (if NVML does not tell it, all the time in which its processes claim work)
  DUE   the part that was due to it while it had work
  WAIT  the part of the time in which it had work and not the GPU, because of others or of its limit
MEMORY is USED and UNTRACKED of gpuslice ps together. The memory of a suspended slice is on the host, and is shown
beside it; the column suspended_s of FILE.csv tells where memory_bytes is without it.";

fn parse_since(text: &str) -> Result<Duration, String> {
    let since =
        humantime::parse_duration(text).map_err(|_| "not a time as 30s or 5m".to_owned())?;
    match since {
        Duration::ZERO => Err("nothing happened in no time; give a time as 30s or 5m".to_owned()),
        since if since > LONGEST => Err("the daemon remembers 10m".to_owned()),
        since => Ok(since),
    }
}

fn parse_file(text: &str) -> Result<PathBuf, String> {
    out::named(text, [("svg", "a picture"), ("csv", "a table")])
}

/// Runs `gpuslice plot`.
///
/// # Errors
/// No daemon answers, no slice matches, or the file cannot be written.
pub fn main(options: &Options) -> Result<ExitCode> {
    out::has_directory(options.output.as_deref())?;
    let dir = node::runtime_dir(options.runtime_dir.as_deref());
    let admin = elsewhere::connect(options.runtime_dir.as_deref())?;
    let view = View::of(admin.list()?);
    let mut past = Past::default();
    past.follow(&admin)?;
    let asked = options.slice.as_deref();
    let container = asked.map(|asked| container_of(&past, &view, asked, &dir)).transpose()?;
    past.narrow(options.since.as_nanos() as u64, container.as_deref());
    past.note_suspended(&view);
    let gpus = facts(&past, &view);
    let seconds = options.since.as_secs_f64();
    match &options.output {
        None if options.json => out::line(&json_of(&past, &view).to_string())?,
        None => {
            let width = out::terminal().map_or(usize::MAX, |(width, _)| width);
            let lines = lines(&past, &gpus, (seconds.ceil() as usize, width));
            lines.iter().try_for_each(|line| out::line(line))?;
        }
        Some(path) => {
            let text = match (path.extension().and_then(|end| end.to_str()), &container) {
                (Some("csv"), _) => csv::csv(&past, |gpu| view.index(gpu)),
                (_, None) => chart::node(&past, &gpus, seconds),
                (_, Some(_)) => chart::slice(&past, &gpus, seconds),
            };
            out::file(path, &text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The container that is meant: one with a slice, or one whose slice has ended.
fn container_of(past: &Past, view: &View, asked: &str, dir: &Path) -> Result<String> {
    if let Ok(id) = find(view, asked, dir) {
        return Ok(id);
    }
    let mut ended: Vec<&str> = past
        .series
        .values()
        .filter(|it| it.name == asked || it.container.starts_with(asked))
        .map(|it| it.container.as_str())
        .collect();
    ended.dedup();
    match ended[..] {
        [one] => Ok(one.to_owned()),
        [] => bail!(
            "no slice was called {asked:?} in the last ten minutes; gpuslice ps lists those of now"
        ),
        _ => {
            bail!("{} slices were called {asked:?}; give an id: {}", ended.len(), ended.join(", "))
        }
    }
}

/// The GPUs of the samples, by index.
fn facts(past: &Past, view: &View) -> Vec<GpuFacts> {
    let order: Vec<_> = view.gpus.iter().map(|gpu| gpu.uuid).collect();
    let fact = |uuid| {
        let gpu = view.gpu(uuid);
        let product = gpu.map_or("", |gpu| gpu.product.as_str());
        let called = match product {
            "" => view.called(uuid),
            product => format!("{}, {product}", view.called(uuid)),
        };
        GpuFacts { uuid, called, memory: gpu.map_or(0, |gpu| gpu.total.0) }
    };
    past.gpus(&order).into_iter().map(fact).collect()
}

/// All samples as one JSON object.
fn json_of(past: &Past, view: &View) -> Value {
    let sample = |it: &Sample| {
        let waits = WaitCause::ALL.into_iter().zip(it.wait_us);
        let waits = waits.map(|(cause, us)| (cause.name().to_owned(), Value::from(us)));
        json!({
            "unix_ns": past.unix_of(it.end_ns), "length_us": it.length_us, "due_ppm": it.due_ppm,
            "got_us": it.got_us, "running_us": it.running_us, "handover_us": it.handover_us,
            "limited_us": it.limited_us, "gang_us": it.gang_us, "idle_us": it.idle_us,
            "suspended_us": it.suspended_us, "absent_us": it.absent_us, "wait_us": waits.collect::<Value>(), "memory": it.memory.0,
        })
    };
    let series = past.series.values().map(|it| {
        json!({
            "container": it.container, "name": it.name, "gpu": it.gpu.to_string(),
            "index": view.index(it.gpu), "memory_cap": it.cap, "memory_suspended": it.on_host.0,
            "samples": it.samples.iter().map(sample).collect::<Vec<_>>(),
        })
    });
    let all = json!({ "unix_ns": past.unix_ns, "series": series.collect::<Vec<_>>() });
    out::document("plot", 1, all)
}

/// A heading for each GPU, and a line for each slice, in at most `most` cells. Sparklines are shortened before names.
fn lines(past: &Past, gpus: &[GpuFacts], (seconds, most): (usize, usize)) -> Vec<String> {
    if past.series.is_empty() {
        return vec!["no slice has used a GPU in this time".to_owned()];
    }
    let away = |it: &Series| match it.on_host {
        Bytes::ZERO => String::new(),
        memory => format!(", {memory} suspended"),
    };
    let marks = past.series.values().map(|it| away(it).len());
    let room = most.saturating_sub(FIGURES + marks.max().unwrap_or(0));
    let widths = past.series.values().map(|it| it.name.width());
    let longest = room.saturating_sub(*CELLS.start()).max(4);
    let width = widths.max().unwrap_or(0).clamp(4, longest);
    let cells = room.saturating_sub(width).clamp(*CELLS.start(), *CELLS.end());
    let mut lines = Vec::new();
    for gpu in gpus {
        lines.push(cut(&gpu.called, most));
        let head = cut("GOT, oldest left", cells);
        let head = format!("  {:width$}  {head:cells$}   GOT   DUE  WAIT  MEMORY", "NAME");
        lines.push(cut(&head, most));
        for it in past.on(gpu.uuid) {
            let parts: Vec<f64> = it.samples.iter().map(|it| part(it, it.got_us.into())).collect();
            let mean = |of| percent(mean(it.samples.iter(), of));
            let [got, due, wait] =
                [mean(|it| it.got_us.into()), mean(due_us), mean(Sample::waited_us)];
            let name = cut(&it.name, width);
            let space = " ".repeat(width - name.width());
            let memory = it.samples.back().map_or(String::new(), |it| it.memory.to_string());
            let line = sparkline(&resampled(&parts, cells, seconds));
            let line = format!(
                "  {name}{space}  {line} {got:>5} {due:>5} {wait:>5}  {memory}{}",
                away(it)
            );
            lines.push(cut(&line, most));
        }
    }
    lines
}
