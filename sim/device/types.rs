//! The types of this crate's public interface. Ids are types, so that a destroyed context or a freed
//! block can never be mistaken for the present one.

use crate::limits::WAVE_BLOCKS;

/// Names a context of some process on some GPU. The generation changes when the place is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId {
    pub(crate) index: u16,
    pub(crate) generation: u32,
}

impl ContextId {
    /// From a number, of which 16 bits are the index; a made-up one names no living context.
    pub fn from_bits(bits: u64) -> Self {
        Self { index: bits as u16, generation: (bits >> 16) as u32 }
    }
}

/// Position of a piece of work in its context's queue, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// The kind of a piece of work: faults that count launches count kernels only, and each kind has its own part of the
/// GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    Kernel,
    Copy,
    Marker,
}

/// A piece of work to queue. Durations from [`crate::limits::MAX_DURATION_NS`] on mean "for ever".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub kind: Kind,
    pub duration_ns: u64,
    /// Blocks of a kernel; of more than fit the device at once all that fit.
    pub blocks: u16,
    /// The context's hardware queue. Work of one queue runs in order.
    pub queue: u16,
    /// Work of another queue, submitted earlier, that must have ended before.
    pub after: Option<(u16, Seq)>,
}

impl Work {
    /// Work that has the whole GPU, behind all other such work.
    pub const fn new(kind: Kind, duration_ns: u64) -> Self {
        Self { kind, duration_ns, blocks: WAVE_BLOCKS, queue: 0, after: None }
    }
}

/// Work that was taken back, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recalled(pub Vec<Seq>);

impl Recalled {
    /// Whether this piece was taken back.
    pub fn has(&self, seq: Seq) -> bool {
        self.0.binary_search(&seq).is_ok()
    }
}

/// Where a piece of work stands. Times are CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Completed. Of work older than the last 4096 completions the times are no longer known; the
    /// context's oldest known completion time is given for both.
    Done { start_ns: u64, end_ns: u64 },
    /// Not completed, and cannot complete before `earliest_ns` unless another process dies.
    Pending { earliest_ns: u64 },
    /// The context was killed by this Xid before the work completed.
    Faulted { xid: u32 },
}

/// A piece of a GPU's memory file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    pub len: u64,
}

/// Names an allocation of device memory on this machine, across processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryKey {
    pub gpu: u16,
    pub(crate) block: u32,
    pub(crate) generation: u32,
}

impl MemoryKey {
    /// As bytes, to be put into an IPC handle.
    pub fn to_bytes(self) -> [u8; 12] {
        let mut out = [0; 12];
        out[..4].copy_from_slice(&u32::from(self.gpu).to_le_bytes());
        out[4..8].copy_from_slice(&self.block.to_le_bytes());
        out[8..].copy_from_slice(&self.generation.to_le_bytes());
        out
    }
    /// The inverse of [`MemoryKey::to_bytes`]; made-up bytes name no living allocation.
    pub fn from_bytes(bytes: [u8; 12]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let gpu = u16::try_from(word(0)).unwrap_or(u16::MAX);
        Self { gpu, block: word(4), generation: word(8) }
    }
}

/// Device memory this process holds: whole pages, in the order of the allocation's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    pub key: MemoryKey,
    pub extents: Vec<Extent>,
}

impl Memory {
    /// Bytes, a multiple of [`crate::limits::PAGE_BYTES`].
    pub fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.len).sum()
    }
}

/// The constants of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    pub index: usize,
    pub uuid: [u8; 16],
    pub name: String,
    pub total_bytes: u64,
    /// PCI domain, bus, device.
    pub pci: (u32, u8, u8),
    pub compute_capability: (u32, u32),
    pub multiprocessors: u32,
}

impl GpuInfo {
    /// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, as NVML writes it.
    pub fn uuid_text(&self) -> String {
        let mut text = String::from("GPU-");
        for (at, byte) in self.uuid.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }
}

/// A GPU's memory, in bytes; `total == used + free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    pub total: u64,
    pub used: u64,
    pub free: u64,
}

/// The driver's limits of a control group on a GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// A guarantee; 0 for none.
    pub soft: u64,
    /// The hard limit; [`crate::UNLIMITED`] for none.
    pub hard: u64,
    /// The use of the group's processes.
    pub used: u64,
}

/// A process with at least one context on the GPU asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// The pid in the caller's pid namespace.
    pub pid: u32,
    pub used_bytes: u64,
    pub contexts: u32,
    /// Device time used by its living contexts.
    pub busy_ns: u64,
    /// Share of the recent window the GPU worked for it, 0..=100.
    pub utilisation: u32,
}

/// The most memory that the processes of a slice ever held together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceMark {
    /// Name of the slice's directory on the host.
    pub slice: String,
    /// By GPU.
    pub most_bytes: Vec<u64>,
}

/// The device's own account of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextInfo {
    pub gpu: usize,
    /// Device time used since creation.
    pub busy_ns: u64,
    /// The first piece of work that is not completed, and how many are queued and not completed.
    pub completed: u64,
    pub pending: u64,
    /// The Xid that killed it, if one did.
    pub fault: Option<u32>,
}
