//! The two protocols from the other side, good and bad.

use super::PATIENCE;
use super::agent::Agent;
use gpuslice_host::seqpacket;
use gpuslice_wire::admin::{Answer, Command};
use gpuslice_wire::frame::{Message, RequestId, decode, encode};
use gpuslice_wire::history::History;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX, PAGE_BYTES};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::tenant::{Rejection, Reply, Request};
use gpuslice_wire::units::Bytes;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::socket::sockopt::{ReceiveTimeout, SndBuf};
use nix::sys::socket::{
    Backlog, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, recvmsg, setsockopt, shutdown,
};
use nix::sys::stat::Mode;
use nix::sys::time::{TimeVal, TimeValLike};
use std::io::IoSliceMut;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;

/// A socket as a daemon has it, on which no answer is ever sent.
pub fn listen(path: &Path) -> OwnedFd {
    let (dir, name) = parts(path);
    let fd = seqpacket::bound(dir, name, SockFlag::empty()).expect("a socket");
    nix::sys::socket::listen(&fd, Backlog::MAXALLOWABLE).expect("listening");
    fd
}

fn parts(path: &Path) -> (&Path, &str) {
    let name = path.file_name().and_then(|name| name.to_str());
    (path.parent().expect("a directory"), name.expect("a name"))
}

/// Any connection to the daemon.
pub struct Connection(OwnedFd);

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Connection {
    /// Ends it for all that have it open: a process that another test forks at this moment has a copy of it until
    /// that begins its own work, and the daemon would take the connection for open.
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// What the daemon sent.
#[derive(Debug)]
pub enum Heard {
    /// A packet, and what came with it.
    Packet(Vec<u8>, Vec<OwnedFd>),
    /// The connection is closed.
    End,
}

impl Connection {
    pub fn connect(path: &Path) -> nix::Result<Connection> {
        let (dir, name) = parts(path);
        let dir = open(dir, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Connection::of(seqpacket::connect(dir, name)?))
    }

    /// One that was made elsewhere.
    pub fn of(fd: OwnedFd) -> Connection {
        let patience = TimeVal::seconds(PATIENCE.as_secs() as i64);
        setsockopt(&fd, ReceiveTimeout, &patience).expect("a socket");
        Connection(fd)
    }

    /// Lets packets longer than the default socket buffer be sent.
    pub fn allow_long_packets(&self) {
        setsockopt(&self.0, SndBuf, &(1 << 20)).expect("a larger buffer");
    }

    /// Ends the connection without closing its descriptor.
    pub fn hang_up(&self) {
        // Fails if the daemon has ended it already.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }

    pub fn send_raw(&self, packet: &[u8], fds: &[RawFd]) -> nix::Result<()> {
        seqpacket::send(&self.0, packet, fds)
    }

    pub fn send<M: Message>(&self, id: u64, message: &M) -> nix::Result<()> {
        let mut buffer = [0; FRAME_BYTES_MAX];
        let len = encode(RequestId(id), message, &mut buffer).expect("fits");
        self.send_raw(&buffer[..len], &[])
    }

    pub fn hear(&self) -> Heard {
        let mut buffer = [0; FRAME_BYTES_MAX];
        let mut control = nix::cmsg_space!([RawFd; 8]);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let heard = recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut control), flags);
        let (len, fds) = match heard {
            Ok(packet) => {
                let rights =
                    packet.cmsgs().expect("whole control data").find_map(|part| match part {
                        ControlMessageOwned::ScmRights(fds) => Some(fds),
                        _ => None,
                    });
                (packet.bytes, rights.unwrap_or_default())
            }
            Err(Errno::ECONNRESET) => return Heard::End,
            // A socket with a time limit is interrupted by a mere stop and continue.
            Err(Errno::EINTR) => return self.hear(),
            Err(error) => panic!("the daemon neither answers nor closes: {error}"),
        };
        if len == 0 {
            return Heard::End;
        }
        // SAFETY: the kernel just made these descriptors for this message.
        let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
        Heard::Packet(buffer[..len].to_vec(), fds.into_iter().map(own).collect())
    }

    /// The next message, or `None` when the connection is closed.
    pub fn message<M: Message>(&self) -> Option<(u64, M, Vec<OwnedFd>)> {
        match self.hear() {
            Heard::End => None,
            Heard::Packet(packet, fds) => {
                let (id, message) = decode(&packet).expect("the daemon speaks the protocol");
                Some((id.0, message, fds))
            }
        }
    }

    /// Asserts that the daemon says which rule was broken and closes.
    pub fn expect_rejected(&self, rule: Rejection) {
        match self.message::<Reply>() {
            Some((_, Reply::Rejected { why }, _)) => assert_eq!(why, rule),
            other => panic!("expected {rule:?}, got {other:?}"),
        }
        self.expect_end();
    }

    /// Asserts that the daemon closes without a word more.
    pub fn expect_end(&self) {
        let heard = self.hear();
        assert!(matches!(heard, Heard::End), "{heard:?}");
    }
}

/// The hook or the CLI.
pub struct AdminClient(pub Connection);

impl AdminClient {
    pub fn connect(path: &Path) -> nix::Result<AdminClient> {
        Connection::connect(path).map(AdminClient)
    }

    pub fn ask(&self, command: &Command) -> Answer {
        self.try_ask(command).expect("an answer")
    }

    /// The answer, unless the daemon ends before.
    pub fn try_ask(&self, command: &Command) -> Option<Answer> {
        self.0.send(7, command).ok()?;
        let (id, answer, _) = self.0.message()?;
        assert_eq!(id, 7);
        Some(answer)
    }

    /// What the daemon remembers to have happened, oldest first.
    pub fn events(&self) -> Vec<History> {
        let (mut events, mut after) = (Vec::new(), 0);
        loop {
            self.0.send(9, &Command::Events { after }).expect("the daemon reads");
            let more = loop {
                match self.0.message().expect("an event") {
                    (9, History::End { last, more, .. }, _) => {
                        after = last;
                        break more;
                    }
                    (id, event, _) => {
                        assert_eq!(id, 9);
                        events.push(event);
                    }
                }
            };
            if more == 0 {
                return events;
            }
        }
    }

    pub fn list(&self) -> Vec<Snapshot> {
        self.0.send(8, &Command::List {}).expect("the daemon reads");
        let mut rows = Vec::new();
        loop {
            let (id, row, _) = self.0.message().expect("a row");
            assert_eq!(id, 8);
            if matches!(row, Snapshot::End { .. }) {
                return rows;
            }
            rows.push(row);
        }
    }
}

/// A process in a slice: the test itself, or one of its own, which ends with it.
pub struct TenantClient(
    pub Connection,
    #[allow(dead_code)] // it is there to be dropped
    pub  Option<Agent>,
);

/// What a process has once it is attached.
#[derive(Debug)]
pub struct Attached {
    pub lanes: u8,
    pub container_page: OwnedFd,
    pub client_page: OwnedFd,
    pub bell: OwnedFd,
    pub usage: OwnedFd,
}

impl TenantClient {
    pub fn connect(path: &Path) -> nix::Result<TenantClient> {
        Ok(TenantClient(Connection::connect(path)?, None))
    }

    /// Attaches, unless the daemon rejects it.
    pub fn try_attach(&self) -> Option<()> {
        let held = [Bytes::ZERO; ACCOUNTS_MAX];
        self.0.send(1, &Request::Attach { held }).ok()?;
        let (_, reply, _) = self.0.message()?;
        matches!(reply, Reply::Attached { .. }).then_some(())
    }

    /// Says that it holds this much of lane 0.
    pub fn ask_to_attach(&self, holds: Bytes) {
        let mut held = [Bytes::ZERO; ACCOUNTS_MAX];
        held[0] = holds;
        self.0.send(1, &Request::Attach { held }).expect("the daemon reads");
    }

    /// Attaches, holding this much of lane 0.
    pub fn attach(&self, holds: Bytes) -> Attached {
        self.ask_to_attach(holds);
        self.attached()
    }

    /// The answer to that.
    pub fn attached(&self) -> Attached {
        let (id, reply, fds) = self.0.message().expect("an answer");
        let Reply::Attached { lanes, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(id, 1);
        let [container_page, client_page, bell, usage] = fds.try_into().expect("four descriptors");
        Attached { lanes, container_page, client_page, bell, usage }
    }

    pub fn reserve(&self, lane: u8, need: u64, wish: u64) -> Reply {
        let (lane, need, wish) = (Lane(lane), Bytes(need), Bytes(wish));
        self.0.send(2, &Request::Reserve { lane, need, wish }).expect("the daemon reads");
        let (id, reply, _) = self.0.message().expect("an answer");
        assert_eq!(id, 2);
        reply
    }

    pub fn release(&self, lane: u8, bytes: u64) {
        let request = Request::Release { lane: Lane(lane), bytes: Bytes(bytes) };
        self.0.send(3, &request).expect("the daemon reads");
    }
}

/// Maps the table in which the processes of a container write what they use.
pub fn usage_table(attached: &Attached) -> &'static gpuslice_wire::usage::UsageTable {
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let at = map(&attached.usage, both).expect("writable");
    // SAFETY: as in `container_page`.
    unsafe { at.as_ref() }
}

/// The words to which a process writes what it holds, by account.
pub fn own_slot(attached: &Attached) -> &'static gpuslice_wire::usage::UsageSlot {
    let number = client_page(attached).slot.load(std::sync::atomic::Ordering::SeqCst);
    &usage_table(attached).slot[number as usize]
}

/// Maps whole pages for the rest of the process's life.
pub fn map<T>(page: &OwnedFd, access: ProtFlags) -> nix::Result<NonNull<T>> {
    assert!(size_of::<T>().is_multiple_of(PAGE_BYTES));
    let size = NonZeroUsize::new(size_of::<T>()).expect("not zero");
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, page, 0) }.map(NonNull::cast)
}

/// Maps the page all processes of a container read.
pub fn container_page(attached: &Attached) -> &'static gpuslice_wire::page::ContainerPage {
    let at = map(&attached.container_page, ProtFlags::PROT_READ).expect("readable");
    // SAFETY: mapped for good, of this size and alignment; only its atomics are looked at.
    unsafe { at.as_ref() }
}

/// Maps the page a process writes its claims to.
pub fn client_page(attached: &Attached) -> &'static gpuslice_wire::page::ClientPage {
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let at = map(&attached.client_page, both).expect("writable");
    // SAFETY: as in `container_page`.
    unsafe { at.as_ref() }
}

/// The bytes of a reservation; `None` if it was refused.
pub fn granted(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Reserved { bytes, .. } => Some(bytes.0),
        Reply::Refused { .. } => None,
        other => panic!("{other:?}"),
    }
}
