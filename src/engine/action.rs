//! What is to be done: the only outputs of the engine, to be performed in the order given.

use alloc::vec::Vec;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid, Lane};
use gpuslice_wire::policy::Policy;
use gpuslice_wire::tenant::Rejection;
use gpuslice_wire::units::{Bytes, Duration, Instant};

use crate::event::{TimeChange, Token};
use crate::record::Record;
use crate::refusal::Refusal;

/// Whether launches on a GPU wait for turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everybody launches freely.
    Open,
    /// At most one container launches at a time.
    Turns,
}

impl Mode {
    /// The page's word for it.
    #[must_use]
    pub const fn word(self) -> u32 {
        match self {
            Mode::Open => gpuslice_wire::page::MODE_OPEN,
            Mode::Turns => gpuslice_wire::page::MODE_TURNS,
        }
    }
}

/// All that a container's page says about one lane and that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// Free, or by turns.
    pub mode: Mode,
    /// Its streams are to have gates in them, so that it is quiet soon whenever its turn ends.
    pub gates: bool,
    /// The GPU may go past such gates.
    pub gate_open: bool,
    /// Turn word: odd = may launch.
    pub turn: u32,
    /// When the present turn ends unless extended.
    pub turn_end: Instant,
    /// Work that may be in flight near the turn's end, µs.
    pub window_us: u32,
    /// Idle this long with nothing in flight: give the turn back, µs.
    pub idle_us: u32,
    /// Memory cap.
    pub cap: Bytes,
    /// Reserved by all processes, unused credit and what was measured beyond it included.
    pub reserved: Bytes,
    /// Grows when a process is short of memory: each of the others yields what it does not use.
    pub recall: u32,
    /// What a first context on this GPU takes, as far as is known; zero if it is not.
    pub context: Bytes,
}

/// Why the engine ends a process's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The process broke a rule; it is told which before the connection ends.
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

/// A cap that is another now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapChange {
    /// GPU of the slice, or [`Lane::HOST`].
    pub lane: Lane,
    /// The old cap.
    pub was: Bytes,
    /// The new one.
    pub cap: Bytes,
    /// What is reserved: more than the cap if that was lowered below it.
    pub reserved: Bytes,
}

/// Something the daemon has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // a few per step, in a vector that is reused
pub enum Action {
    /// The slice exists. Write the record down and make the pages before answering.
    Admitted {
        /// Of the `Admit`.
        token: Token,
        /// What was promised.
        record: Record,
    },
    /// Refused; nothing changed.
    Denied {
        /// Of the `Admit` or `Resize`.
        token: Token,
        /// Data whose `Display` is for the person; `.denial()` is the wire's kind.
        why: Refusal,
    },
    /// A slice of an earlier life is known again. Make its pages.
    Restored {
        /// Whose.
        container: ContainerId,
        /// GPUs of the slice.
        lanes: u8,
    },
    /// A slice of an earlier life could not be taken up.
    NotRestored {
        /// Whose.
        container: ContainerId,
        /// Why.
        why: Refusal,
    },
    /// The cap is another. Write the record down again before answering.
    Resized {
        /// Of the `Resize`.
        token: Token,
        /// What is promised now.
        record: Record,
        /// What changed in it.
        change: CapChange,
    },
    /// Time is divided in this way from now on. Write it down before answering.
    PolicySet {
        /// Of the `SetPolicy`.
        token: Token,
        /// How.
        policy: Policy,
        /// Of which GPUs, and how it was before.
        was: Vec<(GpuUuid, Policy)>,
    },
    /// The slice's part of time is another. Write the record down again before answering.
    Retuned {
        /// Of the `Retune`.
        token: Token,
        /// What is promised now.
        record: Record,
        /// What was before, as a wish for just that.
        was: TimeChange,
    },
    /// The slice is gone: delete record, socket and pages.
    Dismissed {
        /// Of the `Dismiss`.
        token: Token,
        /// Whose.
        container: ContainerId,
        /// Whether there was one.
        known: bool,
    },
    /// The process is known. Make its page and answer it. If it is its container's only one, pages that change with
    /// it come before this.
    Attached {
        /// Of the `Attach`.
        token: Token,
        /// Its identity from now on.
        client: ClientId,
        /// Whose process it is.
        container: ContainerId,
        /// GPUs of the slice.
        lanes: u8,
    },
    /// The process is known, and what it was granted; it has no connection. Wait for its end.
    ProcessRestored {
        /// Of the `Account`.
        token: Token,
        /// Its identity from now on.
        client: ClientId,
    },
    /// The process may not attach: answer and end the connection.
    Rejected {
        /// Of the `Attach`.
        token: Token,
        /// Which rule.
        why: Rejection,
    },
    /// Credit granted.
    Reserved {
        /// Who.
        client: ClientId,
        /// Of the `Reserve`.
        token: Token,
        /// GPU of the slice.
        lane: Lane,
        /// How much: between need and wish.
        bytes: Bytes,
    },
    /// The cap is reached.
    Refused {
        /// Who.
        client: ClientId,
        /// Of the `Reserve`.
        token: Token,
        /// GPU of the slice.
        lane: Lane,
        /// What was needed.
        need: Bytes,
        /// What is left under the cap.
        left: Bytes,
    },
    /// End the connection, if there is one. The engine has forgotten the process and refunded what it
    /// had, unless it broke a rule: then what it was granted stays charged, as if it had `Left`.
    Disconnect {
        /// Who.
        client: ClientId,
        /// Why.
        why: Cut,
    },
    /// Write what changed to the container's page and wake its waiters.
    SetLane {
        /// Whose page.
        container: ContainerId,
        /// Which lane.
        lane: Lane,
        /// What it says now.
        view: LaneView,
    },
    /// Read this lane of all pages of the container's processes now, each as a `Claims` event.
    ReadClaims {
        /// Whose.
        container: ContainerId,
        /// Which lane.
        lane: Lane,
    },
    /// Take the work of all processes of a container off a GPU, where it is. Answered by
    /// [`crate::Event::Stopped`].
    Stop {
        /// Whose.
        container: ContainerId,
        /// Which lane.
        lane: Lane,
    },
    /// Let the work that was stopped go on. Answered by [`crate::Event::Resumed`].
    Resume {
        /// Whose.
        container: ContainerId,
        /// Which lane.
        lane: Lane,
    },
    /// For the log: a container drains late.
    Late {
        /// Whose.
        container: ContainerId,
        /// Which lane.
        lane: Lane,
        /// How far it has come.
        stage: Late,
        /// Since its turn was closed.
        after: Duration,
    },
}

/// Where a step puts its actions; the caller's, so that it is reused.
pub type Actions = Vec<Action>;
