//! The daemon's side of the tenant socket, reduced to a process alone in its slice: one GPU, one cap, no
//! turns. It is part of the bench so that the figures are the shim's alone.

use gpuslice_host::clock::now;
use gpuslice_host::seqpacket;
use gpuslice_wire::frame::{decode, encode};
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::limits::{FRAME_BYTES_MAX, HEARTBEAT_NS, PAGE_BYTES};
use gpuslice_wire::page::{
    CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, ClientPage, ContainerPage, PAGE_VERSION,
};
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::{Bytes, GIB};
use gpuslice_wire::usage::{USAGE_TABLE_MAGIC, USAGE_VERSION, UsageTable};
use nix::sys::socket::{Backlog, SockFlag};
use std::ffi::OsStr;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

/// Memory cap of the slice: room for eight threads with the largest allocation of the bench.
pub const CAP: u64 = 128 * GIB;

/// Serves `socket` until the process ends.
///
/// # Errors
/// A system call on the socket fails.
pub fn serve(socket: &Path) -> Result<(), Error> {
    let listener = listen(socket)?;
    std::thread::spawn(move || {
        loop {
            // SAFETY: accepts on a live descriptor; takes no address.
            let fd = unsafe {
                let none = std::ptr::null_mut();
                libc::accept4(listener.as_raw_fd(), none, none.cast(), libc::SOCK_CLOEXEC)
            };
            if fd >= 0 {
                // SAFETY: fresh from accept4, without another owner.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                std::thread::spawn(move || converse(&fd));
            }
        }
    });
    Ok(())
}

fn listen(path: &Path) -> Result<OwnedFd, Error> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
        return Err(Error::from_raw_os_error(libc::EINVAL));
    };
    let fd = seqpacket::bound(dir, name, SockFlag::empty())?;
    nix::sys::socket::listen(&fd, Backlog::new(16)?)?;
    Ok(fd)
}

fn shared_pages(bytes: usize) -> Option<(OwnedFd, *mut libc::c_void)> {
    // SAFETY: a new memfd of whole pages, mapped whole; the mapping stays for the process's life.
    unsafe {
        let fd = libc::memfd_create(c"page".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 || libc::ftruncate(fd, bytes as i64) != 0 {
            return None;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0);
        (at != libc::MAP_FAILED).then(|| (OwnedFd::from_raw_fd(fd), at))
    }
}

fn container_page() -> Option<OwnedFd> {
    let (fd, at) = shared_pages(PAGE_BYTES)?;
    // SAFETY: a zeroed, page-aligned, shared page of the right size, never unmapped.
    let page: &'static ContainerPage = unsafe { &*at.cast() };
    page.magic.store(CONTAINER_PAGE_MAGIC, Relaxed);
    page.version.store(PAGE_VERSION, Relaxed);
    page.lanes.store(1, Relaxed);
    page.epoch.store(1, Relaxed);
    page.lane[0].uuid_high.store(0x0102_0304_0506_0708, Relaxed);
    page.lane[0].uuid_low.store(0x090a_0b0c_0d0e_0f10, Relaxed);
    page.lane[0].cap.store(CAP, Relaxed);
    page.heartbeat_ns.store(now().0, Release);
    std::thread::spawn(move || {
        loop {
            page.heartbeat_ns.store(now().0, Release);
            std::thread::sleep(Duration::from_nanos(HEARTBEAT_NS));
        }
    });
    Some(fd)
}

fn client_page() -> Option<OwnedFd> {
    let (fd, at) = shared_pages(PAGE_BYTES)?;
    // SAFETY: as for the container's page.
    let page: &'static ClientPage = unsafe { &*at.cast() };
    page.version.store(PAGE_VERSION, Relaxed);
    page.magic.store(CLIENT_PAGE_MAGIC, Release);
    Some(fd)
}

/// A usage table in which the process has slot 0.
fn usage_table() -> Option<OwnedFd> {
    let (fd, at) = shared_pages(size_of::<UsageTable>())?;
    // SAFETY: as for the container's page.
    let table: &'static UsageTable = unsafe { &*at.cast() };
    table.version.store(USAGE_VERSION, Relaxed);
    table.slots.store(1, Relaxed);
    table.magic.store(USAGE_TABLE_MAGIC, Release);
    Some(fd)
}

/// As much of `wish` as the cap leaves.
fn reserve(reserved: &mut u64, lane: Lane, need: Bytes, wish: Bytes) -> Reply {
    let left = CAP - *reserved;
    let granted = wish.0.min(left);
    if granted < need.0 {
        let left = Bytes(left);
        return Reply::Refused { lane, need, left };
    }
    *reserved += granted;
    let bytes = Bytes(granted);
    Reply::Reserved { lane, bytes }
}

/// Serves one process's connection to its end.
fn converse(fd: &OwnedFd) {
    let mut reserved = 0_u64;
    let mut frame = [0_u8; FRAME_BYTES_MAX];
    loop {
        // SAFETY: receives into a live buffer.
        let len = unsafe { libc::recv(fd.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        let Ok(len) = usize::try_from(len) else {
            return;
        };
        let Ok((id, request)) = decode::<Request>(&frame[..len]) else {
            return;
        };
        let (reply, descriptors) = match request {
            Request::Attach { .. } | Request::Look {} => {
                let client = ClientId { slot: 0, generation: 1 };
                // SAFETY: a new eventfd.
                let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
                let (Some(container), Some(own), Some(usage)) =
                    (container_page(), client_page(), usage_table())
                else {
                    return;
                };
                // SAFETY: fresh from eventfd, without another owner.
                let bell = unsafe { OwnedFd::from_raw_fd(bell) };
                (Reply::Attached { client, lanes: 1 }, vec![container, own, bell, usage])
            }
            Request::Reserve { lane, need, wish } => {
                (reserve(&mut reserved, lane, need, wish), vec![])
            }
            Request::Release { bytes, .. } | Request::Yield { bytes, .. } => {
                reserved = reserved.saturating_sub(bytes.0);
                continue;
            }
            Request::Measure { lane } => (Reply::Measured { lane, used: None }, vec![]),
            Request::Open { .. } => (Reply::Origin { ours: false }, vec![]),
            Request::Share { .. }
            | Request::Group { .. }
            | Request::Channels { .. }
            | Request::GroupGone { .. } => continue,
        };
        let mut out = [0_u8; FRAME_BYTES_MAX];
        let Ok(len) = encode(id, &reply, &mut out) else {
            return;
        };
        let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        if send(fd.as_raw_fd(), &mut out[..len], &numbers).is_err() {
            return;
        }
    }
}

fn send(socket: RawFd, frame: &mut [u8], descriptors: &[RawFd]) -> Result<(), Error> {
    let mut control = [0_u64; 8];
    let bytes = size_of_val(descriptors) as u32;
    let mut data = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
    // SAFETY: one message from live buffers; the control buffer is aligned and large enough for
    // one header and four descriptors.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut data;
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            let to = libc::CMSG_DATA(header).cast::<RawFd>();
            std::ptr::copy_nonoverlapping(descriptors.as_ptr(), to, descriptors.len());
        }
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
