//! A process that claims work and has none.
//!
//! It attaches to its container's socket as the shim does. For a while it says that it is runnable, and takes part in
//! every turn, and in open mode, without reporting that it has drained; then it is quiet for a while; again and again.
//! `src/wire/page.rs` explains the page's protocol, `shim/launch/claim.rs` what an honest process does.

use crate::Error;
use gpuslice_host::seqpacket;
use gpuslice_wire::frame::{RequestId, decode, encode};
use gpuslice_wire::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX, PAGE_BYTES};
use gpuslice_wire::page::{ClientPage, ContainerPage, MODE_OPEN, may_launch};
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::Bytes;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::fs::File;
use std::io::{IoSliceMut, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// The socket of a process in a slice.
const SOCKET: &str = "/run/gpuslice/tenant.sock";
/// Interval between two looks at the turn.
const LOOK: Duration = Duration::from_millis(1);

/// Claims for `claim_ms`, is quiet for `quiet_ms`, for ever.
///
/// # Errors
/// The daemon does not let it attach.
pub fn run(claim_ms: &str, quiet_ms: &str) -> Result<(), Error> {
    let [claim, quiet] = [claim_ms, quiet_ms].map(|ms| ms.parse().map(Duration::from_millis));
    let (claim, quiet) = (claim?, quiet?);
    let (_connection, pages) = attach()?;
    let [container, client, bell] = pages;
    let container: &ContainerPage = map(&container, libc::PROT_READ)?;
    let client: &ClientPage = map(&client, libc::PROT_READ | libc::PROT_WRITE)?;
    let (lane, shown, mut bell) = (&client.lane[0], &container.lane[0], File::from(bell));
    loop {
        let begin = Instant::now();
        while begin.elapsed() < claim {
            lane.runnable.store(1, SeqCst);
            let turn = shown.turn.load(SeqCst);
            if may_launch(turn) || shown.mode.load(SeqCst) == MODE_OPEN {
                lane.drained.store(turn.wrapping_sub(1), SeqCst);
                lane.active.store(turn, SeqCst);
            }
            bell.write_all(&1_u64.to_ne_bytes())?;
            std::thread::sleep(LOOK);
        }
        lane.runnable.store(0, SeqCst);
        lane.drained.store(lane.active.load(SeqCst), SeqCst);
        bell.write_all(&1_u64.to_ne_bytes())?;
        std::thread::sleep(quiet);
    }
}

/// The connection, the page that it reads, the one that it writes, and the daemon's bell.
fn attach() -> Result<(OwnedFd, [OwnedFd; 3]), Error> {
    let named = std::env::var_os("GPUSLICE_SOCKET").map(PathBuf::from);
    let socket = named.unwrap_or_else(|| PathBuf::from(SOCKET));
    let dir = File::open(socket.parent().ok_or("the socket has no directory")?)?;
    let name = socket.file_name().and_then(|name| name.to_str()).ok_or("the socket has no name")?;
    let connection = seqpacket::connect(&dir, name)?;
    let mut buffer = [0; FRAME_BYTES_MAX];
    let request = Request::Attach { held: [Bytes::ZERO; ACCOUNTS_MAX] };
    let len = encode(RequestId(1), &request, &mut buffer).map_err(|e| format!("{e:?}"))?;
    seqpacket::send(&connection, &buffer[..len], &[])?;
    let mut control = nix::cmsg_space!([RawFd; 8]);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let packet = recvmsg::<()>(connection.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let rights = packet.cmsgs()?.find_map(|part| match part {
        ControlMessageOwned::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let len = packet.bytes;
    // SAFETY: the kernel made these descriptors for this message.
    let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
    let owned: Vec<OwnedFd> = rights.unwrap_or_default().into_iter().map(own).collect();
    let (_, reply) = decode::<Reply>(&buffer[..len]).map_err(|e| format!("{e:?}"))?;
    let three = owned.try_into().map_err(|_| format!("three descriptors are due: {reply:?}"))?;
    Ok((connection, three))
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
