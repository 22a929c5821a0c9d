//! The daemon as a systemd service: socket activation, status and watchdog.
//!
//! At the start the manager passes listening sockets by name: `admin`, and `observe` for read-only clients.
//! The manager owns them, so that clients that connect while the daemon restarts wait instead of being
//! refused. The daemon reports when it is ready, its status, and regularly that its event loop runs; if the
//! loop hangs, the manager ends the daemon and starts it again.
//!
//! Nothing is put into the manager's descriptor store. A restarted daemon continues from its records and from
//! what running processes report, which works after a crash, too. Containers find its new sockets in their
//! directory, and a page belongs to one run of the daemon. Stored descriptors would be a second source of
//! truth. Without a service manager, this module does nothing.

use crate::descriptors::{own, stops_blocking};
use crate::sockets::address_of;
use gpuslice_host::clock::now;
use gpuslice_host::layout::{ADMIN_SOCKET, OBSERVE_SOCKET};
use gpuslice_wire::text::is_seen;
use gpuslice_wire::units::{Duration, Instant};
use nix::sys::socket::{SockType, getsockopt, sockopt};
use sd_notify::NotifyState;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

/// The administrators' socket in `FileDescriptorName=` and in the runtime directory.
const ADMIN: (&str, &str) = ("admin", ADMIN_SOCKET);
/// The observers' socket.
const OBSERVE: (&str, &str) = ("observe", OBSERVE_SOCKET);

/// The daemon cannot serve the sockets from the service manager.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// The environment and the descriptors disagree.
    #[error("the service manager's sockets: {0}")]
    Io(#[from] io::Error),
    /// An unknown name.
    #[error(
        "the service manager hands over a socket called {0:?}; FileDescriptorName= must be admin or observe"
    )]
    Name(String),
    /// Not a listening packet socket.
    #[error("the service manager's socket {0:?} is not a ListenSequentialPacket= socket")]
    Kind(String),
    /// It listens at a path where clients do not look.
    #[error("the service manager listens at {is}, but this daemon's socket is {ours}; give both the same directory", is = is.display(), ours = ours.display())]
    Place {
        /// Its path.
        is: PathBuf,
        /// The path that clients use.
        ours: PathBuf,
    },
}

/// Listening sockets that the manager made.
#[derive(Debug, Default)]
pub struct ActivatedSockets {
    /// For administrators.
    pub admin: Option<OwnedFd>,
    /// For observers.
    pub observe: Option<OwnedFd>,
}

impl ActivatedSockets {
    /// Takes the sockets passed to the daemon of this runtime directory. Call it before any thread exists:
    /// it removes variables from the environment.
    ///
    /// # Errors
    /// [`ActivationError`].
    pub fn take(runtime_dir: &Path) -> Result<ActivatedSockets, ActivationError> {
        let mut given = ActivatedSockets::default();
        for (fd, name) in sd_notify::listen_fds_with_names(true)? {
            let fd = own(fd);
            let (place, file) = match name.as_str() {
                name if name == ADMIN.0 => (&mut given.admin, ADMIN.1),
                name if name == OBSERVE.0 => (&mut given.observe, OBSERVE.1),
                _ => return Err(ActivationError::Name(name)),
            };
            let packets = getsockopt(&fd, sockopt::SockType).ok() == Some(SockType::SeqPacket);
            let listens = getsockopt(&fd, sockopt::AcceptConn).ok() == Some(true);
            let is = address_of(&fd).filter(|_| packets && listens);
            let is = is.ok_or(ActivationError::Kind(name))?;
            let ours = runtime_dir.join(file);
            if is != ours {
                return Err(ActivationError::Place { is, ours });
            }
            stops_blocking(&fd)?;
            *place = Some(fd);
        }
        Ok(given)
    }
}

/// Notifications to the service manager.
#[derive(Debug)]
pub struct Manager {
    /// Half of the watchdog's timeout, if there is one.
    every: Option<Duration>,
    next: Instant,
    /// A description of the node's GPUs.
    gpus: String,
}

impl Manager {
    /// Reads the environment; call it before any thread exists.
    pub fn new() -> Manager {
        let mut usec = 0;
        let watched = sd_notify::watchdog_enabled(true, &mut usec);
        Manager {
            every: watched.then_some(Duration(usec.saturating_mul(500))),
            next: now(),
            gpus: String::new(),
        }
    }

    /// Reports that the daemon is ready.
    pub fn ready(&mut self, gpus: String, slices: usize) {
        self.gpus = gpus;
        tell(&[NotifyState::Ready, NotifyState::Status(&status(&self.gpus, slices))]);
    }

    /// When the next watchdog notification is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.every.map(|_| self.next)
    }

    /// Notifies the watchdog if it is due.
    pub fn due(&mut self, now: Instant, slices: usize) {
        if let Some(every) = self.every.filter(|_| self.next <= now) {
            self.next = now.plus(every);
            let status = status(&self.gpus, slices);
            // Ready again: the first one may have found no room.
            let ready = NotifyState::Ready;
            tell(&[ready, NotifyState::Watchdog, NotifyState::Status(&status)]);
        }
    }

    /// Reports that the daemon is stopping.
    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }
}

/// Sends a notification; failures are ignored, as there may be no manager. One that finds no room is dropped, because a
/// manager that hangs must not stop the daemon.
fn tell(states: &[NotifyState<'_>]) {
    if let Some(at) = std::env::var_os("NOTIFY_SOCKET") {
        let text: String = states.iter().map(|state| format!("{state}\n")).collect();
        let _ = send(&at, &text);
    }
}

/// Sends a datagram to the socket of this path, or of this name after `@`, without waiting for room.
fn send(at: &OsStr, text: &str) -> io::Result<usize> {
    let at = match at.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(at)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(text.as_bytes(), &at)
}

/// Reports why the daemon does not start, for `systemctl status`.
pub fn failed(why: &str) {
    let why: String = why.chars().filter(|c| is_seen(*c)).collect();
    tell(&[NotifyState::Status(&why)]);
}

/// How many GPUs the node has, and whether they are simulated.
pub fn gpus(count: usize, simulated: bool) -> String {
    let kind = if simulated { "simulated " } else { "" };
    format!("{count} {kind}GPU{}", plural(count))
}

fn status(gpus: &str, slices: usize) -> String {
    format!("{gpus}, {slices} slice{}", plural(slices))
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A send that waits would not return from the last of these.
    #[test]
    fn a_manager_that_does_not_read_stops_nothing() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        let sent = (0..20_000).map(|_| send(path.as_os_str(), "WATCHDOG=1\n"));
        let refused: Vec<io::Error> = sent.filter_map(Result::err).collect();
        assert!(refused.iter().all(|why| why.kind() == io::ErrorKind::WouldBlock), "{refused:?}");
        assert!(!refused.is_empty());
        manager.recv(&mut [0; 64]).expect("one of them");
        assert!(send(path.as_os_str(), "STOPPING=1\n").is_ok(), "there is room again");
    }

    #[test]
    fn the_watchdog_is_notified_twice_per_timeout() {
        let mut manager =
            Manager { every: Some(Duration(50)), next: Instant(100), gpus: gpus(1, false) };
        manager.due(Instant(99), 1);
        assert_eq!(manager.deadline(), Some(Instant(100)), "too early");
        manager.due(Instant(120), 1);
        assert_eq!(manager.deadline(), Some(Instant(170)));
        manager.every = None;
        assert_eq!(manager.deadline(), None, "nobody watches");
        assert_eq!(status(&gpus(1, false), 2), "1 GPU, 2 slices");
        assert_eq!(status(&gpus(2, true), 1), "2 simulated GPUs, 1 slice");
    }
}
