//! The protocol of the admin socket: the hook and the CLI create, change, remove and list slices. Each command
//! is answered before the next one is read. The observers' socket, which only a service manager creates, answers
//! only the list.

mod answer_time;
mod idle_exit;
mod requests;

use crate::config::DaemonConfig;
use crate::containers::{FirstProcess, Members, examine_asker};
use crate::first_messages::FirstMessages;
use crate::peer::{Asker, Peer};
use crate::poll::{Source, Watch};
use crate::replies::{Denied, NO_REPLY, plain};
use crate::slab::{Key, Slab};
use crate::socket_closer::{SocketCloser, SocketOwner};
use crate::sockets::{Received, Socket, Spare, id_of, packet};
use crate::tasks::{Task, Tasks};
use answer_time::AnswerTime;
use gpuslice_engine::{Event, SliceRequest};
use gpuslice_host::clock::now;
use gpuslice_host::seqpacket::send;
use gpuslice_wire::admin::{Admission, Answer, Command, Denial, RequestSource};
use gpuslice_wire::frame::{Message, RequestId, decode};
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::FRAME_BYTES_MAX;
use gpuslice_wire::owner::Owner;
use gpuslice_wire::select::{GpuSelector, SelectError};
use gpuslice_wire::text::{CgroupPath, Name, Selector};
use gpuslice_wire::units::{Bytes, Instant};
use idle_exit::IdleExit;
use nix::errno::Errno;
use nix::unistd::geteuid;
use requests::Requests;
use std::collections::VecDeque;
use std::os::fd::AsFd;

/// Most observers connected at the same time.
const OBSERVERS_MAX: usize = 8;

/// A client of which the kernel says nothing, or that is not asked.
const UNKNOWN: Asker = Asker { pid: 0, uid: u32::MAX, login_uid: None };

/// An admin connection.
#[derive(Debug)]
struct Admin {
    fd: Socket,
    /// Whether it has sent a command.
    has_sent: bool,
    /// It may only list slices.
    observes: bool,
    /// It waits until there is time for its answer.
    is_waiting: bool,
    /// Id of the command being answered.
    request: RequestId,
    /// The process that connected, and its user.
    peer: Asker,
    /// First process of the container for which a slice is requested, and how to recognise that container's processes.
    asks_for: (Members, Option<FirstProcess>),
    /// The container as Kubernetes names it.
    owner: Owner,
    /// Container and name of the slice that is asked for.
    admission: Option<(ContainerId, Name)>,
    /// Slices that end with this connection.
    slices: Vec<ContainerId>,
    /// Packets of at most one answer, which wait for room in the socket.
    out: VecDeque<Box<[u8]>>,
}

/// See the file's head.
#[derive(Debug)]
pub struct Admins {
    watch: Watch,
    closer: SocketCloser,
    listener: Socket,
    /// The observers' socket, if the service manager made one.
    observe_listener: Option<Socket>,
    /// The observers' socket accepts nothing until closed connections are gone.
    is_paused: bool,
    connections: Slab<Admin>,
    first_messages: FirstMessages,
    /// Time for the answers to observers.
    answer_time: AnswerTime,
    /// Commands that wait until an earlier slice of their container is removed.
    parked: Vec<(Key, Command)>,
    /// Sources and bounds of requests for slices.
    requests: Requests,
    /// Cap on pinned host memory of containers that ask for none.
    pinned_default: Option<Bytes>,
    idle_exit: IdleExit,
}

/// Accepts the next connection.
fn next(listener: &Socket, spare: &mut Spare) -> Option<Socket> {
    match listener.accept() {
        Ok(fd) => Some(fd),
        Err(Errno::EMFILE | Errno::ENFILE) => {
            tracing::error!("out of descriptors; closed an admin connection");
            spare.turn_away(listener);
            None
        }
        Err(_) => None,
    }
}

impl Admins {
    /// Serves these sockets; at most `connections` at a time.
    ///
    /// # Errors
    /// No memory to watch them.
    pub fn new(
        config: &DaemonConfig,
        (listener, observe_listener): (Socket, Option<Socket>),
        (watch, closer): (Watch, SocketCloser),
        connections: u16,
    ) -> nix::Result<Admins> {
        watch.add(&listener, Source::AdminListener)?;
        if let Some(observe) = &observe_listener {
            watch.add(observe, Source::ObserveListener)?;
        }
        Ok(Admins {
            watch,
            closer,
            listener,
            observe_listener,
            is_paused: false,
            connections: Slab::new(connections),
            first_messages: FirstMessages::default(),
            answer_time: AnswerTime::new(),
            parked: Vec::new(),
            requests: Requests::new(config),
            pinned_default: config.pinned_memory.map(|size| size.0),
            idle_exit: IdleExit::default(),
        })
    }

    /// Accepts a connection to the admin socket. Only root and the daemon's own user can open its file; the peer's
    /// user is checked as well, in case the file's permissions were changed.
    pub fn accept(&mut self, spare: &mut Spare, out: &mut Tasks) {
        let Some(fd) = next(&self.listener, spare) else {
            return;
        };
        let peer = Peer::of(fd.as_fd()).map_or(UNKNOWN, |peer| peer.asker());
        let uid = peer.uid;
        let Some(key) = self.insert(fd, peer, false) else {
            return;
        };
        if uid != 0 && uid != geteuid().as_raw() {
            let why = "only root or the daemon's own user may use this socket";
            self.deny(key, Denial::Protocol, why, out);
            return self.drop(key, out);
        }
        self.idle_exit.used();
        self.welcome(key, out);
    }

    /// Accepts a connection to the observers' socket, whose file's group decides which users may connect. Their
    /// number is limited, so that they never keep administrators out.
    pub fn accept_observer(&mut self, spare: &mut Spare, out: &mut Tasks) {
        let Some(listener) = &self.observe_listener else {
            return;
        };
        let behind = self.closer.is_behind(SocketOwner::Observers);
        if behind && self.watch.forget(listener).is_ok() {
            self.is_paused = true;
            return;
        }
        let Some(fd) = next(listener, spare) else {
            return;
        };
        let observers = self.connections.iter().filter(|(_, admin)| admin.observes);
        if observers.count() >= OBSERVERS_MAX {
            return;
        }
        if let Some(key) = self.insert(fd, UNKNOWN, true) {
            self.welcome(key, out);
        }
    }

    /// Accepts observers again, since closed connections are gone.
    pub fn accept_again(&mut self) {
        if std::mem::take(&mut self.is_paused)
            && let Some(listener) = &self.observe_listener
        {
            let _ = self.watch.add(listener, Source::ObserveListener);
        }
    }

    fn insert(&mut self, fd: Socket, peer: Asker, observes: bool) -> Option<Key> {
        let admin = Admin {
            fd,
            has_sent: false,
            observes,
            is_waiting: false,
            request: RequestId(0),
            peer,
            asks_for: Default::default(),
            owner: Owner::default(),
            admission: None,
            slices: Vec::new(),
            out: VecDeque::new(),
        };
        self.connections.insert(admin).ok()
    }

    fn welcome(&mut self, key: Key, out: &mut Tasks) {
        self.first_messages.expect(key, now());
        let Some(admin) = self.connections.get(key) else {
            return;
        };
        if self.watch.add(&admin.fd, Source::Admin(key)).is_err() {
            self.drop(key, out);
        }
    }

    /// The earliest deadline.
    pub fn deadline(&self) -> Option<Instant> {
        let first_message = self.first_messages.deadline();
        let others = self.idle_exit.deadline().into_iter().chain(self.answer_time.deadline());
        first_message.into_iter().chain(others).min()
    }

    /// Drops the connections that have sent no first message by `now`.
    pub fn due(&mut self, now: Instant, out: &mut Tasks) {
        let waiting = |key| self.connections.get(key).filter(|it| !it.has_sent).map(|it| &it.fd);
        for key in self.first_messages.missing(now, waiting) {
            self.drop(key, out);
        }
        while let Some(key) = self.answer_time.due(now) {
            let Some(observer) = self.connections.get_mut(key) else {
                continue;
            };
            observer.is_waiting = false;
            if self.watch.watch_on(&observer.fd, Source::Admin(key), true).is_err() {
                self.drop(key, out);
            }
        }
    }

    /// Whether a connection is an observer's.
    pub fn observes(&self, key: Key) -> bool {
        self.connections.get(key).is_some_and(|it| it.observes)
    }

    /// Counts the time that an answer to an observer took.
    pub fn observer_answered(&mut self, took: (Instant, Instant)) {
        self.answer_time.spend(took);
    }

    /// Handles a connection that is readable, writable or closed; returns the command that it sent.
    pub fn ready(&mut self, key: Key, out: &mut Tasks) -> Option<Command> {
        let admin = self.connections.get_mut(key)?;
        if !admin.out.is_empty() {
            self.flush(key, out);
            return None;
        }
        if admin.is_waiting {
            self.drop(key, out); // nothing but its end is looked for
            return None;
        }
        let waits = admin.observes && !self.answer_time.pays(now());
        if waits && self.watch.watch_on(&admin.fd, Source::Admin(key), false).is_ok() {
            admin.is_waiting = true;
            self.answer_time.wait(key);
            return None;
        }
        let mut buffer = [0; FRAME_BYTES_MAX];
        let refused = match admin.fd.receive(&mut buffer) {
            Received::Packet(len) => {
                (admin.request, admin.has_sent) = (id_of(&buffer[..len]), true);
                match decode::<Command>(&buffer[..len]) {
                    Ok((_, command)) if admin.observes && !only_observes(&command) => {
                        "this socket answers only lists".to_owned()
                    }
                    Ok((_, command)) => return Some(command),
                    Err(why) => why.to_string(),
                }
            }
            Received::Nothing => return None,
            Received::End | Received::Violation => {
                self.drop(key, out);
                return None;
            }
        };
        self.deny(key, Denial::Protocol, &refused, out);
        self.drop(key, out);
        None
    }

    /// The engine's request for a slice, found in `source`, if in the container's own configuration;
    /// `cgroup` finds its container's own cgroup.
    ///
    /// # Errors
    /// Why the command is refused.
    pub fn ask_of(
        &self,
        source: Option<RequestSource>,
        asked: &Admission,
        cgroup: impl FnOnce(&ContainerId, u32) -> CgroupPath,
    ) -> Result<SliceRequest, Denied> {
        let bounds = self.requests.bounds(source, asked)?;
        let Admission {
            container, name, memory, weight, share, share_limit, class, gang, pid, ..
        } = *asked;
        let invalid = |why: SelectError| (Denial::Invalid, why.to_string());
        Ok(SliceRequest {
            container,
            name,
            gpus: GpuSelector::parse(asked.gpus.as_str()).map_err(invalid)?,
            whole: beside(&asked.whole).map_err(invalid)?,
            memory,
            memory_limit: asked.memory_limit,
            weight,
            share,
            share_limit,
            class,
            gang,
            pinned: asked.pinned.or(self.pinned_default),
            bounds,
            cgroup: cgroup(&container, pid),
        })
    }

    /// Holds the first process of the container for which a connection asks for a slice.
    ///
    /// # Errors
    /// The container has ended.
    pub fn hold_first_process(&mut self, key: Key, pid: u32) -> Result<(), Denied> {
        if let Some(admin) = self.connections.get_mut(key) {
            admin.asks_for = examine_asker((admin.peer.pid, admin.peer.uid), pid)?;
        }
        Ok(())
    }

    /// Holds the owner of the container for which a connection asks for a slice.
    pub fn hold_owner(&mut self, key: Key, owner: Owner) {
        if let Some(admin) = self.connections.get_mut(key) {
            admin.owner = owner;
        }
    }

    /// The owner of the container for which a connection asked for a slice.
    pub fn take_owner(&mut self, key: Key) -> Owner {
        let admin = self.connections.get_mut(key);
        admin.map(|admin| std::mem::take(&mut admin.owner)).unwrap_or_default()
    }

    /// Whether a client is still connected.
    pub fn is_connected(&self, key: Key) -> bool {
        self.connections.get(key).is_some()
    }

    /// Notes the container for which a connection asks for a slice.
    pub fn note_admission(&mut self, key: Key, asked: &Admission) {
        if let Some(admin) = self.connections.get_mut(key) {
            admin.admission = Some((asked.container, asked.name));
        }
    }

    /// The container for which a connection asked for a slice, if it is not answered.
    pub fn take_admission(&mut self, key: Key) -> Option<(ContainerId, Name)> {
        self.connections.get_mut(key)?.admission.take()
    }

    /// The process that connected, and its user.
    pub fn peer(&self, key: Key) -> Option<Asker> {
        Some(self.connections.get(key)?.peer)
    }

    /// How to recognise the container of the new slice that a connection asked for, and its first process.
    pub fn take_asked(&mut self, key: Key) -> (Members, Option<FirstProcess>) {
        let admin = self.connections.get_mut(key);
        let asked = admin.map(|admin| std::mem::take(&mut admin.asks_for));
        asked.unwrap_or_default()
    }

    /// Lets a command wait until the earlier slice of its container is removed.
    pub fn park(&mut self, key: Key, command: Command, out: &mut Tasks) {
        match self.parked.iter().any(|(parked, _)| *parked == key) {
            true => self.deny(key, Denial::Protocol, "send one command at a time", out),
            false => self.parked.push((key, command)),
        }
    }

    /// Queues the commands that waited for the end of a container's slice.
    pub fn unpark(&mut self, container: &ContainerId, out: &mut Tasks) {
        let waits = |(_, command): &mut (Key, Command)| matches!(command, Command::Admit { asked } | Command::AdmitFrom { asked, .. } if asked.container == *container);
        for (key, command) in self.parked.extract_if(.., waits) {
            // A client that disconnected meanwhile is skipped.
            if self.connections.get(key).is_some() {
                out.push(Task::Command(key, Box::new(command)));
            }
        }
    }

    /// Answers that a slice is given; returns whether its client is still connected. If the daemon ends with its
    /// commands, the slice ends with this connection.
    pub fn answer_admitted(
        &mut self,
        key: Key,
        container: ContainerId,
        answer: &Answer,
        out: &mut Tasks,
    ) -> bool {
        let keeps = self.idle_exit.is_on();
        let _ = self.take_admission(key);
        if let Some(admin) = self.connections.get_mut(key).filter(|_| keeps) {
            admin.slices.push(container);
        }
        self.answer(key, answer, out);
        self.connections.get(key).is_some()
    }

    /// Refuses a command.
    pub fn deny(&mut self, key: Key, why: Denial, text: &str, out: &mut Tasks) {
        let text = plain(text);
        self.answer(key, &Answer::Denied { why, text }, out);
    }

    /// Answers a command if its client is still connected.
    pub fn answer<M: Message>(&mut self, key: Key, message: &M, out: &mut Tasks) {
        self.queue(key, message);
        self.flush(key, out);
    }

    /// Sends an answer of several parts.
    pub fn answer_all<M: Message>(&mut self, key: Key, parts: &[M], out: &mut Tasks) {
        parts.iter().for_each(|part| self.queue(key, part));
        self.flush(key, out);
    }

    /// Queues a part of an answer.
    pub fn queue<M: Message>(&mut self, key: Key, message: &M) {
        if let Some(admin) = self.connections.get_mut(key) {
            let mut buffer = [0; FRAME_BYTES_MAX];
            let len = packet(admin.request, message, &mut buffer);
            admin.out.push_back(buffer[..len].into());
        }
    }

    /// Sends queued packets, as many as the client reads.
    pub fn flush(&mut self, key: Key, out: &mut Tasks) {
        let Some(admin) = self.connections.get_mut(key) else {
            return;
        };
        while let Some(packet) = admin.out.front() {
            match send(admin.fd.as_fd(), packet, &[]) {
                Ok(()) => drop(admin.out.pop_front()),
                Err(Errno::EAGAIN) => break,
                Err(_) => return self.drop(key, out),
            }
        }
        // A connection that is being refused is not in the set, which is not an error.
        let waits = !admin.out.is_empty();
        let source = Source::Admin(key);
        let _ = self.watch.wait_to_write(admin.fd.as_fd(), source, waits);
    }

    /// Ends a connection, and the slices that end with it.
    fn drop(&mut self, key: Key, out: &mut Tasks) {
        self.answer_time.forget(key);
        let slices = self.connections.remove(key).map(|admin| admin.slices);
        for container in slices.unwrap_or_default() {
            let token = NO_REPLY;
            out.step(Event::Dismiss { token, container });
        }
    }

    /// Lets the daemon end when no command is connected any more.
    pub fn run_while_used(&mut self, now: Instant) {
        self.idle_exit = IdleExit::while_used(now);
    }

    /// Whether no command keeps the daemon running.
    pub fn is_unused(&self) -> bool {
        let commands = self.connections.iter().filter(|(_, admin)| !admin.observes);
        self.idle_exit.is_on() && self.idle_exit.is_over(now(), commands.count())
    }
}

/// Whether a command is one that observers may send.
fn only_observes(command: &Command) -> bool {
    matches!(command, Command::List {} | Command::Observe {})
}

/// The GPUs requested as a whole.
fn beside(whole: &Selector) -> Result<Option<GpuSelector>, SelectError> {
    match (whole.is_empty(), GpuSelector::parse(whole.as_str())?) {
        (true, _) => Ok(None),
        // The daemon chooses GPUs for slices only; a whole GPU must be named.
        (false, GpuSelector::Any) => Err(SelectError::Entry),
        (false, gpus) => Ok(Some(gpus)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::Poll;
    use gpuslice_host::seqpacket::pair;
    use gpuslice_wire::frame::encode;
    use gpuslice_wire::units::Duration;
    use std::os::fd::OwnedFd;

    /// Otherwise it kept one of the few places of observers until its turn.
    #[test]
    fn an_observer_that_closes_while_it_waits_leaves_its_place() {
        let (mut poll, tasks) = (Poll::new().expect("a poll"), &mut Tasks::default());
        let closer = SocketCloser::new(poll.watch());
        let socket = |fd| Socket::listening(fd, SocketOwner::Observers, &closer);
        let (_admin, listener) = pair().expect("a pair");
        let sockets = (socket(listener), None);
        let config = DaemonConfig::default();
        let with = (poll.watch(), closer.clone());
        let mut admins = Admins::new(&config, sockets, with, 8).expect("watched");
        let mut observer = || {
            let (theirs, ours) = pair().expect("a pair");
            let key = admins.insert(socket(ours), UNKNOWN, true).expect("a place");
            admins.welcome(key, tasks);
            let mut buffer = [0; FRAME_BYTES_MAX];
            let bytes = encode(RequestId(1), &Command::List {}, &mut buffer).expect("short");
            send(&theirs, &buffer[..bytes], &[]).expect("sent");
            (key, theirs)
        };
        let ((first, theirs), (second, _theirs)) = (observer(), observer());
        let now = now();
        admins.observer_answered((Instant(0), now));
        let events = |poll: &mut Poll| {
            let mut sources = Vec::new();
            poll.wake_at(Some(now)).expect("armed");
            poll.wait(&mut sources).expect("waited");
            sources
        };
        for key in [first, second] {
            assert!(admins.ready(key, tasks).is_none());
        }
        drop::<OwnedFd>(theirs);
        assert!(
            events(&mut poll).iter().any(|it| matches!(it, Source::Admin(key) if *key == first))
        );
        assert!(admins.ready(first, tasks).is_none());
        assert!(!admins.is_connected(first) && admins.is_connected(second));
        let at = admins.answer_time.deadline().expect("the second one waits");
        admins.due(at.plus(Duration(1)), tasks);
        // Its command is in its socket still.
        assert!(
            events(&mut poll).iter().any(|it| matches!(it, Source::Admin(key) if *key == second))
        );
    }
}
