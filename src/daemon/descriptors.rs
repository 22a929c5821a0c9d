//! Small operations on descriptors of any kind.

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Makes a descriptor non-blocking.
///
/// # Errors
/// None that the system documents.
pub fn stops_blocking<F: AsFd>(fd: &F) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// A descriptor that no other code in this process owns.
#[allow(unsafe_code)]
pub fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: `accept4` just made it, or the service manager passed it under this number.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Whether no process has the other end of a connection open.
pub fn hung_up(connection: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::new(connection, PollFlags::empty())];
    let over = PollFlags::POLLHUP | PollFlags::POLLERR;
    // An error counts as closed, so that nothing is waited for without end.
    poll(&mut watched, PollTimeout::ZERO).is_err()
        || watched[0]
            .revents()
            .is_none_or(|events| events.intersects(over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    #[test]
    fn a_connection_is_open_while_a_process_has_its_other_end() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags);
        let (ours, theirs) = pair.expect("a pair");
        let inherited = theirs.try_clone().expect("a copy");
        nix::unistd::write(&theirs, b"unread").expect("sent");
        drop(theirs);
        assert!(!hung_up(ours.as_fd()));
        drop(inherited);
        assert!(hung_up(ours.as_fd()));
    }
}
