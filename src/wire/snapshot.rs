//! What an observer sees: one row per container and GPU, as plain values that are sent by the
//! daemon, printed by the CLI and exported as metrics. Counters only grow; rates are the reader's.

use crate::frame::{Field, FrameError, Reader, Writer, field_as};
use crate::ids::{ContainerId, GpuUuid, Lane, NvmlIndex};
use crate::policy::{Class, Policy};
use crate::text::Name;
use crate::units::{Bytes, Percent, Weight};

/// Who holds a slice's memory cap. Each tier includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// M0: the shim asks before the driver is asked.
    Shim,
    /// M1: what NVML shows for the container's processes is compared and charged.
    Measured,
    /// M3: the driver itself, by the container's cgroup. (M2, a guard in the kernel, does not exist.)
    Driver,
}

field_as!(
    Tier as u8,
    |tier| match tier {
        Tier::Shim => 0,
        Tier::Measured => 1,
        Tier::Driver => 3,
    },
    |raw| match raw {
        0 => Some(Tier::Shim),
        1 => Some(Tier::Measured),
        3 => Some(Tier::Driver),
        _ => None,
    }
);

/// How a container is kept to its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimeTier {
    /// T0: its processes launch nothing out of turn; what is in flight is waited for.
    Turns,
    /// T2: what overlaps nevertheless, the hardware divides by weight.
    Slices,
    /// T3: what is late is stopped on the GPU, and was seen to stop there.
    Stops,
}

field_as!(
    TimeTier as u8,
    |tier| match tier {
        TimeTier::Turns => 0,
        TimeTier::Slices => 2,
        TimeTier::Stops => 3,
    },
    |raw| match raw {
        0 => Some(TimeTier::Turns),
        2 => Some(TimeTier::Slices),
        3 => Some(TimeTier::Stops),
        _ => None,
    }
);

crate::frame::messages! {
    /// Rows of a snapshot, ended by `End`.
    Snapshot {
        /// A GPU of the node.
        201 Gpu {
            /// Identity.
            uuid: GpuUuid,
            /// NVML index on the node.
            index: NvmlIndex,
            /// Physical memory.
            total: Bytes,
            /// Sum of the caps promised on it.
            promised: Bytes,
            /// Containers with a slice of it.
            slices: u32,
            /// How its time is divided.
            policy: Policy,
        }
        /// A container's slice of one GPU.
        202 Slice {
            /// The container as its runtime names it.
            container: ContainerId,
            /// The name a person gave it.
            name: Name,
            /// Which GPU.
            gpu: GpuUuid,
            /// The GPU's number within the container.
            lane: Lane,
            /// Memory cap.
            cap: Bytes,
            /// Reserved by its processes, unused credit and `residual` included.
            reserved: Bytes,
            /// What NVML shows beyond what its processes asked for: contexts, modules, the driver's own.
            residual: Bytes,
            /// Held according to its processes; never above `reserved`.
            used: Bytes,
            /// Highest `used` seen.
            peak: Bytes,
            /// Allocations refused by the cap.
            denied: u64,
            /// Size and rest of the last refusal.
            denied_need: Bytes,
            /// What was left then.
            denied_left: Bytes,
            /// Who holds its cap.
            tier: Tier,
            /// Host memory pinned by the container, for all its GPUs together.
            pinned: Bytes,
            /// The cap on that, if there is one.
            pinned_cap: Option<Bytes>,
            /// Weight among those that want the GPU.
            weight: Weight,
            /// Hard share, if it has one.
            share: Option<Percent>,
            /// Who goes before it and after it.
            class: Class,
            /// What it may have of the GPU's time at most, parts per million; 1_000_000 for all of it.
            cap_ppm: u32,
            /// Processes attached.
            clients: u32,
            /// Whether it wants the GPU now (1) or not (0).
            wanting: u32,
            /// Whether turns are taken on this GPU now (1), or everybody runs freely (0).
            gated: u32,
            /// Whether it takes turns together with others of the container's GPUs (1) or not (0).
            gang: u32,
            /// GPU time charged since admission, ns.
            gpu_ns: u64,
            /// Time spent wanting without a turn, ns.
            wait_ns: u64,
            /// Time in which it wanted the GPU, on it or not, ns.
            wanted_ns: u64,
            /// Turns granted.
            turns: u64,
            /// Turns after which it was not quiet within the drain deadline.
            overruns: u64,
            /// Turns closed before their end because others go before it.
            preemptions: u64,
            /// How it is kept to its turns.
            time_tier: TimeTier,
            /// Times its work was stopped on the GPU.
            stops: u64,
            /// Times that was tried and came to nothing, on all its GPUs.
            stops_missed: u64,
            /// The hardware's time slice that all its processes were given, µs; 0 for none.
            time_slice_us: u64,
            /// Times a process of it was found with another one than it was given.
            time_slice_changes: u64,
            /// Launches that came through its processes' gates, by their own count: all of them
            /// only while turns are taken.
            launches: u64,
        }
        /// The last frame of a snapshot.
        203 End {
            /// CLOCK_MONOTONIC of the snapshot, ns.
            now_ns: u64,
        }
    }
}
