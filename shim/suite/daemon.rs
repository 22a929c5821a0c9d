//! A daemon for the doors' tests: one slice, a plain ledger, every rule of the protocol, and no more.
//!
//! It can be silent, go away and come back, which is what a real one does at the worst moments. Its
//! books are what the tests look at.

use gpuslice_wire::frame::{Message, RequestId, decode, encode};
use gpuslice_wire::ids::{ClientId, Lane};
use gpuslice_wire::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX, LANES_MAX, PAGE_BYTES};
use gpuslice_wire::page::{CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, PAGE_VERSION};
use gpuslice_wire::tenant::{HandleKey, Reply, Request};
use gpuslice_wire::units::Bytes;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
    listen, recv, sendmsg, shutdown, socket,
};
use std::collections::HashMap;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Cap of every slice's host account, bytes.
pub const HOST: u64 = 128 << 20;

/// What the daemon has written down.
#[derive(Debug, Default)]
pub struct Books {
    /// Memory cap of each lane, bytes; as many lanes as caps.
    pub caps: Vec<u64>,
    /// Cap of the host's account, bytes.
    pub host: u64,
    /// Whether memory of another container is charged, not refused.
    pub foreign: bool,
    /// Handles that were shared, all told.
    pub shared: Vec<HandleKey>,
    /// Granted to each client on each lane, bytes.
    pub granted: HashMap<u16, [u64; ACCOUNTS_MAX]>,
    /// The largest sum of lane 0 there has been.
    pub peak: u64,
    /// Attach and Reserve messages so far.
    pub attaches: u32,
    /// See `attaches`.
    pub reserves: u32,
    /// Attaches that came with something held.
    pub returned: u32,
}

impl Books {
    /// Granted to all clients on a lane, bytes.
    pub fn reserved(&self, lane: usize) -> u64 {
        self.granted.values().map(|lanes| lanes[lane]).sum()
    }

    fn reserve(&mut self, client: u16, lane: Lane, need: u64, wish: u64) -> Reply {
        let at = usize::from(lane.0);
        let cap = self.caps.get(at).unwrap_or(&self.host);
        let left = cap.saturating_sub(self.reserved(at));
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

/// A running daemon.
pub struct Daemon {
    /// Its socket.
    pub socket: PathBuf,
    books: Arc<Mutex<Books>>,
    page: Arc<File>,
    listener: Option<Arc<OwnedFd>>,
    clients: Arc<Mutex<Vec<Arc<OwnedFd>>>>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts one in `directory`, whose lane `i` is the stub's device `i` with the i-th cap.
    pub fn start(directory: &Path, caps: &[u64]) -> Daemon {
        let books = Books {
            caps: caps.to_vec(),
            host: HOST,
            ..Books::default()
        };
        let mut daemon = Daemon {
            socket: directory.join("tenant.sock"),
            books: Arc::new(Mutex::new(books)),
            page: Arc::new(page(CONTAINER_PAGE_MAGIC)),
            listener: None,
            clients: Arc::default(),
            thread: None,
        };
        daemon.come_back();
        daemon
    }

    /// What it has written down.
    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no test panics under it")
    }

    /// Ends every connection and the socket, and forgets all grants, as a killed daemon does.
    pub fn go_away(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        if let Some(listener) = self.listener.take() {
            let _ = shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        }
        for client in self.clients.lock().expect("unpoisoned").drain(..) {
            let _ = shutdown(client.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        }
        self.thread.take().map(JoinHandle::join);
        self.books().granted.clear();
        self.books().shared.clear();
    }

    /// Listens (again), with a new page.
    pub fn come_back(&mut self) {
        self.page = Arc::new(page(CONTAINER_PAGE_MAGIC));
        fill(&self.page, &self.books());
        let kind = SockType::SeqPacket;
        let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None);
        let listener = Arc::new(listener.expect("a socket"));
        let _ = std::fs::remove_file(&self.socket);
        let address = UnixAddr::new(&self.socket).expect("a short path");
        bind(listener.as_raw_fd(), &address).expect("a free path");
        listen(&*listener, Backlog::new(64).expect("a small number")).expect("listening");
        self.listener = Some(Arc::clone(&listener));
        let (books, page) = (Arc::clone(&self.books), Arc::clone(&self.page));
        let clients = Arc::clone(&self.clients);
        self.thread = Some(std::thread::spawn(move || {
            let mut slot = 0;
            while let Ok(fd) = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
                // SAFETY: fresh from accept4, owned by nobody else.
                let fd = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
                clients.lock().expect("unpoisoned").push(Arc::clone(&fd));
                let (books, page) = (Arc::clone(&books), Arc::clone(&page));
                slot += 1;
                std::thread::spawn(move || {
                    converse(&fd, slot, &books, &page);
                    books.lock().expect("unpoisoned").granted.remove(&slot);
                });
            }
        }));
    }

    /// Writes the books to the page that processes see.
    #[allow(dead_code)] // not every door's tests write in the books themselves
    pub fn show(&self) {
        fill(&self.page, &self.books());
    }

    /// Waits until the books satisfy `wanted`.
    ///
    /// # Panics
    /// When they do not for ten seconds.
    pub fn until(&self, what: &str, wanted: impl Fn(&Books) -> bool) {
        for _ in 0..1000 {
            if wanted(&self.books()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("waited for {what}: {:?}", *self.books());
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

/// Writes lanes (offset 12), and per lane UUID, cap and what is reserved (64 bytes each from 64 on).
fn fill(page: &File, books: &Books) {
    let put = |bytes: &[u8], at: usize| page.write_all_at(bytes, at as u64).expect("in the page");
    put(&(books.caps.len() as u32).to_ne_bytes(), 12);
    put(&u32::from(books.foreign).to_ne_bytes(), 44);
    put(&books.host.to_ne_bytes(), 64 + LANES_MAX * 64 + 16);
    for (lane, cap) in books.caps.iter().enumerate() {
        let at = 64 + lane * 64;
        put(&[0x10 + lane as u8; 16], at);
        put(&cap.to_ne_bytes(), at + 16);
        put(&books.reserved(lane).to_ne_bytes(), at + 24);
    }
}

fn converse(fd: &OwnedFd, slot: u16, books: &Mutex<Books>, page_of_all: &File) {
    let mut frame = [0; FRAME_BYTES_MAX];
    loop {
        let len = match recv(fd.as_raw_fd(), &mut frame, MsgFlags::empty()) {
            Ok(0) | Err(_) => return,
            Ok(len) => len,
        };
        let (id, request) = decode::<Request>(&frame[..len]).expect("a well-formed frame");
        let mut books = books.lock().expect("unpoisoned");
        match request {
            Request::Attach { held } => {
                books.attaches += 1;
                books.returned += u32::from(held.iter().any(|bytes| bytes.0 > 0));
                books.granted.insert(slot, held.map(|bytes| bytes.0));
                let lanes = books.caps.len() as u8;
                let reply = Reply::Attached {
                    client: ClientId {
                        slot,
                        generation: 1,
                    },
                    lanes,
                };
                let own = page(CLIENT_PAGE_MAGIC);
                let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("an eventfd");
                answer(
                    fd,
                    id,
                    &reply,
                    &[page_of_all.as_fd(), own.as_fd(), bell.as_fd()],
                );
            }
            Request::Reserve { lane, need, wish } => {
                let reply = books.reserve(slot, lane, need.0, wish.0);
                fill(page_of_all, &books);
                answer(fd, id, &reply, &[]);
            }
            Request::Yield { lane, bytes, .. } | Request::Release { lane, bytes } => {
                let lanes = books.granted.get_mut(&slot).expect("attached");
                let left = &mut lanes[usize::from(lane.0)];
                *left = left.checked_sub(bytes.0).expect("no more than granted");
                fill(page_of_all, &books);
            }
            Request::Measure { lane } => answer(fd, id, &Reply::Measured { lane, used: None }, &[]),
            Request::Share { key } => books.shared.push(key),
            Request::Open { key } => {
                let ours = books.shared.contains(&key);
                answer(fd, id, &Reply::Origin { ours }, &[]);
            }
        }
    }
}

fn answer<M: Message>(fd: &OwnedFd, id: RequestId, message: &M, with: &[BorrowedFd<'_>]) {
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
    // The process may have died meanwhile.
    let _ = sendmsg::<()>(fd.as_raw_fd(), &part, control, MsgFlags::MSG_NOSIGNAL, None);
}
