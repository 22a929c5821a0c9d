//! Every bound of the simulated device in one place, asserted against the others.

/// GPUs in one device directory.
pub const MAX_GPUS: usize = 16;
/// Processes attached at the same time (drivers and observers together). Ten bits name one in the
/// lock word, and zero means none.
pub const MAX_PROCESSES: usize = 1000;
/// Contexts alive at the same time over all GPUs.
pub const MAX_CONTEXTS: usize = 512;
/// Physical memory is handed out in pages of this many bytes, as real drivers do.
pub const PAGE_BYTES: u64 = 2 << 20;
/// Largest memory of one GPU, in pages (192 GiB).
pub const MAX_PAGES: usize = 98_304;
/// Places for pages: those of memory on the host, by a checkpoint or as managed memory, come on top of a GPU's own.
pub const MAX_FRAMES: usize = 2 * MAX_PAGES;
/// Host to device and back, bytes per microsecond (PCIe 5 x16, about 50 GB/s).
pub const LINK_BYTES_PER_US: u64 = 50_000;
/// Entries of a context's ring: pending and recently completed work.
pub const RING: u64 = 8192;
/// Work a context may have queued and not completed; one more is refused as full.
pub const MAX_PENDING: u64 = 4096;
/// Times that a context was taken off the run list are remembered, up to so many.
pub const STOPS: usize = 64;
/// Longest duration of one piece of work; anything above means "for ever".
pub const MAX_DURATION_NS: u64 = u64::MAX / 8;
/// An access to the device at least this long after the last check first checks for dead processes.
pub const REAP_EVERY_NS: u64 = 4_000_000;
/// Longest sleep between two accesses to the device.
pub const MAX_SLEEP_NS: u64 = 5_000_000;
/// Utilisation is kept in buckets of this length...
pub const BUCKET_NS: u64 = 20_000_000;
/// ...and for this many of them.
pub const BUCKETS: usize = 64;
/// Xid events kept for late readers.
pub const EVENTS: usize = 256;
/// Blocks that the device holds at once: 132 multiprocessors of 16 blocks each.
pub const WAVE_BLOCKS: u16 = 132 * 16;
/// Hardware queues of a context, at most.
pub const MAX_QUEUES: u32 = 32;
/// Control groups with memory limits at the same time; deleted groups make room.
pub const MAX_QUOTAS: usize = 256;
/// How many control groups a process is taken to be in, its own and those above, nearest first.
pub const CGROUP_DEPTH: usize = 16;
/// Longest path of a control group's directory.
pub const CGROUP_PATH: usize = 1024;
/// Slices whose most memory is remembered, in all.
pub const MAX_MARKS: usize = 1024;
/// Bytes of a slice's name; a longer one is cut.
pub const SLICE_BYTES: usize = 128;
/// Bytes of a device's name, the closing zero included (NVML's own limit is 96).
pub const NAME_BYTES: usize = 64;

const _: () = assert!(MAX_PROCESSES < 1 << 10);
const _: () = assert!(MAX_CONTEXTS <= u16::MAX as usize);
const _: () = assert!(RING >= MAX_PENDING + 4096, "the last 4096 completions must survive");
const _: () = assert!(MAX_FRAMES < u32::MAX as usize);
const _: () = assert!(BUCKET_NS < u32::MAX as u64);
