//! What can happen: the only inputs of the engine.
//!
//! An event that asks for an answer carries a [`Token`] of the asker's choice, and the answering
//! action carries the same one. Nothing else connects the two.

use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane, NvmlIndex};
use gpuslice_wire::limits::ACCOUNTS_MAX;
use gpuslice_wire::policy::{Class, Gangs, Policy, ShareAsk};
use gpuslice_wire::select::GpuSelector;
use gpuslice_wire::text::{CgroupPath, Name};
use gpuslice_wire::units::{Bytes, Instant, Percent, Weight};

use crate::grants::Granted;
use crate::record::Record;

/// Matches an answer to its question. Chosen by the caller, never looked at by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A process, by its number and by when it began, so that the next one of that number is another. Two
/// connections with the same one come from the same process. Never looked into by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began, in the kernel's own count.
    pub born: u64,
}

/// What a container asks for when it is to get a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The container as its runtime names it.
    pub container: ContainerId,
    /// A name for people; empty takes the id's beginning.
    pub name: Name,
    /// Which GPUs.
    pub gpus: GpuSelector,
    /// Which GPUs beside them as a whole; of those named twice it gets a slice.
    pub whole: Option<GpuSelector>,
    /// Cap on each of those that it gets a slice of.
    pub memory: MemoryAsk,
    /// Weight among those that want a GPU at the same time.
    pub weight: Weight,
    /// Share of each GPU's time, if any: what it gets whenever it wants it, and never more, even alone.
    pub share: Option<Percent>,
    /// Who goes before it and after it.
    pub class: Class,
    /// Whether its GPUs may take turns together.
    pub gang: Gangs,
    /// Cap on the host memory it pins, if any.
    pub pinned: Option<Bytes>,
    /// The most that it may ask for, if the image has a hand in the request.
    pub bounds: Option<Bounds>,
    /// Directory under the cgroup mount whose processes are the container's; empty if not known.
    /// Kept for the daemon, never looked at here.
    pub cgroup: CgroupPath,
}

/// The most that a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// GPUs.
    pub gpus: usize,
    /// Cap on each; `None` for no other than the GPU's memory.
    pub memory: Option<MemoryAsk>,
}

/// What is to change of a slice's part of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeChange {
    /// The new weight; `None` keeps it.
    pub weight: Option<Weight>,
    /// What becomes of the hard share.
    pub share: ShareAsk,
    /// The new class; `None` keeps it.
    pub class: Option<Class>,
}

/// What a process says about itself on one lane of its page. Untrusted: it may end or shorten
/// its own container's turn and feed what observers see, nothing else.
///
/// A process counts as quiet when `drained` is `active`, whatever turn that was. So who launches
/// again in a turn in which it said to be drained takes that back first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// It has work to launch or in flight.
    pub runnable: bool,
    /// It may have work behind closed gates, which runs in the container's next turn.
    pub parked: bool,
    /// Last turn word in which it launched.
    pub active: u32,
    /// Last turn word after whose close nothing of it was in flight.
    pub drained: u32,
    /// When what it launched in turn `active` began.
    pub began: Instant,
    /// When the last of what it launched in turn `drained` ended.
    pub calm: Instant,
    /// In allocations and all that was charged beside them; unused credit is not counted.
    pub held: Bytes,
    /// The part of `held` that NVML does not show for a process.
    pub unseen: Bytes,
    /// Launches so far.
    pub launches: u64,
    /// Allocations refused by the cap so far.
    pub denied: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // one exists at a time, on the stack
pub enum Event {
    /// The node has this GPU. Twice is the same as once.
    GpuFound {
        /// Identity.
        uuid: GpuUuid,
        /// NVML index on the node, for selectors that name it so.
        index: NvmlIndex,
        /// Physical memory.
        total: Bytes,
    },
    /// A container asks for a slice. Answered by `Admitted` or `Denied`.
    Admit {
        /// For the answer.
        token: Token,
        /// What it asks for.
        ask: Ask,
    },
    /// A slice of an earlier life of the daemon. Answered by `Restored` or `NotRestored`. To be
    /// given after all `GpuFound` and before anything of the container's processes.
    Restore(Record),
    /// A process of a restored container that lives, and what it was granted. Answered by `Accounted`;
    /// to be given before anything of the container's processes.
    RestoreProcess {
        /// For the answer.
        token: Token,
        /// Whose it is.
        container: ContainerId,
        /// Which process.
        process: Process,
        /// What it was granted, per lane.
        granted: Granted,
    },
    /// Those were all processes of a restored container that were granted anything.
    Complete {
        /// Whose.
        container: ContainerId,
    },
    /// A container's slice ends. Answered by `Dismissed`, known or not.
    Dismiss {
        /// For the answer.
        token: Token,
        /// Whose slice.
        container: ContainerId,
    },
    /// A process of the container connected. Answered by `Attached` or `Rejected`.
    Attach {
        /// For the answer.
        token: Token,
        /// Whose socket it came through.
        container: ContainerId,
        /// Which process it is, if that is known.
        process: Option<Process>,
        /// What it holds already, per lane, credit included: zeros unless it lost its connection.
        held: [Bytes; ACCOUNTS_MAX],
    },
    /// A process asks for memory credit. Answered by `Reserved`, `Refused` or `Disconnect`; for a
    /// restored container possibly only when those who were granted something before have come back, or
    /// [`crate::Config::restore_grace`] is over.
    Reserve {
        /// Who.
        client: ClientId,
        /// For the answer.
        token: Token,
        /// GPU of the slice.
        lane: Lane,
        /// The least that is of use.
        need: Bytes,
        /// What would save round trips.
        wish: Bytes,
    },
    /// A process gives credit back.
    Release {
        /// Who.
        client: ClientId,
        /// GPU of the slice.
        lane: Lane,
        /// How much; more than it has is a violation and ends the connection.
        bytes: Bytes,
    },
    /// A process gives back what it does not use, because a sibling is short: its answer to a
    /// recall.
    Yield {
        /// Who.
        client: ClientId,
        /// GPU of the slice.
        lane: Lane,
        /// Which recall, as its page said.
        recall: u32,
        /// How much; more than it has is a violation and ends the connection.
        bytes: Bytes,
    },
    /// The driver was asked what a process has of a GPU.
    Measured {
        /// Who.
        client: ClientId,
        /// GPU of the slice.
        lane: Lane,
        /// What NVML shows for it.
        used: Bytes,
    },
    /// All attached processes of a container were just measured, each by its `Measured`, in one look.
    Looked {
        /// Whose.
        container: ContainerId,
        /// GPU of the slice.
        lane: Lane,
    },
    /// The driver was asked what processes of a container have that are not attached.
    Unattributed {
        /// Whose.
        container: ContainerId,
        /// GPU of the slice.
        lane: Lane,
        /// What NVML shows for all of them together; zero when they are gone.
        used: Bytes,
    },
    /// A slice's cap is to be another. Answered by `Resized` or `Denied`.
    Resize {
        /// For the answer.
        token: Token,
        /// Whose slice.
        container: ContainerId,
        /// GPU of the slice, or [`Lane::HOST`].
        lane: Lane,
        /// The new cap.
        memory: MemoryAsk,
    },
    /// The time of GPUs is to be divided in another way. Answered by `PolicySet` or `Denied`.
    SetPolicy {
        /// For the answer.
        token: Token,
        /// Which GPUs; `Any` means all, too.
        gpus: GpuSelector,
        /// How.
        policy: Policy,
    },
    /// A slice is to get another part of time. Answered by `Retuned` or `Denied`.
    Retune {
        /// For the answer.
        token: Token,
        /// Whose slice.
        container: ContainerId,
        /// Which part.
        change: TimeChange,
    },
    /// A process's connection ended, and the process may live: what it was granted stays charged until
    /// it is `Gone`, or attaches anew. If there is nothing of that, or the id is not known, this
    /// is answered by `Disconnect`.
    Left {
        /// Who.
        client: ClientId,
    },
    /// A process is gone, which refunds all it had. Unknown ids are ignored.
    Gone {
        /// Who.
        client: ClientId,
    },
    /// A process's page was read. **The read must be later than the performing of every action
    /// of earlier steps**: after a turn is closed on the page, what is read then tells whether
    /// the process saw the close. So: read one lane, step, perform the actions, read the next.
    Claims {
        /// Whose page.
        client: ClientId,
        /// GPU of the slice.
        lane: Lane,
        /// What it says.
        claims: Claims,
    },
    /// Answers [`crate::Action::Stop`].
    Stopped {
        /// Whose.
        container: ContainerId,
        /// GPU of the slice.
        lane: Lane,
        /// Nothing of it runs until it is resumed; otherwise nothing of it was stopped.
        ok: bool,
    },
    /// Answers [`crate::Action::Resume`]: nothing is stopped any more.
    Resumed {
        /// Whose.
        container: ContainerId,
        /// GPU of the slice.
        lane: Lane,
    },
    /// Time passed: [`crate::Engine::next_deadline`] was reached, or nothing happened for a while.
    Tick,
}
