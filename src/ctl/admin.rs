//! Client of the admin socket: one connection, one command at a time.

use crate::processes::Process;
use crate::trust;
use anyhow::{Context, Result, anyhow, bail};
use gpuslice_host::layout::{ADMIN_SOCKET, NODE_DIR};
use gpuslice_host::seqpacket;
use gpuslice_wire::admin::{Answer, Command, Denial};
use gpuslice_wire::frame::{Message, RequestId, decode, encode};
use gpuslice_wire::history::History;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::FRAME_BYTES_MAX;
use gpuslice_wire::samples::Samples;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::turns::Turns;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{PeerCredentials, ReceiveTimeout};
use nix::sys::socket::{MsgFlags, Shutdown, getsockopt, recv, setsockopt, shutdown};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::Pid;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit for one answer, seconds. The daemon writes some changes to the disk first, which may be busy for seconds.
const ANSWER_SECONDS: i64 = 15;
/// How long a look waits for a daemon that is being restarted, and the pause between two tries.
const RESTART_MAX: Duration = Duration::from_secs(10);
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// The daemon ended, or closed the connection, before it answered.
#[derive(Debug, thiserror::Error)]
#[error("the daemon at {} closed the connection; check that this user may use it", .0.display())]
pub struct Closed(PathBuf);

/// The daemon has not answered in time. It may do so later: whether it does what was asked is unknown.
#[derive(Debug, thiserror::Error)]
#[error("the daemon at {} did not answer within {ANSWER_SECONDS} s; whether it does what was asked is unknown", .0.display())]
pub struct Silent(PathBuf);

/// A connection to a daemon.
pub struct Admin {
    socket: RefCell<OwnedFd>,
    path: PathBuf,
}

/// The end of an answer with events.
#[derive(Clone, Copy, Debug)]
pub struct EventsEnd {
    /// When the daemon started, ns since 1970.
    pub daemon_unix_ns: u64,
    /// Number of the last event of the answer.
    pub last: u64,
    /// There are more after it.
    pub more: bool,
    /// Events that the daemon has dropped for newer ones.
    pub dropped: u64,
}

/// This user has no right to ask the daemon of a socket. Whether a daemon listens there is unknown.
#[derive(Debug, thiserror::Error)]
#[error(
    "permission denied: this user may not ask the daemon at {}; only root and the daemon's own user may: \
     run the command as one of these (sudo gpuslice)", .0.display()
)]
pub struct Forbidden(PathBuf);

/// Explains why the daemon is unreachable, and what to do.
fn explained(path: &Path, why: anyhow::Error) -> anyhow::Error {
    match why.downcast_ref::<Errno>() {
        Some(Errno::EACCES | Errno::EPERM) => Forbidden(path.to_owned()).into(),
        Some(errno) => anyhow!(absent(path, *errno, Path::new(NODE_DIR))),
        None => why,
    }
}

/// Says that no daemon answers at `path`. An ordinary user's commands look for a daemon of that user: where the node
/// has one, that is the one to ask.
fn absent(path: &Path, errno: Errno, node_dir: &Path) -> String {
    let (at, why, node) = (path.display(), errno.desc(), node_dir.join(ADMIN_SOCKET));
    match path != node && node.exists() {
        true => format!(
            "no daemon of this user answers at {at} ({why}), and only root may ask the node's at {}; try sudo gpuslice",
            node.display()
        ),
        false => {
            format!("no daemon answers at {at} ({why}); start gpusliced or give its --runtime-dir")
        }
    }
}

impl Admin {
    /// Connects to the daemon that serves `runtime_dir`.
    ///
    /// # Errors
    /// No daemon listens there, this user may not connect, or [`trust::Untrusted`].
    pub fn connect(runtime_dir: &Path) -> Result<Admin> {
        Admin::connect_to(runtime_dir, ADMIN_SOCKET)
    }

    /// Connects to the socket `name` of that daemon.
    ///
    /// # Errors
    /// As [`Admin::connect`].
    pub fn connect_to(runtime_dir: &Path, name: &str) -> Result<Admin> {
        let path = runtime_dir.join(name);
        let dir = trust::directory(runtime_dir).map_err(|why| explained(&path, why))?;
        let socket =
            seqpacket::connect(dir, name).map_err(|errno| explained(&path, errno.into()))?;
        trust::listener(&socket, &path)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(ANSWER_SECONDS))?;
        Ok(Admin { socket: RefCell::new(socket), path })
    }

    /// Lets answers take as long as they do.
    ///
    /// # Errors
    /// The system call fails.
    pub fn wait_for_long(&self) -> Result<()> {
        Ok(setsockopt(&*self.socket.borrow(), ReceiveTimeout, &TimeVal::seconds(0))?)
    }

    /// The daemon's process.
    ///
    /// # Errors
    /// The system call fails.
    pub fn daemon(&self) -> Result<Pid> {
        let listener = getsockopt(&*self.socket.borrow(), PeerCredentials)?;
        Ok(Pid::from_raw(listener.pid()))
    }

    /// Sends a command, over a new connection if the daemon has closed this one: it closes one that has said nothing
    /// for a second, and on a busy machine a command takes that long to get ready. No daemon has read what could not be
    /// sent.
    fn send(&self, command: &Command) -> Result<()> {
        let mut buffer = [0u8; FRAME_BYTES_MAX];
        let len = encode(RequestId(1), command, &mut buffer)?;
        let send = || seqpacket::send(&*self.socket.borrow(), &buffer[..len], &[]);
        if send().is_ok() {
            return Ok(());
        }
        let patience = getsockopt(&*self.socket.borrow(), ReceiveTimeout)?;
        let fresh = self.again()?.socket.into_inner();
        setsockopt(&fresh, ReceiveTimeout, &patience)?;
        self.socket.replace(fresh);
        send().with_context(|| format!("the daemon at {} is gone", self.path.display()))
    }

    /// The next message, or the reason of a daemon that cannot answer, as one without a driver.
    fn receive<M: Message>(&self) -> Result<M> {
        let mut buffer = [0u8; FRAME_BYTES_MAX];
        let packet = self.packet(&mut buffer)?;
        match (decode(packet), decode::<Answer>(packet)) {
            (Ok((_, message)), _) => Ok(message),
            (Err(_), Ok((_, Answer::Denied { why: Denial::Host, text }))) => bail!("{text}"),
            (Err(why), _) => Err(why.into()),
        }
    }

    /// The next packet.
    fn packet<'a>(&self, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
        let received = loop {
            match recv(self.socket.borrow().as_raw_fd(), buffer, MsgFlags::empty()) {
                // The daemon ended before it read the command.
                Err(Errno::ECONNRESET) => break Ok(0),
                // Stop and continue (SIGSTOP, SIGCONT) also interrupt a wait with a time limit.
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    // Else a late answer would be taken for that of the next command, which connects again now.
                    let _ = shutdown(self.socket.borrow().as_raw_fd(), Shutdown::Both);
                    return Err(Silent(self.path.clone()).into());
                }
                done => break done,
            }
        };
        let len = received.with_context(|| format!("the daemon at {}", self.path.display()))?;
        if len == 0 {
            return Err(Closed(self.path.clone()).into());
        }
        Ok(&buffer[..len])
    }

    /// Sends one command and waits for its answer.
    ///
    /// # Errors
    /// The daemon is gone, silent, or refuses; a refusal's text is the daemon's.
    pub fn ask(&self, command: &Command) -> Result<Answer> {
        self.send(command)?;
        match self.receive()? {
            Answer::Denied { text, .. } => bail!("{text}"),
            answer => Ok(answer),
        }
    }

    /// Removes a container's slice; succeeds if it has none. Reconnects to a daemon that was
    /// restarted meanwhile.
    ///
    /// # Errors
    /// As [`Admin::ask`].
    pub fn dismiss(&self, container: ContainerId) -> Result<()> {
        let command = Command::Dismiss { container };
        if self.ask(&command).is_ok() {
            return Ok(());
        }
        self.again()?.ask(&command).map(drop)
    }

    /// Reconnects to the running daemon, at the same socket.
    ///
    /// # Errors
    /// As [`Admin::connect`].
    pub fn again(&self) -> Result<Admin> {
        let name = self.path.file_name().and_then(OsStr::to_str).unwrap_or(ADMIN_SOCKET);
        Admin::connect_to(self.path.parent().unwrap_or(Path::new("/")), name)
    }

    /// As [`Admin::list`], also from a daemon that is being restarted.
    ///
    /// # Errors
    /// As [`Admin::over_restarts`].
    pub fn list_again(&self) -> Result<(u64, Vec<Snapshot>)> {
        self.over_restarts(Admin::list)
    }

    /// Asks, reconnects to a daemon that was restarted meanwhile, and waits for one that is being restarted.
    ///
    /// # Errors
    /// As [`Admin::ask`], if no daemon has answered after [`RESTART_MAX`].
    pub fn over_restarts<T>(&self, ask: impl Fn(&Admin) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let mut answer = ask(self).or_else(|_| ask(&self.again()?));
        while answer.is_err() && began.elapsed() < RESTART_MAX {
            std::thread::sleep(RESTART_PAUSE);
            answer = self.again().and_then(|admin| ask(&admin));
        }
        answer
    }

    /// The events after number `after`, oldest first, and the end of the answer. There may be more after these.
    ///
    /// # Errors
    /// As [`Admin::ask`].
    pub fn events(&self, after: u64) -> Result<(Vec<History>, EventsEnd)> {
        self.send(&Command::Events { after })?;
        let mut rows = Vec::new();
        loop {
            match self.receive()? {
                History::End { daemon_unix_ns, last, more, dropped } => {
                    let end = EventsEnd { daemon_unix_ns, last, more: more != 0, dropped };
                    return Ok((rows, end));
                }
                row => rows.push(row),
            }
        }
    }

    /// The samples of intervals that ended after an instant, and the end of the answer. There may be more after these.
    ///
    /// # Errors
    /// As [`Admin::ask`].
    pub fn samples(&self, after_ns: u64) -> Result<Vec<Samples>> {
        self.send(&Command::Samples { after_ns })?;
        self.rows_until(|row| matches!(row, Samples::End { .. }))
    }

    /// Records turns for a time, and reads those that were recorded after row `after`.
    ///
    /// # Errors
    /// As [`Admin::ask`].
    pub fn record(&self, for_ns: u64, after: u64) -> Result<Vec<Turns>> {
        self.send(&Command::Record { for_ns, after })?;
        self.rows_until(|row| matches!(row, Turns::End { .. }))
    }

    /// The processes of a container, none if it has no slice any more; `None` from a daemon that does not know the
    /// command, which also ends the connection.
    ///
    /// # Errors
    /// As [`Admin::ask`].
    pub fn processes(&self, container: ContainerId) -> Result<Option<Vec<Process>>> {
        self.send(&Command::Processes { container })?;
        let mut all = Vec::new();
        let mut buffer = [0u8; FRAME_BYTES_MAX];
        loop {
            let packet = self.packet(&mut buffer)?;
            match decode::<Snapshot>(packet) {
                Ok((_, Snapshot::End { .. })) => return Ok(Some(all)),
                Ok((_, row)) => all.extend(Process::of(row)),
                Err(why) => {
                    return match decode::<Answer>(packet) {
                        Ok((_, Answer::Denied { why: Denial::NoSuchSlice, .. })) => Ok(Some(all)),
                        Ok((_, Answer::Denied { why: Denial::Protocol, .. })) => Ok(None),
                        _ => Err(why.into()),
                    };
                }
            }
        }
    }

    /// The rows of an answer, the last one included.
    fn rows_until<M: Message>(&self, is_last: impl Fn(&M) -> bool) -> Result<Vec<M>> {
        let mut rows = Vec::new();
        loop {
            let row = self.receive()?;
            let done = is_last(&row);
            rows.push(row);
            if done {
                return Ok(rows);
            }
        }
    }

    /// As [`Admin::list`], by this command, within about this time.
    ///
    /// # Errors
    /// The daemon is gone, or not done in this time; `FrameError` from one that does not know the command.
    pub fn rows_within(&self, command: &Command, within: Duration) -> Result<(u64, Vec<Snapshot>)> {
        let until = Instant::now() + within;
        let late =
            || anyhow!("the daemon at {} has not answered in {within:?}", self.path.display());
        self.send(command)?;
        let mut rows = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // A limit of 0 is none.
            if left < Duration::from_micros(1) {
                return Err(late());
            }
            let left = TimeVal::microseconds(i64::try_from(left.as_micros()).unwrap_or(i64::MAX));
            setsockopt(&*self.socket.borrow(), ReceiveTimeout, &left)?;
            match self.receive() {
                Ok(Snapshot::End { now_ns }) => return Ok((now_ns, rows)),
                Ok(row) => rows.push(row),
                Err(why) if why.is::<Silent>() => return Err(late()),
                Err(why) => return Err(why),
            }
        }
    }

    /// All rows of the node, and the CLOCK_MONOTONIC time of the snapshot, ns.
    ///
    /// # Errors
    /// As [`Admin::ask`].
    pub fn list(&self) -> Result<(u64, Vec<Snapshot>)> {
        self.send(&Command::List {})?;
        let mut rows = Vec::new();
        loop {
            match self.receive()? {
                Snapshot::End { now_ns } => return Ok((now_ns, rows)),
                row => rows.push(row),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_host::layout::OBSERVE_SOCKET;
    use nix::sys::socket::{Backlog, SockFlag, accept, listen, send};

    /// A socket in a directory of its own, and a connection to it that nothing has accepted.
    fn connected() -> (tempfile::TempDir, OwnedFd, Admin) {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = seqpacket::bound(dir.path(), OBSERVE_SOCKET, SockFlag::empty());
        let listener = listener.expect("a socket");
        listen(&listener, Backlog::new(2).expect("small")).expect("listening");
        let admin = Admin::connect_to(dir.path(), OBSERVE_SOCKET).expect("connected");
        (dir, listener, admin)
    }

    /// A daemon closes a connection that has said nothing for a second, and a command may get ready for longer.
    #[test]
    fn a_command_goes_to_the_same_socket_again_where_the_connection_was_closed() {
        let (_dir, listener, admin) = connected();
        let accepted = || accept(listener.as_raw_fd()).expect("a connection");
        admin.wait_for_long().expect("set");
        nix::unistd::close(accepted()).expect("closed");
        admin.send(&Command::List {}).expect("sent");
        let mut buffer = [0u8; FRAME_BYTES_MAX];
        let len = recv(accepted(), &mut buffer, MsgFlags::empty()).expect("a packet");
        assert_eq!(decode(&buffer[..len]), Ok((RequestId(1), Command::List {})));
        let patience = getsockopt(&*admin.socket.borrow(), ReceiveTimeout).expect("there");
        assert_eq!(patience, TimeVal::seconds(0));
    }

    /// A daemon that is late answers when the command has given up: the next command is not told that.
    #[test]
    fn an_answer_that_comes_too_late_is_not_taken_for_that_of_the_next_command() {
        let (_dir, listener, admin) = connected();
        let accepted = || accept(listener.as_raw_fd()).expect("a connection");
        let patience = TimeVal::milliseconds(50);
        setsockopt(&*admin.socket.borrow(), ReceiveTimeout, &patience).expect("set");
        let first = accepted();
        let late = admin.ask(&Command::List {});
        assert!(late.is_err_and(|why| why.is::<Silent>()));
        let answer = |to, answer: &Answer| {
            let mut buffer = [0u8; FRAME_BYTES_MAX];
            let len = encode(RequestId(1), answer, &mut buffer).expect("short");
            send(to, &buffer[..len], MsgFlags::MSG_NOSIGNAL)
        };
        assert!(answer(first, &Answer::Done {}).is_err(), "its reader is gone");
        std::thread::scope(|scope| {
            scope.spawn(|| answer(accepted(), &Answer::Dismissed {}).expect("sent"));
            admin.wait_for_long().expect("set");
            assert_eq!(admin.ask(&Command::List {}).expect("an answer"), Answer::Dismissed {});
        });
    }

    #[test]
    fn a_user_beside_the_nodes_daemon_is_told_of_sudo() {
        let node = tempfile::tempdir().expect("a directory");
        let own = Path::new("/tmp/gpuslice-1000/admin.sock");
        let told = absent(own, Errno::ENOENT, node.path());
        assert!(told.ends_with("start gpusliced or give its --runtime-dir"), "{told}");
        let socket = node.path().join(ADMIN_SOCKET);
        std::fs::write(&socket, "").expect("a file");
        let told = absent(own, Errno::ENOENT, node.path());
        assert!(
            told.contains(own.to_str().expect("text")) && told.ends_with("try sudo gpuslice"),
            "{told}"
        );
        let told = absent(&socket, Errno::ECONNREFUSED, node.path());
        assert!(told.contains("start gpusliced"), "{told}");
    }
}
