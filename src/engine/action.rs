//! Actions: the only outputs of the engine, to be performed in the order given.

use alloc::boxed::Box;
use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::policy::Policy;
use gpuslice_wire::tenant::Rejection;
use gpuslice_wire::turns::TurnKind;
use gpuslice_wire::units::{Bytes, Duration, Instant};

use crate::event::{TimeChange, Token};
use crate::record::Record;
use crate::refusal::Refusal;

/// Whether launches on a GPU wait for turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every container launches freely.
    Open,
    /// At most one container launches at a time.
    Turns,
}

impl Mode {
    /// Its value on the page.
    #[must_use]
    pub const fn word(self) -> u32 {
        match self {
            Mode::Open => gpuslice_wire::page::MODE_OPEN,
            Mode::Turns => gpuslice_wire::page::MODE_TURNS,
        }
    }
}

/// The changing part of a container's page for one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// Open, or turns.
    pub mode: Mode,
    /// Its streams have gates, so that it drains soon whenever its turn ends.
    pub gates: bool,
    /// The GPU may go past these gates.
    pub gate_open: bool,
    /// Turn word: odd = may launch.
    pub turn: u32,
    /// When the present turn ends unless extended.
    pub turn_end: Instant,
    /// Work that may be in flight near the turn's end, µs.
    pub window_us: u32,
    /// Idle this long with nothing in flight: give the turn back, µs.
    pub idle_us: u32,
    /// Memory that the container sees as the GPU's total: its limit, mostly its cap.
    pub cap: Bytes,
    /// Reserved by all processes, including unused credit, and the memory that none of them can have.
    pub reserved: Bytes,
    /// The part that no process has reserved: measured memory beyond all grants, and below a limit above the cap
    /// what other containers use.
    pub untracked: Bytes,
    /// Grows when a process is short of memory: each of the others gives back what it does not use.
    pub recall: u32,
    /// Memory that a first context of the container takes on this GPU; zero if it is not known.
    pub context: Bytes,
}

/// Why the engine ends a process's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The process broke a rule; it receives the rule before the connection ends.
    Broke(Rejection),
    /// The container's slice ended.
    Dismissed,
    /// It holds nothing, or its process attached anew and took over what it held.
    Over,
}

/// How late a container is in draining after its turn was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Not drained after `drain`: reported, and the other containers still wait for it.
    Waiting,
    /// Not drained after `drain_max`: others get turns beside it, and it is charged until it drains.
    Overrun,
    /// Drained after an overrun.
    Drained,
}

/// A stretch of time in which a container had the GPU in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// How.
    pub kind: TurnKind,
    /// Its begin.
    pub from: Instant,
    /// Its end.
    pub to: Instant,
    /// GPU time charged for it.
    pub charged: Duration,
}

/// Credit of a container: granted to its processes, and used by none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Of the process that asked.
    pub own: Bytes,
    /// Of its other processes.
    pub others: Bytes,
}

/// A changed cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapChange {
    /// GPU of the slice, or [`Lane::HOST`].
    pub lane: Lane,
    /// The old cap.
    pub was: Bytes,
    /// The new one.
    pub cap: Bytes,
    /// The old memory limit: one that equals the new cap changes with the cap when the old one is set again.
    pub limit: Bytes,
    /// Reserved bytes: more than the cap if that was lowered below them.
    pub reserved: Bytes,
}

/// An action for the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The slice exists. Write the record down and make the pages before answering.
    Admitted {
        /// Of the `Admit`.
        token: Token,
        /// The promise.
        record: Box<Record>,
    },
    /// Refused; nothing changed.
    Denied {
        /// Of the `Admit` or `Resize`.
        token: Token,
        /// Data whose `Display` is for the person; `.denial()` is the wire's kind.
        why: Refusal,
    },
    /// A slice from before a restart is known again. Make its pages.
    Restored {
        /// The container.
        container: ContainerId,
        /// GPUs of the slice.
        lanes: u8,
    },
    /// A slice from before a restart could not be restored.
    NotRestored {
        /// The container.
        container: ContainerId,
        /// The reason.
        why: Refusal,
    },
    /// The cap changed. Write the record again before answering.
    Resized {
        /// Of the `Resize`.
        token: Token,
        /// The promise from now on.
        record: Box<Record>,
        /// The change.
        change: CapChange,
    },
    /// The memory limit changed. Write the record again before answering.
    Relimited {
        /// Of the `Relimit`.
        token: Token,
        /// The promise from now on.
        record: Box<Record>,
        /// The change; its `was` and `cap` are limits.
        change: CapChange,
    },
    /// A container should give back so much of the memory beyond its cap on this GPU; zero when it need not any more.
    Wanted {
        /// The container.
        container: ContainerId,
        /// GPU of the slice.
        lane: Lane,
        /// The amount.
        bytes: Bytes,
    },
    /// The policy changed. Write it down before answering.
    PolicySet {
        /// Of the `SetPolicy`.
        token: Token,
        /// The new policy.
        policy: Policy,
        /// The GPUs and their former policies.
        was: Vec<(GpuUuid, Policy)>,
    },
    /// The slice's part of the GPU time changed. Write the record again before answering.
    Retuned {
        /// Of the `Retune`.
        token: Token,
        /// The promise from now on.
        record: Box<Record>,
        /// The change that undoes it.
        was: TimeChange,
    },
    /// The slice is gone: delete record, socket and pages.
    Dismissed {
        /// Of the `Dismiss`.
        token: Token,
        /// The container.
        container: ContainerId,
        /// Whether the slice existed.
        known: bool,
    },
    /// The process is attached. Make its page and answer it. If it is its container's only one, changed
    /// pages come before this.
    Attached {
        /// Of the `Attach`.
        token: Token,
        /// Its identity from now on.
        client: ClientId,
        /// Its container.
        container: ContainerId,
        /// GPUs of the slice.
        lanes: u8,
    },
    /// The process and its grants are restored; it has no connection. Wait for its end.
    ProcessRestored {
        /// Of the `RestoreProcess`.
        token: Token,
        /// Its identity from now on.
        client: ClientId,
    },
    /// The process may not attach: answer and end the connection.
    Rejected {
        /// Of the `Attach`.
        token: Token,
        /// The rule.
        why: Rejection,
    },
    /// Credit granted.
    Reserved {
        /// The process.
        client: ClientId,
        /// Of the `Reserve`.
        token: Token,
        /// GPU of the slice.
        lane: Lane,
        /// Bytes granted: between need and wish.
        bytes: Bytes,
    },
    /// The cap is reached.
    Refused {
        /// The process.
        client: ClientId,
        /// Of the `Reserve`.
        token: Token,
        /// GPU of the slice.
        lane: Lane,
        /// Bytes needed.
        need: Bytes,
        /// Bytes left: under the limit, and on the GPU.
        left: Bytes,
        /// Unused credit of the container, which is in neither.
        credit: Credit,
        /// The memory is promised to the container, and others that borrowed it did not give it back in time.
        overdue: bool,
    },
    /// End the connection, if there is one. The engine has forgotten the process and refunded its grants,
    /// unless it broke a rule: then they stay charged, as after `Left`.
    Disconnect {
        /// The process.
        client: ClientId,
        /// The reason.
        why: Cut,
    },
    /// Write the changes to the container's page and wake its waiters.
    SetLane {
        /// The container.
        container: ContainerId,
        /// The lane.
        lane: Lane,
        /// The new content.
        view: LaneView,
    },
    /// Read this lane of the process's page now, as a `Claims` event.
    ReadClaims {
        /// The process.
        client: ClientId,
        /// The lane.
        lane: Lane,
    },
    /// Stop the work of all processes of a container on a GPU that are attached now. Answered by
    /// [`crate::Event::Stopped`].
    Stop {
        /// The container.
        container: ContainerId,
        /// The lane.
        lane: Lane,
        /// The number of this order, for its answer.
        order: u32,
    },
    /// Resume the stopped work. Answered by [`crate::Event::Resumed`].
    Resume {
        /// The container.
        container: ContainerId,
        /// The lane.
        lane: Lane,
    },
    /// Move the GPU memory of all processes of the container to the host, or back. Answered by
    /// [`crate::Event::MemoryMoved`].
    MoveMemory {
        /// Of the `Suspend` or `EndSuspension`.
        token: Token,
        /// The container.
        container: ContainerId,
        /// To the host.
        away: bool,
        /// Its memory.
        memory: Bytes,
    },
    /// A container's memory stays where it is, for lack of room.
    NoRoomToMove {
        /// Of the `Suspend` or `EndSuspension`.
        token: Token,
        /// The container.
        container: ContainerId,
        /// What lacks room.
        why: Refusal,
    },
    /// A container's memory was moved, or stays where it was.
    SuspensionSettled {
        /// Of the `Suspend` or `EndSuspension`.
        token: Token,
        /// The container.
        container: ContainerId,
        /// It is suspended.
        away: bool,
        /// Its memory.
        memory: Bytes,
        /// The part of it that may still be on the GPU.
        left: Bytes,
    },
    /// A recorded stretch of time on a GPU has ended.
    Recorded {
        /// The container.
        container: ContainerId,
        /// The GPU.
        gpu: GpuUuid,
        /// The stretch.
        stretch: Stretch,
    },
    /// For the log: a container drains late.
    Late {
        /// The container.
        container: ContainerId,
        /// The lane.
        lane: Lane,
        /// The stage.
        stage: Late,
        /// Time since its turn was closed.
        after: Duration,
    },
}

/// The buffer of a step's actions; the caller reuses it.
pub type Actions = Vec<Action>;
