//! Events: the only inputs of the engine.
//!
//! An event that asks for an answer carries a [`Token`] of the caller's choice, and the answering action
//! carries the same token. Nothing else connects the two.

use alloc::boxed::Box;
use alloc::vec::Vec;
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane, NvmlIndex};
use gpuslice_wire::limits::ACCOUNTS_MAX;
use gpuslice_wire::policy::{Change, Class, Gangs, Policy};
use gpuslice_wire::select::GpuSelector;
use gpuslice_wire::text::{CgroupPath, Name};
use gpuslice_wire::units::{Bytes, Instant, Percent, Weight};

use crate::grants::Granted;
use crate::no_slices::NoSlices;
use crate::record::Record;

/// Matches an answer to its request. Chosen by the caller; the engine does not interpret it, except [`Token::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl Token {
    /// Of what the engine does of its own accord: nothing asked for it. Callers that need no answer may use it too.
    pub const NONE: Token = Token(0);
}

/// A process, by its pid and start time, so that a reused pid is another process. Two connections with the
/// same value come from the same process. The engine does not interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// Its start time, in the kernel's own count.
    pub born: u64,
}

/// A container's request for a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceRequest {
    /// The container as its runtime names it.
    pub container: ContainerId,
    /// A name for people; if empty, the id's beginning is used.
    pub name: Name,
    /// The GPUs.
    pub gpus: GpuSelector,
    /// GPUs to get as a whole; of a GPU named in both, the container gets a slice.
    pub whole: Option<GpuSelector>,
    /// Memory cap on each GPU that it gets a slice of.
    pub memory: MemoryAsk,
    /// How far it may grow on each of them into what others leave unused; without one, to the cap.
    pub memory_limit: Option<MemoryAsk>,
    /// Weight for the time that shares leave; without one it is 1, or none beside a share.
    pub weight: Option<Weight>,
    /// Share of each GPU's time, if any: guaranteed whenever the container is runnable.
    pub share: Option<Percent>,
    /// The most that it gets of each GPU's time, also alone; not below the share.
    pub share_limit: Option<Percent>,
    /// Scheduling priority.
    pub class: Class,
    /// Whether its GPUs may take turns together.
    pub gang: Gangs,
    /// Cap on the host memory it pins, if any.
    pub pinned: Option<Bytes>,
    /// The most that it may ask for, if the request comes from the image.
    pub bounds: Option<Bounds>,
    /// Directory under the cgroup mount whose processes are the container's; empty if unknown. Kept for the
    /// daemon; the engine does not interpret it.
    pub cgroup: CgroupPath,
}

/// The largest request allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// GPUs.
    pub gpus: usize,
    /// Cap on each; `None` for the GPU's memory.
    pub memory: Option<MemoryAsk>,
}

/// A change of a slice's part of the GPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeChange {
    /// The change of the weight.
    pub weight: Change<Weight>,
    /// The change of the share.
    pub share: Change<Percent>,
    /// The change of the limit.
    pub share_limit: Change<Percent>,
    /// The new class; `None` keeps it.
    pub class: Option<Class>,
}

/// A process's claims about itself on one lane of its page. Untrusted: they may end or shorten its own
/// container's turn and inform observers, nothing else.
///
/// A process counts as drained when `drained` equals `active`, whatever turn that was. So a process that
/// launches again in a turn for which it claimed to be drained withdraws that claim first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// It has work to launch or in flight.
    pub runnable: bool,
    /// It may have work behind closed gates, which runs in the container's next turn.
    pub parked: bool,
    /// Last turn word in which it launched.
    pub active: u32,
    /// Last turn word after whose close it had nothing in flight.
    pub drained: u32,
    /// When its work of turn `active` began.
    pub began: Instant,
    /// When the last of its work of turn `drained` ended.
    pub calm: Instant,
    /// Bytes in allocations and everything charged beside them; unused credit is not counted.
    pub held: Bytes,
    /// The part of `held` that NVML does not show for a process.
    pub unseen: Bytes,
    /// Its contexts, with one that is being created.
    pub contexts: u32,
    /// Launches so far.
    pub launches: u64,
    /// Allocations refused by the cap so far.
    pub denied: u64,
    /// It does not tell whether it has shared GPU memory, as before its shim has written that.
    pub untold: bool,
}

/// What is charged to a slice of a GPU beyond the grants of its processes, as NVML has shown it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Untracked {
    /// Memory of attached processes.
    pub attached: Bytes,
    /// Memory of the container's other processes.
    pub unattributed: Bytes,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// No slice of the GPU is given from now on; those that it has go on.
    GpuWithoutSlices {
        /// Identity.
        uuid: GpuUuid,
        /// Why not.
        why: NoSlices,
    },
    /// Slices of the GPU are given again.
    GpuWithSlices {
        /// Identity.
        uuid: GpuUuid,
    },
    /// A container asks for a slice. Answered by `Admitted` or `Denied`.
    Admit {
        /// For the answer.
        token: Token,
        /// The request.
        ask: Box<SliceRequest>,
    },
    /// A slice from before a restart of the daemon. Answered by `Restored` or `NotRestored`. To be given
    /// after all `GpuFound` and before any event of the container's processes.
    Restore(Box<Record>),
    /// A living process of a restored container, and its grants. Answered by `ProcessRestored`; to be given
    /// before any other event of the container's processes.
    RestoreProcess {
        /// For the answer.
        token: Token,
        /// Its container.
        container: ContainerId,
        /// The process.
        process: Process,
        /// Its grants, per lane.
        granted: Granted,
    },
    /// All processes of a restored container that hold grants have been given.
    Complete {
        /// The container.
        container: ContainerId,
    },
    /// What an earlier daemon had charged a restored container beyond grants, for each GPU of its slice; to be given
    /// after its grants.
    RestoreUntracked {
        /// The container.
        container: ContainerId,
        /// Lane 0 first.
        untracked: Vec<Untracked>,
    },
    /// The processes of a restored container can attach from now on: the daemon has started, or opened its socket late.
    Opened {
        /// The container.
        container: ContainerId,
    },
    /// A container's slice ends. Answered by `Dismissed`, known or not.
    Dismiss {
        /// For the answer.
        token: Token,
        /// The container.
        container: ContainerId,
    },
    /// A process of the container connected. Answered by `Attached` or `Rejected`.
    Attach {
        /// For the answer.
        token: Token,
        /// The container whose socket it came through.
        container: ContainerId,
        /// The process, if it is known.
        process: Option<Process>,
        /// Bytes it holds already, per lane, credit included: zeros unless it lost its connection.
        held: [Bytes; ACCOUNTS_MAX],
    },
    /// A process asks for memory credit. Answered by `Reserved`, `Refused` or `Disconnect`. For a restored
    /// container the answer may wait until all processes with grants have attached again, or until
    /// [`crate::Config::restore_grace`] is over.
    Reserve {
        /// The process.
        client: ClientId,
        /// For the answer.
        token: Token,
        /// GPU of the slice.
        lane: Lane,
        /// The least useful amount.
        need: Bytes,
        /// The amount that would save round trips.
        wish: Bytes,
    },
    /// A process gives credit back.
    Release {
        /// The process.
        client: ClientId,
        /// GPU of the slice.
        lane: Lane,
        /// Bytes; more than it has is a violation and ends the connection.
        bytes: Bytes,
    },
    /// A process gives back what it does not use, because a sibling is short: its answer to a recall.
    Yield {
        /// The process.
        client: ClientId,
        /// GPU of the slice.
        lane: Lane,
        /// The recall's number, from its page.
        recall: u32,
        /// Bytes; more than it has is a violation and ends the connection.
        bytes: Bytes,
    },
    /// NVML was asked for the memory of a process on a GPU.
    Measured {
        /// The process.
        client: ClientId,
        /// GPU of the slice.
        lane: Lane,
        /// What NVML shows for it.
        used: Bytes,
        /// The process itself asked, and is told the figure: what it is granted next may be for memory that is in it.
        requested: bool,
    },
    /// NVML is about to be asked for the memory of all attached processes of a container. `Looked` follows, if
    /// NVML answers.
    Looking {
        /// The container.
        container: ContainerId,
        /// GPU of the slice.
        lane: Lane,
    },
    /// The memory in use on a device was compared with what living processes have of it.
    DeviceLooked {
        /// The device.
        gpu: GpuUuid,
        /// When NVML was asked.
        asked: Instant,
        /// What none of them explains, at least.
        least: Bytes,
        /// The same, at most: processes take and free memory while NVML is asked.
        most: Bytes,
    },
    /// All attached processes of a container were just measured, each by its `Measured`, in one query.
    Looked {
        /// The container.
        container: ContainerId,
        /// GPU of the slice.
        lane: Lane,
    },
    /// NVML was asked for the memory of the container's processes that are not attached.
    Unattributed {
        /// The container.
        container: ContainerId,
        /// GPU of the slice.
        lane: Lane,
        /// NVML's sum for all of them; zero when they are gone.
        used: Bytes,
    },
    /// NVML was asked for the memory of the processes on a device that are in no container with a slice there.
    Outside {
        /// The device.
        gpu: GpuUuid,
        /// NVML's sum for all of them.
        used: Bytes,
    },
    /// Change a slice's cap. Answered by `Resized` or `Denied`.
    Resize {
        /// For the answer.
        token: Token,
        /// The container.
        container: ContainerId,
        /// GPU of the slice, or [`Lane::HOST`].
        lane: Lane,
        /// The new cap.
        memory: MemoryAsk,
    },
    /// Change how far a slice may grow beyond its cap. Answered by `Relimited` or `Denied`.
    Relimit {
        /// For the answer.
        token: Token,
        /// The container.
        container: ContainerId,
        /// GPU of the slice.
        lane: Lane,
        /// The new limit; none for the cap.
        limit: Option<MemoryAsk>,
    },
    /// Change the policy of GPUs. Answered by `PolicySet` or `Denied`.
    SetPolicy {
        /// For the answer.
        token: Token,
        /// The GPUs; `Any` means all, too.
        gpus: Box<GpuSelector>,
        /// The new policy.
        policy: Policy,
    },
    /// Change a slice's part of the GPU time. Answered by `Retuned` or `Denied`.
    Retune {
        /// For the answer.
        token: Token,
        /// The container.
        container: ContainerId,
        /// The change.
        change: TimeChange,
        /// It undoes a change that could not be recorded: it is allowed in any case.
        undoes: bool,
    },
    /// Move a container's GPU memory to the host. Answered by `SuspensionSettled` or `Denied`.
    Suspend {
        /// For the answer.
        token: Token,
        /// The container.
        container: ContainerId,
    },
    /// Move a suspended container's memory back. Answered by `SuspensionSettled` or `Denied`.
    EndSuspension {
        /// For the answer.
        token: Token,
        /// The container.
        container: ContainerId,
    },
    /// Answers [`crate::Action::MoveMemory`].
    MemoryMoved {
        /// The container.
        container: ContainerId,
        /// Its memory is on the host, whichever way it was to be moved.
        away: bool,
        /// Its processes of which the driver does not tell that their memory is there. `None`: nothing was moved, and
        /// they are the same as before.
        stays: Option<Vec<ClientId>>,
    },
    /// A restored container was suspended before the daemon's restart.
    WasSuspended {
        /// The container.
        container: ContainerId,
        /// Of its move: [`Token::NONE`] if the engine had suspended it, and resumes it when there is room.
        token: Token,
        /// All its memory is on the host. Otherwise a move had begun, and is ordered again.
        moved: bool,
    },
    /// A process's connection ended, and the process may live: its grants stay charged until it is `Gone`,
    /// or attaches again. If it has no grants, or the id is unknown, the answer is `Disconnect`.
    Left {
        /// The process.
        client: ClientId,
    },
    /// A process has ended; all its grants are refunded. Unknown ids are ignored.
    Gone {
        /// The process.
        client: ClientId,
    },
    /// A process's page was read. **The read must be later than the performing of every action
    /// of earlier steps**: after a turn is closed on the page, what is read then tells whether
    /// the process saw the close. So: read one lane, step, perform the actions, read the next.
    Claims {
        /// The process.
        client: ClientId,
        /// GPU of the slice.
        lane: Lane,
        /// Its content.
        claims: Claims,
    },
    /// Answers [`crate::Action::Stop`].
    Stopped {
        /// The container.
        container: ContainerId,
        /// GPU of the slice.
        lane: Lane,
        /// The number of the order.
        order: u32,
        /// All of its work is stopped until it is resumed; otherwise none is.
        ok: bool,
    },
    /// Answers [`crate::Action::Resume`]: nothing is stopped any more.
    Resumed {
        /// The container.
        container: ContainerId,
        /// GPU of the slice.
        lane: Lane,
    },
    /// Record turns until then, as [`crate::Action::Recorded`]. Tells what was recorded up to now; a time that is not
    /// in the future ends the recording.
    Record {
        /// The end.
        until: Instant,
    },
    /// Time has passed: [`crate::Engine::next_deadline`] was reached, or no event arrived for a while.
    Tick,
}
