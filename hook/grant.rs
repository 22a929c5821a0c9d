//! The request to the daemon: one SOCK_SEQPACKET exchange with a deadline, so that a hung daemon fails a
//! container's start and does not block the node's runtime.

use crate::error::Error;
use crate::sys::socket;
use gpuslice_wire::admin::{Answer, Command, Mounts};
use gpuslice_wire::frame::{RequestId, decode, encode};
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::{FRAME_BYTES_MAX, HOOK_DEADLINE_NS};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Deadline for all requests of this call.
pub(crate) fn deadline() -> Instant {
    Instant::now() + Duration::from_nanos(HOOK_DEADLINE_NS)
}

impl Asked {
    /// Waits for the granted slice; `None` if the container has it already.
    ///
    /// # Errors
    /// [`Error::Daemon`] without an answer in time, [`Error::Denied`] with the daemon's reason.
    pub fn granted(self) -> Result<Option<Mounts>, Error> {
        match self.answer()? {
            Answer::Admitted { mounts } => Ok(Some(mounts)),
            Answer::Done {} => Ok(None),
            Answer::Denied { text, .. } => Err(Error::Denied(text.to_string())),
            Answer::Dismissed {} | Answer::Resized { .. } => {
                Err(Error::Daemon("unexpected answer from its daemon".into()))
            }
        }
    }
}

/// Removes the container's slice; succeeds if it has none.
///
/// # Errors
/// [`Error::Daemon`] or [`Error::Denied`].
pub(crate) fn dismiss(
    runtime_dir: &Path,
    container: ContainerId,
    by: Instant,
) -> Result<(), Error> {
    match Asked::send(runtime_dir, &Command::Dismiss { container }, by)?.answer()? {
        Answer::Denied { text, .. } => Err(Error::Denied(text.to_string())),
        _ => Ok(()),
    }
}

/// A request without an answer yet.
pub(crate) struct Asked {
    daemon: OwnedFd,
    path: PathBuf,
    by: Instant,
}

impl Asked {
    /// Sends a command.
    pub fn send(runtime_dir: &Path, command: &Command, by: Instant) -> Result<Asked, Error> {
        let path = runtime_dir.join("admin.sock");
        let mut buffer = [0u8; FRAME_BYTES_MAX];
        let len = encode(RequestId(1), command, &mut buffer)
            .map_err(|why| Error::Daemon(format!("{}: {why}", path.display())))?;
        let daemon =
            socket::connect(&path, by).map_err(|error| failed("connecting to", &path, &error))?;
        match socket::send(&daemon, &buffer[..len]) {
            Ok(()) => Ok(Asked { daemon, path, by }),
            Err(error) => Err(failed("asking", &path, &error)),
        }
    }

    /// Waits for the answer.
    pub fn answer(self) -> Result<Answer, Error> {
        let mut buffer = [0u8; FRAME_BYTES_MAX];
        let len = socket::receive(&self.daemon, self.by, &mut buffer)
            .map_err(|error| failed("waiting for", &self.path, &error))?;
        decode(&buffer[..len])
            .map(|(_, answer)| answer)
            .map_err(|why| Error::Daemon(format!("{}: {why}", self.path.display())))
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::WouldBlock => "no answer in time".to_owned(),
        _ => error.to_string(),
    };
    Error::Daemon(format!("{what} {}: {why}", path.display()))
}
