//! One exchange with the daemon over a SOCK_SEQPACKET socket, with one deadline for all waits; and a
//! datagram to the log.

use super::{owned, result};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

/// A socket that is connected before `by`. The listener must be root or this user, because the hook
/// mounts the paths of its answer.
pub(crate) fn connect(path: &Path, by: Instant) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes three integers.
    let socket = owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }.into())?;
    wait_until(&socket, libc::SO_SNDTIMEO, by)?;
    let (address, size) = (address(path)?, size_of::<libc::sockaddr_un>() as u32);
    // SAFETY: `address` lives through the call, `size` is its size.
    result(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) }.into())?;
    let listener = listener(&socket)?;
    // SAFETY: no arguments.
    if listener != 0 && listener != unsafe { libc::geteuid() } {
        return Err(io::Error::other("another user listens there"));
    }
    Ok(socket)
}

fn address(path: &Path) -> io::Result<libc::sockaddr_un> {
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::other("the path is too long for a socket"));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(address)
}

/// Sends one datagram to the socket at a path, without waiting.
pub(crate) fn tell(path: &Path, text: &[u8]) -> io::Result<()> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes three integers.
    let socket = owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }.into())?;
    let (to, size) = (address(path)?, size_of::<libc::sockaddr_un>() as u32);
    let (data, len) = (text.as_ptr().cast(), text.len());
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    // SAFETY: `text` is `len` readable bytes; `to` lives through the call, `size` is its size.
    let sent = unsafe { libc::sendto(fd, data, len, flags, (&raw const to).cast(), size) };
    match sent {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the deadline `by` for one kind of wait: to connect and send, or to receive.
fn wait_until(socket: &OwnedFd, option: i32, by: Instant) -> io::Result<()> {
    let time = left(by, Instant::now()).ok_or(io::ErrorKind::WouldBlock)?;
    let (value, size) = ((&raw const time).cast(), size_of::<libc::timeval>() as u32);
    let fd = socket.as_raw_fd();
    // SAFETY: `time` lives through the call, `size` is its size.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, value, size) };
    result(set.into()).map(drop)
}

/// Remaining time; `None` if there is none, because zero means no limit to the kernel.
fn left(by: Instant, now: Instant) -> Option<libc::timeval> {
    let left = by.saturating_duration_since(now);
    (left.as_micros() > 0).then(|| libc::timeval {
        tv_sec: left.as_secs() as i64,
        tv_usec: left.subsec_micros().into(),
    })
}

/// The user of the listening process.
fn listener(socket: &OwnedFd) -> io::Result<libc::uid_t> {
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut size = size_of::<libc::ucred>() as u32;
    let (fd, to, option) = (socket.as_raw_fd(), (&raw mut peer).cast(), libc::SO_PEERCRED);
    // SAFETY: `peer` and `size` live through the call, `size` is peer's.
    let got = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, to, &raw mut size) };
    result(got.into()).map(|_| peer.uid)
}

/// Sends one frame.
pub(crate) fn send(socket: &OwnedFd, frame: &[u8]) -> io::Result<()> {
    let (data, len) = (frame.as_ptr().cast(), frame.len());
    // SAFETY: `frame` is `len` readable bytes.
    let sent = unsafe { libc::send(socket.as_raw_fd(), data, len, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one frame before `by`; its length.
pub(crate) fn receive(socket: &OwnedFd, by: Instant, buffer: &mut [u8]) -> io::Result<usize> {
    wait_until(socket, libc::SO_RCVTIMEO, by)?;
    let (data, len) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: `buffer` is `len` writable bytes.
    let got = unsafe { libc::recv(socket.as_raw_fd(), data, len, libc::MSG_TRUNC) };
    match usize::try_from(got) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(got) if got <= len => Ok(got),
        Ok(_) => Err(io::Error::other("an oversized frame")),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn no_wait_goes_beyond_the_deadline_or_is_without_end() {
        let start = Instant::now();
        let by = start + Duration::from_millis(1500);
        let left = |after: u64| {
            let left = left(by, start + Duration::from_nanos(after));
            left.map(|left| (left.tv_sec, left.tv_usec))
        };
        assert_eq!(left(0), Some((1, 500_000)));
        assert_eq!(left(1), Some((1, 499_999)));
        assert_eq!(left(1_499_999_000), Some((0, 1)));
        for late in [1_499_999_001, 1_500_000_000, 9_000_000_000] {
            assert_eq!(left(late), None, "{late}");
        }
    }
}
