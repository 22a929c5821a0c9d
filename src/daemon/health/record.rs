//! Errors of GPUs on disk, for a daemon that is started again while a GPU is unhealthy: the driver tells an error once.
//!
//! The runtime directory has a small file with one line for each GPU that has not recovered: its error, and when the
//! driver reported it, in seconds since 1970. A reboot ends all of them.
//! ```text
//! GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 xid 79 1764201600
//! GPU-67707573-696d-802b-9901-e609dc434c2e ecc 1764201655
//! ```

use crate::state::replace_passing_file;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::node::{Health, HealthState};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest file, bytes; more than a node's GPUs need.
const BYTES_MAX: u64 = 64 * 1024;

/// The file; none for a daemon that keeps nothing.
#[derive(Debug)]
pub struct ErrorRecord(Option<PathBuf>);

impl ErrorRecord {
    /// The record of this file, which there may not be yet.
    pub fn new(file: Option<PathBuf>) -> ErrorRecord {
        ErrorRecord(file)
    }

    /// The recorded errors; none, and a line of the log, if the file cannot be read or has another line.
    pub fn read(&self) -> BTreeMap<GpuUuid, Health> {
        let Some(file) = &self.0 else {
            return BTreeMap::new();
        };
        let errors = read(file).and_then(|text| parse(&text));
        errors.unwrap_or_else(|why| {
            let file = file.display();
            tracing::error!("{file}: {why}; all GPUs count as healthy");
            BTreeMap::new()
        })
    }

    /// Replaces the recorded errors. If that fails, the next daemon does not know these, and the log says so.
    pub fn write(&self, errors: impl Iterator<Item = (GpuUuid, Health)>) {
        let Some(file) = &self.0 else {
            return;
        };
        let text = text(errors);
        let done = match text.is_empty() {
            true => remove(file),
            false => {
                replace_passing_file(file, (&file.with_extension("new"), 0o600), text.as_bytes())
            }
        };
        if let Err(why) = done {
            let file = file.display();
            tracing::error!("{file}: {why}; a daemon that is started again will not know it");
        }
    }
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    }
}

fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    match File::open(file).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text)) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why.to_string()),
        _ => Ok(text),
    }
}

fn text(errors: impl Iterator<Item = (GpuUuid, Health)>) -> String {
    let mut text = String::new();
    for (gpu, Health { state, xid, since }) in errors {
        let _infallible = match state {
            HealthState::Xid => writeln!(text, "{gpu} xid {xid} {since}"),
            HealthState::Ecc => writeln!(text, "{gpu} ecc {since}"),
            _ => Ok(()),
        };
    }
    text
}

fn parse(text: &str) -> Result<BTreeMap<GpuUuid, Health>, String> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let (state, xid, since) = match words.get(1..)? {
            ["xid", xid, since] => (HealthState::Xid, xid.parse().ok()?, since),
            ["ecc", since] => (HealthState::Ecc, 0, since),
            _ => return None,
        };
        Some((words[0].parse().ok()?, Health { state, xid, since: since.parse().ok()? }))
    };
    let lines = text.lines();
    lines.map(|it| line(it).ok_or_else(|| format!("{it:?} is not the error of a GPU"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors() -> BTreeMap<GpuUuid, Health> {
        let xid = Health { state: HealthState::Xid, xid: 79, since: 1_764_201_600 };
        let ecc = Health { state: HealthState::Ecc, xid: 0, since: 1_764_201_655 };
        BTreeMap::from([(GpuUuid([1; 16]), xid), (GpuUuid([2; 16]), ecc)])
    }

    #[test]
    fn errors_are_read_back_and_nonsense_is_refused() {
        assert_eq!(parse(&text(errors().into_iter())), Ok(errors()));
        assert_eq!(parse(""), Ok(BTreeMap::new()));
        let gpu = GpuUuid([1; 16]);
        for bad in ["\n", "x", "xid 79 1", "GPU-1 xid 79 1"].map(String::from).into_iter().chain([
            format!("{gpu}"),
            format!("{gpu} xid 79"),
            format!("{gpu} ecc 0 1"),
            format!("{gpu} ecc -1"),
            format!("{gpu} lost 1"),
        ]) {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_file_is_there_while_a_gpu_has_not_recovered() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("gpu_errors");
        let record = ErrorRecord::new(Some(file.clone()));
        assert_eq!(record.read(), BTreeMap::new());
        record.write(errors().into_iter());
        assert_eq!(record.read(), errors());
        record.write(std::iter::empty());
        record.write(std::iter::empty());
        assert_eq!((file.exists(), record.read()), (false, BTreeMap::new()));
        fs::write(&file, "nonsense").expect("written");
        assert_eq!(record.read(), BTreeMap::new());
    }

    #[test]
    fn a_daemon_that_keeps_nothing_has_no_file() {
        let record = ErrorRecord::new(None);
        record.write(errors().into_iter());
        assert_eq!(record.read(), BTreeMap::new());
    }
}
