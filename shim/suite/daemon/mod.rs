//! A daemon for the shim libraries' tests: one slice, the engine's ledger, and scripted surroundings.
//!
//! It can go away and come back, which is what a real one does at the worst moments. `state.rs` has the engine,
//! this file the connections.

pub mod state;

use gpuslice_engine::Event;
use gpuslice_wire::frame::{RequestId, decode, version_of};
use gpuslice_wire::ids::ClientId;
use gpuslice_wire::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX};
use gpuslice_wire::page::MODE_TURNS;
use gpuslice_wire::tenant::{Rejection, Reply, Request};
use gpuslice_wire::units::Bytes;
use nix::poll::PollTimeout;
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, accept4, bind,
    getsockopt, listen, recv, shutdown, socket, sockopt,
};
use state::{Living, State, ring, send, send_in};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// A request that waits for siblings is answered sooner.
const RECALL_WAIT: Duration = Duration::from_secs(1);

/// A running daemon.
pub struct Daemon {
    /// Its socket.
    pub socket: PathBuf,
    state: Arc<Mutex<State>>,
    listener: Option<Arc<OwnedFd>>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts one in `directory`, whose lane `i` is the stub's device `i` with the i-th cap.
    pub fn start(directory: &Path, caps: &[u64]) -> Daemon {
        let mut daemon = Daemon {
            socket: directory.join("tenant.sock"),
            state: Arc::new(Mutex::new(State::new(caps))),
            listener: None,
            thread: None,
        };
        daemon.listen();
        daemon
    }

    /// Its state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics under it")
    }

    /// Closes every connection and the socket, as a killed daemon does.
    pub fn go_away(&mut self) {
        let silent = 0_u64.to_ne_bytes();
        let page = Arc::clone(&self.state().page);
        page.write_all_at(&silent, 24).expect("a heartbeat");
        let _ = std::fs::remove_file(&self.socket);
        if let Some(listener) = self.listener.take() {
            let _ = shutdown(listener.as_raw_fd(), Shutdown::Both);
        }
        self.thread.take().map(JoinHandle::join);
        self.state().end();
    }

    /// Listens again, with a new page.
    pub fn come_back(&mut self) {
        let restored = self.state().begin();
        let absences = self.state().absences;
        for (client, living) in restored {
            let account = Account { living, absences, state: Arc::clone(&self.state) };
            std::thread::spawn(move || account.ends(client));
        }
        self.listen();
    }

    fn listen(&mut self) {
        let kind = SockType::SeqPacket;
        let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None);
        let listener = Arc::new(listener.expect("a socket"));
        let _ = std::fs::remove_file(&self.socket);
        let address = UnixAddr::new(&self.socket).expect("a short path");
        bind(listener.as_raw_fd(), &address).expect("a free path");
        listen(&*listener, Backlog::new(64).expect("a small number")).expect("listening");
        self.listener = Some(Arc::clone(&listener));
        let state = Arc::clone(&self.state);
        self.thread = Some(std::thread::spawn(move || {
            while let Ok(fd) = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
                // SAFETY: fresh from accept4; this is its only owner.
                let fd = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
                let peer = getsockopt(&fd, sockopt::PeerCredentials).expect("a process");
                let Some(living) = Living::of(peer.pid()) else {
                    continue; // it has ended
                };
                let state = Arc::clone(&state);
                let absences = state.lock().expect("no test panics under it").absences;
                let account = Account { living, absences, state };
                std::thread::spawn(move || Talk { fd, account }.converse());
            }
        }));
    }

    /// Makes all processes take turns on lane 0, with this turn word.
    pub fn turn(&self, word: u32) {
        let page = Arc::clone(&self.state().page);
        let lane = 64;
        let fresh = u64::MAX.to_ne_bytes();
        let put = |bytes: &[u8], at| page.write_all_at(bytes, at).expect("in the page");
        put(&fresh, 24); // heartbeat
        put(&fresh, lane + 32); // the turn's end
        put(&word.to_ne_bytes(), lane + 40);
        put(&MODE_TURNS.to_ne_bytes(), lane + 44);
        put(&1_u32.to_ne_bytes(), 32); // lanes that take turns
        ring(&page);
    }

    /// Waits until the state satisfies `wanted`.
    ///
    /// # Panics
    /// After a minute.
    pub fn until(&self, what: &str, wanted: impl Fn(&State) -> bool) {
        for _ in 0..6000 {
            if wanted(&self.state()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("waited for {what}: {:?}", self.state().views);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A second panic would end the other tests too.
        if !std::thread::panicking() {
            self.go_away();
        }
    }
}

/// A process, and the daemon that knows it.
struct Account {
    living: Living,
    /// The number of the daemon's absences before; one more, and the account is the next daemon's.
    absences: u32,
    state: Arc<Mutex<State>>,
}

impl Account {
    /// The daemon's state; `None` if it went away since.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state.lock().expect("no test panics under it");
        (state.absences == self.absences).then_some(state)
    }

    /// Waits until the process has ended: then what it held is free.
    fn ends(&self, client: ClientId) {
        self.living.ends_within(PollTimeout::NONE);
        if let Some(mut state) = self.state() {
            state.remove(client);
            state.step(Event::Gone { client });
            state.show();
        }
    }
}

/// One connection.
struct Talk {
    fd: Arc<OwnedFd>,
    account: Account,
}

impl Talk {
    /// The process's number; `None` before its attach, and when another connection took its place.
    fn client(&self, state: &State) -> Option<ClientId> {
        let mut clients = state.clients.iter();
        let own = clients.find(|(_, client)| Arc::ptr_eq(&client.fd, &self.fd));
        own.map(|(id, _)| *id)
    }

    fn converse(&self) {
        let mut frame = [0; FRAME_BYTES_MAX];
        while let Ok(len @ 1..) = recv(self.fd.as_raw_fd(), &mut frame, MsgFlags::empty()) {
            let (id, request) = decode::<Request>(&frame[..len]).expect("a well-formed frame");
            let Some(mut state) = self.account.state() else {
                return;
            };
            if version_of(&frame[..len]) > state.newest {
                state.rejected += 1;
                let why = Rejection::Version;
                return send_in(state.newest, &self.fd, id, &Reply::Rejected { why }, &[]);
            }
            self.answer(&mut state, id, request);
            state.show();
        }
        let client = self.account.state().and_then(|mut state| self.over(&mut state));
        if let Some(client) = client {
            self.account.ends(client);
        }
    }

    /// Ends the connection; the process may run, and keep what it holds.
    fn over(&self, state: &mut State) -> Option<ClientId> {
        for (_, asked) in state.asked.extract_if(|_, asked| Arc::ptr_eq(&asked.fd, &self.fd)) {
            let waited = asked.since.elapsed();
            assert!(waited < RECALL_WAIT, "a recall was not answered");
        }
        let client = self.client(state)?;
        state.step(Event::Left { client });
        state.show();
        Some(client)
    }

    fn answer(&self, state: &mut State, id: RequestId, request: Request) {
        let held = match request {
            Request::Attach { held } => Some(held),
            Request::Look {} => Some([Bytes::ZERO; ACCOUNTS_MAX]),
            _ => None,
        };
        if let Some(held) = held {
            state.attaches += 1;
            state.returned += u32::from(held.iter().any(|bytes| bytes.0 > 0));
            let token = state.ask(&self.fd, &self.account.living, id);
            let (container, process) = (state.container, Some(self.account.living.process));
            return state.step(Event::Attach { token, container, process, held });
        }
        let Some(client) = self.client(state) else {
            return;
        };
        match request {
            Request::Attach { .. } | Request::Look {} => {}
            Request::Reserve { lane, need, wish } => {
                state.reserves += 1;
                // A request for nothing waits for a resume.
                assert!(need <= wish && (need.0 > 0 || wish.0 == 0), "need {need}, wish {wish}");
                let token = state.ask(&self.fd, &self.account.living, id);
                state.step(Event::Reserve { client, token, lane, need, wish });
            }
            Request::Yield { lane, recall, bytes } => {
                state.step(Event::Yield { client, lane, recall, bytes })
            }
            Request::Release { lane, bytes } => state.step(Event::Release { client, lane, bytes }),
            Request::Measure { lane } => {
                state.measures += 1;
                let (_, contexts) = state.families(lane.0.into());
                state.contexts_at_measures.push(contexts);
                let used = state.measured.pop_front().map(Bytes);
                send(&self.fd, id, &Reply::Measured { lane, used }, &[]);
            }
            Request::Group { .. } | Request::Channels { .. } | Request::GroupGone { .. } => {
                panic!("told of groups that nobody wants to stop")
            }
            Request::Share { key } => state.shared.push(key),
            Request::Open { key } => {
                let ours = state.shared.contains(&key);
                send(&self.fd, id, &Reply::Origin { ours }, &[]);
            }
        }
    }
}
