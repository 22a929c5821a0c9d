//! Records on disk what containers are charged beyond the grants of their processes, for a restarted daemon.
//!
//! NVML shows such memory, and two samples must agree before it is charged. A daemon that restarted without this file
//! would grant the same bytes again until then. One line for each GPU of the slice, lane 0 first:
//! ```text
//! <bytes of attached processes> <bytes of the container's other processes>
//! ```
//! It is written after each sample that changed it, and at the daemon's end. An older daemon leaves none, and no file
//! means that nothing is known. A figure that is too old counts until the first sample.

use super::Containers;
use crate::state::replace_passing_file;
use gpuslice_engine::{Engine, Untracked};
use gpuslice_host::clock::now;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::LANES_MAX;
use gpuslice_wire::units::Bytes;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The file's name in a container's directory.
const NAME: &str = "untracked";
/// Bytes of the longest file: two numbers of 20 digits in each line.
const BYTES_MAX: u64 = LANES_MAX as u64 * 42;

fn write(dir: &Path, untracked: &[Untracked]) -> io::Result<()> {
    let line = |it: &Untracked| format!("{} {}\n", it.attached.0, it.unattributed.0);
    let text: String = untracked.iter().map(line).collect();
    let path = dir.join(NAME);
    replace_passing_file(&path, (&path.with_extension("new"), 0o600), text.as_bytes())
}

/// What an earlier daemon wrote; nothing without a file that can be read.
fn read(dir: &Path) -> Vec<Untracked> {
    let mut text = String::new();
    let file = File::open(dir.join(NAME));
    if file.and_then(|it| it.take(BYTES_MAX).read_to_string(&mut text)).is_err() {
        return Vec::new();
    }
    let untracked = |line: &str| {
        let (attached, unattributed) = line.split_once(' ')?;
        let bytes = |text: &str| text.parse().ok().map(Bytes);
        Some(Untracked { attached: bytes(attached)?, unattributed: bytes(unattributed)? })
    };
    text.lines().map(untracked).collect::<Option<_>>().unwrap_or_default()
}

impl Containers {
    /// Writes what changed since the last call.
    pub fn follow_untracked(&mut self, engine: &Engine) {
        for (container, key) in &self.by_id {
            let Some(slice) = self.slots.get_mut(*key) else { continue };
            let untracked = engine.untracked_of(*container);
            if slice.untracked == untracked {
                continue;
            }
            match write(&self.state.container_dir(container), &untracked) {
                Ok(()) => slice.untracked = untracked,
                Err(why) => {
                    if let Some(count) = slice.untracked_failed.one_more(now()) {
                        tracing::warn!(%container, %why, count, "cannot write what NVML shows beyond grants; a daemon restarted now learns it from two samples");
                    }
                }
            }
        }
    }

    /// What a restored slice was charged beyond grants.
    pub fn recorded_untracked(&self, container: &ContainerId) -> Vec<Untracked> {
        read(&self.state.container_dir(container))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()), [], "an older daemon wrote none");
        let of = |attached, unattributed| Untracked {
            attached: Bytes(attached),
            unattributed: Bytes(unattributed),
        };
        let all = vec![of(u64::MAX, u64::MAX); LANES_MAX];
        for untracked in [vec![of(5, 0), of(0, 7)], all] {
            write(dir.path(), &untracked).expect("written");
            assert_eq!(read(dir.path()), untracked);
        }
        for damaged in ["5", "5 7 9", "-5 7", "5 7\n18446744073709551616 0"] {
            std::fs::write(dir.path().join(NAME), damaged).expect("written");
            assert_eq!(read(dir.path()), [], "{damaged}");
        }
    }
}
