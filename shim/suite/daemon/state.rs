//! The state of the tests' daemon: the engine decides on every request, and the test scripts the rest.
//!
//! Scripted are NVML's answers, the pages' words about turns, and shared handles. Time stands still for the engine, so
//! no recall ends without its answers.
//!
//! As with the real daemon, a process that lost its connection keeps its grants until it ends, and a daemon that
//! comes back knows the slice and the grants of the processes that still run.

use gpuslice_engine::{
    Action, Config, Cut, Engine, Event, Granted, LaneView, Process, Record, SliceRequest, Token,
};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::frame::{RequestId, encode_in};
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane, NvmlIndex};
use gpuslice_wire::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX, PAGE_BYTES, WIRE_VERSION};
use gpuslice_wire::page::{CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, PAGE_VERSION, SHARES_NOTHING};
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::select::GpuSelector;
use gpuslice_wire::tenant::{HandleKey, Reply};
use gpuslice_wire::text::{CgroupPath, Name};
use gpuslice_wire::units::{Bytes, Instant};
use gpuslice_wire::usage::{
    NO_SLOT, USAGE_SLOTS, USAGE_TABLE_MAGIC, USAGE_VERSION, UsageSlot, UsageTable,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{ControlMessage, MsgFlags, Shutdown, sendmsg, shutdown};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::IoSlice;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Cap of every slice's host account, bytes.
pub const HOST: u64 = 128 << 20;
/// Memory of every GPU, bytes.
const GPU_BYTES: u64 = 64 << 30;
/// Of a request whose answer is not sent.
const NO_TOKEN: Token = Token(0);

/// The daemon's state: the engine, and what the tests script and count.
pub struct State {
    engine: Engine,
    pub(super) container: ContainerId,
    pub(super) page: Arc<File>,
    /// The table in which processes write what they use.
    usage: Arc<File>,
    /// The engine's last word on each account.
    pub(super) views: HashMap<Lane, LaneView>,
    /// Memory cap of each lane, bytes; as many lanes as caps.
    caps: Vec<u64>,
    /// Whether memory of another container is charged, not refused.
    pub foreign: bool,
    /// Digests of all shared handles.
    pub shared: Vec<HandleKey>,
    /// The largest total of lane 0 so far.
    pub peak: u64,
    /// The newest version of frames that it supports.
    pub newest: u16,
    /// Number of processes rejected for a newer one.
    pub rejected: u32,
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
    /// The contexts that the process claimed at each Measure message.
    pub contexts_at_measures: Vec<u32>,
    /// Number of requests to the engine.
    tokens: u64,
    /// Requests that the engine has not answered.
    pub(super) asked: HashMap<Token, Asked>,
    /// Processes with an account, also those whose connection ended.
    pub(super) clients: HashMap<ClientId, Client>,
    /// The slice, as a daemon writes it down.
    record: Option<Record>,
    /// Grants at the time the daemon went away.
    grants: Vec<(Living, Granted)>,
    /// Processes that were found running; those that have not attached since still have their grants.
    restored: Vec<(ClientId, Living)>,
    /// How often the daemon went away.
    pub(super) absences: u32,
}

/// A request, and the connection that its answer goes to.
pub(super) struct Asked {
    pub(super) fd: Arc<OwnedFd>,
    living: Living,
    id: RequestId,
    pub(super) since: std::time::Instant,
}

/// An attached process.
pub(super) struct Client {
    pub(super) fd: Arc<OwnedFd>,
    living: Living,
    claims: File,
    slot: u32,
}

/// A process, and the pidfd that shows its end.
#[derive(Clone)]
pub(super) struct Living {
    pub(super) process: Process,
    pidfd: Arc<OwnedFd>,
}

impl Living {
    /// The process with this pid; none once it was waited for.
    pub(super) fn of(pid: i32) -> Option<Living> {
        // SAFETY: two numbers.
        let fd = unsafe { nix::libc::syscall(nix::libc::SYS_pidfd_open, pid, 0) };
        // SAFETY: a fresh descriptor; this is its only owner.
        let pidfd = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })?;
        let process = Process { pid: pid as u32, born: 0 };
        Some(Living { process, pidfd: Arc::new(pidfd) })
    }

    /// Whether it has ended after this time.
    pub(super) fn ends_within(&self, timeout: PollTimeout) -> bool {
        let mut pidfd = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut pidfd, timeout) == Ok(1)
    }
}

impl State {
    pub(super) fn new(caps: &[u64]) -> State {
        let mut state = State {
            engine: Engine::new(Config::default()),
            container: ContainerId::new("suite").expect("an id"),
            page: Arc::new(page(CONTAINER_PAGE_MAGIC)),
            usage: Arc::new(usage_table()),
            views: HashMap::new(),
            caps: caps.to_vec(),
            foreign: false,
            shared: Vec::new(),
            peak: 0,
            attaches: 0,
            reserves: 0,
            returned: 0,
            context_kib: 0,
            measured: VecDeque::new(),
            contexts_at_measures: Vec::new(),
            measures: 0,
            tokens: 0,
            asked: HashMap::new(),
            clients: HashMap::new(),
            record: None,
            grants: Vec::new(),
            restored: Vec::new(),
            absences: 0,
            newest: WIRE_VERSION,
            rejected: 0,
        };
        state.begin();
        state
    }

    /// Begins with a new page; knows the slice and the grants of processes that still run, if it ran before. Returns
    /// those processes.
    pub(super) fn begin(&mut self) -> Vec<(ClientId, Living)> {
        self.page = Arc::new(page(CONTAINER_PAGE_MAGIC));
        self.usage = Arc::new(usage_table());
        self.engine = Engine::new(Config::default());
        for lane in 0..self.caps.len() {
            let uuid = GpuUuid([0x10 + lane as u8; 16]);
            let (index, total) = (NvmlIndex(lane as u32), Bytes(GPU_BYTES));
            self.step(Event::GpuFound { uuid, index, total });
        }
        match self.record.clone() {
            None => self.admit(),
            Some(record) => self.step(Event::Restore(record.into())),
        }
        let container = self.container;
        let mut restored = Vec::new();
        for (living, granted) in std::mem::take(&mut self.grants) {
            if living.ends_within(PollTimeout::ZERO) {
                continue;
            }
            let (token, process) = (NO_TOKEN, living.process);
            let event = Event::RestoreProcess { token, container, process, granted };
            let mut actions = Vec::new();
            self.engine.step(Instant(0), event, &mut actions);
            for action in actions {
                if let Action::ProcessRestored { client, .. } = action {
                    restored.push((client, living.clone()));
                }
                self.perform(action);
            }
        }
        self.step(Event::Complete { container });
        self.restored.clone_from(&restored);
        restored
    }

    /// Admits the container.
    fn admit(&mut self) {
        let caps = self.caps.clone();
        let gpus: Vec<String> = (0..caps.len()).map(|lane| lane.to_string()).collect();
        let ask = SliceRequest {
            container: self.container,
            name: Name::EMPTY,
            gpus: GpuSelector::parse(&gpus.join(",")).expect("numbers"),
            whole: None,
            memory: MemoryAsk::Exactly(Bytes(caps[0])),
            memory_limit: None,
            weight: None,
            share: None,
            share_limit: None,
            class: Class::Normal,
            gang: Gangs::Auto,
            pinned: Some(Bytes(HOST)),
            bounds: None,
            cgroup: CgroupPath::EMPTY,
        };
        let token = NO_TOKEN;
        self.step(Event::Admit { token, ask: ask.into() });
        for (lane, &cap) in caps.iter().enumerate() {
            self.set_cap(Lane(lane as u8), cap);
        }
    }

    /// Forgets all processes, but for what they were granted.
    pub(super) fn end(&mut self) {
        let attached = self.clients.iter().map(|(id, client)| (*id, client.living.clone()));
        let known = attached.chain(std::mem::take(&mut self.restored));
        let granted = |(id, living)| Some((living, self.engine.granted_to(id)?));
        self.grants = known.filter_map(granted).collect();
        self.absences += 1;
        self.asked.clear();
        self.shared.clear();
        self.views.clear();
        for (_, client) in self.clients.drain() {
            let _ = shutdown(client.fd.as_raw_fd(), Shutdown::Both);
        }
    }

    /// Granted to all processes on a lane, bytes.
    pub fn reserved(&self, lane: usize) -> u64 {
        let view = self.views.get(&Lane(lane as u8));
        view.map_or(0, |view| view.reserved.0)
    }

    /// Whether this process has attached, and not been found to have ended.
    pub fn knows(&self, pid: u32) -> bool {
        self.clients.values().any(|client| client.living.process.pid == pid)
    }

    /// Whether no process is attached, and none has grants.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.views.values().all(|view| view.reserved == Bytes::ZERO)
    }

    /// Changes the cap of an account.
    pub fn set_cap(&mut self, lane: Lane, cap: u64) {
        self.step(Event::Resize {
            token: NO_TOKEN,
            container: self.container,
            lane,
            memory: MemoryAsk::Exactly(Bytes(cap)),
        });
    }

    /// Attaches a process that holds this much on lane 0, as its slot says, and says no more.
    #[allow(dead_code)] // not every library's tests need one
    pub fn attach_silent(&mut self, bytes: u64) {
        let (token, container, held) = (NO_TOKEN, self.container, [Bytes::ZERO; ACCOUNTS_MAX]);
        let mut actions = Vec::new();
        let attach = Event::Attach { token, container, process: None, held };
        self.engine.step(Instant(0), attach, &mut actions);
        let attached = actions.iter().find_map(|action| match action {
            Action::Attached { client, .. } => Some(*client),
            _ => None,
        });
        let client = attached.expect("there is room");
        let (lane, need) = (Lane(0), Bytes(bytes));
        self.step(Event::Reserve { client, token, lane, need, wish: need });
        let last = USAGE_SLOTS as u64 - 1;
        let at = 64 + last * size_of::<UsageSlot>() as u64;
        self.usage.write_all_at(&bytes.to_ne_bytes(), at).expect("in the table");
    }

    /// Bytes of the only process's page.
    fn word(&self, at: u64) -> u64 {
        let client = self.clients.values().next().expect("a process");
        let mut bytes = [0; 8];
        let read = client.claims.read_exact_at(&mut bytes, at);
        read.expect("in the page");
        u64::from_ne_bytes(bytes)
    }

    /// How often the only process claims to have exported or imported memory.
    pub fn shared_claims(&self) -> u32 {
        (self.word(16) as u32).saturating_sub(SHARES_NOTHING)
    }

    /// Claims of the only process for a lane: held bytes, and the part that NVML does not show.
    pub fn claimed(&self, lane: u64) -> (u64, u64) {
        let lane = 64 + 64 * lane;
        (self.word(lane), self.word(lane + 32))
    }

    /// The only process's claims of what its memory on a lane is used for, and of the number of its contexts there.
    pub fn families(&self, lane: u64) -> ([u64; 5], u32) {
        let at = 1152 + 64 * lane;
        ([0, 1, 2, 3, 4].map(|family| self.word(at + 8 * family)), self.word(at + 40) as u32)
    }

    /// Gated launches on lane 0 that the only process claims.
    pub fn launches(&self) -> u64 {
        self.word(64 + 8)
    }

    /// Whether the only process claims to have work for lane 0, in flight or not launched yet.
    pub fn is_runnable(&self) -> bool {
        self.word(64 + 40) as u32 != 0
    }

    /// Gives the engine an event, and performs its actions.
    pub(super) fn step(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.engine.step(Instant(0), event, &mut actions);
        actions.into_iter().for_each(|action| self.perform(action));
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::SetLane { lane, view, .. } => {
                let before = self.views.insert(lane, view);
                if lane == Lane(0) {
                    self.peak = self.peak.max(view.reserved.0);
                }
                self.show();
                if before.is_some_and(|before| before.recall != view.recall) {
                    ring(&self.page);
                }
            }
            Action::Attached { token, client, lanes, .. } => self.attached(token, client, lanes),
            Action::Reserved { token, lane, bytes, .. } => {
                self.answer(token, &Reply::Reserved { lane, bytes })
            }
            Action::Refused { token, lane, need, left, .. } => {
                self.answer(token, &Reply::Refused { lane, need, left })
            }
            Action::Disconnect { client, why } => {
                assert!(!matches!(why, Cut::Broke(_)), "{why:?}");
                if let Some(client) = self.remove(client) {
                    let _ = shutdown(client.fd.as_raw_fd(), Shutdown::Both);
                }
            }
            Action::Admitted { record, .. } | Action::Resized { record, .. } => {
                self.record = Some(*record)
            }
            Action::NotRestored { why, .. } => panic!("the slice was not restored: {why}"),
            Action::Rejected { why, .. } => panic!("an attach was rejected: {why:?}"),
            Action::Denied { why, .. } => panic!("{why}"),
            _ => {} // records, and the turns of a single container, which the test scripts
        }
    }

    /// Answers the process that has just attached.
    fn attached(&mut self, token: Token, client: ClientId, lanes: u8) {
        let Some(Asked { fd, id, living, .. }) = self.asked.remove(&token) else {
            return; // a silent one
        };
        let claims = page(CLIENT_PAGE_MAGIC);
        let taken = |slot: &u32| self.clients.values().any(|client| client.slot == *slot);
        let slot = (0..USAGE_SLOTS as u32).find(|slot| !taken(slot)).unwrap_or(NO_SLOT);
        claims.write_all_at(&slot.to_ne_bytes(), 12).expect("in the page");
        let futex = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("an eventfd");
        let reply = Reply::Attached { client, lanes };
        let usage = self.usage.as_fd();
        send(&fd, id, &reply, &[self.page.as_fd(), claims.as_fd(), futex.as_fd(), usage]);
        self.clients.insert(client, Client { fd, living, claims, slot });
    }

    /// Forgets a process, and empties its slot.
    pub(super) fn remove(&mut self, client: ClientId) -> Option<Client> {
        let gone = self.clients.remove(&client)?;
        let empty = [0; size_of::<UsageSlot>()];
        let at = 64 + u64::from(gone.slot) * empty.len() as u64;
        self.usage.write_all_at(&empty, at).expect("in the table");
        Some(gone)
    }

    fn answer(&mut self, token: Token, reply: &Reply) {
        if let Some(Asked { fd, id, .. }) = self.asked.remove(&token) {
            send(&fd, id, reply, &[]);
        }
    }

    /// Notes a request that the engine will answer.
    pub(super) fn ask(&mut self, fd: &Arc<OwnedFd>, living: &Living, id: RequestId) -> Token {
        self.tokens += 1;
        let token = Token(self.tokens);
        let (fd, living) = (Arc::clone(fd), living.clone());
        let since = std::time::Instant::now();
        self.asked.insert(token, Asked { fd, living, id, since });
        token
    }

    /// Writes the page that processes see: the number of lanes (offset 12), of processes (48), and for each lane UUID,
    /// cap and reserved bytes (64 bytes each from 64 on), recall and context (56 and 60 in them). The
    /// untracked bytes of the lanes follow from 1152 on.
    pub fn show(&self) {
        let put = |bytes: &[u8], at: usize| {
            self.page.write_all_at(bytes, at as u64).expect("in the page");
        };
        put(&(self.caps.len() as u32).to_ne_bytes(), 12);
        put(&u32::from(self.foreign).to_ne_bytes(), 44);
        put(&(self.clients.len() as u32).to_ne_bytes(), 48);
        for (lane, view) in &self.views {
            let at = 64 + usize::from(lane.0) * 64;
            put(&[0x10 + lane.0; 16], at);
            put(&view.cap.0.to_ne_bytes(), at + 16);
            put(&view.reserved.0.to_ne_bytes(), at + 24);
            put(&view.untracked.0.to_ne_bytes(), 1152 + usize::from(lane.0) * 8);
            put(&view.recall.to_ne_bytes(), at + 56);
            put(&self.context_kib.to_ne_bytes(), at + 60);
        }
    }
}

fn page(magic: u64) -> File {
    shared(PAGE_BYTES, magic, PAGE_VERSION)
}

/// A usage table whose slots all count.
fn usage_table() -> File {
    let table = shared(size_of::<UsageTable>(), USAGE_TABLE_MAGIC, USAGE_VERSION);
    table.write_all_at(&(USAGE_SLOTS as u32).to_ne_bytes(), 12).expect("in the table");
    table
}

fn shared(bytes: usize, magic: u64, version: u32) -> File {
    let fd = memfd_create(c"page", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    let file = File::from(fd);
    file.set_len(bytes as u64).expect("whole pages");
    file.write_all_at(&magic.to_ne_bytes(), 0).expect("in the page");
    file.write_all_at(&version.to_ne_bytes(), 8).expect("in the page");
    file
}

/// Increments the page's futex (offset 36) and wakes its waiters.
pub(super) fn ring(page: &File) {
    let length = NonZeroUsize::new(PAGE_BYTES).expect("not 0");
    let (prot, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
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

pub(super) fn send(fd: &OwnedFd, id: RequestId, reply: &Reply, with: &[BorrowedFd<'_>]) {
    send_in(WIRE_VERSION, fd, id, reply, with);
}

/// The same in another version.
pub(super) fn send_in(
    version: u16,
    fd: &OwnedFd,
    id: RequestId,
    reply: &Reply,
    with: &[BorrowedFd<'_>],
) {
    let mut frame = [0; FRAME_BYTES_MAX];
    let len = encode_in(version, id, reply, &mut frame).expect("fits");
    let numbers: Vec<i32> = with.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control = if with.is_empty() { &[][..] } else { &rights[..] };
    let part = [IoSlice::new(&frame[..len])];
    // The process may have died meanwhile.
    let _ = sendmsg::<()>(fd.as_raw_fd(), &part, control, MsgFlags::MSG_NOSIGNAL, None);
}
