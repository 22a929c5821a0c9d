//! The protocol of `node.sock`: an agent of a cluster reads what the node has, and reserves parts of GPUs.
//!
//! # Problem
//! The agent runs without privileges and is reached through a network. It must learn of every change, but neither it
//! nor another process of its group may delay the thread that gives turns, or use up its memory.
//!
//! # Idea
//! The socket's file is open to root and one group, and the peer's groups are checked again when it connects. A
//! connection has one request at a time: while its answer waits, as for the disk, no other one is read. Answers are
//! queued: a peer that has read nothing for [`READ_WITHIN`] is disconnected, and so is a watching one that has more to
//! read than a new list would have. The rows of watching agents are compared with the rows sent last ([`rows`]), at
//! most once in [`TOGETHER`]; so a burst of changes costs one comparison, whatever the number of agents.

pub mod rows;

use crate::first_messages::FirstMessages;
use crate::peer::Peer;
use crate::poll::{Source, Watch};
use crate::replies::plain;
use crate::slab::{Key, Slab};
use crate::socket_closer::{SocketCloser, SocketOwner};
use crate::sockets::{Received, Socket, Spare, id_of, packet, peer_groups};
use gpuslice_host::clock::now;
use gpuslice_host::seqpacket::send;
use gpuslice_wire::frame::{RequestId, decode};
use gpuslice_wire::limits::FRAME_BYTES_MAX;
use gpuslice_wire::node::{NodeAnswer, NodeDenial, NodeRequest};
use gpuslice_wire::units::{Duration, Instant};
use nix::errno::Errno;
use nix::unistd::{Gid, geteuid};
use rows::Rows;
use std::collections::VecDeque;
use std::os::fd::AsFd;

/// How long an agent may leave its answers unread.
const READ_WITHIN: Duration = Duration(5_000_000_000);
/// Packets beyond a whole list that a watching agent may leave unread.
const BEHIND: usize = 64;
/// Shortest time between two packets of changes.
const TOGETHER: Duration = Duration(100_000_000);

/// A connection.
#[derive(Debug)]
struct Agent {
    fd: Socket,
    uid: u32,
    /// Whether it has sent a request.
    has_sent: bool,
    /// Id of the request being answered.
    request: RequestId,
    /// That request has no answer yet.
    is_asking: bool,
    /// It asked for all changes.
    watches: bool,
    /// Packets that wait for room in the socket.
    out: VecDeque<Box<[u8]>>,
    /// When the oldest of them must have been read.
    read_by: Instant,
}

/// See the file's head.
#[derive(Debug)]
pub struct Agents {
    watch: Watch,
    closer: SocketCloser,
    listener: Option<Socket>,
    group: Option<Gid>,
    connections: Slab<Agent>,
    /// Most connections of one user, so that a user of the group leaves room for others.
    of_one_user: usize,
    first_messages: FirstMessages,
    /// The socket accepts nothing until closed connections are gone.
    is_paused: bool,
    /// The rows that watching agents have.
    shown: Rows,
    /// When the rows are compared again, if they may have changed.
    compare_at: Option<Instant>,
    /// When the rows were compared last.
    compared: Instant,
}

impl Agents {
    /// Serves this socket, if there is one; at most `connections` at a time.
    ///
    /// # Errors
    /// No memory to watch it.
    pub fn new(
        listener: Option<Socket>,
        group: Option<Gid>,
        (watch, closer): (Watch, SocketCloser),
        connections: u16,
    ) -> nix::Result<Agents> {
        if let Some(listener) = &listener {
            watch.add(listener, Source::AgentListener)?;
        }
        Ok(Agents {
            watch,
            closer,
            listener,
            group,
            connections: Slab::new(connections),
            of_one_user: usize::from(connections).div_ceil(2),
            first_messages: FirstMessages::default(),
            is_paused: false,
            shown: Rows::default(),
            compare_at: None,
            compared: Instant(0),
        })
    }

    /// Accepts a connection.
    pub fn accept(&mut self, spare: &mut Spare) {
        let Some(listener) = &self.listener else {
            return;
        };
        let behind = self.closer.is_behind(SocketOwner::Agents);
        if behind && self.watch.forget(listener).is_ok() {
            self.is_paused = true;
            return;
        }
        let fd = match listener.accept() {
            Ok(fd) => fd,
            Err(Errno::EMFILE | Errno::ENFILE) => return spare.turn_away(listener),
            Err(_) => return,
        };
        let Ok(uid) = Peer::of(fd.as_fd()).map(|peer| peer.uid) else {
            return;
        };
        let of_user = self.connections.iter().filter(|(_, agent)| agent.uid == uid).count();
        if of_user >= self.of_one_user {
            return;
        }
        let may = self.may_use(uid, &fd);
        let agent = Agent {
            fd,
            uid,
            has_sent: false,
            request: RequestId(0),
            is_asking: false,
            watches: false,
            out: VecDeque::new(),
            read_by: Instant(0),
        };
        let Ok(key) = self.connections.insert(agent) else {
            return;
        };
        if !may {
            let text = "only root and members of node_group may use this socket";
            self.deny(key, NodeDenial::Protocol, text);
            return self.drop(key);
        }
        self.first_messages.expect(key, now());
        let agent = self.connections.get(key);
        if agent.is_some_and(|it| self.watch.add(&it.fd, Source::Agent(key)).is_err()) {
            self.drop(key);
        }
    }

    /// Whether a user may use the socket, in case its file's permissions were changed.
    fn may_use(&self, uid: u32, fd: &Socket) -> bool {
        let of_group = |group: Gid| peer_groups(fd.as_fd()).contains(&group.as_raw());
        uid == 0 || uid == geteuid().as_raw() || self.group.is_some_and(of_group)
    }

    /// Accepts again, since closed connections are gone.
    pub fn accept_again(&mut self) {
        if std::mem::take(&mut self.is_paused)
            && let Some(listener) = &self.listener
        {
            let _ = self.watch.add(listener, Source::AgentListener);
        }
    }

    /// Handles a connection that is readable, writable or closed; returns the request that it sent.
    pub fn ready(&mut self, key: Key) -> Option<NodeRequest> {
        let agent = self.connections.get_mut(key)?;
        if !agent.out.is_empty() {
            self.flush(key);
            return None;
        }
        if agent.is_asking {
            // Nothing but its end is waited for.
            self.drop(key);
            return None;
        }
        let mut buffer = [0; FRAME_BYTES_MAX];
        let refused = match agent.fd.receive(&mut buffer) {
            Received::Packet(_) if agent.watches => "a watching agent sends nothing".to_owned(),
            Received::Packet(len) => {
                (agent.request, agent.has_sent) = (id_of(&buffer[..len]), true);
                match decode::<NodeRequest>(&buffer[..len]) {
                    Ok((_, request)) => {
                        agent.is_asking = true;
                        return Some(request);
                    }
                    Err(why) => why.to_string(),
                }
            }
            Received::Nothing => return None,
            Received::End | Received::Violation => {
                self.drop(key);
                return None;
            }
        };
        self.deny(key, NodeDenial::Protocol, &refused);
        self.drop(key);
        None
    }

    /// A request was executed. Where its answer is to come later, the next one waits in the socket until then.
    pub fn executed(&self, key: Key) {
        if let Some(agent) = self.connections.get(key).filter(|it| it.is_asking) {
            let _ = self.watch.watch_on(&agent.fd, Source::Agent(key), false);
        }
    }

    /// The earliest deadline.
    pub fn deadline(&self) -> Option<Instant> {
        let first_message = self.first_messages.deadline();
        let waits = self.connections.iter().filter(|(_, agent)| !agent.out.is_empty());
        let unread = waits.map(|(_, agent)| agent.read_by);
        first_message.into_iter().chain(unread).chain(self.compare_at).min()
    }

    /// Drops the connections that have sent no first message, or read nothing, by `now`.
    pub fn due(&mut self, now: Instant) {
        let waiting = |key| self.connections.get(key).filter(|it| !it.has_sent).map(|it| &it.fd);
        for key in self.first_messages.missing(now, waiting) {
            self.drop(key);
        }
        let unread = |agent: &Agent| !agent.out.is_empty() && agent.read_by <= now;
        let all = self.connections.iter().filter(|(_, agent)| unread(agent));
        let slow: Vec<Key> = all.map(|(key, _)| key).collect();
        for key in slow {
            tracing::warn!("an agent does not read its answers; disconnected");
            self.drop(key);
        }
    }

    /// The rows may have changed: they are compared when the last comparison is old enough.
    pub fn changed(&mut self) {
        if self.compare_at.is_none() && self.watching().next().is_some() {
            self.compare_at = Some(self.compared.plus(TOGETHER));
        }
    }

    /// Whether the rows are to be compared at `now`.
    pub fn is_comparison_due(&self, now: Instant) -> bool {
        self.compare_at.is_some_and(|at| at <= now)
    }

    fn watching(&self) -> impl Iterator<Item = Key> {
        self.connections.iter().filter(|(_, agent)| agent.watches).map(|(key, _)| key)
    }

    /// Sends what differs between these rows and those sent last.
    pub fn show(&mut self, rows: Rows, now: Instant) {
        (self.compare_at, self.compared) = (None, now);
        let changes = rows.since(&self.shown);
        self.shown = rows;
        let watching: Vec<Key> = self.watching().collect();
        let most = self.shown.all().count() + BEHIND;
        for key in watching {
            let agent = self.connections.get(key);
            let unread = agent.map_or(0, |it| it.out.len());
            if unread > most {
                let uid = agent.map_or(0, |it| it.uid);
                tracing::warn!(
                    uid,
                    unread,
                    "an agent reads changes too slowly; disconnected, to list again"
                );
                self.drop(key);
            } else if !changes.is_empty() {
                self.answer_all(key, &changes);
            }
        }
    }

    /// Sends all rows, and from now on their changes.
    pub fn begin_watch(&mut self, key: Key, rows: Rows, now: Instant) {
        self.show(rows, now);
        if let Some(agent) = self.connections.get_mut(key) {
            agent.watches = true;
        }
        let all: Vec<NodeAnswer> = self.shown.all().cloned().collect();
        self.answer_all(key, &all);
    }

    /// Sends these rows and their end.
    pub fn answer_all(&mut self, key: Key, rows: &[NodeAnswer]) {
        rows.iter().for_each(|row| self.queue(key, row));
        self.queue(key, &NodeAnswer::End {});
        self.flush(key);
    }

    /// Refuses a request.
    pub fn deny(&mut self, key: Key, why: NodeDenial, text: &str) {
        let text = plain(text);
        self.answer(key, &NodeAnswer::Denied { why, text });
    }

    /// Answers a request if its agent is still connected.
    pub fn answer(&mut self, key: Key, answer: &NodeAnswer) {
        self.queue(key, answer);
        self.flush(key);
    }

    fn queue(&mut self, key: Key, message: &NodeAnswer) {
        let Some(agent) = self.connections.get_mut(key) else {
            return;
        };
        let mut buffer = [0; FRAME_BYTES_MAX];
        let len = packet(agent.request, message, &mut buffer);
        if agent.out.is_empty() {
            agent.read_by = now().plus(READ_WITHIN);
        }
        agent.out.push_back(buffer[..len].into());
        agent.is_asking = false;
    }

    /// Sends queued packets, as many as the agent reads.
    fn flush(&mut self, key: Key) {
        let Some(agent) = self.connections.get_mut(key) else {
            return;
        };
        while let Some(packet) = agent.out.front() {
            match send(agent.fd.as_fd(), packet, &[]) {
                Ok(()) => {
                    agent.out.pop_front();
                    agent.read_by = now().plus(READ_WITHIN);
                }
                Err(Errno::EAGAIN) => break,
                Err(_) => return self.drop(key),
            }
        }
        // A connection that is being refused is not in the set, which is not an error.
        let waits = !agent.out.is_empty();
        let _ = self.watch.wait_to_write(agent.fd.as_fd(), Source::Agent(key), waits);
    }

    fn drop(&mut self, key: Key) {
        self.connections.remove(key);
        if self.watching().next().is_none() {
            self.compare_at = None;
        }
    }
}
