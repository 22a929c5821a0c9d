//! The daemon as a service of systemd's: what the manager hands over at the start, and what it is told.
//!
//! *Handed over*: listening sockets, by name: `admin`, and `observe` for those who may look only. They
//! are the manager's, so whoever asks while the daemon is restarted waits in them instead of being
//! refused. *Told*: that it is ready, how it is, and again and again that its event loop still goes
//! round; a loop that hangs says nothing, and the manager ends it and starts another one.
//!
//! Nothing is put into the manager's descriptor store. A restarted daemon continues from its records
//! and from what living processes say, which is right after a crash too; containers find its new
//! sockets in their directory, and a page is of one life of the daemon. Descriptors kept on the way would be
//! a second truth beside these. Without a manager all of this is nothing.

use crate::poll::now;
use crate::sockets::{address_of, own, stops_blocking};
use gpuslice_host::layout::{ADMIN_SOCKET, OBSERVE_SOCKET};
use gpuslice_wire::units::{Duration, Instant};
use nix::sys::socket::{SockType, getsockopt, sockopt};
use sd_notify::NotifyState;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The administrators' socket, as it is called in `FileDescriptorName=` and in the directory.
const ADMIN: (&str, &str) = ("admin", ADMIN_SOCKET);
/// The observers'.
const OBSERVE: (&str, &str) = ("observe", OBSERVE_SOCKET);

/// What the manager handed over is not what this daemon can serve.
#[derive(Debug, thiserror::Error)]
pub enum GivenError {
    /// The environment and the descriptors do not agree.
    #[error("the service manager's sockets: {0}")]
    Io(#[from] io::Error),
    /// A name nobody knows.
    #[error(
        "the service manager hands over a socket called {0:?}; FileDescriptorName= must be admin or observe"
    )]
    Name(String),
    /// Something else than a listening packet socket.
    #[error("the service manager's socket {0:?} is no ListenSequentialPacket= one")]
    Kind(String),
    /// Elsewhere than where everybody will look for it.
    #[error("the service manager listens at {is}, but this daemon's socket is {ours}; give both the same directory", is = is.display(), ours = ours.display())]
    Place {
        /// Where it is.
        is: PathBuf,
        /// Where it is looked for.
        ours: PathBuf,
    },
}

/// Listening sockets that the manager made.
#[derive(Debug, Default)]
pub struct Given {
    /// For administrators.
    pub admin: Option<OwnedFd>,
    /// For who may look only.
    pub observe: Option<OwnedFd>,
}

impl Given {
    /// Takes what is handed over to the daemon of this runtime directory; to be called before there are
    /// threads, because it takes the words of it out of the environment.
    ///
    /// # Errors
    /// [`GivenError`].
    pub fn take(runtime_dir: &Path) -> Result<Given, GivenError> {
        let mut given = Given::default();
        for (fd, name) in sd_notify::listen_fds_with_names(true)? {
            let fd = own(fd);
            let (place, file) = match name.as_str() {
                name if name == ADMIN.0 => (&mut given.admin, ADMIN.1),
                name if name == OBSERVE.0 => (&mut given.observe, OBSERVE.1),
                _ => return Err(GivenError::Name(name)),
            };
            let packets = getsockopt(&fd, sockopt::SockType).ok() == Some(SockType::SeqPacket);
            let listens = getsockopt(&fd, sockopt::AcceptConn).ok() == Some(true);
            let is = address_of(&fd).filter(|_| packets && listens);
            let is = is.ok_or(GivenError::Kind(name))?;
            let ours = runtime_dir.join(file);
            if is != ours {
                return Err(GivenError::Place { is, ours });
            }
            stops_blocking(&fd)?;
            *place = Some(fd);
        }
        Ok(given)
    }
}

/// What the manager is told.
#[derive(Debug)]
pub struct Manager {
    /// Half of what the watchdog waits, if there is one.
    every: Option<Duration>,
    next: Instant,
    /// The node's GPUs in words.
    gpus: String,
}

impl Manager {
    /// Before there are threads, as above.
    pub fn new() -> Manager {
        let mut usec = 0;
        let watched = sd_notify::watchdog_enabled(true, &mut usec);
        Manager {
            every: watched.then_some(Duration(usec.saturating_mul(500))),
            next: now(),
            gpus: String::new(),
        }
    }

    /// The daemon serves.
    pub fn ready(&mut self, gpus: String, slices: usize) {
        self.gpus = gpus;
        tell(&[
            NotifyState::Ready,
            NotifyState::Status(&status(&self.gpus, slices)),
        ]);
    }

    /// When the watchdog wants to hear again.
    pub fn deadline(&self) -> Option<Instant> {
        self.every.map(|_| self.next)
    }

    /// The event loop came round.
    pub fn due(&mut self, now: Instant, slices: usize) {
        if let Some(every) = self.every.filter(|_| self.next <= now) {
            self.next = now.plus(every);
            let status = status(&self.gpus, slices);
            tell(&[NotifyState::Watchdog, NotifyState::Status(&status)]);
        }
    }

    /// The end has begun.
    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }
}

/// Nobody to tell is no error; nor is a manager that does not listen.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(false, states);
}

/// The daemon does not start, and why: `systemctl status` shows it.
pub fn failed(why: &str) {
    let why: String = why.chars().filter(|c| !c.is_control()).collect();
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

    #[test]
    fn the_watchdog_hears_twice_as_often_as_it_asks() {
        let mut manager = Manager {
            every: Some(Duration(50)),
            next: Instant(100),
            gpus: gpus(1, false),
        };
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
