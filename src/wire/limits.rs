//! Every bound on which two programs must agree, each asserted against the others at compile time.

/// Version of frames. A daemon of version N understands processes of N and N-1, and answers in their version.
pub const WIRE_VERSION: u16 = 2;
/// Oldest version that this build supports.
pub const WIRE_VERSION_MIN: u16 = 1;

/// GPUs of one node.
pub const GPUS_MAX: usize = 16;
/// GPUs of one container; a container's GPU number `i` is its *lane* `i`.
pub const LANES_MAX: usize = 16;
/// Memory accounts of one container: a lane each, and one of pinned host memory, [`crate::ids::Lane::HOST`].
pub const ACCOUNTS_MAX: usize = LANES_MAX + 1;
/// Containers of one node that hold a slice.
pub const CONTAINERS_MAX: usize = 256;
/// Processes of one node attached to the daemon. Half of them are guaranteed to containers in equal parts, so that
/// each of [`CONTAINERS_MAX`] has some regardless of the others.
pub const CLIENTS_MAX: usize = 2048;
/// Processes of one container attached to the daemon, at most.
pub const CLIENTS_PER_CONTAINER_MAX: usize = 256;
/// Shared handles that the daemon remembers of one process; the oldest go first.
pub const HANDLES_PER_CLIENT_MAX: usize = 1024;

/// Channel groups that the daemon remembers of one process; one with more is not stopped.
pub const GROUPS_PER_CLIENT_MAX: usize = 16;
/// Channels of one group; a process with more in one is not stopped. A context has eight for kernels, or as many as
/// `CUDA_DEVICE_MAX_CONNECTIONS` says, 32 at most.
pub const CHANNELS_PER_GROUP_MAX: usize = 32;

/// Longest frame on any socket, header included, bytes.
pub const FRAME_BYTES_MAX: usize = 4096;
/// Longest container id, bytes.
pub const CONTAINER_ID_BYTES_MAX: usize = 128;
/// Longest id of a claim, bytes; a slice's id with a prefix is a container id.
pub const CLAIM_ID_BYTES_MAX: usize = 64;
/// Claims whose devices one container may have.
pub const CLAIMS_OF_CONTAINER_MAX: usize = 4;
/// Longest name of a slice, bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest host path in a message, bytes.
pub const PATH_BYTES_MAX: usize = 256;
/// Longest GPU selector (`all`, `0,1`, `GPU-…,GPU-…`), bytes; sixteen UUIDs fit.
pub const SELECTOR_BYTES_MAX: usize = 672;

/// How long turns are recorded for one request, ns.
pub const RECORD_NS_MAX: u64 = 60_000_000_000;

/// Longest text of an event, bytes.
pub const EVENT_TEXT_BYTES_MAX: usize = 256;

/// Largest weight of a slice.
pub const WEIGHT_MAX: u32 = 1000;
/// Size of a shared page, bytes.
pub const PAGE_BYTES: usize = 4096;

/// Interval of the daemon's heartbeat, ns.
pub const HEARTBEAT_NS: u64 = 50_000_000;
/// A heartbeat older than this means that no daemon runs, ns. Well-behaved tenants then launch without turns.
pub const HEARTBEAT_STALE_NS: u64 = 250_000_000;
/// How long growth and the first CUDA call wait for an absent daemon, ns. Growth then fails as out of memory.
pub const DAEMON_WAIT_NS: u64 = 30_000_000_000;
/// The most that a context of a process is known to take, bytes.
pub const CONTEXT_BYTES_MAX: u64 = 600 << 20;
/// How long a process that needs memory waits for its siblings to return unused credit, ns.
pub const RECALL_WAIT_NS: u64 = 300_000_000;
/// A peer that connected must complete its first frame within this, ns.
pub const HELLO_DEADLINE_NS: u64 = 1_000_000_000;
/// Total time that the hook waits for the daemon, ns.
pub const HOOK_DEADLINE_NS: u64 = 500_000_000;

const _: () = assert!(LANES_MAX <= GPUS_MAX);
const _: () = assert!(GPUS_MAX <= u16::BITS as usize);
const _: () = assert!(CLAIM_ID_BYTES_MAX * 2 <= CONTAINER_ID_BYTES_MAX);
const _: () = assert!(CLIENTS_PER_CONTAINER_MAX * 4 <= CLIENTS_MAX);
const _: () = assert!(CONTAINERS_MAX * 4 <= CLIENTS_MAX / 2);
const _: () = assert!(CLIENTS_PER_CONTAINER_MAX < u16::MAX as usize);
const _: () = assert!(CLIENTS_MAX <= u16::MAX as usize);
const _: () = assert!(HEARTBEAT_NS * 3 < HEARTBEAT_STALE_NS);
const _: () = assert!(SELECTOR_BYTES_MAX >= GPUS_MAX * 41);
const _: () = assert!(WIRE_VERSION_MIN <= WIRE_VERSION);
