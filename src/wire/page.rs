//! Layout of the two shared pages of 4 KiB each, and their writers; [`crate::usage`] has a third mapping.
//!
//! * [`ContainerPage`]: written by the daemon, read by every process of one container through a
//!   sealed descriptor. Facts: the cap, the reserved bytes, the state of the turn.
//! * [`ClientPage`]: written by one process, read by the daemon. Claims: they may end or shorten
//!   that process's own turn, and are displayed; they have no other effect.
//!
//! # How a turn is handed over
//! `turn` is odd while the container may launch and even while it may not. It only grows, and is
//! the futex word on which launches wait (a read-only mapping suffices for that). A process that launches
//! during a turn first writes the turn into its claim `active`, then reads `turn` again, and
//! launches only if it is unchanged (both sequentially consistent). The daemon closes the turn
//! first and reads `active` second. So either the process sees the close, or the daemon
//! sees the claim and waits for `drained` to reach `active`.
//!
//! In [`MODE_OPEN`] the word is even. A process that begins to launch without turns writes it into `active`
//! too, then checks that the mode is unchanged. When turns begin, the daemon changes the mode first and then
//! the word, to the next even one, and reads the claims after both.
//!
//! # Wake-ups
//! A turn begins hundreds of times a second, and waking a thread is its most expensive part. So in
//! [`MODE_TURNS`] the beginning of a turn wakes the launches that wait on `turn`, and the gate threads, which
//! wait on `futex`, only if no launch waits. A process's first launch in a turn wakes its own gate thread. A
//! turn closed at its announced end, `turn_end_ns`, wakes no thread: its processes check at that time. A turn
//! closed earlier, or much later, wakes the waiters on both words, and so does every other change.
//!
//! # Gates in streams
//! In [`MODE_GATES`] a turn may end at any moment and must drain soon after. So the process puts waits for
//! its word `gate` into its streams, which the GPU itself evaluates, and the daemon writes that word with
//! every close and every grant. The word lies in the process's own page and not in the sealed one: the
//! driver pins the memory that the GPU reads, perhaps only if it is writable, and the process must open the
//! gate when the daemon is gone. A process that opens it early gains no more than one without gates in its
//! streams. Only the daemon closes it. Work left behind a closed gate is *parked*: the process reports itself
//! drained, with [`RUNNABLE_PARKED`]. It takes part in the container's next turn even if none of its threads
//! runs, so after that turn it counts as drained only once it has reported so again.

use crate::family::Family;
use crate::limits::{ACCOUNTS_MAX, PAGE_BYTES};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// First word of a container page: "GSLCONT1".
pub const CONTAINER_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"GSLCONT1");
/// First word of a client page: "GSLCLNT1".
pub const CLIENT_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"GSLCLNT1");
/// Version of both layouts. New fields in unused room leave it as it is.
pub const PAGE_VERSION: u32 = 1;

/// All containers launch freely: no turns, no windows.
pub const MODE_OPEN: u32 = 0;
/// Turns are taken; see the module's head.
pub const MODE_TURNS: u32 = 1;
/// Turns that a container of a higher class may end at any moment: processes put gates into their streams.
/// A process that does not support gates takes turns as in [`MODE_TURNS`].
pub const MODE_GATES: u32 = 2;

/// The bit of `runnable` that is set while the process has, or may have, work behind closed gates.
pub const RUNNABLE_PARKED: u32 = 2;

/// The GPU passes the waits for this word.
pub const GATE_OPEN: u32 = 1;
/// The GPU stops at the waits for this word.
pub const GATE_CLOSED: u32 = 0;

/// In [`ClientPage::shared`]: the process has exported and imported nothing.
pub const SHARES_NOTHING: u32 = 1;

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
    /// Incarnation of the daemon that wrote this page.
    pub epoch: AtomicU64,
    /// CLOCK_MONOTONIC of the daemon's last heartbeat, ns. Also written when an attach is answered, so that a
    /// process in another time namespace can compute the offset of its clock.
    pub heartbeat_ns: AtomicU64,
    /// Number of lanes that take turns. Zero is the fast path of every launch.
    pub gated: AtomicU32,
    /// Futex word of the gate threads. Changes with any lane's `mode`, `turn` or `recall`; the module's head
    /// says when its waiters are woken.
    pub futex: AtomicU32,
    /// 1 if growth and launches must hold, not run freely, while the daemon is away.
    pub hard: AtomicU32,
    /// [`FOREIGN_REFUSE`] or [`FOREIGN_CHARGE`].
    pub foreign: AtomicU32,
    /// Attached processes of the container. A single process keeps freed memory as credit until a recall or
    /// until the credit is idle, since no other process could use it.
    pub clients: AtomicU32,
    /// Not 0 if processes report their channel groups, so that the daemon can stop their work; [`STOP_CHANNELS`] if
    /// they report the groups' channels, too.
    pub stop: AtomicU32,
    /// Not 0 from before the daemon lets the driver lock the container's processes until after it has unlocked them.
    /// Meanwhile a process makes no call that waits for a context or a stream: the driver does not hold these back,
    /// and one ends the process while its memory is on the host. Futex word of the threads that wait with such a call.
    pub suspended: AtomicU32,
    /// One per GPU of the slice, and one for the host at [`crate::ids::Lane::HOST`], which has no turns.
    pub lane: [ContainerLane; ACCOUNTS_MAX],
    /// Bytes in use of each account that no process has in its slot of the [`crate::usage::UsageTable`]: memory
    /// that NVML shows beyond all grants.
    pub untracked: [AtomicU64; ACCOUNTS_MAX],
}

/// The daemon stops work by the channels of groups. Older ones, which stopped groups, have 1 here.
pub const STOP_CHANNELS: u32 = 2;

/// The facts of one GPU of a container.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ContainerLane {
    /// The GPU's UUID, first half, big-endian bytes as in [`crate::ids::GpuUuid`].
    pub uuid_high: AtomicU64,
    /// Second half.
    pub uuid_low: AtomicU64,
    /// Memory cap, bytes.
    pub cap: AtomicU64,
    /// Reserved by all processes, unused credit included, bytes. Processes of frame version 1 read it.
    pub reserved: AtomicU64,
    /// End of the present turn unless extended, CLOCK_MONOTONIC ns.
    pub turn_end_ns: AtomicU64,
    /// Turn word: odd = may launch. Futex word of waiting launches.
    pub turn: AtomicU32,
    /// [`MODE_OPEN`], [`MODE_TURNS`] or [`MODE_GATES`].
    pub mode: AtomicU32,
    /// Limit of work in flight near the end of a turn, µs.
    pub window_us: AtomicU32,
    /// A process keeps its turn for at most this long while it has nothing on the GPU, µs; in [`MODE_OPEN`],
    /// it claims work for this long after its last launch.
    pub idle_us: AtomicU32,
    /// Incremented when a process of the container is short of memory: each other process answers once
    /// with [`crate::tenant::Request::Yield`].
    pub recall: AtomicU32,
    /// Memory that a first context of the container takes on this GPU, as observed, KiB; 0 = unknown.
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
    /// The process's slot of the [`crate::usage::UsageTable`], or [`crate::usage::NO_SLOT`]; written by the daemon
    /// before the page is sent.
    pub slot: AtomicU32,
    /// 0 from a shim that does not count them; else [`SHARES_NOTHING`] and the number of times that the process has
    /// exported GPU memory to other processes, or imported theirs. Only a call that the driver refuses is taken back:
    /// whether a handle is still open in another process is not known. A process counts first, reads
    /// [`ContainerPage::suspended`] second, and takes it back and waits if that is set. The daemon sets that first and
    /// reads the count second (all sequentially consistent). So the daemon sees each call that reaches the driver.
    pub shared: AtomicU32,
    reserved: [u32; 11],
    /// One per GPU of the slice, and the host's.
    pub lane: [ClientLane; ACCOUNTS_MAX],
    /// The same; zeros from a process whose shim counts no families.
    pub families: [ClientFamilies; ACCOUNTS_MAX],
}

/// What the memory of a process on one GPU is used for: for display alone. The part of `held` that is in no family is
/// in plain allocations, so the path of a small allocation counts nothing here.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ClientFamilies {
    /// In the order of [`Family::ALL`].
    pub bytes: [AtomicU64; Family::ALL.len()],
    /// Contexts.
    pub contexts: AtomicU32,
}

/// The claims of a process for one GPU.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ClientLane {
    /// Bytes held in allocations (credit not included), as of the last request or later. What counts is the process's
    /// slot of the [`crate::usage::UsageTable`], where it has one.
    pub held: AtomicU64,
    /// Launches on the gate's slow path: all while turns are taken, one in some milliseconds in
    /// [`MODE_OPEN`], where the fast path counts nothing.
    pub launches: AtomicU64,
    /// Allocations refused by the cap so far.
    pub denied: AtomicU64,
    /// Estimated start of the process's work in turn `active`, CLOCK_MONOTONIC ns.
    pub began_ns: AtomicU64,
    /// The part of `held` that NVML does not show for a process, bytes: managed memory.
    pub unseen: AtomicU64,
    /// Not 0 while the process has work to launch or in flight; see [`RUNNABLE_PARKED`].
    pub runnable: AtomicU32,
    /// Last turn word in which the process launched.
    pub active: AtomicU32,
    /// Last turn word after whose close the process had no work in flight.
    pub drained: AtomicU32,
    /// [`GATE_OPEN`] or [`GATE_CLOSED`]: read by the GPU, written by the daemon, and opened by the
    /// process when the daemon is gone.
    pub gate: AtomicU32,
    /// Estimated end of the last work of turn `drained`, CLOCK_MONOTONIC ns.
    pub drained_ns: AtomicU64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<ContainerPage>() == PAGE_BYTES && size_of::<ClientPage>() == PAGE_BYTES);
    assert!(offset_of!(ContainerPage, gated) == 32 && offset_of!(ContainerPage, lane) == 64);
    assert!(offset_of!(ContainerPage, suspended) == 56);
    assert!(offset_of!(ContainerPage, untracked) == 64 + 64 * ACCOUNTS_MAX);
    assert!(offset_of!(ClientPage, shared) == 16 && offset_of!(ClientPage, lane) == 64);
    assert!(size_of::<ContainerLane>() == 64 && size_of::<ClientLane>() == 64);
    assert!(offset_of!(ClientPage, families) == 1152 && size_of::<ClientFamilies>() == 64);
    assert!(offset_of!(ContainerLane, turn) == 40 && offset_of!(ContainerLane, idle_us) == 52);
    assert!(offset_of!(ClientLane, runnable) == 40 && offset_of!(ClientLane, drained_ns) == 56);
};

/// Whether the turn word allows its container to launch.
#[must_use]
pub const fn may_launch(turn: u32) -> bool {
    turn % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_turn_word_allows_launches() {
        assert_eq!(
            [0, 1, 2, 3, u32::MAX - 1, u32::MAX].map(may_launch),
            [false, true, false, true, false, true]
        );
    }
}
