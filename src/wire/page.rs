//! Layout of the two shared pages, 4 KiB each, and who may write which.
//!
//! * [`ContainerPage`]: written by the daemon, read by every process of one container through a
//!   sealed descriptor. Facts: the cap, what is reserved, whose turn it is.
//! * [`ClientPage`]: written by one process, read by the daemon. Claims: they may end or shorten
//!   that process's own turn and feed what an observer sees; nothing else ever follows from them.
//!
//! # How a turn is handed over
//! `turn` is odd while the container may launch and even while it may not; it only grows, and is
//! the futex word waiters sleep on (a read-only mapping suffices for that). A process that launches
//! during a turn first writes the turn into its claim `active`, then looks at `turn` again, and
//! launches only if it is unchanged (both with sequentially consistent order). The daemon closes
//! the turn first and reads `active` second. So either the process saw the close, or the daemon
//! sees the process and waits for `drained` to reach `active`.
//!
//! In [`MODE_OPEN`] the word is even, and a process that begins to launch freely writes it into `active`
//! likewise, then looks whether the mode is still the same. When turns begin the daemon changes the
//! mode first and then the word, to the next even one, and reads the claims after both.
//!
//! # Who is woken
//! A turn begins hundreds of times a second, and to wake a thread is the dearest part of it. So in [`MODE_TURNS`]
//! the beginning of a turn wakes the launches that sleep on `turn`, and the futex only if there are none; the first
//! launch of a process in a turn wakes those of its own that sleep on the futex. A turn that is closed when
//! the page has told, `turn_end_ns`, wakes nobody: its processes look then. One that is closed before, or much
//! later, wakes who sleeps on either word, and so does everything else.
//!
//! # Gates in streams
//! In [`MODE_GATES`] a turn may end at any moment and is to be over soon after. So the process puts waits for
//! its word `gate` into its streams, for the GPU itself to look at, and the daemon writes that word with every
//! close and every grant. It lies in the process's own page and not in the sealed one, because the
//! driver pins what the GPU reads, perhaps only for writing too, and because somebody has to open it when
//! the daemon is gone. A process that opens it early does no more than one that never put it into its
//! streams. Only the daemon closes it. Work that is left behind a closed gate is *parked*: the process says
//! that it is quiet, with [`RUNNABLE_PARKED`], and takes part in the container's next turn whether any thread
//! of it runs or not; so it counts as quiet after that turn only once it has said so again.

use crate::limits::{ACCOUNTS_MAX, PAGE_BYTES, WIRE_VERSION};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// First word of a container page: "GSLCONT1".
pub const CONTAINER_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"GSLCONT1");
/// First word of a client page: "GSLCLNT1".
pub const CLIENT_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"GSLCLNT1");
/// Version of both layouts.
pub const PAGE_VERSION: u32 = WIRE_VERSION as u32;

/// Everybody launches freely: no turns, no windows.
pub const MODE_OPEN: u32 = 0;
/// Turns are taken; see the module's head.
pub const MODE_TURNS: u32 = 1;
/// Turns that somebody of a higher class ends at any moment: gates are wanted in the streams. A process
/// that knows nothing of that takes turns.
pub const MODE_GATES: u32 = 2;

/// The bit of `want` that says that the process has, or may have, work behind closed gates.
pub const RUNNABLE_PARKED: u32 = 2;

/// The GPU goes past the waits for this word.
pub const GATE_OPEN: u32 = 1;
/// It stops there.
pub const GATE_CLOSED: u32 = 0;

/// Memory that another container exported cannot be opened.
pub const FOREIGN_REFUSE: u32 = 0;
/// Memory that another container exported is charged to the one that opens it.
pub const FOREIGN_CHARGE: u32 = 1;

/// Daemon to the processes of one container.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct ContainerPage {
    /// [`CONTAINER_PAGE_MAGIC`].
    pub magic: AtomicU64,
    /// [`PAGE_VERSION`].
    pub version: AtomicU32,
    /// Lanes in use.
    pub lanes: AtomicU32,
    /// Which life of the daemon wrote this page.
    pub epoch: AtomicU64,
    /// CLOCK_MONOTONIC of the daemon's last sign of life, ns; stamped also when an attach is answered, which tells a
    /// process in another time namespace how far its clock is from the daemon's.
    pub heartbeat_ns: AtomicU64,
    /// How many lanes take turns. Zero is the fast path of every launch.
    pub gated: AtomicU32,
    /// Changes with any lane's `mode`, `turn` or `recall`. Futex word; see the module's head for when it is
    /// woken.
    pub futex: AtomicU32,
    /// 1 if growth and launches must hold, not run freely, while the daemon is away.
    pub hard: AtomicU32,
    /// [`FOREIGN_REFUSE`] or [`FOREIGN_CHARGE`].
    pub foreign: AtomicU32,
    /// Processes of the container that are attached. One that is alone keeps what it freed, until a
    /// recall or a quiet moment: there is nobody who could miss it.
    pub clients: AtomicU32,
    /// 1 if processes are to tell of their channel groups, so that their work can be stopped.
    pub stop: AtomicU32,
    /// One per GPU of the slice, and the host's at [`crate::ids::Lane::HOST`], which has no turns.
    pub lane: [ContainerLane; ACCOUNTS_MAX],
}

/// One GPU of a container, as the daemon says.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ContainerLane {
    /// The GPU's UUID, first half, big-endian bytes as in [`crate::ids::GpuUuid`].
    pub uuid_high: AtomicU64,
    /// Second half.
    pub uuid_low: AtomicU64,
    /// Memory cap, bytes.
    pub cap: AtomicU64,
    /// Reserved by all processes, unused credit included, bytes.
    pub reserved: AtomicU64,
    /// When the present turn ends unless extended, CLOCK_MONOTONIC ns.
    pub turn_end_ns: AtomicU64,
    /// Turn word: odd = may launch. Futex word.
    pub turn: AtomicU32,
    /// [`MODE_OPEN`], [`MODE_TURNS`] or [`MODE_GATES`].
    pub mode: AtomicU32,
    /// How much work may be in flight near the end of a turn, µs.
    pub window_us: AtomicU32,
    /// Idle this long with nothing in flight: give the turn back, µs.
    pub idle_us: AtomicU32,
    /// Grows when a process of the container is short of memory: each of the others answers once
    /// with [`crate::tenant::Request::Yield`].
    pub recall: AtomicU32,
    /// What a first context on this GPU takes, as far as was seen yet, KiB; 0 = not known.
    pub context_kib: AtomicU32,
}

/// One process to the daemon.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct ClientPage {
    /// [`CLIENT_PAGE_MAGIC`], written by the daemon before the page is sent.
    pub magic: AtomicU64,
    /// [`PAGE_VERSION`].
    pub version: AtomicU32,
    reserved: [u32; 13],
    /// One per GPU of the slice, and the host's.
    pub lane: [ClientLane; ACCOUNTS_MAX],
}

/// One GPU of a process, as the process claims.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ClientLane {
    /// Bytes held in allocations (credit not included).
    pub held: AtomicU64,
    /// Launches that came through the gate: all while turns are taken, one in some milliseconds
    /// while everybody launches freely and nothing is counted on the way.
    pub launches: AtomicU64,
    /// Allocations refused by the cap so far.
    pub denied: AtomicU64,
    /// When the process's work in turn `active` began, as far as it can tell, CLOCK_MONOTONIC ns.
    pub began_ns: AtomicU64,
    /// The part of `held` that NVML does not show for a process, bytes: managed memory.
    pub unseen: AtomicU64,
    /// Not 0 while the process has work it wants to launch or has in flight; see [`RUNNABLE_PARKED`].
    pub runnable: AtomicU32,
    /// Last turn word in which the process launched.
    pub active: AtomicU32,
    /// Last turn word after whose close the process had nothing in flight any more.
    pub drained: AtomicU32,
    /// [`GATE_OPEN`] or [`GATE_CLOSED`]: read by the GPU, written by the daemon, and opened by the
    /// process when the daemon is gone.
    pub gate: AtomicU32,
    /// When the last of turn `drained` ended, as far as the process can tell, CLOCK_MONOTONIC ns.
    pub drained_ns: AtomicU64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<ContainerPage>() == PAGE_BYTES && size_of::<ClientPage>() == PAGE_BYTES);
    assert!(offset_of!(ContainerPage, gated) == 32 && offset_of!(ContainerPage, lane) == 64);
    assert!(offset_of!(ClientPage, lane) == 64);
    assert!(size_of::<ContainerLane>() == 64 && size_of::<ClientLane>() == 64);
    assert!(offset_of!(ContainerLane, turn) == 40 && offset_of!(ContainerLane, idle_us) == 52);
    assert!(offset_of!(ClientLane, runnable) == 40 && offset_of!(ClientLane, drained_ns) == 56);
};

/// Whether a turn word lets its container launch.
#[must_use]
pub const fn may_launch(turn: u32) -> bool {
    turn % 2 == 1
}
