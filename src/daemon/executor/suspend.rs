//! Suspension of a container: its processes for the worker, and the answer to the client that asked.

use super::Duties;
use crate::accounting::questions::{GpuRoom, Ticket};
use crate::events::Happening;
use crate::replies::{NO_REPLY, key_of, plain};
use crate::suspend::room::{Looked, Resume};
use crate::suspend::shared;
use crate::suspend::{Moved, mark_moved, read_mark, unmark};
use gpuslice_engine::{Event, ResumeNeed, Token};
use gpuslice_host::clock::now;
use gpuslice_host::process::name_of;
use gpuslice_wire::admin::{Answer, Denial};
use gpuslice_wire::history::EventKind;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::units::{Bytes, Instant};

impl Duties {
    /// Moves a container's memory to the host, or back once its GPUs have room for `needs`.
    pub(super) fn ordered_to_move(
        &mut self,
        token: Token,
        container: ContainerId,
        (away, memory): (bool, Bytes),
        needs: Vec<ResumeNeed>,
    ) {
        if away || !self.accounting.has_nvml() {
            return self.move_memory(token, container, (away, memory));
        }
        self.rooms.begin(Resume { token, container, memory, needs }, now());
        self.look_for_room(now());
    }

    /// Asks NVML for the resumes that wait, and refuses those that have waited for long enough.
    pub fn look_for_room(&mut self, now: Instant) {
        let refused = self.rooms.due(now, |gpus| self.accounting.ask_room(gpus));
        refused.into_iter().for_each(|looked| self.room_looked(looked));
    }

    /// NVML has told the free memory of GPUs.
    pub fn room_told(&mut self, ticket: Ticket, rooms: &[GpuRoom]) {
        let looked = self.rooms.answered(ticket, rooms, now(), named);
        looked.into_iter().for_each(|looked| self.room_looked(looked));
    }

    fn room_looked(&mut self, (resume, room): Looked) {
        let Resume { token, container, memory, .. } = resume;
        match room {
            Ok(()) => self.move_memory(token, container, (false, memory)),
            Err(why) => {
                let stays = self.suspender.refuse_resume(container, why);
                self.memory_moved([stays]);
            }
        }
    }

    /// Begins to move a container's memory.
    fn move_memory(&mut self, token: Token, container: ContainerId, (away, memory): (bool, Bytes)) {
        // Before the driver locks the first process.
        self.show_suspended(&container, true);
        let dir = self.containers.state().container_dir(&container);
        let processes = self.clients.processes_of(&container);
        let shares = if away { self.clients.shares(&container) } else { Vec::new() };
        let obstacle = shared::refusal(&shares, read_mark(&dir).is_some(), named);
        let target = (container, dir.as_path());
        let ended = self.suspender.begin(
            target,
            (away, token == Token::NONE),
            processes.into_iter(),
            memory,
            obstacle,
        );
        self.memory_moved(ended);
    }

    /// Passes the ends of moves to the engine.
    pub fn memory_moved(&mut self, ended: impl IntoIterator<Item = Moved>) {
        for Moved { container, away, moved } in ended {
            if !away {
                self.accounting.returned(container);
            }
            let stays = moved.map(|moved| self.clients.beside(&container, &moved));
            self.tasks.step(Event::MemoryMoved { container, away, stays });
        }
    }

    /// Answers: the container is suspended, or it is not any more, or nothing has changed and why.
    pub(super) fn suspension_settled(
        &mut self,
        token: Token,
        container: ContainerId,
        (away, [memory, left]): (bool, [Bytes; 2]),
    ) {
        let dir = self.containers.state().container_dir(&container);
        match away {
            true if left == Bytes::ZERO => mark_moved(&dir, token == Token::NONE),
            true => {
                tracing::warn!(%container, %left, "it is suspended, and a part of its memory may be on the GPU");
            }
            false => {
                unmark(&dir);
                self.show_suspended(&container, false);
            }
        }
        if let Some(why) = self.suspender.take_failure(&container) {
            let state = match away {
                true => format!("it is suspended, gpuslice resume {container} tries again"),
                false => "it is not suspended".to_owned(),
            };
            let why = format!("{why}; {state}");
            self.note_not_moved(token, container, &why);
            return self.deny(key_of(token), Denial::Host, &why);
        }
        let kind = if away { EventKind::Suspended } else { EventKind::Resumed };
        tracing::info!(%container, %memory, what = kind.name(), "its memory was moved");
        let moved = Happening::of(kind, container).by_client(self.admins.peer(key_of(token)));
        let text = match left {
            Bytes::ZERO => String::new(),
            left => format!("{left} of it may still be on the GPU"),
        };
        self.events.record(now(), moved.with([memory.0, 0], text));
        if token != NO_REPLY {
            self.answer(key_of(token), &Answer::Done {});
        }
    }

    /// Lets the container's page show whether it is suspended.
    fn show_suspended(&self, container: &ContainerId, suspended: bool) {
        if let Some(page) = self.containers.page(container) {
            page.set_suspended(suspended);
        }
    }

    /// Records that a container's memory stays where it is.
    pub(super) fn note_not_moved(&mut self, token: Token, container: ContainerId, why: &str) {
        let stays = Happening::of(EventKind::NotMoved, container);
        let stays = stays.by_client(self.admins.peer(key_of(token)));
        self.events.record(now(), stays.with([0; 2], why.to_owned()));
    }

    /// Whether processes of a container wait for its resume: its slice must not end before.
    pub fn is_suspended(&self, container: &ContainerId) -> bool {
        let dir = self.containers.state().container_dir(container);
        read_mark(&dir).is_some() && self.clients.has_processes(container)
    }
}

/// A process by its pid, and its name if it has one.
fn named(pid: u32) -> String {
    name_of(pid).map_or_else(|| pid.to_string(), |name| format!("{pid} ({})", plain(&name)))
}
