//! `gpuslice rm`: removes leftover slices, as of a container whose runtime died before it could call
//! the hook, or of a killed `gpuslice run`.

use crate::admin::Admin;
use crate::node;
use crate::out;
use crate::processes;
use crate::refused::reworded;
use crate::table::{Row, View};
use crate::text::counted;
use crate::why::with_dir;
use anyhow::{Context, Result, bail};
use gpuslice_wire::admin::Command;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::snapshot::SuspensionState;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `gpuslice rm`.
#[derive(clap::Args)]
pub struct Options {
    /// Ids, id prefixes, or names as shown by `gpuslice ps`
    #[arg(required = true, value_name = "CONTAINER", add = crate::complete::slices())]
    containers: Vec<String>,
    /// Remove the slice of a container whose processes still run; they get no more GPU memory
    #[arg(long, short)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// Runs `gpuslice rm`.
///
/// # Errors
/// No daemon answers; no slice or several match; its processes still run.
pub fn main(options: &Options) -> Result<ExitCode> {
    let dir = node::runtime_dir(options.runtime_dir.as_deref());
    let admin = Admin::connect(&dir)?;
    // All are found before the first one is removed.
    let view = View::of(admin.list()?);
    let mut all: Vec<(&String, String, ContainerId)> = Vec::new();
    for asked in &options.containers {
        let id = find(&view, asked, &dir)?;
        if all.iter().any(|(_, other, _)| *other == id) {
            continue;
        }
        let container = ContainerId::new(&id).context(id.clone())?;
        let processes = admin.processes(container)?.map_or(0, |all| processes::number(&all));
        // The daemon refuses to remove a suspended one, and tells to resume it first: --force does not help.
        let is_suspended = view.suspensions.get(&id) == Some(&SuspensionState::Suspended);
        if processes > 0 && !options.force && !is_suspended {
            let processes = counted(processes as u64, "process");
            bail!("{asked} has {processes} on the GPU; end them first, or add --force");
        }
        all.push((asked, id, container));
    }
    let mut removed = Vec::new();
    let done = all.into_iter().try_for_each(|(asked, id, container)| {
        admin
            .ask(&Command::Dismiss { container })
            .map_err(|why| reworded(&why, (&id, asked), options.runtime_dir.as_deref()))?;
        if !options.json {
            out::line(&id)?;
        }
        removed.push(id);
        Ok(())
    });
    // What was removed before a refusal is told, too.
    if options.json && (done.is_ok() || !removed.is_empty()) {
        out::line(&out::document("rm", 1, json!({ "removed": removed })).to_string())?;
    }
    done.map(|()| ExitCode::SUCCESS)
}

/// Whether `asked` selects a slice.
pub fn is_meant(row: &Row, asked: &str) -> bool {
    !asked.is_empty() && (row.container.starts_with(asked) || row.name == asked)
}

/// The id of the one slice that `asked` selects.
///
/// # Errors
/// No slice or several match.
pub fn find(view: &View, asked: &str, dir: &Path) -> Result<String> {
    let mut ids: Vec<_> =
        view.rows.iter().filter(|row| is_meant(row, asked)).map(|row| &row.container).collect();
    ids.sort();
    ids.dedup();
    // A record that the daemon could not restore is missing from its list, but blocks the id.
    let on_disk = ContainerId::new(asked).is_ok() && dir.join("c").join(asked).exists();
    match ids[..] {
        _ if ids.iter().any(|id| *id == asked) || (ids.is_empty() && on_disk) => Ok(asked.into()),
        [only] => Ok(only.clone()),
        [] => {
            let list = with_dir(Some("gpuslice ps --json".to_owned()), Some(dir));
            bail!("no slice is called {asked:?}; {} lists names and ids", list.unwrap_or_default())
        }
        _ => {
            let all: Vec<&str> = ids.iter().map(|id| id.as_str()).collect();
            bail!("{asked:?} matches {} slices: {}; give an id", all.len(), all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests;

    fn slice(id: &str) -> Row {
        tests::slice(id, 1, None, true, 0)
    }

    #[test]
    fn a_slice_is_found_by_id_its_beginning_or_its_name() {
        let mut rows = vec![slice("abc1"), slice("abc2"), slice("web")];
        rows.push(Row { name: "front".into(), ..slice("web") });
        let view = View { rows, ..View::default() };
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(dir.path().join("c/lost")).expect("a directory");
        let found = |asked: &str| find(&view, asked, dir.path()).map_err(|error| error.to_string());
        for (asked, id) in [("abc1", "abc1"), ("we", "web"), ("front", "web"), ("lost", "lost")] {
            assert_eq!(found(asked).as_deref(), Ok(id));
        }
        for (asked, why) in
            [("abc", "abc1, abc2"), ("x", "no slice"), ("", "no slice"), ("../c", "no slice")]
        {
            assert!(found(asked).is_err_and(|said| said.contains(why)), "{asked}");
        }
    }
}
