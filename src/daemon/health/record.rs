//! Errors of GPUs on disk, for a daemon that is started again while a GPU is unhealthy: the driver tells an error once.
//!
//! The runtime directory has a small file with one line for each GPU that has not recovered: its error, and when the
//! driver reported it, in seconds since 1970 to be shown, and in nanoseconds of the monotonic clock to be counted.
//! A reboot ends all of them.
//! ```text
//! GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 xid 79 1764201600 81207655120773
//! GPU-67707573-696d-802b-9901-e609dc434c2e ecc 1764201655 81262003110942
//! ```

use crate::state::{remove_tree, replace_passing_file};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::node::{Health, HealthState};
use gpuslice_wire::units::Instant;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest file, bytes; more than a node's GPUs need.
const BYTES_MAX: u64 = 64 * 1024;

/// An error from which a GPU has not recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuFailure {
    /// The error.
    pub health: Health,
    /// When the driver reported it.
    pub reported: Instant,
}

/// The file.
#[derive(Debug)]
pub struct ErrorRecord(PathBuf);

impl ErrorRecord {
    /// The record of this file, which there may not be yet.
    pub fn new(file: PathBuf) -> ErrorRecord {
        ErrorRecord(file)
    }

    /// The recorded errors. What cannot be read is logged, and its GPUs count as healthy.
    pub fn read(&self) -> BTreeMap<GpuUuid, GpuFailure> {
        let place = self.0.display();
        let text = read(&self.0).unwrap_or_else(|why| {
            tracing::error!("{place}: {why}; all GPUs count as healthy");
            String::new()
        });
        let lines = text.lines().map(|line| (line, parse(line)));
        let good = lines.filter_map(|(line, parsed)| {
            if parsed.is_none() {
                tracing::error!("{place}: {line:?} is not the error of a GPU");
            }
            parsed
        });
        good.collect()
    }

    /// Replaces the recorded errors.
    ///
    /// # Errors
    /// Why the file cannot be written, with its path. The old ones stay for the next daemon then.
    pub fn write(&self, errors: &BTreeMap<GpuUuid, GpuFailure>) -> Result<(), String> {
        let (file, text) = (&self.0, text(errors));
        let done = match text.is_empty() {
            true => remove_tree(file),
            false => {
                replace_passing_file(file, (&file.with_extension("new"), 0o600), text.as_bytes())
            }
        };
        done.map_err(|why| format!("{}: {why}", file.display()))
    }
}

fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    match File::open(file).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text)) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why.to_string()),
        _ => Ok(text),
    }
}

fn text(errors: &BTreeMap<GpuUuid, GpuFailure>) -> String {
    let mut text = String::new();
    for (gpu, GpuFailure { health: Health { state, xid, since }, reported: Instant(at) }) in errors
    {
        let _infallible = match state {
            HealthState::Xid => writeln!(text, "{gpu} xid {xid} {since} {at}"),
            HealthState::Ecc => writeln!(text, "{gpu} ecc {since} {at}"),
            _ => Ok(()),
        };
    }
    text
}

fn parse(line: &str) -> Option<(GpuUuid, GpuFailure)> {
    let words: Vec<&str> = line.split(' ').collect();
    let (state, xid, since, at) = match words.get(1..)? {
        ["xid", xid, since, at] => (HealthState::Xid, xid.parse().ok()?, since, at),
        ["ecc", since, at] => (HealthState::Ecc, 0, since, at),
        _ => return None,
    };
    let health = Health { state, xid, since: since.parse().ok()? };
    let reported = Instant(at.parse().ok()?);
    Some((words[0].parse().ok()?, GpuFailure { health, reported }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn errors() -> BTreeMap<GpuUuid, GpuFailure> {
        let xid = Health { state: HealthState::Xid, xid: 79, since: 1_764_201_600 };
        let ecc = Health { state: HealthState::Ecc, xid: 0, since: 1_764_201_655 };
        BTreeMap::from([
            (GpuUuid([1; 16]), GpuFailure { health: xid, reported: Instant(7) }),
            (GpuUuid([2; 16]), GpuFailure { health: ecc, reported: Instant(8) }),
        ])
    }

    #[test]
    fn the_file_is_there_while_a_gpu_has_not_recovered() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("gpu_errors");
        let record = ErrorRecord::new(file.clone());
        assert_eq!(record.read(), BTreeMap::new());
        record.write(&errors()).expect("room");
        assert_eq!(record.read(), errors());
        record.write(&BTreeMap::new()).expect("gone");
        record.write(&BTreeMap::new()).expect("gone");
        assert_eq!((file.exists(), record.read()), (false, BTreeMap::new()));
    }

    #[test]
    fn a_line_that_is_nonsense_takes_no_other_one_away() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("gpu_errors");
        let gpu = GpuUuid([1; 16]);
        let of_gpu = ["", " xid 79 1", " ecc 0 1 2", " ecc -1 2", " lost 1 2"]
            .map(|it| format!("{gpu}{it}"));
        let others = ["", "x", "xid 79 1 2", "GPU-1 xid 79 1 2"].map(String::from);
        for bad in of_gpu.iter().chain(&others) {
            fs::write(&file, format!("{bad}\n{}{bad}", text(&errors()))).expect("written");
            let record = ErrorRecord::new(file.clone());
            assert_eq!(record.read(), errors(), "{bad}");
        }
        fs::write(&file, [0xff; 10]).expect("written");
        assert_eq!(ErrorRecord::new(file).read(), BTreeMap::new());
    }

    #[test]
    fn any_line_has_one_meaning() {
        gpuslice_fuzz::fuzz!("gpu-errors", |bytes| {
            let line = String::from_utf8_lossy(bytes);
            if let Some(error) = parse(&line) {
                assert_eq!(parse(text(&BTreeMap::from([error])).trim_end()), Some(error));
            }
        });
    }
}
