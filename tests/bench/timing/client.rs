//! A process that speaks the daemon's protocols by itself: of a slice, without the shim, or of an administrator.

use crate::Error;
use gpuslice_host::seqpacket;
use gpuslice_wire::admin::{Answer, Command};
use gpuslice_wire::frame::{Message, RequestId, decode, encode};
use gpuslice_wire::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX, PAGE_BYTES};
use gpuslice_wire::page::{ClientPage, ContainerPage};
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::Bytes;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recv, recvmsg};
use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// The socket of a process in a slice.
const SOCKET: &str = "/run/gpuslice/tenant.sock";

/// A connection to the daemon.
pub struct Client(pub OwnedFd);

/// What a process has once it is attached.
pub struct Attached {
    /// The page that it reads.
    pub container: &'static ContainerPage,
    /// The page that it writes.
    pub client: &'static ClientPage,
    /// The daemon's bell.
    pub bell: File,
}

impl Client {
    /// Connects to the socket of the slice in which this process is.
    ///
    /// # Errors
    /// There is none, or the daemon does not listen.
    pub fn of_this_slice() -> Result<Client, Error> {
        let named = std::env::var_os("GPUSLICE_SOCKET").map(PathBuf::from);
        Client::connect(&named.unwrap_or_else(|| PathBuf::from(SOCKET)))
    }

    /// Connects to this socket.
    ///
    /// # Errors
    /// The daemon does not listen there.
    pub fn connect(socket: &Path) -> Result<Client, Error> {
        let dir = File::open(socket.parent().ok_or("the socket has no directory")?)?;
        let name = socket.file_name().and_then(|name| name.to_str());
        Ok(Client(seqpacket::connect(&dir, name.ok_or("the socket has no name")?)?))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send(&self, message: &impl Message) -> Result<(), Error> {
        let mut buffer = [0; FRAME_BYTES_MAX];
        let len = encode(RequestId(1), message, &mut buffer).map_err(|e| format!("{e:?}"))?;
        Ok(seqpacket::send(&self.0, &buffer[..len], &[])?)
    }

    /// Gives a command, on the administrators' socket, and waits until it is done.
    ///
    /// # Errors
    /// The connection has ended, or the daemon refuses.
    pub fn command(&self, command: &Command) -> Result<(), Error> {
        self.send(command)?;
        let mut buffer = [0; FRAME_BYTES_MAX];
        let len = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        match decode(&buffer[..len]).map_err(|e| format!("{e:?}"))?.1 {
            Answer::Denied { text, .. } => Err(text.to_string().into()),
            _ => Ok(()),
        }
    }

    /// The next answer, and the descriptors that came with it.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn hear(&self) -> Result<(Reply, Vec<OwnedFd>), Error> {
        let (mut buffer, mut control) = ([0; FRAME_BYTES_MAX], nix::cmsg_space!([RawFd; 8]));
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let packet = recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
        let rights = packet.cmsgs()?.find_map(|part| match part {
            ControlMessageOwned::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let len = packet.bytes;
        // SAFETY: the kernel made these descriptors for this message.
        let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
        let owned = rights.unwrap_or_default().into_iter().map(own).collect();
        let (_, reply) = decode::<Reply>(&buffer[..len]).map_err(|e| format!("{e:?}"))?;
        Ok((reply, owned))
    }

    /// Asks to be attached, holding nothing.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn ask_to_attach(&self) -> Result<(), Error> {
        self.send(&Request::Attach { held: [Bytes::ZERO; ACCOUNTS_MAX] })
    }

    /// Attaches, holding nothing.
    ///
    /// # Errors
    /// The daemon refuses.
    pub fn attach(&self) -> Result<Attached, Error> {
        self.ask_to_attach()?;
        let (reply, owned) = self.hear()?;
        let [container, client, bell, _usage] =
            owned.try_into().map_err(|_| format!("four descriptors are due: {reply:?}"))?;
        Ok(Attached {
            container: map(&container, libc::PROT_READ)?,
            client: map(&client, libc::PROT_READ | libc::PROT_WRITE)?,
            bell: File::from(bell),
        })
    }
}

/// Maps a page for the rest of the process's life.
fn map<T>(page: &OwnedFd, access: i32) -> Result<&'static T, Error> {
    assert_eq!(size_of::<T>(), PAGE_BYTES);
    let (none, shared) = (std::ptr::null_mut(), libc::MAP_SHARED);
    // SAFETY: a new mapping of a descriptor of ours, at an address of the kernel's choice.
    let at = unsafe { libc::mmap(none, PAGE_BYTES, access, shared, page.as_raw_fd(), 0) };
    match at == libc::MAP_FAILED {
        true => Err(std::io::Error::last_os_error().into()),
        // SAFETY: mapped for good, of this size and alignment; only its atomics are used.
        false => Ok(unsafe { &*at.cast() }),
    }
}
