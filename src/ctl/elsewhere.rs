//! The daemons that a look does not reach.
//!
//! A user can have several: the node's, a `gpusliced` of the user, and for each driver the private one of `gpuslice
//! run`. A command without `--runtime-dir` asks one of them, which does not know of the others.
//! So the command names these.

use crate::admin::Admin;
use crate::node;
use crate::out;
use crate::shared;
use crate::table::View;
use crate::why::quoted;
use anyhow::{Result, anyhow};
use gpuslice_host::layout::{ADMIN_SOCKET, NODE_DIR};
use gpuslice_wire::admin::Command;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for the answer of a daemon that was not asked for.
const WITHIN: Duration = Duration::from_millis(200);
/// Private daemons that are asked. A user has one for each driver.
const MOST: usize = 16;

/// Connects to the daemon at `given`, else to this user's; then notes which other daemons serve slices.
///
/// # Errors
/// As [`Admin::connect`]; it names these daemons too.
pub fn connect(given: Option<&Path>) -> Result<Admin> {
    let dir = node::runtime_dir(given);
    let connected = Admin::connect(&dir);
    if given.is_some() {
        return connected;
    }
    let private = noted(&with_slices(&dir));
    match (connected, private) {
        (Ok(admin), private) => {
            let others = [private, of_the_node(&dir, Path::new(NODE_DIR))];
            others.iter().flatten().for_each(|note| out::note(note));
            Ok(admin)
        }
        (Err(why), Some(note)) => Err(anyhow!("{why:#}; {note}")),
        (Err(why), None) => Err(why),
    }
}

/// Says that the node has a daemon too, which only root may ask.
fn of_the_node(asked: &Path, node: &Path) -> Option<String> {
    let is_other = asked != node && node.join(ADMIN_SOCKET).exists();
    is_other.then(|| {
        "the node's daemon is another one, and may have slices too: use sudo to look there"
            .to_owned()
    })
}

/// Private daemons of this user with slices, and how many these are; without the one that is `asked`.
fn with_slices(asked: &Path) -> Vec<(PathBuf, usize)> {
    let dirs: BTreeSet<PathBuf> =
        shared::bases().iter().flat_map(|base| candidates(base)).collect();
    let slices = |dir: &PathBuf| {
        let admin = Admin::connect(dir).ok()?;
        let view = View::of(admin.rows_within(&Command::List {}, WITHIN).ok()?);
        let containers: BTreeSet<&str> = view.rows.iter().map(|row| &*row.container).collect();
        Some(containers.len()).filter(|count| *count > 0)
    };
    let others = dirs.into_iter().filter(|dir| dir != asked);
    others.filter_map(|dir| slices(&dir).map(|count| (dir, count))).take(MOST).collect()
}

/// The directories below `base` that have the name of a private daemon's. Whose they are is checked on connecting.
fn candidates(base: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| shared::is_private(name)).map(|name| base.join(name)).collect()
}

/// Names the private daemons in a line.
fn noted(daemons: &[(PathBuf, usize)]) -> Option<String> {
    let dir = |(dir, count): &(PathBuf, usize)| {
        format!("{count} with --runtime-dir {}", quoted(&dir.display().to_string()))
    };
    let all: Vec<String> = daemons.iter().map(dir).collect();
    let begin = "more slices are in private daemons of gpuslice run";
    (!all.is_empty()).then(|| format!("{begin}: {}", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_daemons_are_named_in_a_line() {
        assert_eq!(noted(&[]), None);
        let one = ("/tmp/gpuslice-0badcafe".into(), 1);
        assert_eq!(
            noted(std::slice::from_ref(&one)).as_deref(),
            Some(
                "more slices are in private daemons of gpuslice run: 1 with --runtime-dir /tmp/gpuslice-0badcafe"
            )
        );
        let both = noted(&[one, ("/run/user/1 0/gpuslice-00000000".into(), 2)]).expect("a line");
        assert!(
            both.ends_with("cafe, 2 with --runtime-dir '/run/user/1 0/gpuslice-00000000'"),
            "{both}"
        );
    }

    #[test]
    fn only_private_daemons_and_the_nodes_are_looked_for() {
        let base = tempfile::tempdir().expect("a directory");
        for name in
            ["gpuslice-0badcafe", "gpuslice-1000", "gpuslice-0badcafX", "gpuslice-sim-1-2", "other"]
        {
            fs::create_dir(base.path().join(name)).expect("a directory");
        }
        assert_eq!(candidates(base.path()), [base.path().join("gpuslice-0badcafe")]);
        assert_eq!(of_the_node(Path::new("/tmp/own"), base.path()), None, "no socket");
        fs::write(base.path().join(ADMIN_SOCKET), "").expect("a file");
        assert!(
            of_the_node(Path::new("/tmp/own"), base.path()).is_some_and(|it| it.contains("sudo"))
        );
        assert_eq!(of_the_node(base.path(), base.path()), None);
    }
}
