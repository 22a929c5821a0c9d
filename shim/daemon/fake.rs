//! A session whose daemon is the test: it has the other end of the connection, and the pages.

use super::conn::{Conn, Welcome};
use super::golden::memfd;
use super::{Callbacks, Purpose, Session, sys};
use core::ffi::CStr;
use core::mem::zeroed;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;
use gpuslice_wire::frame::{RequestId, decode, encode};
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::limits::FRAME_BYTES_MAX;
use gpuslice_wire::page::{
    CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, ClientPage, ContainerPage, PAGE_VERSION,
};
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::{Bytes, GIB, Instant};
use gpuslice_wire::usage::{USAGE_TABLE_MAGIC, USAGE_VERSION, UsageTable};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The lanes of the session's GPUs.
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
        self.answers_with(number, reply, &[]);
    }

    /// The same with descriptors. A process that has closed its end gets no answer.
    pub fn answers_with(&self, number: u64, reply: &Reply, descriptors: &[RawFd]) {
        let (mut frame, mut control) = ([0; FRAME_BYTES_MAX], [0_u64; 8]);
        let len = encode(RequestId(number), reply, &mut frame).expect("a frame");
        let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: len };
        let bytes = size_of_val(descriptors) as u32;
        // SAFETY: a message of live buffers, of which `control` has room for a header and 4 numbers.
        unsafe {
            let mut message: libc::msghdr = zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            data.copy_from_nonoverlapping(descriptors.as_ptr(), descriptors.len());
            libc::sendmsg(self.0.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL);
        }
    }

    /// Attaches the process, with new pages: request 1 of its connection. It counts as alive from then on.
    pub fn attaches(&self) {
        let (welcome, container) = welcome();
        container.heartbeat_ns.store(u64::MAX, SeqCst);
        let Welcome { lanes, container, client, doorbell, usage } = welcome;
        let sent = [container, client, doorbell, usage];
        let reply = Reply::Attached { client: ClientId { slot: 0, generation: 0 }, lanes };
        self.answers_with(1, &reply, &sent.each_ref().map(AsRawFd::as_raw_fd));
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

impl Drop for Daemon {
    /// Ends the connection at once: a child that another test forks has a copy of the descriptor.
    fn drop(&mut self) {
        // SAFETY: plain numbers.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// The path of a socket, at which a daemon `serves` each connection.
pub struct Socket(pub PathBuf);

impl Socket {
    pub fn new(serves: impl Fn(&Daemon) + Send + 'static) -> Socket {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let (own, number) = (std::process::id(), LAST.fetch_add(1, SeqCst));
        let path = std::env::temp_dir().join(format!("gpuslice-fake-{own}-{number}"));
        let (address, _directory) = sys::address(&path).expect("an address");
        let (kind, len) = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, size_of_val(&address));
        // SAFETY: the kernel makes a descriptor; `address` is a NUL-terminated sockaddr_un of `len` bytes.
        let (listener, failed) = unsafe {
            let fd = libc::socket(libc::AF_UNIX, kind, 0);
            let failed = libc::bind(fd, (&raw const address).cast(), len as libc::socklen_t);
            (UnixListener::from_raw_fd(fd), failed | libc::listen(fd, 8))
        };
        assert_eq!(failed, 0, "a socket");
        // The thread and its connections last as long as the process.
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let daemon = Daemon(connection.expect("a connection").into());
                serves(&daemon);
                core::mem::forget(daemon);
            }
        });
        Socket(path)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
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
    pub fn new() -> Fake {
        Fake::at(Path::new("/nonexistent"))
    }

    /// A process alone in a slice of two GPUs; a daemon that comes back has the socket at `path`. The first GPU has a
    /// cap of 1 GiB: requests ask for 8 MiB more than they need.
    pub fn at(path: &Path) -> Fake {
        let (conn, daemon) = Daemon::connected();
        let (welcome, container) = welcome();
        let doorbell = welcome.doorbell.try_clone().expect("a descriptor");
        container.lane[0].cap.store(GIB, SeqCst);
        container.clients.store(1, SeqCst);
        let callbacks =
            Callbacks { credit_begins: || (), reclaim: || false, report: |_, _| Ok(()) };
        let rest = (path, Purpose::Use, callbacks);
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
        lanes: 2,
        container: page(CONTAINER_PAGE_MAGIC, PAGE_VERSION, size_of::<ContainerPage>()),
        client: page(CLIENT_PAGE_MAGIC, PAGE_VERSION, size_of::<ClientPage>()),
        doorbell,
        usage: page(USAGE_TABLE_MAGIC, USAGE_VERSION, size_of::<UsageTable>()),
    };
    let container = sys::map(&welcome.container, true, None).expect("mapped");
    (welcome, container)
}

/// Whether `tries` holds in a child of this process, which has its own clock, environment and handlers.
pub fn in_child(tries: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs no other code than `tries`, and the C library lets it allocate.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it ends without any handler.
        unsafe { libc::_exit(tries().into()) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable; the child is this process's own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1
}

/// Sets a variable of a child's environment.
pub fn set_variable(name: &CStr, value: &CStr) {
    // SAFETY: both end with a null, and a child has no thread that reads meanwhile.
    unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
}

/// How often an eventfd was written to since the last call.
pub fn rung(eventfd: &OwnedFd) -> u64 {
    let mut count = 0_u64;
    // SAFETY: `count` has 8 bytes.
    unsafe { libc::read(eventfd.as_raw_fd(), (&raw mut count).cast(), 8) };
    count
}
