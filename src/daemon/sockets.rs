//! The daemon's sockets.
//!
//! No call blocks, because all of them are non-blocking, and nothing queues on a tenant's behalf: a peer that
//! does not read its answers fills its own socket and is disconnected.
//!
//! Only the daemon sends descriptors. A descriptor sent to the daemon must not reach it. Receiving the packet
//! without room for it, or closing the socket in which it waits, closes the descriptor. Its sender can make
//! that close block: a TCP connection that lingers, a file of a FUSE server that does not answer. Since
//! Linux 6.16 a socket can refuse descriptors (`SO_PASSRIGHTS`), and the sender gets an error. On older kernels
//! each packet is peeked first, which closes nothing; a packet with descriptors is never received, and another
//! process closes sockets (`socket_closer.rs`).

use crate::descriptors::own;
use crate::socket_closer::{SocketCloser, SocketOwner};
use gpuslice_host::seqpacket::{bound, unconnected};
use gpuslice_wire::frame::{HEADER_BYTES, Message, RequestId, encode_in};
use gpuslice_wire::limits::{FRAME_BYTES_MAX, WIRE_VERSION};
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    Backlog, MsgFlags, SockFlag, UnixAddr, accept4, getsockname, getsockopt, listen, recvmsg,
};
use std::fs::{self, File, Permissions};
use std::io::{self, IoSliceMut};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Connections waiting to be accepted, per socket: 128, one more than the kernel is told.
const BACKLOG: i32 = 127;
/// Most groups of a process, as the kernel allows (NGROUPS_MAX).
const GROUPS_MAX: usize = 1 << 16;
/// Option of Linux 6.16: whether the socket takes descriptors. Not yet in libc.
const SO_PASSRIGHTS: libc::c_int = 83;

/// A connection, or a socket that listens for them. Dropping it never blocks.
#[derive(Debug)]
pub struct Socket {
    /// Taken out when it is dropped.
    fd: ManuallyDrop<OwnedFd>,
    /// No descriptor can wait in it, or this process does not close it last.
    plain: bool,
    owner: SocketOwner,
    closer: SocketCloser,
}

impl Socket {
    /// A listening socket of the daemon's own; connections to it come from `owner`.
    pub fn listening(fd: OwnedFd, owner: SocketOwner, closer: &SocketCloser) -> Socket {
        Socket {
            plain: refuses_descriptors(&fd),
            fd: ManuallyDrop::new(fd),
            owner,
            closer: closer.clone(),
        }
    }

    /// A listening socket that a service manager holds too. It outlives the daemon.
    pub fn handed_over(fd: OwnedFd, owner: SocketOwner, closer: &SocketCloser) -> Socket {
        refuse_descriptors(&fd); // for connections to come
        let mut socket = Socket::listening(fd, owner, closer);
        socket.plain = true;
        socket
    }

    /// The next connection.
    ///
    /// # Errors
    /// `EAGAIN` when there is none; `EMFILE` when descriptors have run out.
    pub fn accept(&self) -> nix::Result<Socket> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = own(accept4(self.as_fd().as_raw_fd(), flags)?);
        // A connection made before the manager's listener refused descriptors may hold some.
        let plain = refuses_descriptors(&fd);
        if !plain {
            refuse_descriptors(&fd);
        }
        Ok(Socket {
            fd: ManuallyDrop::new(fd),
            plain,
            owner: self.owner,
            closer: self.closer.clone(),
        })
    }

    /// Receives one packet.
    pub fn receive(&self, buffer: &mut [u8; FRAME_BYTES_MAX]) -> Received {
        if !self.plain {
            match packet_of(self.as_fd(), buffer, MsgFlags::MSG_PEEK) {
                Received::Packet(_) => {}
                other => return other,
            }
        }
        packet_of(self.as_fd(), buffer, MsgFlags::empty())
    }

    /// Whether a packet waits to be received, or a violation.
    pub fn has_packet(&self) -> bool {
        let mut buffer = [0; FRAME_BYTES_MAX];
        let waits = packet_of(self.as_fd(), &mut buffer, MsgFlags::MSG_PEEK);
        matches!(waits, Received::Packet(_) | Received::Violation)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Socket {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: taken once, and not used afterwards.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        match self.plain {
            true => drop(fd),
            false => self.closer.close(self.owner, fd),
        }
    }
}

/// A spare descriptor. When none is left, it is released to accept and close a connection, which otherwise would wait
/// forever and keep the daemon busy.
#[derive(Debug)]
pub struct Spare(Option<File>);

impl Spare {
    /// Takes the descriptor.
    pub fn new() -> Spare {
        Spare(File::open("/dev/null").ok())
    }

    /// Accepts the next connection and closes it.
    pub fn turn_away(&mut self, listener: &Socket) {
        self.0 = None;
        drop(listener.accept());
        *self = Spare::new();
    }
}

/// Whether sockets of this kernel can refuse descriptors.
pub fn can_refuse_descriptors() -> bool {
    unconnected(SockFlag::empty()).is_ok_and(|socket| refuse_descriptors(&socket))
}

/// Makes a socket refuse descriptors; returns whether the kernel can.
#[allow(unsafe_code)]
fn refuse_descriptors(socket: &OwnedFd) -> bool {
    let takes: libc::c_int = 0;
    let (value, size) = ((&raw const takes).cast(), size_of_val(&takes) as u32);
    let (fd, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: `takes` lives through the call, `size` is its size.
    unsafe { libc::setsockopt(fd, level, SO_PASSRIGHTS, value, size) == 0 }
}

/// Whether a socket refuses descriptors.
#[allow(unsafe_code)]
fn refuses_descriptors(socket: &OwnedFd) -> bool {
    let mut takes: libc::c_int = 1;
    let (value, mut size) = ((&raw mut takes).cast(), size_of_val(&takes) as u32);
    let (fd, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: `takes` and `size` live through the call, `size` is that of `takes`.
    let got = unsafe { libc::getsockopt(fd, level, SO_PASSRIGHTS, value, &raw mut size) };
    got == 0 && takes == 0
}

/// The groups of the process that connected a socket, its primary one first, as they were then.
#[allow(unsafe_code)]
pub fn peer_groups(socket: BorrowedFd<'_>) -> Vec<libc::gid_t> {
    let primary = getsockopt(&socket, PeerCredentials).map(|peer| peer.gid());
    let mut others: Vec<libc::gid_t> = vec![0; GROUPS_MAX];
    let mut size = size_of_val(others.as_slice()) as libc::socklen_t;
    let (fd, level, name) = (socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS);
    let value = others.as_mut_ptr().cast();
    // SAFETY: `others` and `size` live through the call, `size` is that of `others`.
    let got = unsafe { libc::getsockopt(fd, level, name, value, &raw mut size) };
    let count = if got == 0 { size as usize / size_of::<libc::gid_t>() } else { 0 };
    others.truncate(count);
    primary.into_iter().chain(others).collect()
}

/// Listens at `dir/name` with these permissions; replaces a stale socket there.
///
/// # Errors
/// The directory cannot be written, or descriptors have run out.
pub fn listen_at(dir: &Path, name: &str, mode: u32) -> io::Result<OwnedFd> {
    let path = dir.join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = bound(dir, name, SockFlag::SOCK_NONBLOCK)?;
    fs::set_permissions(&path, Permissions::from_mode(mode))?;
    // Before the first connection, because each one inherits it.
    refuse_descriptors(&listener);
    listen(&listener, Backlog::new(BACKLOG)?)?;
    Ok(listener)
}

/// The result of a receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A packet of this many bytes.
    Packet(usize),
    /// No packet is waiting.
    Nothing,
    /// The peer has closed, or sent an empty packet, which looks the same.
    End,
    /// A packet that is too long or carries descriptors.
    Violation,
}

/// Receives one packet or, with `MSG_PEEK`, only looks at it.
fn packet_of(
    connection: BorrowedFd<'_>,
    buffer: &mut [u8; FRAME_BYTES_MAX],
    how: MsgFlags,
) -> Received {
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | how;
    loop {
        return match recvmsg::<()>(connection.as_raw_fd(), &mut parts, None, flags) {
            Ok(packet) if packet.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) => {
                Received::Violation
            }
            Ok(packet) if packet.bytes == 0 => Received::End,
            Ok(packet) => Received::Packet(packet.bytes),
            Err(Errno::EINTR) => continue,
            Err(Errno::EAGAIN) => Received::Nothing,
            Err(_) => Received::End,
        };
    }
}

/// The request id of a packet at least as long as a frame's header, for the answer that reports what is wrong
/// with it.
pub fn id_of(packet: &[u8]) -> RequestId {
    let field = packet.get(HEADER_BYTES - 8..HEADER_BYTES);
    RequestId(field.and_then(|id| id.try_into().ok()).map_or(0, u64::from_le_bytes))
}

/// A message as the bytes of a packet.
pub fn packet<M: Message>(id: RequestId, message: &M, buffer: &mut [u8; FRAME_BYTES_MAX]) -> usize {
    packet_in(WIRE_VERSION, id, message, buffer)
}

/// The same for a peer of another version.
pub fn packet_in<M: Message>(
    version: u16,
    id: RequestId,
    message: &M,
    buffer: &mut [u8; FRAME_BYTES_MAX],
) -> usize {
    // Every message fits in a frame: the wire crate asserts it at compile time.
    encode_in(version, id, message, buffer).unwrap_or(0)
}

/// The path at which a socket listens, if it has one.
pub fn address_of(listener: &OwnedFd) -> Option<PathBuf> {
    let address: UnixAddr = getsockname(listener.as_raw_fd()).ok()?;
    address.path().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::connect;
    use std::iter;

    /// What connects beyond that waits in its own call.
    #[test]
    fn the_kernel_holds_128_connections_of_a_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let _listener = listen_at(dir.path(), "tenant.sock", 0o600).expect("a socket");
        let address = UnixAddr::new(&dir.path().join("tenant.sock")).expect("a path");
        let connected = || {
            let fd = unconnected(SockFlag::SOCK_NONBLOCK).expect("a descriptor");
            connect(fd.as_raw_fd(), &address).ok().map(|()| fd)
        };
        let waiting: Vec<OwnedFd> = iter::from_fn(connected).take(1_000).collect();
        assert_eq!(waiting.len(), 128);
    }
}
