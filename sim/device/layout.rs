//! The plain data all processes map: whole numbers only, so that every bit pattern is a value and
//! a file of zeros is an empty machine.
//!
//! The file is one `Header` (constants, and the words used outside the lock) and one `State`
//! (changed under the lock alone). It is sparse: unused entries cost nothing. A change of any of
//! these types changes `VERSION`, and a directory of another version is refused.

use crate::config::Config;
use crate::faults::Faults;
use crate::limits::*;
use crate::properties::{Properties, Span, mix};
use std::sync::atomic::{AtomicU32, AtomicU64};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"gpusimdv");
pub(crate) const VERSION: u32 = 17;
pub(crate) const STATE_AT: usize = 32768;
pub(crate) const FILE_BYTES: usize = STATE_AT + size_of::<State>();

/// The first pages. Written once before the file gets its name, except for the atomics.
#[repr(C)]
pub(crate) struct Header {
    pub magic: u64,
    pub version: u32,
    pub gpus: u32,
    pub file_bytes: u64,
    pub context_pages: u32,
    /// On top of that for the first context of a process on a GPU.
    pub first_context_pages: u32,
    /// Least memory of a loaded module; none has any where this is 0.
    pub module_pages: u32,
    /// A [`crate::config::Limits`].
    pub limits: u32,
    /// A [`crate::config::Controls`].
    pub controls: u32,
    pub driver: [u32; 2],
    pub compute_capability: [u32; 2],
    pub multiprocessors: u32,
    pub properties: Properties,
    pub devices: [Device; MAX_GPUS],
    /// The word of [`crate::lock`].
    pub lock: AtomicU32,
    /// Counts Xid events; a futex on which listeners wait.
    pub events: AtomicU32,
    /// Bits of the GPUs on which NVML lists a client of an MPS server; at first those of the properties.
    pub mps: AtomicU32,
    /// By slot: recognises a process among its own libraries (see [`crate::alive`]).
    pub identities: [AtomicU64; MAX_PROCESSES],
    /// By slot: not 0 from the attachment of a process until the device has taken back all that it held. No other
    /// process gets the slot meanwhile.
    pub taken: [AtomicU32; MAX_PROCESSES],
    /// By slot: how far a checkpoint of the process is, one of the constants of [`crate::machine`]'s `checkpoint`.
    /// Changed under the lock; read by each of the process's calls.
    pub frozen: [AtomicU32; MAX_PROCESSES],
    /// By slot: when a move of the process's memory that is under way is due.
    pub moves_due_ns: [AtomicU64; MAX_PROCESSES],
    /// By slot: not 0 while submitted work needs a thread of the process.
    pub unsettled: [AtomicU32; MAX_PROCESSES],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub uuid: [u8; 16],
    pub pages: u32,
    pub name_len: u32,
    pub name: [u8; NAME_BYTES],
}

const _: () = assert!(size_of::<Header>() <= STATE_AT);
const _: () = assert!(STATE_AT.is_multiple_of(align_of::<State>()));

/// The data under the lock.
#[repr(C)]
pub(crate) struct State {
    pub slots: [Slot; MAX_PROCESSES],
    pub events: [Event; EVENTS],
    pub event_count: u64,
    pub last_reap_ns: u64,
    /// No slot from this one on was ever used.
    pub slots_used: u64,
    /// Not 0 while memory of a process may be on its way to the host or back.
    pub moves: u64,
    /// Processes whose end took time.
    pub ends: u64,
    pub faults: Faults,
    pub contexts: [Context; MAX_CONTEXTS],
    pub quotas: [Quota; MAX_QUOTAS],
    /// No place from this one on was ever used.
    pub quotas_used: u64,
    pub marks: [Mark; MAX_MARKS],
    pub gpus: [Gpu; MAX_GPUS],
}

/// A [`Slot::kind`]: a process that only reads.
pub(crate) const OBSERVER: u32 = 1;
/// A [`Slot::kind`]: a process with the driver.
pub(crate) const DRIVER: u32 = 2;

/// A process. `kind` zero means that the slot is free.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub kind: u32,
    /// Not 0 once the process is known to have ended, while it still holds memory.
    pub ended: u32,
    /// When that memory is given back; 0 until its last descriptor is closed.
    pub gone_ns: u64,
    pub launches: u64,
    pub allocations: u64,
    pub used_pages: [u32; MAX_GPUS],
    /// Managed memory, which is in no list of processes.
    pub managed_pages: [u32; MAX_GPUS],
    /// Index of its slice's [`Mark`] + 1, 0 outside of slices.
    pub mark: u32,
    /// The control groups it is in, nearest first; zeros fill the rest (see [`crate::cgroup`]).
    pub cgroups: [u64; CGROUP_DEPTH],
}

/// The most memory that the processes of a slice ever held together (see [`crate::high_water`]).
/// A name of no bytes: free.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    pub name_len: u32,
    pub name: [u8; SLICE_BYTES],
    pub most_pages: [u32; MAX_GPUS],
}

/// The memory limits of a control group. `cgroup` zero means the place is free; it is written
/// last.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Quota {
    pub cgroup: u64,
    /// The groups above, nearest first.
    pub parents: [u64; CGROUP_DEPTH],
    pub limits: [MemoryLimit; MAX_GPUS],
    /// Path of the group when the limit was set, to check whether the group still exists.
    pub path_len: u64,
    pub path: [u8; CGROUP_PATH],
}

/// The limits of one control group on one GPU, in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryLimit {
    pub soft: u64,
    /// `u64::MAX`: none.
    pub hard: u64,
}

/// A context and its work. Sequence numbers count from 0: all has ended below `head`, and from `head` to `tail` what
/// has an end. Number n lives in `ring[n % RING]`, until another one has that place. No piece loses its place before it
/// has ended: the number that would take it is passed over.
#[repr(C)]
pub(crate) struct Context {
    pub live: u32,
    pub generation: u32,
    pub gpu: u32,
    pub slot: u32,
    pub fault_xid: u32,
    /// First page of its overhead + 1, 0 for none.
    pub overhead: u32,
    /// Handles of its channel group and of that one's channel, 0 for none yet.
    pub group: u32,
    pub channel: u32,
    /// Not 0 while its group is off the run list: its queued work does not run.
    pub disabled: u32,
    /// How often it was taken off the GPU with work left.
    pub saves: u32,
    /// When it was taken off the run list the last times, and how often in all.
    pub stops: [u64; STOPS],
    pub stopped: u64,
    /// How long it runs while others have work; 0 for the GPU's own time slice.
    pub slice_ns: u64,
    pub head: u64,
    pub tail: u64,
    /// Time in which it had the GPU and did work.
    pub busy_ns: u64,
    /// When its last piece ended, and the longest time from one end to the next, since a watch began.
    pub last_end_ns: u64,
    pub longest_gap_ns: u64,
    /// A bit for each queue that has work.
    pub used: u32,
    /// Pieces that have not ended.
    pub pending: u32,
    pub queues: [Queue; MAX_QUEUES as usize],
    pub load: Load,
    pub ring: [Entry; RING as usize],
}

/// A hardware queue of a context (see [`crate::queues`]): numbers of its first and its last piece of work + 1, 0 for
/// none, and the time that its pieces take one after the other.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    pub first: u64,
    pub last: u64,
    pub left_ns: u64,
}

/// A piece of work.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// Its number + 1, 0 for a place that was never used.
    pub number: u64,
    /// Time that it still takes.
    pub left_ns: u64,
    /// 0 until it begins.
    pub start_ns: u64,
    /// 0 until it has ended.
    pub end_ns: u64,
    /// The next piece in its queue: number + 1, 0 for none.
    pub next: u64,
    /// A piece in the queue `after_queue` that must have ended before: number + 1, 0 for none.
    pub after: u64,
    pub after_queue: u16,
    pub queue: u16,
    /// A [`crate::Kind`].
    pub kind: u16,
    /// Blocks of a kernel that the device has room for at the same time.
    pub blocks: u16,
}

/// Busy time by buckets of `BUCKET_NS`; a bucket counts for the period it names.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub buckets: [Bucket; BUCKETS],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Bucket {
    pub period: u32,
    pub busy_ns: u32,
}

/// A GPU: its clockwork and its page table.
#[repr(C)]
pub(crate) struct Gpu {
    pub slice: Span,
    pub switch: Span,
    /// Of the sequence of drawn times, and how many were drawn.
    pub seed: u64,
    pub draws: u64,
    /// Length of the present time slice.
    pub slice_ns: u64,
    /// The moment simulated so far.
    pub clock_ns: u64,
    pub slice_left_ns: u64,
    pub switch_left_ns: u64,
    /// Context whose state is on the GPU + 1, 0 for none.
    pub resident: u32,
    pub queued: u32,
    /// Contexts with pending work; the first one runs.
    pub queue: [u16; MAX_CONTEXTS],
    pub load: Load,
    /// Time spent on anything since the beginning.
    pub busy_ns: u64,
    pub total_pages: u32,
    pub free_pages: u32,
    /// Pages whose bytes are on the host.
    pub away_pages: u32,
    /// Places for pages in use: the GPU's own, and more since memory was on the host.
    pub frames: u32,
    /// Freed by their owner, not yet wiped.
    pub scrub_pages: u32,
    /// Where the next search for free pages starts.
    pub hint: u32,
    /// Blocks that were ever exported.
    pub exported: u32,
    pub reserved: u32,
    pub sample: Sample,
    pub pages: [Page; MAX_FRAMES],
    pub blocks: [Block; MAX_FRAMES],
}

/// A GPU's memory as it was at the last moment at which NVML's figures were taken.
#[repr(C)]
pub(crate) struct Sample {
    pub time_ns: u64,
    pub free_pages: u32,
    pub reserved: u32,
    /// By slot.
    pub used_pages: [u32; MAX_PROCESSES],
}

/// A page of memory: which block it belongs to (first page + 1, 0 for free) and the next page of
/// that block (+ 1, 0 for the last).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Page {
    pub block: u32,
    pub next: u32,
}

/// An allocation, at the index of its first page.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub generation: u32,
    pub pages: u32,
    /// `HELD` or `SCRUB`.
    pub phase: u32,
    /// Slot + 1 that it is charged to; while it is scrubbed, the slot that does that. 0 when no
    /// process holds it, but a descriptor.
    pub owner: u32,
    /// Not 0 once a descriptor was made of it (see [`crate::exports`]): then having no holder is
    /// not the end.
    pub exported: u32,
    /// Not 0 for managed memory, [`STAYS`] or [`MOVES`]: it takes room, but no process is shown to use it and no
    /// control group's limit knows of it.
    pub managed: u32,
    /// Not 0 once a legacy handle was made of it: another process may open it by its key at any time.
    pub offered: u32,
    /// Not 0 while a checkpoint keeps its bytes on the host, or managed memory is there: it takes no room on the GPU.
    /// Its place in the memory file stays its own, so the bytes and all mappings of them stay what they are.
    pub away: u32,
    /// When the GPU used managed memory last.
    pub used_ns: u64,
    /// One bit per process that holds it.
    pub holders: [u64; MAX_PROCESSES.div_ceil(64)],
}

/// A [`Block::managed`]: managed memory that is on the GPU from the beginning and stays there.
pub(crate) const STAYS: u32 = 1;
/// The same that moves.
pub(crate) const MOVES: u32 = 2;

pub(crate) const HELD: u32 = 1;
pub(crate) const SCRUB: u32 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub time_ns: u64,
    pub gpu: u32,
    pub xid: u32,
    pub slot: u32,
    pub reserved: u32,
}

impl State {
    /// Fills in the values of a new machine that are not zero.
    pub(crate) fn initialise(&mut self, config: &Config) {
        self.faults = config.faults;
        for (index, (gpu, device)) in self.gpus.iter_mut().zip(&config.devices).enumerate() {
            (gpu.slice, gpu.switch) = (config.slice, config.switch);
            gpu.seed = mix(config.properties.seed, index as u64);
            gpu.total_pages = (device.memory_bytes / PAGE_BYTES) as u32;
            (gpu.free_pages, gpu.frames) = (gpu.total_pages, gpu.total_pages);
        }
    }
}
