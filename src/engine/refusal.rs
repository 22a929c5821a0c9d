//! Why a container gets no slice: data, with a `Display` for the administrator.

use core::fmt;
use gpuslice_wire::admin::Denial;
use gpuslice_wire::ids::{GpuUuid, Lane, NvmlIndex};
use gpuslice_wire::limits::{CONTAINERS_MAX, LANES_MAX};
use gpuslice_wire::select::GpuRef;
use gpuslice_wire::text::Name;
use gpuslice_wire::units::{Bytes, GIB, KIB, MIB, Percent};

use crate::no_slices::NoSlices;

/// Why a container gets no slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The container is suspended; its id.
    Suspended(Name),
    /// The container is on the way to the host; its id.
    Leaving(Name),
    /// The container is resumed already, or that waits for memory that others have borrowed; its id.
    Returning(Name),
    /// The container is not suspended; its id.
    NotSuspended(Name),
    /// The host may not hold so much memory of suspended containers.
    HostFull {
        /// The container's memory.
        memory: Bytes,
        /// What the host may still hold.
        left: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// The GPU has no room for a suspended container's memory.
    NoRoom {
        /// Which GPU.
        gpu: NvmlIndex,
        /// The container's memory on it.
        memory: Bytes,
        /// What others leave of it.
        left: Bytes,
    },
    /// A memory limit below the cap.
    LimitBelowCap {
        /// The limit.
        limit: Bytes,
        /// The cap.
        cap: Bytes,
    },
    /// A memory limit above the GPU's memory.
    LimitAboveGpu {
        /// Which GPU.
        gpu: NvmlIndex,
        /// The limit.
        limit: Bytes,
        /// Its memory.
        total: Bytes,
    },
    /// A memory limit above the cap where caps promise nothing.
    LimitOversubscribed,
    /// A memory limit on host memory, or on a GPU that is the container's as a whole.
    LimitOfWhole,
    /// The container has a slice already; its id, or the beginning of a very long one.
    Exists(Name),
    /// The node has no GPU at all.
    NoGpu,
    /// No such GPU.
    NoSuchGpu {
        /// The GPU asked for.
        asked: GpuRef,
        /// GPUs of the node.
        present: usize,
    },
    /// Two entries of a list are the same GPU.
    GpuTwice(NvmlIndex),
    /// The node's GPUs changed: the slice's GPU is gone.
    GpuGone(GpuUuid),
    /// A cap of nothing.
    CapZero,
    /// The ratio yields no memory of this GPU.
    RatioZero {
        /// Which GPU.
        gpu: NvmlIndex,
        /// Its memory.
        total: Bytes,
        /// Numerator.
        part: u32,
        /// Denominator.
        whole: u32,
    },
    /// An invalid ratio: `part` of `whole` with `part` zero or above `whole`.
    RatioInvalid {
        /// Numerator.
        part: u32,
        /// Denominator.
        whole: u32,
    },
    /// A cap above the GPU's memory.
    CapAboveGpu {
        /// Which GPU.
        gpu: NvmlIndex,
        /// The cap asked for.
        cap: Bytes,
        /// The GPU's memory.
        total: Bytes,
    },
    /// The GPU's memory is promised to other slices.
    Promised {
        /// Which GPU.
        gpu: NvmlIndex,
        /// The cap asked for.
        cap: Bytes,
        /// The memory left to promise.
        left: Bytes,
        /// The GPU's memory.
        total: Bytes,
    },
    /// No GPU of the node has that much left to promise.
    PromisedAll {
        /// The cap asked for.
        cap: Bytes,
        /// The most that any GPU has left.
        left: Bytes,
    },
    /// The GPU's shares would be above 100 %.
    Shares {
        /// Which GPU.
        gpu: NvmlIndex,
        /// The share asked for.
        share: Percent,
        /// The percent left.
        left: u32,
    },
    /// A limit below the share.
    LimitBelowShare {
        /// The share.
        share: Percent,
        /// The limit.
        limit: Percent,
    },
    /// The limit of a share cannot be removed: the GPU's policy, `fixed`, limits a share to itself.
    LimitFixed {
        /// Which GPU.
        gpu: NvmlIndex,
        /// The share.
        share: Percent,
    },
    /// More GPUs than the request's source may ask for.
    BeyondGpus {
        /// The number asked for.
        asked: usize,
        /// The number allowed.
        most: usize,
    },
    /// A larger cap than the request's source may ask for.
    BeyondMemory {
        /// Which GPU.
        gpu: NvmlIndex,
        /// The cap asked for.
        cap: Bytes,
        /// The largest cap allowed.
        most: Bytes,
    },
    /// No slices of the GPU are given.
    NoSlices(NvmlIndex, NoSlices),
    /// Any GPU would do, and of the only one with room no slices are given.
    OnlyNoSlices(NvmlIndex, NoSlices),
    /// Another container has the whole GPU.
    Taken(NvmlIndex),
    /// The GPU is asked for as a whole, and there are slices of it.
    Sliced(NvmlIndex),
    /// The node has as many slices as it can.
    TooManyContainers,
    /// More GPUs than a slice can have.
    TooManyGpus,
    /// There is no slice of this container; its id, or the beginning of a very long one.
    NoSlice(Name),
    /// The slice has no such GPU.
    NoSuchLane {
        /// The lane asked for.
        lane: Lane,
        /// GPUs of the slice.
        gpus: usize,
    },
    /// A cap of nothing on pinned host memory.
    PinnedZero,
    /// A ratio of host memory, whose total is unknown.
    RatioOfHost,
}

impl Refusal {
    /// The wire's kind of this refusal.
    #[must_use]
    pub fn denial(&self) -> Denial {
        match self {
            Refusal::Exists(_) => Denial::Exists,
            Refusal::NoGpu | Refusal::NoSuchGpu { .. } | Refusal::GpuGone(_) => Denial::NoSuchGpu,
            Refusal::CapAboveGpu { .. }
            | Refusal::LimitAboveGpu { .. }
            | Refusal::RatioZero { .. }
            | Refusal::BeyondMemory { .. }
            | Refusal::Promised { .. }
            | Refusal::PromisedAll { .. }
            | Refusal::HostFull { .. }
            | Refusal::NoRoom { .. } => Denial::Memory,
            Refusal::Shares { .. }
            | Refusal::NoSlices(..)
            | Refusal::OnlyNoSlices(..)
            | Refusal::Taken(_)
            | Refusal::Sliced(_)
            | Refusal::TooManyContainers => Denial::Capacity,
            Refusal::CapZero
            | Refusal::LimitBelowCap { .. }
            | Refusal::LimitOversubscribed
            | Refusal::LimitOfWhole
            | Refusal::Suspended(_)
            | Refusal::Leaving(_)
            | Refusal::Returning(_)
            | Refusal::NotSuspended(_)
            | Refusal::RatioInvalid { .. }
            | Refusal::GpuTwice(_)
            | Refusal::TooManyGpus
            | Refusal::BeyondGpus { .. }
            | Refusal::LimitBelowShare { .. }
            | Refusal::LimitFixed { .. }
            | Refusal::PinnedZero
            | Refusal::RatioOfHost => Denial::Invalid,
            Refusal::NoSlice(_) | Refusal::NoSuchLane { .. } => Denial::NoSuchSlice,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Refusal::Exists(id) => write!(
                f,
                "container {id} has a slice already; end it with gpuslice rm {id} if the container is \
                 gone, or choose another id"
            ),
            Refusal::NoGpu => f.write_str(
                "this node has no GPU the daemon could find; check that nvidia-smi lists one, \
                 then restart gpusliced",
            ),
            Refusal::NoSuchGpu { asked, present } => no_such_gpu(f, asked, present),
            Refusal::NoSlices(gpu, why) => {
                write!(f, "{}; name another GPU, or {}", why.of(gpu), why.remedy(gpu))
            }
            Refusal::OnlyNoSlices(gpu, why) => {
                write!(f, "only GPU {} has room, and {}; ", gpu.0, why.condition())?;
                write!(f, "end another slice, or {}", why.remedy(gpu))
            }
            Refusal::Taken(gpu) => write!(
                f,
                "GPU {} is another container's as a whole; name another GPU, or end that container",
                gpu.0
            ),
            Refusal::Sliced(gpu) => write!(
                f,
                "GPU {} is asked for as a whole, but others have slices of it (gpuslice ps shows them); \
                 name another GPU, or end those containers",
                gpu.0
            ),
            Refusal::GpuTwice(gpu) => write!(f, "GPU {} is named twice; name it once", gpu.0),
            Refusal::GpuGone(uuid) => write!(
                f,
                "GPU {uuid} of this slice is not on the node any more; end the slice and \
                 start the container again"
            ),
            Refusal::TooManyContainers => {
                write!(f, "the node has {CONTAINERS_MAX} slices, as many as it can; end one first")
            }
            Refusal::NoSlice(id) => {
                write!(f, "container {id} has no slice; gpuslice ps lists those that have one")
            }
            Refusal::NoSuchLane { lane, gpus } => {
                let (s, lane) = (if gpus == 1 { "" } else { "s" }, lane.0);
                write!(f, "the slice has no GPU {lane}; it has {gpus} GPU{s}, counted from 0")
            }
            Refusal::BeyondGpus { asked, most } => write!(
                f,
                "the container's environment asks for {asked} GPUs, and may for {most} on this node \
                 (environment_gpus_max in its configuration); ask by annotations or a CDI device"
            ),
            Refusal::TooManyGpus => write!(f, "a slice has 1 to {LANES_MAX} GPUs; name as many"),
            _ => self.shares(f),
        }
    }
}

impl Refusal {
    /// Formats the refusals about shares.
    fn shares(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Refusal::Shares { gpu, share, left } => {
                let (gpu, share) = (gpu.0, share.get());
                write!(f, "share {share} % is above the {left} % that GPU {gpu} has left; ")?;
                if left > 0 {
                    write!(f, "ask for at most {left} %, or ")?;
                }
                f.write_str("ask for a weight, which needs no room")
            }
            Refusal::LimitBelowShare { share, limit } => {
                let (share, limit) = (share.get(), limit.get());
                write!(f, "limit {limit} % is below the share {share} %; ask for a limit of at ")?;
                write!(f, "least {share} %, or for a share of at most {limit} %")
            }
            Refusal::LimitFixed { gpu, share } => {
                let (gpu, share) = (gpu.0, share.get());
                write!(
                    f,
                    "GPU {gpu} has the policy fixed, which limits a share to itself; set the "
                )?;
                write!(f, "limit to {share} %, or change the policy first")
            }
            _ => self.memory(f),
        }
    }

    /// Formats the refusals about memory.
    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Refusal::RatioZero { gpu, total, part, whole } => {
                let (gpu, total) = (gpu.0, Exact(total));
                write!(f, "{part}/{whole} of GPU {gpu}'s {total} is less than 1MiB; ")?;
                f.write_str("ask for a larger part")
            }
            Refusal::RatioInvalid { part, whole } => write!(
                f,
                "a memory ratio of {part}/{whole} is not between 0 and 1; the part is at least 1 \
                 and at most the whole"
            ),
            Refusal::CapAboveGpu { gpu, cap, total } => {
                let (gpu, cap, total) = (gpu.0, Exact(cap), Exact(total));
                write!(f, "cap {cap} is above GPU {gpu}'s {total}; ask for at most {total}")
            }
            Refusal::BeyondMemory { gpu, cap, most } => write!(
                f,
                "the container's environment asks for {} of GPU {}, and may for {} on this node \
                 (environment_memory_max in its configuration); ask by annotations or a CDI device",
                Exact(cap),
                gpu.0,
                Exact(most)
            ),
            Refusal::Promised { gpu, cap, left, total } => {
                let (gpu, cap, total) = (gpu.0, Exact(cap), Exact(total));
                write!(f, "cap {cap} is above what GPU {gpu} has left of its {total}; ")?;
                room(f, left)
            }
            Refusal::PromisedAll { cap, left } => {
                write!(f, "cap {} is above what any GPU has left; ", Exact(cap))?;
                room(f, left)
            }
            Refusal::Suspended(_)
            | Refusal::Leaving(_)
            | Refusal::Returning(_)
            | Refusal::NotSuspended(_)
            | Refusal::HostFull { .. }
            | Refusal::NoRoom { .. } => self.suspension(f),
            Refusal::LimitBelowCap { .. }
            | Refusal::LimitAboveGpu { .. }
            | Refusal::LimitOversubscribed
            | Refusal::LimitOfWhole => self.limit(f),
            Refusal::PinnedZero => f.write_str(
                "the cap on pinned host memory is 0; ask for at least one byte, or for no cap",
            ),
            Refusal::RatioOfHost => f.write_str(
                "a cap on pinned host memory is an amount, not a ratio; say how many bytes",
            ),
            _ => f.write_str("the memory cap is 0; ask for at least one byte"),
        }
    }

    /// Formats the refusals about memory limits.
    fn limit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Refusal::LimitBelowCap { limit, cap } => {
                let (limit, cap) = (Exact(limit), Exact(cap));
                write!(f, "memory limit {limit} is below the cap {cap}; ask for a limit of at least ")?;
                write!(f, "{cap}, or for a cap of at most {limit}")
            }
            Refusal::LimitAboveGpu { gpu, limit, total } => {
                let (gpu, limit, total) = (gpu.0, Exact(limit), Exact(total));
                write!(f, "memory limit {limit} is above GPU {gpu}'s {total}; ask for at most {total}")
            }
            Refusal::LimitOversubscribed => f.write_str(
                "this node oversubscribes memory (oversubscribe = true in its configuration), so no cap is kept \
                 free for its container, and a memory limit above the cap has no meaning; ask for a larger cap",
            ),
            _ => f.write_str(
                "a memory limit is of a GPU of which the container has a part; leave it out here",
            ),
        }
    }

    /// Formats the refusals about suspended containers.
    fn suspension(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Refusal::Suspended(id) => {
                write!(f, "container {id} is suspended; gpuslice resume {id} ends that")
            }
            Refusal::Leaving(id) => write!(
                f,
                "container {id} is being suspended; try again when gpuslice ps shows that it is done"
            ),
            Refusal::Returning(id) => write!(
                f,
                "container {id} is being resumed, or waits for memory that others have borrowed; it goes on by \
                 itself, or the first gpuslice resume says why not"
            ),
            Refusal::NotSuspended(id) => {
                write!(f, "container {id} is not suspended; gpuslice ps shows which are")
            }
            Refusal::HostFull { memory, left, limit } => {
                write!(f, "its {} on the GPU do not fit on the host: ", Mib(memory))?;
                write!(f, "suspended containers may have {} there, ", Mib(limit))?;
                match left < limit {
                    true => write!(
                        f,
                        "of which {} are left; resume one of them (gpuslice ps shows which), or start ",
                        Mib(left)
                    )?,
                    false => f.write_str("and none is suspended; start ")?,
                }
                f.write_str("gpusliced with a --config that sets a larger suspended_memory")
            }
            Refusal::NoRoom { gpu, memory, left } => write!(
                f,
                "GPU {} has no room for its {}: other containers leave {}; suspend or end one of them",
                gpu.0,
                Mib(memory),
                Mib(left)
            ),
            _ => Ok(()),
        }
    }
}

/// An amount in whole MiB, rounded up: amounts of one sentence can be compared.
struct Mib(Bytes);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}MiB", self.0.0.div_ceil(MIB))
    }
}

/// An amount in the largest unit that represents it exactly. It can be used as an input, and two different
/// amounts never look the same.
struct Exact(Bytes);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.0;
        for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
            if bytes >= unit && bytes.is_multiple_of(unit) {
                return write!(f, "{}{name}", bytes / unit);
            }
        }
        write!(f, "{bytes}B")
    }
}

/// The advice for promised memory.
fn room(f: &mut fmt::Formatter<'_>, left: Bytes) -> fmt::Result {
    if left > Bytes::ZERO {
        write!(f, "ask for at most {}, ", Exact(left))?;
    }
    f.write_str("end another slice, or set oversubscribe = true")
}

fn no_such_gpu(f: &mut fmt::Formatter<'_>, asked: GpuRef, present: usize) -> fmt::Result {
    match asked {
        GpuRef::Index(index) => write!(f, "there is no GPU {}", index.0)?,
        GpuRef::Uuid(uuid) => write!(f, "there is no {uuid}")?,
    }
    write!(f, "; this node has {present}, which gpuslice gpus lists")
}

impl core::error::Error for Refusal {}
