//! Snapshots: one row per container and GPU. The daemon sends them, the CLI prints them and exports them as
//! metrics. Counters only grow; the reader computes rates.

use crate::family::Family;
use crate::frame::{Field, FrameError, Reader, Writer, field_as};
use crate::history::EventKind;
use crate::ids::{ContainerId, GpuUuid, Lane, NvmlIndex};
use crate::node::Health;
use crate::owner::{ClaimId, Owner};
use crate::policy::{ClassCaps, Policy};
use crate::text::Name;
use crate::units::Bytes;
use crate::waits::{WAITS_SHOWN, WaitBehind, WaitCause};

/// How a slice's memory cap is enforced. Each level includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryEnforcement {
    /// The shim reserves memory before it calls the driver.
    Shim,
    /// NVML's figures for the container's processes are compared with the ledger and charged.
    Accounted,
    /// The driver enforces the cap for the container's cgroup.
    Driver,
}

field_as!(
    MemoryEnforcement as u8,
    |level| match level {
        MemoryEnforcement::Shim => 0,
        MemoryEnforcement::Accounted => 1,
        MemoryEnforcement::Driver => 3,
    },
    |raw| match raw {
        0 => Some(MemoryEnforcement::Shim),
        1 => Some(MemoryEnforcement::Accounted),
        3 => Some(MemoryEnforcement::Driver),
        _ => None,
    }
);

/// How a container's turns are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimeEnforcement {
    /// Its processes launch nothing out of turn; the daemon waits for work in flight.
    Shim,
    /// Where work overlaps nevertheless, hardware time slices divide the GPU by weight.
    Timeslice,
    /// Late work is preempted on the GPU, and was observed to stop there.
    Preempt,
}

field_as!(
    TimeEnforcement as u8,
    |level| match level {
        TimeEnforcement::Shim => 0,
        TimeEnforcement::Timeslice => 2,
        TimeEnforcement::Preempt => 3,
    },
    |raw| match raw {
        0 => Some(TimeEnforcement::Shim),
        2 => Some(TimeEnforcement::Timeslice),
        3 => Some(TimeEnforcement::Preempt),
        _ => None,
    }
);

/// How far the suspension of a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SuspensionState {
    /// Its memory is being moved to the host.
    Suspending,
    /// Its memory is on the host.
    Suspended,
    /// Its memory is being moved back.
    Resuming,
}

impl SuspensionState {
    /// All states.
    pub const ALL: [SuspensionState; 3] =
        [SuspensionState::Suspending, SuspensionState::Suspended, SuspensionState::Resuming];

    /// Its name in lists and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SuspensionState::Suspending => "suspending",
            SuspensionState::Suspended => "suspended",
            SuspensionState::Resuming => "resuming",
        }
    }
}

field_as!(SuspensionState as u8, |state| *state as u8 + 1, |raw| {
    let mut all = SuspensionState::ALL.into_iter();
    all.find(|it| *it as u8 + 1 == raw)
});

/// What holds of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimState {
    /// It is reserved, and containers may join it.
    Reserved,
    /// It was released, and containers still live in it.
    Released,
    /// Its file cannot be read, or its words cannot be kept any more: no container may join it.
    Broken,
}

impl ClaimState {
    /// All states.
    pub const ALL: [ClaimState; 3] =
        [ClaimState::Reserved, ClaimState::Released, ClaimState::Broken];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ClaimState::Reserved => "reserved",
            ClaimState::Released => "released",
            ClaimState::Broken => "broken",
        }
    }
}

field_as!(ClaimState as u8, |state| *state as u8 + 1, |raw| {
    let mut all = ClaimState::ALL.into_iter();
    all.find(|it| *it as u8 + 1 == raw)
});

/// The fields of a container's slice of one GPU, in the order of the frame: the macro `$to` takes them. Each is listed
/// here alone, for the frame and for lists of slices.
#[macro_export]
macro_rules! slice_fields {
    ($to:ident) => {
        $to! {
            /// The container as its runtime names it.
            container: $crate::ids::ContainerId,
            /// Its name for display.
            name: $crate::text::Name,
            /// Which GPU.
            gpu: $crate::ids::GpuUuid,
            /// The GPU's number within the container.
            lane: $crate::ids::Lane,
            /// Memory cap.
            cap: $crate::units::Bytes,
            /// Reserved by its processes, unused credit and `untracked` included.
            reserved: $crate::units::Bytes,
            /// Memory that NVML shows beyond what its processes reserved: contexts, modules, the driver's own.
            untracked: $crate::units::Bytes,
            /// Held according to its processes; never above `reserved`.
            used: $crate::units::Bytes,
            /// Highest `used` seen.
            peak: $crate::units::Bytes,
            /// Allocations refused by the cap.
            denied: u64,
            /// What the last allocation that was refused asked for, bytes.
            denied_need: $crate::units::Bytes,
            /// What it could have had at that time, bytes.
            denied_left: $crate::units::Bytes,
            /// Unused credit of the container's other processes at that time, bytes.
            denied_credit: $crate::units::Bytes,
            /// CLOCK_MONOTONIC of the last refusal, ns; 0 for none since the daemon's start.
            denied_at_ns: u64,
            /// How its memory cap is enforced.
            memory_enforcement: $crate::snapshot::MemoryEnforcement,
            /// Host memory pinned by the container, for all its GPUs together.
            pinned: $crate::units::Bytes,
            /// Cap on pinned host memory, if there is one.
            pinned_cap: Option<$crate::units::Bytes>,
            /// Weight for the time that shares leave; none beside a share alone.
            weight: Option<$crate::units::Weight>,
            /// Share of the GPU's time, if it has one.
            share: Option<$crate::units::Percent>,
            /// Limit of its share, if it has one; `cap_ppm` also counts the policy's.
            share_limit: Option<$crate::units::Percent>,
            /// Scheduling priority.
            class: $crate::policy::Class,
            /// Largest part of the GPU's time for it, parts per million; 1_000_000 for all of it.
            cap_ppm: u32,
            /// Processes attached.
            clients: u32,
            /// Whether it has work for the GPU now (1) or not (0).
            runnable: u32,
            /// Whether it has the GPU now (1) or not (0).
            holds: u32,
            /// Whether containers take turns on this GPU now (1), or all launch freely (0).
            gated: u32,
            /// Whether it takes turns together with others of the container's GPUs (1) or not (0).
            gang: u32,
            /// GPU time charged since admission, ns. Without turns (`gated`) that is all time in which its processes
            /// claim work, divided by the containers that do so. `Snapshot::GpuLoad` shows what kernels use of it.
            gpu_ns: u64,
            /// Time with work and without the GPU, ns: waiting, hand-over, limited and gang of `SliceTime`.
            wait_ns: u64,
            /// Time spent runnable, with or without a turn, ns.
            runnable_ns: u64,
            /// Turns granted.
            turns: u64,
            /// Turns after which it had not drained by the drain deadline.
            late_turns: u64,
            /// Turns ended early for a container of a higher class.
            closed_early: u64,
            /// How its turns are enforced.
            time_enforcement: $crate::snapshot::TimeEnforcement,
            /// Times its work was stopped on the GPU.
            stops: u64,
            /// Failed attempts to stop its work, on all its GPUs.
            stops_missed: u64,
            /// Hardware time slice set for all its processes, µs; 0 for none.
            time_slice_us: u64,
            /// Times that one of its processes had another time slice than the one set.
            time_slice_changes: u64,
            /// Launches through its processes' gates, as they count them; complete only while turns are taken.
            launches: u64,
        }
    };
}

macro_rules! rows { ($($slice:tt)*) => { crate::frame::messages! {
    /// Rows of a snapshot, ended by `End`. Kinds from 220 to 224 are only in the answer to
    /// [`crate::admin::Command::Observe`], except `GpuHealth`: a list has it for each GPU that is not healthy.
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
            /// Its policy.
            policy: Policy,
            /// Its product's name; empty if it is unknown.
            product: Name,
        }
        /// A container's slice of one GPU.
        202 Slice { $($slice)* }
        /// The last frame of a snapshot.
        203 End {
            /// CLOCK_MONOTONIC of the snapshot, ns.
            now_ns: u64,
        }
        /// Where the wall time of a slice went. The parts add up to the time since `since_ns`: at every instant
        /// the container is in exactly one of them.
        204 SliceTime {
            /// The container as its runtime names it.
            container: ContainerId,
            /// Which GPU.
            gpu: GpuUuid,
            /// The GPU's number within the container.
            lane: Lane,
            /// CLOCK_MONOTONIC from which on all figures count: its admission, or the daemon's start, ns.
            since_ns: u64,
            /// It had the GPU, or work in flight on it, ns.
            running_ns: u64,
            /// It was runnable, and another container had the GPU: the sum of `behind` and `others_ns`, ns.
            waiting_ns: u64,
            /// It was runnable between the turns of two others, for the time of an honest drain, ns.
            handover_ns: u64,
            /// It was runnable, and its own share or cap did not pay for a turn, ns.
            limited_ns: u64,
            /// It was runnable, and the GPU free for it until other GPUs of its gang were, ns.
            gang_ns: u64,
            /// Its processes had no work for the GPU, or it had no process, ns.
            idle_ns: u64,
            /// It was suspended, or on the way to or from it, ns.
            suspended_ns: u64,
            /// The daemon did not run, or did not know the container's processes yet after its start, ns.
            absent_ns: u64,
            /// The containers behind which it waited most, the largest first.
            behind: [WaitBehind; WAITS_SHOWN],
            /// Time behind all others, and behind containers that have no slice any more, ns.
            others_ns: u64,
        }
        /// The daemon itself.
        205 Daemon {
            /// CLOCK_MONOTONIC of its start, ns: slices that are older were restored.
            started_ns: u64,
            /// CLOCK_MONOTONIC at which it last noticed that it had not run when a step was due, ns; 0 for never.
            absent_until_ns: u64,
            /// How long it had not run then, ns.
            absent_ns: u64,
            /// What higher classes keep on this node while lower ones wait.
            class_caps: ClassCaps,
        }
        /// The owner of a slice, if it is known.
        206 SliceOwner {
            /// The container as its runtime names it; of a claim's slice `claim.` and the claim's id.
            container: ContainerId,
            /// The container as Kubernetes names it.
            owner: Owner,
        }
        /// A container that is suspended, or on the way.
        207 Suspension {
            /// The container as its runtime names it.
            container: ContainerId,
            /// How far it is.
            state: SuspensionState,
            /// Its memory on all its GPUs, charged to the host.
            memory: Bytes,
        }
        /// A slice whose memory limit is above its cap, or that borrowed memory before its limit was lowered.
        208 MemoryLimit {
            /// The container as its runtime names it.
            container: ContainerId,
            /// Which GPU.
            gpu: GpuUuid,
            /// The GPU's number within the container.
            lane: Lane,
            /// Its limit.
            limit: Bytes,
            /// What it should give back of the memory beyond its cap, because another container lacks it.
            wanted: Bytes,
        }
        /// How much of a GPU's time kernels ran lately, as NVML shows it for all its processes together. A GPU of which
        /// NVML told nothing lately has no such row.
        209 GpuLoad {
            /// Which GPU.
            uuid: GpuUuid,
            /// CLOCK_MONOTONIC of NVML's answer, ns; it is of the second before that, or less.
            at_ns: u64,
            /// Percent.
            percent: u32,
        }
        /// A container whose processes gpuslice has frozen, because it is over its cap.
        210 Frozen {
            /// The container as its runtime names it.
            container: ContainerId,
        }
        /// A slice of which a request within the cap waits for memory that others have borrowed.
        211 MemoryWait {
            /// The container as its runtime names it.
            container: ContainerId,
            /// Which GPU.
            gpu: GpuUuid,
            /// The GPU's number within the container.
            lane: Lane,
            /// What its oldest request asks for.
            need: Bytes,
            /// Since when that waits, CLOCK_MONOTONIC ns.
            since_ns: u64,
        }
        /// A suspended container whose memory the daemon itself moved to the host, because others lacked what they are
        /// promised: it resumes the container when there is room.
        212 Reclaimed {
            /// The container as its runtime names it.
            container: ContainerId,
        }
        /// How much a GPU was used since the daemon's start.
        220 GpuUse {
            /// Which GPU.
            uuid: GpuUuid,
            /// GPU time charged to slices, those that have ended included, ns.
            busy_ns: u64,
        }
        /// Whether a GPU works.
        221 GpuHealth {
            /// Which GPU.
            uuid: GpuUuid,
            /// Whether it can be used.
            health: Health,
            /// Critical errors of the driver, uncorrectable memory errors and losses since the daemon's start.
            errors: u64,
        }
        /// How long a slice has waited behind others, by cause.
        222 SliceWaits {
            /// The container as its runtime names it.
            container: ContainerId,
            /// Which GPU.
            gpu: GpuUuid,
            /// Time behind all others, in the order of [`WaitCause::ALL`], ns: together `waiting_ns` of `SliceTime`.
            by_cause_ns: [u64; WaitCause::ALL.len()],
        }
        /// How often something has happened since the daemon's start.
        223 EventCount {
            /// What.
            kind: EventKind,
            /// How often, also where `gpuslice events` does not list each one.
            total: u64,
        }
        /// A claim.
        224 Claim {
            /// Its id.
            claim: ClaimId,
            /// What holds of it.
            state: ClaimState,
            /// Containers that live in it now.
            containers: u32,
            /// The container for which it was reserved, as Kubernetes names it.
            owner: Owner,
        }
        /// What a process of a container has of a GPU: only in the answer to [`crate::admin::Command::Processes`].
        225 Process {
            /// Which GPU.
            gpu: GpuUuid,
            /// Its pid in the daemon's pid namespace; 0 if it has none there, or has ended.
            pid: u32,
            /// Its name as the kernel has it; empty if it cannot be read.
            name: Name,
            /// Whether it is attached (1), or its memory is kept for it until it attaches again or ends (0).
            connected: u32,
            /// Granted to it, unused credit included.
            reserved: Bytes,
            /// Held, as it claims; never above `reserved`.
            used: Bytes,
            /// Memory that NVML shows for it beyond that.
            untracked: Bytes,
            /// What `used` is used for, as it claims, in the order of [`Family::ALL`]; the rest is in plain
            /// allocations.
            families: [Bytes; Family::ALL.len()],
            /// Its contexts, as it claims.
            contexts: u32,
            /// Launches, as it counts them.
            launches: u64,
        }
    }
} } }
slice_fields!(rows);
