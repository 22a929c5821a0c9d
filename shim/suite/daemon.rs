//! A daemon for the shim libraries' tests: one slice, a plain ledger, every rule of the protocol, and no more.
//!
//! It can go away and come back, which is what a real one does at the worst moments. The test supplies what NVML would
//! report of a process. The tests check its ledger.

use gpuslice_wire::frame::{Message, RequestId, decode, encode};
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX, PAGE_BYTES};
use gpuslice_wire::page::{CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, MODE_TURNS, PAGE_VERSION};
use gpuslice_wire::tenant::{HandleKey, Reply, Request};
use gpuslice_wire::units::Bytes;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
    listen, recv, sendmsg, shutdown, socket,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::IoSlice;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Cap of every slice's host account, bytes.
pub const HOST: u64 = 128 << 20;

/// The daemon's ledger.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Memory cap of each lane, bytes; as many lanes as caps.
    pub caps: Vec<u64>,
    /// Cap of the host's account, bytes.
    pub host: u64,
    /// Whether memory of another container is charged, not refused.
    pub foreign: bool,
    /// Digests of all shared handles.
    pub shared: Vec<HandleKey>,
    /// Granted to each client on each lane, bytes.
    pub granted: HashMap<u16, [u64; ACCOUNTS_MAX]>,
    /// The largest total of lane 0 so far.
    pub peak: u64,
    /// Number of Attach and Reserve messages.
    pub attaches: u32,
    /// See `attaches`.
    pub reserves: u32,
    /// Number of attaches with held memory.
    pub returned: u32,
    /// Cost of a first context, as the pages show it, KiB.
    pub context_kib: u32,
    /// Answers to the next Measure messages; `None` after the last.
    pub measured: VecDeque<u64>,
    /// Number of Measure messages.
    pub measures: u32,
    /// Number of Yield messages that answered a recall in time.
    pub yields: u32,
    /// Number of connections.
    connections: u16,
    /// How often the daemon went away.
    absences: u32,
    /// Recall number of each lane.
    recall: [u32; ACCOUNTS_MAX],
    /// Clients that owe an answer to the recall of a lane.
    owing: HashSet<(u16, u8)>,
    /// Clients that wait for others: their unused credit is in their request already.
    waiting: HashSet<(u16, u8)>,
    /// Claims of each process.
    claims: HashMap<u16, Arc<File>>,
}

impl Ledger {
    /// Granted to all clients on a lane, bytes.
    pub fn reserved(&self, lane: usize) -> u64 {
        self.granted.values().map(|lanes| lanes[lane]).sum()
    }

    /// Claims of the only process for a lane: held bytes, and the part that NVML does not show.
    #[allow(dead_code)] // not every library's tests look at it
    pub fn claimed(&self, lane: usize) -> (u64, u64) {
        let page = self.claims.values().next().expect("a process");
        let word = |at: usize| {
            let mut bytes = [0; 8];
            let at = 64 + 64 * lane + at;
            page.read_exact_at(&mut bytes, at as u64)
                .expect("in the page");
            u64::from_ne_bytes(bytes)
        };
        (word(0), word(32))
    }

    /// Gated launches on lane 0 that the only process claims.
    pub fn launches(&self) -> u64 {
        let page = self.claims.values().next().expect("a process");
        let mut bytes = [0; 8];
        page.read_exact_at(&mut bytes, 64 + 8).expect("in the page");
        u64::from_ne_bytes(bytes)
    }

    fn left(&self, lane: Lane) -> u64 {
        let at = usize::from(lane.0);
        let cap = match lane {
            Lane::HOST => self.host,
            _ => self.caps[at],
        };
        cap.saturating_sub(self.reserved(at))
    }

    /// Recalls unused credit of other clients if `need` exceeds the bytes left. Returns whether it did.
    fn recall(&mut self, client: u16, lane: Lane, need: u64) -> bool {
        let at = usize::from(lane.0);
        self.owing.remove(&(client, lane.0));
        let others = self.granted.iter();
        let asks = |&other: &u16| other == client || self.waiting.contains(&(other, lane.0));
        let others = others.filter(|(other, lanes)| !asks(other) && lanes[at] > 0);
        let others: Vec<u16> = others.map(|(&other, _)| other).collect();
        if need <= self.left(lane) || others.is_empty() {
            return false;
        }
        self.waiting.insert((client, lane.0));
        self.recall[at] += 1;
        self.owing
            .extend(others.iter().map(|&other| (other, lane.0)));
        true
    }

    fn reserve(&mut self, client: u16, lane: Lane, need: u64, wish: u64) -> Reply {
        let (at, left) = (usize::from(lane.0), self.left(lane));
        self.reserves += 1;
        assert!(need <= wish && need > 0, "need {need}, wish {wish}");
        if need > left {
            return Reply::Refused {
                lane,
                need: Bytes(need),
                left: Bytes(left),
            };
        }
        let bytes = wish.min(left);
        self.granted.get_mut(&client).expect("attached")[at] += bytes;
        self.peak = self.peak.max(self.reserved(0));
        Reply::Reserved {
            lane,
            bytes: Bytes(bytes),
        }
    }
}

impl Ledger {
    fn give_back(&mut self, client: u16, lane: Lane, bytes: Bytes) {
        let lanes = self.granted.get_mut(&client).expect("attached");
        let left = &mut lanes[usize::from(lane.0)];
        *left = left.checked_sub(bytes.0).expect("no more than granted");
    }
}

/// A running daemon.
pub struct Daemon {
    /// Its socket.
    pub socket: PathBuf,
    ledger: Arc<Mutex<Ledger>>,
    /// Signalled when a client has answered a recall or is gone.
    answered: Arc<Condvar>,
    page: Arc<File>,
    listener: Option<Arc<OwnedFd>>,
    clients: Arc<Mutex<Vec<Arc<OwnedFd>>>>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts one in `directory`, whose lane `i` is the stub's device `i` with the i-th cap.
    pub fn start(directory: &Path, caps: &[u64]) -> Daemon {
        let ledger = Ledger {
            caps: caps.to_vec(),
            host: HOST,
            ..Ledger::default()
        };
        let mut daemon = Daemon {
            socket: directory.join("tenant.sock"),
            ledger: Arc::new(Mutex::new(ledger)),
            answered: Arc::default(),
            page: Arc::new(page(CONTAINER_PAGE_MAGIC)),
            listener: None,
            clients: Arc::default(),
            thread: None,
        };
        daemon.come_back();
        daemon
    }

    /// Its ledger.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no test panics under it")
    }

    /// Closes every connection and the socket, and clears all grants, as a killed daemon does.
    pub fn go_away(&mut self) {
        let silent = 0_u64.to_ne_bytes();
        self.page.write_all_at(&silent, 24).expect("a heartbeat");
        let _ = std::fs::remove_file(&self.socket);
        if let Some(listener) = self.listener.take() {
            let _ = shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        }
        for client in self.clients.lock().expect("unpoisoned").drain(..) {
            let _ = shutdown(client.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        }
        self.thread.take().map(JoinHandle::join);
        let mut ledger = self.ledger();
        ledger.absences += 1;
        ledger.granted.clear();
        ledger.owing.clear();
        ledger.waiting.clear();
        ledger.claims.clear();
        ledger.shared.clear();
    }

    /// Listens (again), with a new page.
    pub fn come_back(&mut self) {
        self.page = Arc::new(page(CONTAINER_PAGE_MAGIC));
        fill(&self.page, &self.ledger());
        let kind = SockType::SeqPacket;
        let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None);
        let listener = Arc::new(listener.expect("a socket"));
        let _ = std::fs::remove_file(&self.socket);
        let address = UnixAddr::new(&self.socket).expect("a short path");
        bind(listener.as_raw_fd(), &address).expect("a free path");
        listen(&*listener, Backlog::new(64).expect("a small number")).expect("listening");
        self.listener = Some(Arc::clone(&listener));
        let (ledger, page) = (Arc::clone(&self.ledger), Arc::clone(&self.page));
        let clients = Arc::clone(&self.clients);
        let answered = Arc::clone(&self.answered);
        self.thread = Some(std::thread::spawn(move || {
            while let Ok(fd) = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
                // SAFETY: fresh from accept4, owned by nobody else.
                let fd = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
                clients.lock().expect("unpoisoned").push(Arc::clone(&fd));
                // Numbers are never reused: a thread of an earlier connection may be late to remove its own.
                let (slot, absences) = {
                    let mut ledger = ledger.lock().expect("no test panics under it");
                    ledger.connections += 1;
                    (ledger.connections, ledger.absences)
                };
                let talk = Talk {
                    fd,
                    slot,
                    absences,
                    ledger: Arc::clone(&ledger),
                    page: Arc::clone(&page),
                    answered: Arc::clone(&answered),
                };
                std::thread::spawn(move || {
                    talk.converse();
                    talk.over();
                });
            }
        }));
    }

    /// Writes the ledger to the page that processes see.
    #[allow(dead_code)] // not every library's tests write in the ledger themselves
    pub fn show(&self) {
        fill(&self.page, &self.ledger());
    }

    /// Makes all processes take turns on lane 0, with this turn word.
    pub fn turn(&self, word: u32) {
        let lane = 64;
        let fresh = u64::MAX.to_ne_bytes();
        let put = |bytes: &[u8], at| self.page.write_all_at(bytes, at).expect("in the page");
        put(&fresh, 24); // heartbeat
        put(&fresh, lane + 32); // the turn's end
        put(&word.to_ne_bytes(), lane + 40);
        put(&MODE_TURNS.to_ne_bytes(), lane + 44);
        put(&1_u32.to_ne_bytes(), 32); // lanes that take turns
        ring(&self.page);
    }

    /// Waits until the ledger satisfies `wanted`.
    ///
    /// # Panics
    /// After ten seconds.
    pub fn until(&self, what: &str, wanted: impl Fn(&Ledger) -> bool) {
        for _ in 0..1000 {
            if wanted(&self.ledger()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("waited for {what}: {:?}", *self.ledger());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.go_away();
    }
}

fn page(magic: u64) -> File {
    let fd = memfd_create(c"page", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    let file = File::from(fd);
    file.set_len(PAGE_BYTES as u64).expect("a page");
    file.write_all_at(&magic.to_ne_bytes(), 0)
        .expect("in the page");
    file.write_all_at(&PAGE_VERSION.to_ne_bytes(), 8)
        .expect("in the page");
    file
}

/// Writes the number of lanes (offset 12), and per lane UUID, cap and reserved bytes (64 bytes each from 64
/// on), recall and context (56 and 60 in them).
fn fill(page: &File, ledger: &Ledger) {
    let put = |bytes: &[u8], at: usize| page.write_all_at(bytes, at as u64).expect("in the page");
    put(&(ledger.caps.len() as u32).to_ne_bytes(), 12);
    put(&u32::from(ledger.foreign).to_ne_bytes(), 44);
    put(&(ledger.granted.len() as u32).to_ne_bytes(), 48);
    let host = usize::from(Lane::HOST.0);
    let caps = ledger.caps.iter().copied().enumerate();
    for (lane, cap) in caps.chain([(host, ledger.host)]) {
        let at = 64 + lane * 64;
        put(&[0x10 + lane as u8; 16], at);
        put(&cap.to_ne_bytes(), at + 16);
        put(&ledger.reserved(lane).to_ne_bytes(), at + 24);
        put(&ledger.recall[lane].to_ne_bytes(), at + 56);
        put(&ledger.context_kib.to_ne_bytes(), at + 60);
    }
}

/// Increments the page's futex (offset 36) and wakes its waiters.
fn ring(page: &File) {
    let length = NonZeroUsize::new(PAGE_BYTES).expect("not 0");
    let (prot, flags) = (
        ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        MapFlags::MAP_SHARED,
    );
    // SAFETY: a new mapping of a whole page.
    let at = unsafe { mmap(None, length, prot, flags, page, 0) }.expect("a mapping");
    // SAFETY: an aligned word of that page, which processes read as an atomic too.
    let futex = unsafe { &*at.as_ptr().cast::<AtomicU32>().add(36 / 4) };
    futex.fetch_add(1, Ordering::SeqCst);
    let (word, wake, all) = (futex.as_ptr(), nix::libc::FUTEX_WAKE, i32::MAX);
    // SAFETY: only the address of the live word is taken.
    unsafe { nix::libc::syscall(nix::libc::SYS_futex, word, wake, all) };
    // SAFETY: mapped above, and not used any more.
    unsafe { munmap(at, PAGE_BYTES) }.expect("mapped above");
}

/// One connection.
struct Talk {
    fd: Arc<OwnedFd>,
    slot: u16,
    /// The number of absences before it; one more, and this connection has ended.
    absences: u32,
    ledger: Arc<Mutex<Ledger>>,
    page: Arc<File>,
    answered: Arc<Condvar>,
}

impl Talk {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no test panics under it")
    }

    fn converse(&self) {
        let mut frame = [0; FRAME_BYTES_MAX];
        loop {
            let len = match recv(self.fd.as_raw_fd(), &mut frame, MsgFlags::empty()) {
                Ok(0) | Err(_) => return,
                Ok(len) => len,
            };
            let (id, request) = decode::<Request>(&frame[..len]).expect("a well-formed frame");
            self.answer(id, request);
            fill(&self.page, &self.ledger());
            self.answered.notify_all();
        }
    }

    /// Ends the connection of a process that is gone, or of a daemon that stops.
    fn over(&self) {
        let mut ledger = self.ledger();
        ledger.granted.remove(&self.slot);
        ledger.claims.remove(&self.slot);
        let other = |&(client, _): &(u16, u8)| client != self.slot;
        ledger.owing.retain(other);
        ledger.waiting.retain(other);
        drop(ledger);
        self.answered.notify_all();
    }

    fn answer(&self, id: RequestId, request: Request) {
        let mut ledger = self.ledger();
        if ledger.absences != self.absences {
            return;
        }
        match request {
            Request::Attach { held } => self.attach(id, ledger, held),
            Request::Look {} => self.attach(id, ledger, [Bytes::ZERO; ACCOUNTS_MAX]),
            Request::Reserve {
                lane,
                need,
                mut wish,
            } => {
                if ledger.recall(self.slot, lane, need.0) {
                    fill(&self.page, &ledger);
                    ring(&self.page);
                    let of_lane =
                        |ledger: &mut Ledger| ledger.owing.iter().any(|owed| owed.1 == lane.0);
                    let patience = Duration::from_secs(10);
                    let waited = self.answered.wait_timeout_while(ledger, patience, of_lane);
                    let (after, timeout) = waited.expect("no test panics under it");
                    assert!(!timeout.timed_out(), "a recall was not answered");
                    ledger = after;
                    wish = need; // recalled credit is for this request alone
                    ledger.waiting.remove(&(self.slot, lane.0));
                }
                let reply = ledger.reserve(self.slot, lane, need.0, wish.0);
                self.send(id, &reply, &[]);
            }
            Request::Yield {
                lane,
                recall,
                bytes,
            } => {
                let asked = ledger.recall[usize::from(lane.0)];
                let owed = ledger.owing.remove(&(self.slot, lane.0)) && recall == asked;
                ledger.yields += u32::from(owed);
                ledger.give_back(self.slot, lane, bytes);
            }
            Request::Release { lane, bytes } => ledger.give_back(self.slot, lane, bytes),
            Request::Measure { lane } => {
                ledger.measures += 1;
                let used = ledger.measured.pop_front().map(Bytes);
                self.send(id, &Reply::Measured { lane, used }, &[]);
            }
            Request::Group { .. } | Request::GroupGone { .. } => {
                panic!("told of groups that nobody wants to stop")
            }
            Request::Share { key } => ledger.shared.push(key),
            Request::Open { key } => {
                let ours = ledger.shared.contains(&key);
                self.send(id, &Reply::Origin { ours }, &[]);
            }
        }
    }

    fn attach(
        &self,
        id: RequestId,
        mut ledger: MutexGuard<'_, Ledger>,
        held: [Bytes; ACCOUNTS_MAX],
    ) {
        ledger.attaches += 1;
        ledger.returned += u32::from(held.iter().any(|bytes| bytes.0 > 0));
        ledger.granted.insert(self.slot, held.map(|bytes| bytes.0));
        let own = Arc::new(page(CLIENT_PAGE_MAGIC));
        ledger.claims.insert(self.slot, Arc::clone(&own));
        let futex = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("an eventfd");
        let client = ClientId {
            slot: self.slot,
            generation: 1,
        };
        let lanes = ledger.caps.len() as u8;
        let with = [self.page.as_fd(), own.as_fd(), futex.as_fd()];
        self.send(id, &Reply::Attached { client, lanes }, &with);
    }

    fn send<M: Message>(&self, id: RequestId, message: &M, with: &[BorrowedFd<'_>]) {
        let mut frame = [0; FRAME_BYTES_MAX];
        let len = encode(id, message, &mut frame).expect("fits");
        let numbers: Vec<i32> = with.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let control = if with.is_empty() {
            &[][..]
        } else {
            &rights[..]
        };
        let part = [IoSlice::new(&frame[..len])];
        let flags = MsgFlags::MSG_NOSIGNAL;
        // The process may have died meanwhile.
        let _ = sendmsg::<()>(self.fd.as_raw_fd(), &part, control, flags, None);
    }
}
