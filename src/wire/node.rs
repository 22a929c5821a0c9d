//! Messages between an agent of the node and the daemon on `node.sock`.
//!
//! A cluster's agent runs without privileges: it reads what the node has, and reserves parts of GPUs for containers
//! that will start. It opens the socket because it is in the node's group. It cannot start a container in a
//! claim, cannot change a slice that it did not reserve, and sees no socket of a tenant.
//!
//! A request has one answer, or rows that end with [`NodeAnswer::End`]; each carries the request's id. After
//! `Watch` the connection is the daemon's: it sends all rows and an `End`, then each change followed by an `End`,
//! at most ten times a second. A row replaces the row of the same GPU or slice; `Gone` and `Left` remove.

use crate::frame::{Field, FrameError, Reader, Writer, field_as, messages, numbered, record};
use crate::ids::{ContainerId, GpuUuid, NvmlIndex};
use crate::limits::GPUS_MAX;
use crate::owner::{ClaimId, Owner};
use crate::policy::{Class, Gangs, Policy};
use crate::text::{Name, Text};
use crate::units::{Bytes, Percent, Weight};
use core::fmt;

/// GPUs by their number in [`GpuFacts`], bit `n` for the GPU of number `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuNumbers(pub u16);

impl GpuNumbers {
    /// Whether the GPU of this number is one of them.
    #[must_use]
    pub fn has(self, number: u8) -> bool {
        u32::from(number) < u16::BITS && self.0 & 1 << number != 0
    }
}

field_as!(GpuNumbers as u16, |set| set.0, |raw| Some(GpuNumbers(raw)));

/// A list of GPUs, in the order of the container's lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuList {
    len: u8,
    uuids: [GpuUuid; GPUS_MAX],
}

impl GpuList {
    /// These GPUs; `None` for more than [`GPUS_MAX`].
    #[must_use]
    pub fn new(uuids: &[GpuUuid]) -> Option<GpuList> {
        let mut list = GpuList { len: u8::try_from(uuids.len()).ok()?, ..GpuList::default() };
        list.uuids.get_mut(..uuids.len())?.copy_from_slice(uuids);
        Some(list)
    }

    /// The GPUs.
    #[must_use]
    pub fn as_slice(&self) -> &[GpuUuid] {
        self.uuids.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

impl Field for GpuList {
    const BYTES: usize = u8::BYTES + <[GpuUuid; GPUS_MAX]>::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.len.put(w)?;
        self.uuids.put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<GpuList, FrameError> {
        let list = GpuList { len: Field::get(r)?, uuids: Field::get(r)? };
        let unused = list.uuids.get(usize::from(list.len)..).ok_or(FrameError::Field)?;
        match unused.iter().all(|uuid| *uuid == GpuUuid::default()) {
            true => Ok(list),
            false => Err(FrameError::Field),
        }
    }
}

record! {
    /// What an agent reserves. The same words under the same claim have the same answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Reservation {
        /// The claim, named by the agent.
        claim: ClaimId,
        /// The container, or the first of several, for which it is meant. It informs only.
        owner: Owner,
        /// The GPUs, at least one, none twice.
        gpus: GpuList,
        /// Memory cap on each GPU.
        memory: Bytes,
        /// Share of each GPU's time, if any.
        share: Option<Percent>,
        /// The most of each GPU's time, if limited; not below the share.
        share_limit: Option<Percent>,
        /// Weight for the time that shares leave, if any.
        weight: Option<Weight>,
        /// Scheduling priority.
        class: Class,
        /// Whether its GPUs may take turns together.
        gang: Gangs,
        /// Cap on host memory that it may pin, if any.
        pinned: Option<Bytes>,
    }
}

numbered! {
    /// Whether a GPU can be used.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    HealthState as u8 {
        /// Nothing is known against it.
        #[default]
        0 Healthy,
        /// The driver reported a critical error (Xid).
        1 Xid,
        /// An uncorrectable memory error was counted.
        2 Ecc,
        /// The driver does not list it any more.
        3 Lost,
        /// It is in MIG mode, in which it has no slices.
        4 Mig,
        /// An MPS server uses it.
        5 Mps,
        /// Its compute mode admits one process at a time, or none.
        6 Exclusive,
    }
}

impl HealthState {
    /// Its name in JSON, and in taints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            HealthState::Healthy => "healthy",
            HealthState::Xid => "xid",
            HealthState::Ecc => "ecc",
            HealthState::Lost => "lost",
            HealthState::Mig => "mig",
            HealthState::Mps => "mps",
            HealthState::Exclusive => "exclusive",
        }
    }

    /// Whether the daemon refuses every new slice on a GPU of this state.
    #[must_use]
    pub const fn refuses_slices(self) -> bool {
        !matches!(self, HealthState::Healthy)
    }
}

record! {
    /// A GPU's health.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Health {
        /// Whether it can be used.
        state: HealthState,
        /// Number of the Xid that made it unhealthy; 0 for none.
        xid: u32,
        /// Since when, seconds since 1970; 0 for the daemon's start.
        since: u64,
    }
}

impl fmt::Display for Health {
    /// The mark beside a GPU in lists; empty for a healthy one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            HealthState::Healthy => Ok(()),
            HealthState::Xid => write!(f, "unhealthy (Xid {})", self.xid),
            HealthState::Ecc => f.write_str("unhealthy (memory error)"),
            HealthState::Lost => f.write_str("unhealthy (lost)"),
            HealthState::Mig => f.write_str("MIG mode, no slices"),
            HealthState::Mps => f.write_str("MPS, no new slices"),
            HealthState::Exclusive => f.write_str("exclusive compute mode, no new slices"),
        }
    }
}

/// NUMA node of a GPU that has none.
const NO_NUMA: u32 = u32::MAX;

/// A GPU's NUMA node, if it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numa(pub Option<u32>);

field_as!(Numa as u32, |numa| numa.0.unwrap_or(NO_NUMA), |raw| Some(Numa(
    Some(raw).filter(|node| *node != NO_NUMA)
)));

record! {
    /// What is known about a GPU.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    GpuFacts {
        /// Its bit in [`GpuNumbers`]; constant while the daemon runs.
        number: u8,
        /// Identity.
        uuid: GpuUuid,
        /// NVML index on the node.
        index: NvmlIndex,
        /// The product's name, as `NVIDIA H200`; empty if unknown.
        product: Text<96>,
        /// PCI address, as `0000:3b:00.0`; empty if unknown.
        pci: Text<32>,
        /// NUMA node.
        numa: Numa,
        /// Name of the group of GPUs that NVLink connects it with; empty if there is none, or if it is unknown.
        island: Text<64>,
        /// NVLinks to the GPU of each number: direct ones, or those that a switch gives both. 0: none, or unknown.
        links: [u8; GPUS_MAX],
        /// What the way to the GPU of each number passes, as NVML's levels have it: 10 a switch, 20 several, 30 a host
        /// bridge, 40 the same NUMA node, 50 another; 255: unknown.
        near: [u8; GPUS_MAX],
        /// Compute capability, major and minor; zeros if unknown.
        capability: [u8; 2],
        /// The driver's version; empty if unknown.
        driver: Text<80>,
        /// It is simulated.
        simulated: bool,
        /// Its health.
        health: Health,
        /// Physical memory.
        total: Bytes,
        /// Sum of the caps promised on it.
        promised: Bytes,
        /// Memory that can still be promised; zero while a container has the whole GPU.
        left: Bytes,
        /// Sum of the shares promised on it, percent.
        share_promised: u32,
        /// Share that can still be promised, percent; zero while a container has the whole GPU.
        share_left: u32,
        /// Slices of it, claims included.
        slices: u32,
        /// Its policy.
        policy: Policy,
    }
}

numbered! {
    /// Kinds of refusal; the accompanying text has the details.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    NodeDenial as u16 {
        /// An invalid frame, or a peer that may not use this socket.
        1 Protocol,
        /// The claim exists with other words.
        2 ClaimDiffers,
        /// No such GPU on this node.
        3 NoSuchGpu,
        /// More memory than the GPU has, or has left to promise.
        4 Memory,
        /// More share than the GPU has left, or too many slices.
        5 Capacity,
        /// A value outside its bounds: no GPU, a GPU twice, no memory, a limit below the share.
        6 Invalid,
        /// A GPU of the claim is not healthy.
        7 Unhealthy,
        /// The daemon failed: disk full, descriptor limit.
        8 Host,
        /// The claim was released, and containers still live in it.
        9 Released,
    }
}

messages! {
    /// From an agent to the daemon.
    NodeRequest {
        /// Asks for a `Gpu` row for each GPU.
        701 Facts {}
        /// Asks for all rows: GPUs, slices, and the containers that live in claims.
        702 List {}
        /// Asks for all rows and then for all changes, as long as the connection lasts.
        703 Watch {}
        /// Reserves memory and share on GPUs. Idempotent.
        704 Reserve {
            /// The words.
            words: Reservation,
        }
        /// Gives a claim up. No container joins it any more; its promise ends with the last container that
        /// lives in it. Idempotent; an unknown claim is released too.
        705 Release {
            /// The claim.
            claim: ClaimId,
        }
    }
}

messages! {
    /// From the daemon to an agent.
    NodeAnswer {
        /// A GPU of the node.
        801 Gpu {
            /// What is known about it.
            gpu: GpuFacts,
        }
        /// A slice: of a claim, or of a container without a claim.
        802 Slice {
            /// Its id: of a claim `claim.` and the claim's id, otherwise the container's.
            slice: ContainerId,
            /// The claim, if it is one's.
            claim: Option<ClaimId>,
            /// The claim was released: it ends with its containers.
            released: bool,
            /// Its name for display.
            name: Name,
            /// Its container as Kubernetes names it.
            owner: Owner,
            /// Its GPUs.
            gpus: GpuNumbers,
            /// Memory cap on each of them; of different caps, the largest.
            memory: Bytes,
            /// Memory reserved by its processes on all of them.
            reserved: Bytes,
            /// Share of each GPU's time, if any.
            share: Option<Percent>,
            /// Weight, if any.
            weight: Option<Weight>,
            /// Scheduling priority.
            class: Class,
        }
        /// A container that lives in a slice; of a slice without a claim, the container itself is not listed.
        803 Member {
            /// The slice's claim.
            claim: ClaimId,
            /// The container as its runtime names it.
            container: ContainerId,
        }
        /// The rows so far are complete.
        804 End {}
        /// A slice has ended, and with it all its members.
        805 Gone {
            /// The slice.
            slice: ContainerId,
        }
        /// A container does not live in its claim any more.
        806 Left {
            /// The slice's claim.
            claim: ClaimId,
            /// The container.
            container: ContainerId,
        }
        /// The claim is reserved, and its CDI file is written.
        807 Reserved {
            /// The CDI device that gives a container the claim, as `gpuslice.io/gpu=ID`.
            device: Text<128>,
        }
        /// The claim is released.
        808 Released {
            /// Containers that still live in it.
            members: u32,
        }
        /// Nothing was changed.
        809 Denied {
            /// Kind of reason.
            why: NodeDenial,
            /// What is wrong and what to do next.
            text: Text<512>,
        }
    }
}

#[cfg(test)]
mod tests;
