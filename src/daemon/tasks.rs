//! The tasks that follow from an event: what the duties give to the event loop, in order.
//!
//! A duty owns its state and sees no other duty. It answers with tasks, mostly events for the engine. The event loop
//! runs all tasks, and those that follow from them, before it waits again.
//!
//! A claim must be read after all actions decided before it have been executed (see
//! `gpuslice_engine::Event::Claims`). So the queue holds not the claim but the request to read it, and the claim is
//! read when that task runs.

use crate::slab::Key;
use gpuslice_engine::Event;
use gpuslice_wire::admin::Command;
use gpuslice_wire::frame::RequestId;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use std::collections::VecDeque;

/// A process's request for its own use of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// The process's connection.
    pub key: Key,
    /// The engine's id of the client.
    pub client: ClientId,
    /// The request to answer.
    pub request: RequestId,
    /// The process's container.
    pub container: ContainerId,
    /// The GPU.
    pub lane: Lane,
    /// The process's pid; 0 if it has none in the daemon's namespace.
    pub pid: u32,
}

/// A task of the event loop.
#[derive(Debug)]
pub enum Task {
    /// Pass this event to the engine.
    Step(Event),
    /// Read this process's page and pass its claims to the engine.
    ReadClaims(Key, Lane),
    /// Ask NVML for a process's use.
    Measure(Measure),
    /// The connection of one of a container's processes has begun or ended.
    Connected(ContainerId),
    /// A process's connection has ended: let go of its work on GPUs.
    Disconnected(Key, ContainerId),
    /// Execute a command that waited.
    Command(Key, Box<Command>),
    /// Tell a container's programs what memory it may have, has and should give back.
    ShowMemory(ContainerId),
    /// Bring the limits of a container's cgroup to its caps.
    UpdateLimits(ContainerId),
}

/// The queue of tasks; empty between events.
#[derive(Debug, Default)]
pub struct Tasks(VecDeque<Task>);

impl Tasks {
    /// Queues an event for the engine behind all waiting tasks.
    pub fn step(&mut self, event: Event) {
        self.push(Task::Step(event));
    }

    /// Queues an event for the engine before all waiting tasks.
    pub fn step_first(&mut self, event: Event) {
        self.0.push_front(Task::Step(event));
    }

    /// Queues a task behind all waiting ones.
    pub fn push(&mut self, task: Task) {
        self.0.push_back(task);
    }

    /// Takes the next task.
    pub fn next(&mut self) -> Option<Task> {
        self.0.pop_front()
    }
}
