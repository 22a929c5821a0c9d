//! A session whose daemon is the test: it has the other end of the connection, and the pages.

use super::conn::{Conn, Welcome};
use super::golden::memfd;
use super::{Callbacks, Purpose, Session, sys};
use core::sync::atomic::Ordering::SeqCst;
use gpuslice_wire::frame::{RequestId, decode, encode};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::FRAME_BYTES_MAX;
use gpuslice_wire::page::{
    CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, ClientPage, ContainerPage, PAGE_VERSION,
};
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::{Bytes, GIB, Instant};
use gpuslice_wire::usage::{USAGE_TABLE_MAGIC, USAGE_VERSION, UsageTable};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// The lane of the session's GPU, and another one.
pub const LANE: Lane = Lane(0);
pub const OTHER: Lane = Lane(1);

/// The daemon's end of a connection.
pub struct Daemon(OwnedFd);

impl Daemon {
    pub fn connected() -> (Conn, Daemon) {
        let (mut ends, kind) = ([0; 2], libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC);
        // SAFETY: `ends` has room for two descriptors.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
        assert_eq!(made, 0, "a pair of sockets");
        // SAFETY: the kernel just made them.
        let [one, other] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        (Conn::over(one), Daemon(other))
    }

    /// Answers the request with this number, before it is sent: a connection numbers its requests from 1 on.
    pub fn answers(&self, number: u64, reply: &Reply) {
        let mut frame = [0; FRAME_BYTES_MAX];
        let len = encode(RequestId(number), reply, &mut frame).expect("a frame");
        sys::send(self.0.as_raw_fd(), &frame[..len], Instant(0)).expect("sent");
    }

    pub fn grants(&self, number: u64, bytes: u64) {
        self.answers(number, &Reply::Reserved { lane: LANE, bytes: Bytes(bytes) });
    }

    /// The requests sent since the last call.
    pub fn asked(&self) -> Vec<Request> {
        let mut frame = [0; FRAME_BYTES_MAX];
        let next = || {
            let (len, _) = sys::receive(self.0.as_raw_fd(), &mut frame, Instant(0)).ok()?;
            Some(decode(&frame[..len]).expect("a request").1)
        };
        std::iter::from_fn(next).collect()
    }
}

pub struct Fake {
    pub session: Session,
    pub daemon: Daemon,
    /// The container's page, which the daemon writes.
    pub container: &'static ContainerPage,
    pub doorbell: OwnedFd,
}

impl Fake {
    /// A process alone in a slice of one GPU with a cap of 1 GiB: requests ask for 8 MiB more than they need.
    pub fn new() -> Fake {
        let (conn, daemon) = Daemon::connected();
        let (welcome, container) = welcome();
        let doorbell = welcome.doorbell.try_clone().expect("a descriptor");
        container.lane[0].cap.store(GIB, SeqCst);
        container.clients.store(1, SeqCst);
        let callbacks =
            Callbacks { credit_begins: || (), reclaim: || false, report: |_, _| Ok(()) };
        let rest = (Path::new("/nonexistent"), Purpose::Use, callbacks);
        let session = Session::over(conn, welcome, rest).expect("pages");
        Fake { session, daemon, container, doorbell }
    }
}

/// New pages, and the container's as the daemon sees it.
pub fn welcome() -> (Welcome, &'static ContainerPage) {
    let page = |magic: u64, version: u32, len| {
        let mut bytes = [&magic.to_ne_bytes()[..], &version.to_ne_bytes()].concat();
        bytes.resize(len, 0);
        memfd(&bytes)
    };
    // SAFETY: plain numbers; the kernel makes a descriptor.
    let doorbell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    sys::tag(&doorbell);
    let welcome = Welcome {
        lanes: 1,
        container: page(CONTAINER_PAGE_MAGIC, PAGE_VERSION, size_of::<ContainerPage>()),
        client: page(CLIENT_PAGE_MAGIC, PAGE_VERSION, size_of::<ClientPage>()),
        doorbell,
        usage: page(USAGE_TABLE_MAGIC, USAGE_VERSION, size_of::<UsageTable>()),
    };
    let container = sys::map(&welcome.container, true, None).expect("mapped");
    (welcome, container)
}

/// How often an eventfd was written to since the last call.
pub fn rung(eventfd: &OwnedFd) -> u64 {
    let mut count = 0_u64;
    // SAFETY: `count` has 8 bytes.
    unsafe { libc::read(eventfd.as_raw_fd(), (&raw mut count).cast(), 8) };
    count
}
