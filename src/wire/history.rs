//! What happened on a node lately: the daemon remembers events, and the CLI asks for those after a number.
//!
//! An event's container, name and text come from requests. They are [`Text`]: each character is seen, so that a
//! terminal shows the line as it is.

use crate::frame::{Field, FrameError, Reader, Writer, field_as};
use crate::ids::GpuUuid;
use crate::limits::{CONTAINER_ID_BYTES_MAX, EVENT_TEXT_BYTES_MAX};
use crate::text::{Name, Text};

/// What happened. The comment of each says what `amounts` and `text` are; zeros and empty otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The daemon began to serve. Amounts: slices restored. Text: its version.
    DaemonStarted,
    /// A container got a slice. Amounts: its GPUs, and the largest of its caps on them, bytes.
    SliceBegan,
    /// A slice ended. Text: why.
    SliceEnded,
    /// A container got no slice. Text: why.
    SliceRefused,
    /// An allocation was refused. Amounts: its bytes, and what it could have had. Text: what of, then, after a
    /// semicolon, what else its container has unused.
    MemoryRefused,
    /// A container had not drained in time, and others go on beside its work. Amounts: ns since its turn's close.
    Overrun,
    /// It has drained after that. Amounts: ns since its turn's close.
    Drained,
    /// Its work was stopped on the GPU.
    Preempted,
    /// Its cap was changed. Amounts: the old cap and the new one, bytes.
    CapChanged,
    /// Its weight, share, limit or class was changed. Text: the values from now on; of what changed, those before too.
    Retuned,
    /// The policy of GPUs was changed. Text: the new policy, and each GPU's former one.
    PolicySet,
    /// A GPU has failed, or an MPS server uses it: it takes no new slices. Amounts: the Xid, 0 for another cause. Text:
    /// the cause.
    GpuFailed,
    /// It is healthy again.
    GpuRecovered,
    /// Its GPU memory was moved to the host. Amounts: bytes. Text: how much of it may still be on the GPU.
    Suspended,
    /// It was moved back, and its processes go on. Amounts: bytes.
    Resumed,
    /// Its memory limit was changed. Amounts: the old limit and the new one, bytes. Text: the program's part, where it
    /// was not gpuslice.
    LimitChanged,
    /// It was asked to give back memory beyond its cap. Amounts: bytes.
    MemoryWanted,
    /// It has more on a GPU than its cap, by memory taken behind the shim. Amounts: what it has, its cap, bytes.
    OverCap,
    /// Its processes were frozen for that. Amounts: the same.
    Frozen,
    /// It fits its cap again, and its processes go on.
    Thawed,
    /// Its processes were killed for that. Amounts: as of `OverCap`.
    Killed,
    /// Its GPU memory was to be moved to the host or back, and was not. Text: why.
    NotMoved,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [EventKind; 22] = [
        EventKind::DaemonStarted,
        EventKind::SliceBegan,
        EventKind::SliceEnded,
        EventKind::SliceRefused,
        EventKind::MemoryRefused,
        EventKind::Overrun,
        EventKind::Drained,
        EventKind::Preempted,
        EventKind::CapChanged,
        EventKind::Retuned,
        EventKind::PolicySet,
        EventKind::GpuFailed,
        EventKind::GpuRecovered,
        EventKind::Suspended,
        EventKind::Resumed,
        EventKind::LimitChanged,
        EventKind::MemoryWanted,
        EventKind::OverCap,
        EventKind::Frozen,
        EventKind::Thawed,
        EventKind::Killed,
        EventKind::NotMoved,
    ];

    /// Its name in lists and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::DaemonStarted => "daemon-started",
            EventKind::SliceBegan => "slice-began",
            EventKind::SliceEnded => "slice-ended",
            EventKind::SliceRefused => "slice-refused",
            EventKind::MemoryRefused => "memory-refused",
            EventKind::Overrun => "overrun",
            EventKind::Drained => "drained",
            EventKind::Preempted => "preempted",
            EventKind::CapChanged => "cap-changed",
            EventKind::Retuned => "retuned",
            EventKind::PolicySet => "policy-set",
            EventKind::GpuFailed => "gpu-failed",
            EventKind::GpuRecovered => "gpu-recovered",
            EventKind::Suspended => "suspended",
            EventKind::Resumed => "resumed",
            EventKind::LimitChanged => "limit-changed",
            EventKind::MemoryWanted => "memory-wanted",
            EventKind::OverCap => "over-cap",
            EventKind::Frozen => "frozen",
            EventKind::Thawed => "thawed",
            EventKind::Killed => "killed",
            EventKind::NotMoved => "not-moved",
        }
    }
}

field_as!(EventKind as u8, |kind| *kind as u8 + 1, |raw| {
    let mut all = EventKind::ALL.into_iter();
    all.find(|it| *it as u8 + 1 == raw)
});

/// No user is known.
pub const NO_UID: u32 = u32::MAX;
/// The event is of no GPU.
pub const NO_GPU: GpuUuid = GpuUuid([0; 16]);

crate::frame::messages! {
    /// Rows of an answer to [`crate::admin::Command::Events`], ended by `End`.
    History {
        /// An event.
        501 Entry {
            /// Its number: 1 for the daemon's first, then one more for each.
            sequence: u64,
            /// When it happened, ns since 1970.
            unix_ns: u64,
            /// What happened.
            kind: EventKind,
            /// The container's id; empty for none.
            container: Text<CONTAINER_ID_BYTES_MAX>,
            /// Its name for display; empty for none.
            name: Name,
            /// The GPU, or [`NO_GPU`].
            gpu: GpuUuid,
            /// The process, in the daemon's pid namespace; 0 for none.
            pid: u32,
            /// The user that asked for it, or [`NO_UID`].
            uid: u32,
            /// The user that had logged in where that process was started (`sudo` keeps it), or [`NO_UID`].
            login_uid: u32,
            /// 1, and one more for each like it that was left out since the last one.
            count: u32,
            /// See [`EventKind`].
            amounts: [u64; 2],
            /// See [`EventKind`].
            text: Text<EVENT_TEXT_BYTES_MAX>,
        }
        /// The last frame of an answer.
        502 End {
            /// When this daemon started, ns since 1970: another daemon begins anew with its numbers.
            daemon_unix_ns: u64,
            /// Number of the last event that was looked at: ask for those after it next.
            last: u64,
            /// 1 if there are more after that, 0 if not.
            more: u32,
            /// Events that were dropped for newer ones since the start.
            dropped: u64,
        }
    }
}
