//! The container's state, which the runtime writes to standard input.

use crate::args::Stage;
use crate::error::Error;
use crate::read::read_capped;
use gpuslice_wire::ids::ContainerId;
use serde::Deserialize;
use std::io::Read;
use std::path::Path;

/// Largest state document, bytes. Newer runc repeats all annotations in it, and Kubernetes allows
/// 256 KiB of those, which CRI-O adds a second time as escaped JSON.
const STATE_BYTES_MAX: u64 = 1 << 20;

/// The container's state as the runtime reports it.
#[derive(Debug, Deserialize)]
pub struct State {
    id: String,
    #[serde(default)]
    pid: i64,
    #[serde(default)]
    status: String,
    /// Directory of `config.json`.
    pub bundle: String,
}

impl State {
    /// # Errors
    /// Too large, not JSON, or a field is missing.
    pub fn read(from: impl Read) -> Result<State, Error> {
        State::parse(&read_capped(from, STATE_BYTES_MAX, "the state")?)
    }

    /// # Errors
    /// As [`State::read`].
    pub fn parse(bytes: &[u8]) -> Result<State, Error> {
        let state: State = serde_json::from_slice(bytes)
            .map_err(|error| Error::Input(format!("the state: {error}")))?;
        if !Path::new(&state.bundle).is_absolute() {
            return Err(Error::Input("the state's bundle is not an absolute path".into()));
        }
        Ok(state)
    }

    /// The container's id as written by the runtime.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The container's id, if it is valid as a directory name.
    ///
    /// # Errors
    /// It is not valid.
    pub fn container_id(&self) -> Result<ContainerId, Error> {
        ContainerId::new(&self.id)
            .map_err(|why| Error::Input(format!("container id {:?}: {why}", self.id)))
    }

    /// The stage of this call. A registration need not name it: podman and CRI-O have one argument list
    /// for all stages of a hook.
    ///
    /// # Errors
    /// The container's stage differs from the registration's, or is not one of the hook's.
    pub fn stage_if(&self, named: Option<Stage>) -> Result<Stage, Error> {
        let actual = match self.status.as_str() {
            // runc reports creating and crun created, both before the first process runs.
            "creating" | "created" => Some(Stage::CreateRuntime),
            "stopped" => Some(Stage::Poststop),
            _ => None,
        };
        match (named, actual) {
            (Some(named), None) => Ok(named),
            (None, Some(actual)) => Ok(actual),
            (Some(named), Some(actual)) if named == actual => Ok(named),
            _ => Err(Error::Input(format!(
                "it is {:?}; register the hook as createRuntime or prestart, and as poststop",
                self.status
            ))),
        }
    }

    /// The host's pid of the container's first process.
    ///
    /// # Errors
    /// There is none, or the pid is the container's: the hook was called in a stage in which it cannot
    /// work.
    pub fn host_pid(&self) -> Result<i32, Error> {
        match i32::try_from(self.pid) {
            Ok(pid) if pid > 1 => Ok(pid),
            _ => Err(Error::Input(format!(
                "pid {} is not a host process; register the hook as createRuntime or prestart",
                self.pid
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states() {
        let good = br#"{"ociVersion":"1.0","id":"c1","pid":77,"bundle":"/b","status":"creating"}"#;
        let state = State::read(&good[..]).expect("valid");
        assert_eq!((state.host_pid().ok(), state.bundle.as_str()), (Some(77), "/b"));
        assert_eq!(state.stage_if(None).ok(), Some(Stage::CreateRuntime));
        assert!(state.stage_if(Some(Stage::CreateRuntime)).is_ok());
        assert!(state.stage_if(Some(Stage::Poststop)).is_err());
        for bad in [
            &b""[..],
            b"{",
            b"[]",
            br#"{"id":"c","bundle":"b"}"#,
            br#"{"id":1,"bundle":"/b"}"#,
            br#"{"id":"c","id":"d","bundle":"/b"}"#,
            br#"{"bundle":"/b"}"#,
        ] {
            let shown = String::from_utf8_lossy(bad);
            assert!(State::read(bad).is_err(), "{shown}");
        }
        assert!(State::read(std::io::repeat(b' ')).is_err());
        for pid in ["0", "1", "-5", "99999999999"] {
            let text = format!(r#"{{"id":"c","bundle":"/b","pid":{pid}}}"#);
            let state = State::read(text.as_bytes()).expect("valid");
            assert!(state.host_pid().is_err(), "{pid}");
        }
        let dots = State::read(&br#"{"id":"../x","bundle":"/b","pid":7}"#[..]).expect("valid");
        assert!(dots.container_id().is_err() && dots.stage_if(None).is_err());
        assert!(dots.stage_if(Some(Stage::Poststop)).is_ok());
    }

    /// A pod may carry 256 KiB of annotations, which the state repeats.
    #[test]
    fn long_annotations_are_nobodys_fault() {
        let long = "x".repeat(600 << 10);
        let text = format!(r#"{{"id":"c","bundle":"/b","annotations":{{"a":"{long}"}}}}"#);
        assert!(State::read(text.as_bytes()).is_ok());
    }
}
