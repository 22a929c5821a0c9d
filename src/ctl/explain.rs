//! `gpuslice explain`: why a slice is slow, in sentences, with the command that helps.
//!
//! It compares two snapshots a short stretch apart, because the last seconds matter more than the whole life. The
//! reason is decided in `why`; this file prints it.

use crate::elsewhere;
use crate::node;
use crate::out;
use crate::rm::find;
use crate::table::{Row, View};
use crate::why::{Finding, Told, Why, decide, duration, percent, with_dir};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// Options of `gpuslice explain`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Id, id prefix, or name as shown by gpuslice ps; without it, one line for each slice
    #[arg(value_name = "CONTAINER", add = crate::complete::slices())]
    container: Option<String>,
    /// Seconds to watch, 0.1 to 3600
    #[arg(long, value_name = "S", default_value = "2", value_parser = parse_stretch)]
    seconds: Duration,
    /// Judge by all the time since the slice or the daemon began, without watching
    #[arg(long, conflicts_with = "seconds")]
    since_start: bool,
    /// Print one JSON object; times in ns
    #[arg(long)]
    json: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const HELP: &str = "\
Reasons:
  weight, share   others have the GPU for what their weights and shares give them
  POLICY          others have it under a policy that counts no weights: fair, preemptive
  limit           the slice has used up its limit; with a policy's name, that of the policy
  past limit      a limit held it back, and no longer holds
  NAME: ...       it waits behind NAME: its kernels are long, its work does not end, its class is higher,
                  it has its turns, or the GPU is reserved for its gang
  beside NAME     the work of NAME goes on beside its own: kernels of one of them outlast its turns
  native          it runs beside others without turns, under the policy native
  idle            it has no work for the GPU: it loads data, or computes on the CPU
  no process      no process of it uses the GPU
  memory refused  an allocation did not fit under its cap, and nothing else is the reason
  memory lent     an allocation within its cap waits for memory that another slice has borrowed
  gang            another of its GPUs is not free
  suspending, suspended, resuming
                  its memory is on the host, or on the way; its processes wait
  frozen          gpuslice has frozen its processes, because it is over its cap
  daemon away     the daemon did not run
  -               nothing keeps it from the GPU

Time: the parts of its wall time: running, waiting, hand-over, limited, gang, idle, suspended and absent. Where slices
launched without turns, running is called free to launch: what they ran then is not measured.";

fn parse_stretch(text: &str) -> Result<Duration> {
    let seconds: f64 = text.parse().context("not a number of seconds")?;
    if !(0.1..=3600.0).contains(&seconds) {
        bail!("not between 0.1 and 3600 seconds");
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs `gpuslice explain`.
///
/// # Errors
/// No daemon answers; no slice or several match.
pub fn main(options: &Options) -> Result<ExitCode> {
    let dir = node::runtime_dir(options.runtime_dir.as_deref());
    let admin = elsewhere::connect(options.runtime_dir.as_deref())?;
    // The daemon closes a connection that says nothing for a second, as this process may where it is held up.
    let first = View::of(admin.list().or_else(|_| admin.again()?.list())?);
    let asked = options.container.as_deref();
    let id = asked.map(|asked| find(&first, asked, &dir)).transpose()?;
    let (before, now) = match options.since_start {
        true => (None, first),
        false => {
            std::thread::sleep(options.seconds);
            (Some(first), View::of(admin.list_again()?))
        }
    };
    let is_meant = |row: &&Row| id.as_ref().is_none_or(|id| row.container == *id);
    let rows: Vec<&Row> = now.rows.iter().filter(is_meant).collect();
    if let (Some(id), true) = (&id, rows.is_empty()) {
        bail!("{id} has no slice any more; gpuslice events says when it ended");
    }
    let findings: Vec<(&Row, Finding)> =
        rows.into_iter().map(|row| (row, decide(before.as_ref(), &now, row))).collect();
    let given = options.runtime_dir.as_deref();
    if options.json {
        out::line(&json_of(&now, &findings, given).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let (lines, indent) = match id {
        Some(_) => {
            let all = findings.iter().flat_map(|(row, it)| paragraph(&now, row, it, given));
            (all.collect(), BELOW_WORD)
        }
        None => table(&now, &findings),
    };
    for line in lines {
        match line.starts_with(TRY) {
            true => out::line(&line)?, // a command is copied as one line
            false => drop(out::sentence(&line, indent)?),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Before the command that helps.
const TRY: &str = "  try:   ";
/// Cells before a sentence about one slice.
const BELOW_WORD: usize = TRY.len();

/// One line for each slice, and the cells before its sentence.
fn table(now: &View, findings: &[(&Row, Finding)]) -> (Vec<String>, usize) {
    if findings.is_empty() {
        return (vec!["no slices on this node".to_owned()], 0);
    }
    let width = findings.iter().map(|(row, _)| row.name.width()).max().unwrap_or(0);
    let mut indent = 0;
    let line = |(row, finding): &(&Row, Finding)| {
        let name = &row.name;
        let space = " ".repeat(width.saturating_sub(name.width()));
        let begin = format!("{name}{space}  gpu {}  ", now.index(row.gpu));
        indent = begin.width();
        begin + &finding.told(now, row).sentence
    };
    (findings.iter().map(line).collect(), indent)
}

/// The sentences about one slice.
fn paragraph(now: &View, row: &Row, finding: &Finding, dir: Option<&Path>) -> Vec<String> {
    let Told { sentence, advice, notes, .. } = finding.told(now, row);
    let growth = &finding.growth;
    let mut lines = vec![
        format!("{}, {}, {}:", row.name, now.called(row.gpu), duration(growth.wall)),
        format!("  why:   {sentence}"),
    ];
    lines.extend(with_dir(advice, dir).map(|advice| format!("{TRY}{advice}")));
    let parts = parts(finding);
    let word = |name: &'static str| match name {
        "running" if growth.is_open => "free to launch",
        name => name,
    };
    let shown = parts.iter().filter(|(_, ns)| growth.part(*ns) >= 0.005);
    let shown: Vec<String> =
        shown.map(|&(name, ns)| format!("{} {}", percent(growth.part(ns)), word(name))).collect();
    let got = growth.got.map_or("-".to_owned(), percent);
    let (time, due) = (shown.join(", "), percent(finding.due));
    let waited = percent(growth.part(growth.waited()));
    lines.push(format!("  time:  {time}; got {got} of the GPU, due {due}, waited {waited}"));
    lines.extend(notes.into_iter().map(|note| format!("  note:  {note}")));
    lines
}

/// The parts of the wall time, ns.
fn parts(finding: &Finding) -> [(&'static str, u64); 8] {
    let it = &finding.growth;
    [
        ("running", it.running),
        ("waiting", it.waiting),
        ("hand-over", it.handover),
        ("limited", it.limited),
        ("gang", it.gang),
        ("idle", it.idle),
        ("suspended", it.suspended),
        ("absent", it.absent),
    ]
}

fn json_of(now: &View, findings: &[(&Row, Finding)], dir: Option<&Path>) -> Value {
    let one = |(row, finding): &(&Row, Finding)| {
        let told = finding.told(now, row);
        let behind = match &finding.why {
            Why::Behind { container, .. } | Why::Beside { container } => Some(container),
            Why::Gang { behind, .. } => behind.as_ref().map(|(container, _)| container),
            _ => None,
        };
        let cause = match &finding.why {
            Why::Behind { cause, .. } | Why::Gang { behind: Some((_, cause)), .. } => {
                Some(cause.name())
            }
            _ => None,
        };
        let parts = parts(finding).map(|(name, ns)| (format!("{}_ns", name.replace('-', "")), ns));
        let parts: serde_json::Map<String, Value> =
            parts.into_iter().map(|(name, ns)| (name, ns.into())).collect();
        json!({
            "container": row.container, "name": row.name, "gpu": row.gpu.to_string(),
            "index": now.index(row.gpu), "lane": row.lane.0,
            "why": finding.why.name(), "behind": behind, "cause": cause, "part": finding.part,
            "label": told.label, "sentence": told.sentence, "try": with_dir(told.advice, dir),
            "notes": told.notes,
            "wall_ns": finding.growth.wall, "gpu_ns": finding.growth.gpu, "due": finding.due,
            "got": finding.growth.got, "wait_ns": finding.growth.waited(),
            "time": parts,
        })
    };
    let slices: Vec<Value> = findings.iter().map(one).collect();
    out::document("explain", 1, json!({ "now_ns": now.now_ns, "slices": slices }))
}

#[cfg(test)]
mod tests {
    use super::HELP;

    #[test]
    fn the_help_has_every_label() {
        let labels =
            ["weight", "share", "POLICY", "limit", "past limit", "NAME: ...", "beside NAME"];
        let more = ["native", "idle", "no process", "memory refused", "gang", "daemon away"];
        for label in labels.into_iter().chain(more).chain(["suspending", "suspended", "resuming"]) {
            let is_there = |line: &str| {
                let named = line.trim_start().split("  ").next().unwrap_or("");
                named == label || named.split(", ").any(|word| word.trim_end_matches(',') == label)
            };
            assert!(HELP.lines().any(is_there), "{label}");
        }
        assert!(HELP.contains("free to launch"));
    }
}
