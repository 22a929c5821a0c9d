//! SOCK_SEQPACKET sockets of this machine: one frame per packet, so a frame arrives whole or not at all.
//!
//! A socket's address holds 107 bytes, and a container's directory may be longer. So sockets are reached
//! through their directory's descriptor.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, sendmsg,
    setsockopt, socket, socketpair,
};
use nix::sys::stat::Mode;
use nix::sys::time::{TimeVal, TimeValLike};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

/// Two connected sockets.
///
/// # Errors
/// Descriptors have run out, as for all functions below.
pub fn pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
}

/// A socket that is connected to no other.
///
/// # Errors
/// See [`pair`].
pub fn unconnected(flags: SockFlag) -> nix::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

/// Seconds that a connection waits for a place in the listener's queue: a stopped process accepts none.
const CONNECT_SECONDS: i64 = 5;

/// Connects to the socket `name` in a directory.
///
/// # Errors
/// No process listens there, or this process may not connect. `ETIMEDOUT` if the listener's queue stays full.
pub fn connect(dir: impl AsFd, name: &str) -> nix::Result<OwnedFd> {
    let socket = unconnected(SockFlag::empty())?;
    setsockopt(&socket, SendTimeout, &TimeVal::seconds(CONNECT_SECONDS))?;
    match nix::sys::socket::connect(socket.as_raw_fd(), &address(dir.as_fd(), name)?) {
        Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
        done => done?,
    }
    setsockopt(&socket, SendTimeout, &TimeVal::seconds(0))?;
    Ok(socket)
}

/// A socket at `dir/name`, which must not exist; it does not listen yet.
///
/// # Errors
/// The directory cannot be written.
pub fn bound(dir: &Path, name: &str, flags: SockFlag) -> nix::Result<OwnedFd> {
    let socket = unconnected(flags)?;
    let how = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let opened = open(dir, how, Mode::empty())?;
    // The path itself where it fits: other programs see the address.
    let address = UnixAddr::new(&dir.join(name)).or_else(|_| address(opened.as_fd(), name));
    bind(socket.as_raw_fd(), &address?)?;
    Ok(socket)
}

fn address(dir: BorrowedFd<'_>, name: &str) -> nix::Result<UnixAddr> {
    UnixAddr::new(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()).as_str())
}

/// Sends one packet, with descriptors if any. After an `Err` the connection is unusable.
///
/// # Errors
/// `EAGAIN` when the socket does not block and the peer does not read; other errors when it has closed.
pub fn send(connection: impl AsFd, packet: &[u8], fds: &[RawFd]) -> nix::Result<()> {
    let connection = connection.as_fd().as_raw_fd();
    let rights = [ControlMessage::ScmRights(fds)];
    let rights = &rights[..usize::from(!fds.is_empty())];
    let (parts, flags) = ([IoSlice::new(packet)], MsgFlags::MSG_NOSIGNAL);
    loop {
        match sendmsg::<()>(connection, &parts, rights, flags, None) {
            Err(Errno::EINTR) => {}
            done => return done.map(drop),
        }
    }
}

/// Whether no process has the other end of a connection open.
pub fn hung_up(connection: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::new(connection, PollFlags::empty())];
    let over = PollFlags::POLLHUP | PollFlags::POLLERR;
    // An error counts as closed, so that no caller waits without end.
    poll(&mut watched, PollTimeout::ZERO).is_err()
        || watched[0].revents().is_none_or(|events| events.intersects(over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, listen};
    use std::time::{Duration, Instant};

    #[test]
    fn a_connection_is_open_while_a_process_has_its_other_end() {
        let (ours, theirs) = pair().expect("a pair");
        let inherited = theirs.try_clone().expect("a copy");
        send(&theirs, b"unread", &[]).expect("sent");
        drop(theirs);
        assert!(!hung_up(ours.as_fd()));
        drop(inherited);
        // A process that another test has just forked has a copy until it executes its program.
        let until = Instant::now() + Duration::from_secs(60);
        while !hung_up(ours.as_fd()) {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_directory_may_be_longer_than_an_address() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path().join("d".repeat(200));
        std::fs::create_dir(&dir).expect("a directory");
        let listener = bound(&dir, "sock", SockFlag::empty()).expect("a socket");
        let at = std::fs::File::open(&dir).expect("it is there");
        assert_eq!(connect(&at, "sock").err(), Some(Errno::ECONNREFUSED));
        listen(&listener, Backlog::new(1).expect("small")).expect("listening");
        connect(&at, "sock").expect("connected");
        assert_eq!(connect(&at, "none").err(), Some(Errno::ENOENT));
    }

    /// A stopped daemon accepts no connection, and its clients must not wait for ever.
    #[test]
    fn a_connection_to_a_full_queue_ends_in_an_error() {
        let path = tempfile::tempdir().expect("a directory");
        let listener = bound(path.path(), "full", SockFlag::empty()).expect("bound");
        listen(&listener, Backlog::new(1).expect("a length")).expect("it listens");
        let dir = std::fs::File::open(path.path()).expect("a directory");
        let connected: Vec<_> = (0..4).map(|_| connect(&dir, "full")).collect();
        assert!(connected[0].is_ok(), "{connected:?}");
        assert_eq!(connected[3].as_ref().err(), Some(&Errno::ETIMEDOUT));
    }
}
