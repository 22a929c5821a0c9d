//! `gpuslice record`: the turns of a stretch of time, as a picture or as a trace for Perfetto.
//!
//! The daemon records while it is asked to. The rows come in parts, the last part after the end of the stretch; the
//! charges of all rows are what the slices got in it, to the nanosecond.

mod timeline;
mod trace;

use crate::admin::Admin;
use crate::elsewhere;
use crate::out;
use crate::table::View;
use crate::text::cut;
use crate::why::{duration, percent};
use anyhow::{Context, Result};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::turns::{TurnKind, TurnRow, Turns};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use unicode_width::UnicodeWidthStr;

/// Interval between two questions while a recording lasts.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// The daemon records a little longer than asked, so that the last question finds the recording on.
const SLACK: Duration = Duration::from_secs(2);

/// Cells of a name, at least.
const NAME: usize = 16;
/// Cells beside a name: five figures, and the spaces between.
const FIGURES: usize = "  12345    123.4 ms  100 %    123 ms    123 ms  ".len();

/// Options of `gpuslice record`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// How long to record: 500ms, 5s; 60s at most
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = parse_for)]
    length: Duration,
    /// Write a picture (FILE.svg) or a trace (FILE.json) instead of sums
    #[arg(long, short, value_name = "FILE", value_parser = parse_file)]
    output: Option<PathBuf>,
    /// Print one JSON object: sums; times in ns
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const HELP: &str = "\
Open a trace at https://ui.perfetto.dev or in chrome://tracing.
  turn     the slice had its turn
  drain    its turn was closed, and its work had not ended yet
  overrun  its work had not ended in time, and went on beside the turns of others
  open     no turns were taken: it was alone, or the policy has none
Columns of the sums:
  TURNS    turns, or stretches without turns
  GOT      GPU time that was charged, and the part of the recording that it is
  LONGEST  the longest time from the begin of a turn until its work had ended, as far as the recording has it
  LATE     time in drains and overruns";

fn parse_for(text: &str) -> Result<Duration, String> {
    let length =
        humantime::parse_duration(text).map_err(|_| "not a time as 500ms or 5s".to_owned())?;
    match length.as_millis() {
        10..=60_000 => Ok(length),
        _ => Err("not between 10ms and 60s".to_owned()),
    }
}

fn parse_file(text: &str) -> Result<PathBuf, String> {
    out::named(text, [("svg", "a picture"), ("json", "a trace")])
}

/// A container on a GPU.
#[derive(Clone, Debug)]
pub struct Track {
    /// Container id.
    pub container: String,
    /// Display name.
    pub name: String,
    /// The GPU.
    pub gpu: GpuUuid,
}

/// A stretch of time in which a container had a GPU in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Its container and GPU.
    pub track: u32,
    /// How.
    pub kind: TurnKind,
    /// Its begin, ns after the recording's.
    pub from: u64,
    /// Its end, ns after the recording's begin.
    pub to: u64,
    /// GPU time charged for it, ns.
    pub gpu_ns: u64,
}

/// A recording.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Containers on GPUs, by number.
    pub tracks: BTreeMap<u32, Track>,
    /// In the order of their begins.
    pub rows: Vec<Stretch>,
    /// Its length, ns.
    pub length: u64,
    /// Its begin, ns since 1970.
    pub unix_ns: u64,
    /// Rows that the daemon had to drop.
    pub dropped: u64,
    /// The GPUs, each with its name, in the node's order.
    pub gpus: Vec<(GpuUuid, String)>,
}

/// What a track's container got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Turns, or stretches without turns.
    pub turns: u64,
    /// GPU time charged, ns.
    pub gpu_ns: u64,
    /// The longest time from the begin of a turn until its work had ended, ns.
    pub longest: u64,
    /// Time in drains and overruns, ns.
    pub late: u64,
}

impl Recording {
    /// Takes in rows. What began before the recording is another client's.
    fn take(&mut self, rows: Vec<Turns>, began: u64) {
        for row in rows {
            match row {
                Turns::Track { number, container, name, gpu } => {
                    let container = container.to_string();
                    let name = match name.as_str() {
                        "" => container.chars().take(12).collect(),
                        name => name.to_owned(),
                    };
                    self.tracks.insert(number, Track { container, name, gpu });
                }
                Turns::Rows { count, rows } => {
                    let ours = rows.iter().take(count as usize).filter(|it| it.from_ns >= began);
                    self.rows.extend(ours.map(|it| stretch(it, began)));
                }
                Turns::End { now_ns, unix_ns, dropped, .. } => {
                    self.length = now_ns.saturating_sub(began);
                    self.unix_ns = unix_ns.saturating_sub(self.length);
                    self.dropped += dropped;
                }
            }
        }
    }

    /// Sorts rows, and joins what was cut only because a client asked.
    fn finish(&mut self) {
        self.rows.sort_by_key(|it| (it.track, it.from));
        self.rows.dedup_by(|next, it| {
            let goes_on = next.track == it.track && next.kind == it.kind && next.from == it.to;
            // two turns of one container follow each other only with a drain between them
            if goes_on {
                (it.to, it.gpu_ns) = (next.to, it.gpu_ns + next.gpu_ns);
            }
            goes_on
        });
        self.rows.sort_by_key(|it| (it.from, it.track));
    }

    /// The sums of a track.
    pub fn sums(&self, track: u32) -> Sums {
        let mut sums = Sums::default();
        let mut began = 0;
        for it in self.rows.iter().filter(|it| it.track == track) {
            sums.gpu_ns += it.gpu_ns;
            match it.kind {
                TurnKind::Turn | TurnKind::Open => (sums.turns, began) = (sums.turns + 1, it.from),
                TurnKind::Drain | TurnKind::Overrun => sums.late += it.to - it.from,
            }
            sums.longest = sums.longest.max(it.to - began);
        }
        sums
    }

    /// The tracks of a GPU, by name.
    pub fn on(&self, gpu: GpuUuid) -> Vec<(u32, &Track)> {
        let mut all: Vec<_> =
            self.tracks.iter().filter(|(_, it)| it.gpu == gpu).map(|(n, it)| (*n, it)).collect();
        all.sort_by(|(_, a), (_, b)| (&a.name, &a.container).cmp(&(&b.name, &b.container)));
        all
    }
}

fn stretch(row: &TurnRow, began: u64) -> Stretch {
    let TurnRow { track, kind, from_ns, to_ns, gpu_ns } = *row;
    Stretch { track, kind, from: from_ns - began, to: to_ns.saturating_sub(began), gpu_ns }
}

/// The end of an answer: its instant, and the number of its last row.
fn end(rows: &[Turns]) -> Option<(u64, u64, bool)> {
    match rows.last() {
        Some(Turns::End { now_ns, last, more, .. }) => Some((*now_ns, *last, *more != 0)),
        _ => None,
    }
}

/// Records for `length`.
fn record(admin: &Admin, length: Duration) -> Result<Recording> {
    let ask = |left: Duration, after| -> Result<(Vec<Turns>, u64, u64, bool)> {
        let rows = admin.record(left.as_nanos() as u64, after)?;
        let (now, last, more) = end(&rows).context("an answer without an end")?;
        Ok((rows, now, last, more))
    };
    // What another client's recording has so far is skipped.
    let (_, began, mut after, _) = ask(length + SLACK, u64::MAX)?;
    let until = Instant::now() + length;
    let mut recording = Recording::default();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(ASK_EVERY));
        let (rows, _, last, more) = ask(left.saturating_sub(ASK_EVERY), after)?;
        recording.take(rows, began);
        after = last;
        if left <= ASK_EVERY && !more {
            recording.finish();
            return Ok(recording);
        }
    }
}

/// Runs `gpuslice record`.
///
/// # Errors
/// No daemon answers, or the file cannot be written.
pub fn main(options: &Options) -> Result<ExitCode> {
    out::has_directory(options.output.as_deref())?;
    let admin = elsewhere::connect(options.runtime_dir.as_deref())?;
    let mut recording = record(&admin, options.length)?;
    let view = View::of(admin.list()?);
    recording.gpus = view.gpus.iter().map(|gpu| (gpu.uuid, view.called(gpu.uuid))).collect();
    if recording.dropped > 0 {
        out::note(&format!("{} turns are missing: record a shorter time", recording.dropped));
    }
    match &options.output {
        None if options.json => out::line(&trace::summary(&recording).to_string())?,
        None => lines(&recording, out::terminal().map(|(width, _)| width))
            .iter()
            .try_for_each(|line| out::line(line))?,
        Some(path) => {
            let text = match path.extension().and_then(|end| end.to_str()) {
                Some("json") => trace::trace(&recording).to_string(),
                _ => timeline::timeline(&recording),
            };
            out::file(path, &text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A line for each slice of each GPU. Names are whole in a pipe, and where a terminal of `most` cells has room for
/// them.
fn lines(recording: &Recording, most: Option<usize>) -> Vec<String> {
    let longest = recording.tracks.values().map(|it| it.name.width()).max().unwrap_or(0);
    let called = recording.gpus.iter().map(|(_, called)| called.width()).max().unwrap_or(0);
    let room = most.map_or(usize::MAX, |most| most.saturating_sub(FIGURES + called));
    let width = longest.min(room).max(NAME);
    let mut lines = vec![format!(
        "{:width$}  {:>5}  {:>9}  {:>5}  {:>8}  {:>8}",
        "NAME", "TURNS", "GOT", "", "LONGEST", "LATE"
    )];
    for (gpu, called) in &recording.gpus {
        for (number, track) in recording.on(*gpu) {
            let Sums { turns, gpu_ns, longest, late } = recording.sums(number);
            let part = percent(gpu_ns as f64 / recording.length.max(1) as f64);
            let name = cut(&track.name, width);
            let space = " ".repeat(width.saturating_sub(name.width()));
            let [got, longest, late] = [gpu_ns, longest, late].map(duration);
            lines.push(format!(
                "{name}{space}  {turns:>5}  {got:>9}  {part:>5}  {longest:>8}  {late:>8}  {called}"
            ));
        }
    }
    if lines.len() == 1 {
        return vec!["no slice used a GPU in this time".to_owned()];
    }
    lines
}

#[cfg(test)]
mod tests;
