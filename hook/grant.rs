//! Asks the daemon: one SOCK_SEQPACKET exchange with a deadline, so that a hung daemon costs a
//! container its start and not the node its runtime.

use crate::ask::Ask;
use crate::error::Error;
use crate::sys::socket;
use gpuslice_wire::admin::{Answer, Command};
use gpuslice_wire::frame::{RequestId, decode, encode};
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::{FRAME_BYTES_MAX, HOOK_DEADLINE_NS};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Host paths of what a container needs.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    /// Directory to mount at `/run/gpuslice`.
    pub dir: PathBuf,
    /// The real driver.
    pub cuda: PathBuf,
    /// The real NVML.
    pub nvml: Option<PathBuf>,
    /// The shim for the preload door.
    pub preload: PathBuf,
    /// The shim for the replacement door.
    pub replace: PathBuf,
    /// The NVML twin.
    pub twin: PathBuf,
    /// The simulated GPU's device directory.
    pub device: Option<PathBuf>,
}

/// Gets the container its slice.
///
/// # Errors
/// [`Error::Daemon`] if it cannot be asked in time, [`Error::Denied`] with its words.
pub(crate) fn admit(
    runtime_dir: &Path,
    container: ContainerId,
    ask: &Ask,
) -> Result<Granted, Error> {
    match exchange(runtime_dir, &ask.admit(container))? {
        Answer::Admitted {
            dir,
            cuda,
            nvml,
            preload,
            replace,
            twin,
            device,
        } => {
            let some = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
            Ok(Granted {
                dir: dir.as_str().into(),
                cuda: cuda.as_str().into(),
                nvml: some(nvml.as_str()),
                preload: preload.as_str().into(),
                replace: replace.as_str().into(),
                twin: twin.as_str().into(),
                device: some(device.as_str()),
            })
        }
        Answer::Denied { text, .. } => Err(Error::Denied(text.to_string())),
        Answer::Dismissed {} => Err(Error::Daemon("its daemon answered something else".into())),
    }
}

/// Ends the container's slice; of one that has none, too.
///
/// # Errors
/// [`Error::Daemon`] or [`Error::Denied`].
pub(crate) fn dismiss(runtime_dir: &Path, container: ContainerId) -> Result<(), Error> {
    match exchange(runtime_dir, &Command::Dismiss { container })? {
        Answer::Denied { text, .. } => Err(Error::Denied(text.to_string())),
        _ => Ok(()),
    }
}

fn exchange(runtime_dir: &Path, command: &Command) -> Result<Answer, Error> {
    let path = runtime_dir.join("admin.sock");
    let failed = |what: &str, error: std::io::Error| {
        let silent = error.kind() == std::io::ErrorKind::WouldBlock;
        let why = if silent {
            "no answer in time".to_owned()
        } else {
            error.to_string()
        };
        Error::Daemon(format!("{what} {}: {why}", path.display()))
    };
    let deadline = Duration::from_nanos(HOOK_DEADLINE_NS);
    let daemon =
        socket::connect(&path, deadline).map_err(|error| failed("connecting to", error))?;
    let mut buffer = [0u8; FRAME_BYTES_MAX];
    let unusable =
        |why: &dyn ToString| Error::Daemon(format!("{}: {}", path.display(), why.to_string()));
    let len = encode(RequestId(1), command, &mut buffer).map_err(|why| unusable(&why))?;
    socket::send(&daemon, &buffer[..len]).map_err(|error| failed("asking", error))?;
    let len =
        socket::receive(&daemon, &mut buffer).map_err(|error| failed("waiting for", error))?;
    decode(&buffer[..len])
        .map(|(_, answer)| answer)
        .map_err(|why| unusable(&why))
}
