//! Messages between an agent of the node and the daemon on `node.sock`.
//!
//! A cluster's agent runs without privileges: it reads what the node has, and reserves parts of GPUs for containers
//! that will start. It opens the socket because it is in the node's group. It cannot start a container in a
//! claim, cannot change a slice that it did not reserve, and sees no socket of a tenant.
//!
//! A request has one answer, or rows that end with [`NodeAnswer::End`]; each carries the request's id. After
//! `Watch` the connection is the daemon's: it sends all rows and an `End`, then each change followed by an `End`,
//! at most ten times a second. A row replaces the row of the same GPU or slice; `Gone` and `Left` remove.

use crate::frame::{Field, FrameError, Reader, Writer, field_as, messages};
use crate::ids::{ContainerId, GpuUuid, NvmlIndex};
use crate::limits::GPUS_MAX;
use crate::owner::{ClaimId, Owner};
use crate::policy::{Class, Gangs, Policy};
use crate::text::{Name, Text};
use crate::units::{Bytes, Percent, Weight};

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

/// What an agent reserves. The same words under the same claim have the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The claim, named by the agent.
    pub claim: ClaimId,
    /// The container, or the first of several, for which it is meant. It informs only.
    pub owner: Owner,
    /// The GPUs, at least one, none twice.
    pub gpus: GpuList,
    /// Memory cap on each GPU.
    pub memory: Bytes,
    /// Share of each GPU's time, if any.
    pub share: Option<Percent>,
    /// The most of each GPU's time, if limited; not below the share.
    pub share_limit: Option<Percent>,
    /// Weight for the time that shares leave, if any.
    pub weight: Option<Weight>,
    /// Scheduling priority.
    pub class: Class,
    /// Whether its GPUs may take turns together.
    pub gang: Gangs,
    /// Cap on host memory that it may pin, if any.
    pub pinned: Option<Bytes>,
}

impl Field for Reservation {
    const BYTES: usize = ClaimId::BYTES
        + Owner::BYTES
        + GpuList::BYTES
        + Bytes::BYTES
        + 2 * <Option<Percent>>::BYTES
        + <Option<Weight>>::BYTES
        + Class::BYTES
        + Gangs::BYTES
        + <Option<Bytes>>::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.claim.put(w)?;
        self.owner.put(w)?;
        self.gpus.put(w)?;
        self.memory.put(w)?;
        self.share.put(w)?;
        self.share_limit.put(w)?;
        self.weight.put(w)?;
        self.class.put(w)?;
        self.gang.put(w)?;
        self.pinned.put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<Reservation, FrameError> {
        Ok(Reservation {
            claim: Field::get(r)?,
            owner: Field::get(r)?,
            gpus: Field::get(r)?,
            memory: Field::get(r)?,
            share: Field::get(r)?,
            share_limit: Field::get(r)?,
            weight: Field::get(r)?,
            class: Field::get(r)?,
            gang: Field::get(r)?,
            pinned: Field::get(r)?,
        })
    }
}

/// Whether a GPU can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthState {
    /// Nothing is known against it.
    #[default]
    Healthy,
    /// The driver reported a critical error (Xid).
    Xid,
    /// An uncorrectable memory error was counted.
    Ecc,
    /// The driver does not list it any more.
    Lost,
}

field_as!(HealthState as u8, |state| *state as u8, |raw| {
    use HealthState::{Ecc, Healthy, Lost, Xid};
    [Healthy, Xid, Ecc, Lost].into_iter().find(|state| *state as u8 == raw)
});

/// A GPU's health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether it can be used.
    pub state: HealthState,
    /// Number of the Xid that made it unhealthy; 0 for none.
    pub xid: u32,
    /// Since when, seconds since 1970; 0 for the daemon's start.
    pub since: u64,
}

impl Field for Health {
    const BYTES: usize = HealthState::BYTES + u32::BYTES + u64::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.state.put(w)?;
        self.xid.put(w)?;
        self.since.put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<Health, FrameError> {
        Ok(Health { state: Field::get(r)?, xid: Field::get(r)?, since: Field::get(r)? })
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

/// What is known about a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    /// Its bit in [`GpuNumbers`]; constant while the daemon runs.
    pub number: u8,
    /// Identity.
    pub uuid: GpuUuid,
    /// NVML index on the node.
    pub index: NvmlIndex,
    /// The product's name, as `NVIDIA H200`; empty if unknown.
    pub product: Text<96>,
    /// PCI address, as `0000:3b:00.0`; empty if unknown.
    pub pci: Text<32>,
    /// NUMA node.
    pub numa: Numa,
    /// Name of the group of GPUs that NVLink connects it with; empty if there is none, or if it is unknown.
    pub island: Text<64>,
    /// Compute capability, major and minor; zeros if unknown.
    pub capability: [u8; 2],
    /// The driver's version; empty if unknown.
    pub driver: Text<80>,
    /// It is simulated.
    pub simulated: bool,
    /// Its health.
    pub health: Health,
    /// Physical memory.
    pub total: Bytes,
    /// Sum of the caps promised on it.
    pub promised: Bytes,
    /// Memory that can still be promised; zero while a container has the whole GPU.
    pub left: Bytes,
    /// Sum of the shares promised on it, percent.
    pub share_promised: u32,
    /// Share that can still be promised, percent; zero while a container has the whole GPU.
    pub share_left: u32,
    /// Slices of it, claims included.
    pub slices: u32,
    /// Its policy.
    pub policy: Policy,
}

impl Field for GpuFacts {
    const BYTES: usize = 1
        + GpuUuid::BYTES
        + NvmlIndex::BYTES
        + <Text<96> as Field>::BYTES
        + <Text<32> as Field>::BYTES
        + Numa::BYTES
        + <Text<64> as Field>::BYTES
        + <[u8; 2]>::BYTES
        + <Text<80> as Field>::BYTES
        + bool::BYTES
        + Health::BYTES
        + 3 * Bytes::BYTES
        + 3 * u32::BYTES
        + Policy::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.number.put(w)?;
        self.uuid.put(w)?;
        self.index.put(w)?;
        self.product.put(w)?;
        self.pci.put(w)?;
        self.numa.put(w)?;
        self.island.put(w)?;
        self.capability.put(w)?;
        self.driver.put(w)?;
        self.simulated.put(w)?;
        self.health.put(w)?;
        self.total.put(w)?;
        self.promised.put(w)?;
        self.left.put(w)?;
        self.share_promised.put(w)?;
        self.share_left.put(w)?;
        self.slices.put(w)?;
        self.policy.put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<GpuFacts, FrameError> {
        Ok(GpuFacts {
            number: Field::get(r)?,
            uuid: Field::get(r)?,
            index: Field::get(r)?,
            product: Field::get(r)?,
            pci: Field::get(r)?,
            numa: Field::get(r)?,
            island: Field::get(r)?,
            capability: Field::get(r)?,
            driver: Field::get(r)?,
            simulated: Field::get(r)?,
            health: Field::get(r)?,
            total: Field::get(r)?,
            promised: Field::get(r)?,
            left: Field::get(r)?,
            share_promised: Field::get(r)?,
            share_left: Field::get(r)?,
            slices: Field::get(r)?,
            policy: Field::get(r)?,
        })
    }
}

/// Kinds of refusal; the accompanying text has the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeDenial {
    /// An invalid frame, or a peer that may not use this socket.
    Protocol,
    /// The claim exists with other words.
    ClaimDiffers,
    /// No such GPU on this node.
    NoSuchGpu,
    /// More memory than the GPU has, or has left to promise.
    Memory,
    /// More share than the GPU has left, or too many slices.
    Capacity,
    /// A value outside its bounds: no GPU, a GPU twice, no memory, a limit below the share.
    Invalid,
    /// A GPU of the claim is not healthy.
    Unhealthy,
    /// The daemon failed: disk full, descriptor limit.
    Host,
    /// The claim was released, and containers still live in it.
    Released,
}

field_as!(NodeDenial as u16, |why| *why as u16 + 1, |raw| match raw {
    1 => Some(NodeDenial::Protocol),
    2 => Some(NodeDenial::ClaimDiffers),
    3 => Some(NodeDenial::NoSuchGpu),
    4 => Some(NodeDenial::Memory),
    5 => Some(NodeDenial::Capacity),
    6 => Some(NodeDenial::Invalid),
    7 => Some(NodeDenial::Unhealthy),
    8 => Some(NodeDenial::Host),
    9 => Some(NodeDenial::Released),
    _ => None,
});

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
