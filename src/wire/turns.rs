//! Recorded turns: which container had a GPU from when to when, and what it was charged.

use crate::frame::{Field, FrameError, Reader, Writer, field_as, record};
use crate::ids::{ContainerId, GpuUuid};
use crate::text::Name;

/// Stretches of a frame.
pub const TURNS_OF_FRAME: usize = 128;

/// How a container had the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnKind {
    /// It had its turn.
    #[default]
    Turn,
    /// Its turn was closed, and it had not drained yet.
    Drain,
    /// It had not drained in time, and had work beside the turns of others.
    Overrun,
    /// No turns were taken: it was alone, or the policy has none.
    Open,
}

impl TurnKind {
    /// All kinds.
    pub const ALL: [TurnKind; 4] =
        [TurnKind::Turn, TurnKind::Drain, TurnKind::Overrun, TurnKind::Open];

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TurnKind::Turn => "turn",
            TurnKind::Drain => "drain",
            TurnKind::Overrun => "overrun",
            TurnKind::Open => "open",
        }
    }
}

field_as!(TurnKind as u8, |kind| *kind as u8 + 1, |raw| {
    let mut all = TurnKind::ALL.into_iter();
    all.find(|it| *it as u8 + 1 == raw)
});

record! {
    /// A stretch of time in which a container had a GPU in one way.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    TurnRow {
        /// The number of its [`Turns::Track`].
        track: u32,
        /// How it had the GPU.
        kind: TurnKind,
        /// CLOCK_MONOTONIC of its begin, ns.
        from_ns: u64,
        /// CLOCK_MONOTONIC of its end, ns.
        to_ns: u64,
        /// GPU time charged for it, ns. The sum over all rows of a recording is what the container got in it.
        gpu_ns: u64,
    }
}

crate::frame::messages! {
    /// Rows of an answer to [`crate::admin::Command::Record`], ended by `End`.
    Turns {
        /// A container on a GPU, before the first row that names it.
        611 Track {
            /// Its number.
            number: u32,
            /// The container's id.
            container: ContainerId,
            /// Its name for display; empty for none.
            name: Name,
            /// The GPU.
            gpu: GpuUuid,
        }
        /// Stretches, in the order of their ends.
        612 Rows {
            /// How many of `rows` are used.
            count: u32,
            /// The stretches.
            rows: [TurnRow; TURNS_OF_FRAME],
        }
        /// The last frame of an answer.
        613 End {
            /// CLOCK_MONOTONIC up to which the recording is complete, ns.
            now_ns: u64,
            /// The same instant, ns since 1970.
            unix_ns: u64,
            /// The number of the last row in this answer: ask for those after it next.
            last: u64,
            /// 1 if there are more after that, 0 if not.
            more: u32,
            /// Rows after the asked number that were dropped for newer ones.
            dropped: u64,
        }
    }
}
