//! `gpuslice ps`: the node's slices as a table or as JSON.

use crate::admin::Admin;
use crate::node;
use crate::out;
use crate::table::{self, View};
use anyhow::Result;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Interval between two drawings of the table.
const REFRESH: Duration = Duration::from_secs(1);
/// Interval over which the table's shares are measured.
const SAMPLE: Duration = Duration::from_millis(250);

/// Options of `gpuslice ps`.
#[derive(clap::Args)]
pub struct Options {
    /// Print one JSON object: counters since admission, sizes in bytes, times in ns
    #[arg(long)]
    json: bool,
    /// Add limits, turns and the last refused allocation of each slice
    #[arg(long, short)]
    wide: bool,
    /// Refresh every second until interrupted
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// Runs `gpuslice ps`.
///
/// # Errors
/// No daemon answers.
pub fn main(options: &Options) -> Result<ExitCode> {
    let admin = Admin::connect(&node::runtime_dir(options.runtime_dir.as_deref()))?;
    let first = View::of(admin.list()?);
    if options.json {
        out::line(&table::json(&first).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.watch {
        return watch(&admin, first, options.wide);
    }
    std::thread::sleep(SAMPLE);
    let now = View::of(admin.list()?);
    for line in table::lines(&first, &now, options.wide) {
        out::line(&line)?;
    }
    if now.rows.is_empty() {
        let simulated = now.gpus.iter().any(|gpu| gpu.uuid.is_simulated());
        let gpus = if simulated { ", whose GPUs are simulated" } else { "" };
        out::line(&format!(
            "no slices on this node{gpus}; try: gpuslice run --memory 1GiB -- COMMAND"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws the table until the output is closed.
fn watch(admin: &Admin, mut before: View, wide: bool) -> Result<ExitCode> {
    let mut drawn = 0;
    loop {
        std::thread::sleep(REFRESH);
        let now = View::of(admin.list()?);
        if !out::draw(&table::lines(&before, &now, wide), &mut drawn)? {
            return Ok(ExitCode::SUCCESS);
        }
        before = now;
    }
}
