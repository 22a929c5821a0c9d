//! SOCK_SEQPACKET sockets: one frame per packet, so a frame is whole or it is not there.
//!
//! Nothing here blocks and nothing queues on a tenant's behalf: a peer that does not read its
//! answers fills its own socket and is disconnected. Descriptors travel from the daemon only; a
//! packet that carries any is cut by the kernel, seen here as such, and ends the connection.

use gpuslice_wire::frame::{HEADER_BYTES, Message, RequestId, encode};
use gpuslice_wire::limits::FRAME_BYTES_MAX;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
    getsockname, listen, recvmsg, sendmsg, socket,
};
use nix::sys::stat::Mode;
use std::fs::{self, Permissions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Connections waiting to be accepted, per socket.
const BACKLOG: i32 = 128;

/// Listens at `dir/name` with these permissions, in the place of whatever stale socket is there.
///
/// # Errors
/// The directory cannot be written, or descriptors have run out.
pub fn listen_at(dir: &Path, name: &str, mode: u32) -> io::Result<OwnedFd> {
    let path = dir.join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    // A socket's address holds 107 bytes; a container's directory may be longer. Through the
    // directory's descriptor it is always short.
    let dir_fd = open(
        dir,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    let short = format!("/proc/self/fd/{}/{name}", dir_fd.as_raw_fd());
    bind(listener.as_raw_fd(), &UnixAddr::new(short.as_str())?)?;
    fs::set_permissions(&path, Permissions::from_mode(mode))?;
    listen(&listener, Backlog::new(BACKLOG)?)?;
    Ok(listener)
}

/// The next connection.
///
/// # Errors
/// `EAGAIN` when there is none; `EMFILE` when descriptors have run out.
pub fn accept(listener: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    accept4(listener.as_raw_fd(), flags).map(own)
}

/// What came in on a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A packet of this many bytes.
    Packet(usize),
    /// Nothing for now.
    Nothing,
    /// The peer is gone, or sent an empty packet, which looks the same.
    End,
    /// A packet that is too long or carries descriptors.
    Violation,
}

/// Receives one packet.
pub fn receive(connection: BorrowedFd<'_>, buffer: &mut [u8; FRAME_BYTES_MAX]) -> Received {
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT;
    loop {
        return match recvmsg::<()>(connection.as_raw_fd(), &mut parts, None, flags) {
            Ok(packet)
                if packet
                    .flags
                    .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) =>
            {
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

/// The request id of a packet that is a frame at least in its length, for the answer that says
/// what is wrong with the rest.
pub fn id_of(packet: &[u8]) -> RequestId {
    let field = packet.get(HEADER_BYTES - 8..HEADER_BYTES);
    RequestId(
        field
            .and_then(|id| id.try_into().ok())
            .map_or(0, u64::from_le_bytes),
    )
}

/// A message as the bytes of a packet.
pub fn packet<M: Message>(id: RequestId, message: &M, buffer: &mut [u8; FRAME_BYTES_MAX]) -> usize {
    // Every message fits in a frame: wire asserts it of each at compile time.
    encode(id, message, buffer).unwrap_or(0)
}

/// Sends one packet, with descriptors if any. `Err` means that the connection is of no more use.
///
/// # Errors
/// `EAGAIN` when the peer does not read; anything else when it is gone.
pub fn send(connection: BorrowedFd<'_>, packet: &[u8], fds: &[RawFd]) -> nix::Result<()> {
    let parts = [IoSlice::new(packet)];
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() {
        &rights[..0]
    } else {
        &rights[..]
    };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    loop {
        return match sendmsg::<()>(connection.as_raw_fd(), &parts, control, flags, None) {
            Err(Errno::EINTR) => continue,
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        };
    }
}

/// The path at which a socket listens, if it has one.
pub fn address_of(listener: &OwnedFd) -> Option<PathBuf> {
    let address: UnixAddr = getsockname(listener.as_raw_fd()).ok()?;
    address.path().map(Path::to_owned)
}

/// Makes a descriptor answer "nothing for now" instead of waiting.
///
/// # Errors
/// None that the system documents.
pub fn stops_blocking<F: AsFd>(fd: &F) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// A descriptor that nobody else in this process knows of.
#[allow(unsafe_code)]
pub fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: `accept4` just made it, or the service manager left it to us under this number.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
