//! The devices that the kubelet counts: for each GPU one per unit of memory, and one per percent of compute.
//!
//! A kubelet knows whole devices only, so memory is cut into units and each is a device. Its id begins with the
//! GPU's UUID, so that the ids that a container has tell other programs its GPU.

use crate::kubelet::device_plugin::{
    Device, HEALTHY, ListAndWatchResponse, MESSAGE_MAX, NumaNode, Topology, UNHEALTHY,
};
use crate::place::CORES;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::node::{GpuFacts, HealthState};
use gpuslice_wire::units::Bytes;
use prost::Message;
use std::collections::BTreeSet;

/// Separates GPU and number in an id; dcgm-exporter splits ids of shared GPUs there.
const SEPARATOR: &str = "::";
/// Bytes of a message that no device uses: a GPU that is added must not end the plugin.
const SPARE: usize = 64 << 10;

/// One of the two resources of the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    Memory,
    Cores,
}

/// What the pair offers, as ACK's node labels name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// Memory by which containers are placed, without a cap (`share`).
    Share,
    /// Memory with caps (`cgpu`).
    Memory,
    /// Memory with caps, and compute (`core_mem`).
    Both,
    /// Whole GPUs, by how well they are connected (`topology`).
    Whole,
}

/// Memory of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit(pub Bytes);

impl Unit {
    /// All memory of a GPU, whatever its size.
    pub const WHOLE: Unit = Unit(Bytes(0));
}

impl std::str::FromStr for Unit {
    type Err = String;

    /// `GiB`, `MiB`, or a size such as `256MiB`.
    fn from_str(text: &str) -> Result<Unit, String> {
        let size = match text {
            "GiB" | "MiB" => format!("1{text}"),
            other => other.to_owned(),
        };
        let bytes: Bytes = size.parse().map_err(|error| format!("{text:?} is no unit: {error}"))?;
        match bytes.0 >= 1 << 20 {
            true => Ok(Unit(bytes)),
            false => Err(format!("a unit of {text} is too small: 1MiB is the smallest")),
        }
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Unit::WHOLE {
            return f.write_str("whole GPU");
        }
        let text = self.0.to_string();
        let one =
            text.strip_prefix('1').filter(|unit| unit.bytes().all(|b| b.is_ascii_alphabetic()));
        f.write_str(one.unwrap_or(&text))
    }
}

/// A GPU as the pair offers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Its number in the ledger's rows.
    pub number: u8,
    pub uuid: GpuUuid,
    /// As `/dev/nvidiaN` and annotations have it.
    pub index: u32,
    pub total: Bytes,
    /// Memory of one unit.
    pub unit: Bytes,
    /// Whole units of its memory.
    pub units: u64,
    pub healthy: bool,
    pub numa: Option<u32>,
}

/// The node's GPUs, by index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    pub unit: Unit,
    pub cards: Vec<Card>,
}

/// The kubelet could not read the list of devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{devices} devices of {unit} need a message of {bytes} bytes, and the kubelet reads {MESSAGE_MAX}; \
     choose a larger unit (--memory-unit): {smallest} is the smallest that fits"
)]
pub struct TooMany {
    devices: usize,
    unit: Unit,
    bytes: usize,
    smallest: Unit,
}

/// Ids that the kubelet did not get from this plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadId {
    #[error("{0:?} is no device of this plugin")]
    Unknown(String),
    #[error("device {0} belongs to a GPU that this node does not have")]
    Foreign(String),
    #[error("device {0} is named twice in one request")]
    Repeated(String),
    #[error("{0} devices are more than this node has")]
    TooMany(usize),
    #[error("a container asks for no device")]
    None,
}

impl Inventory {
    /// The devices of these GPUs.
    #[must_use]
    pub fn of(facts: &[GpuFacts], unit: Unit) -> Inventory {
        let card = |gpu: &GpuFacts| Card {
            number: gpu.number,
            uuid: gpu.uuid,
            index: gpu.index.0,
            total: gpu.total,
            unit: if unit == Unit::WHOLE { gpu.total } else { unit.0 },
            units: gpu.total.0.checked_div(unit.0.0).unwrap_or(1),
            healthy: gpu.health.state == HealthState::Healthy,
            numa: gpu.numa.0,
        };
        let mut cards: Vec<Card> = facts.iter().map(card).collect();
        cards.sort_by_key(|card| card.index);
        Inventory { unit, cards }
    }

    /// What the kubelet is told about a resource.
    #[must_use]
    pub fn list(&self, resource: Resource) -> ListAndWatchResponse {
        let devices = self.cards.iter().flat_map(|card| {
            (0..card.count(resource)).map(move |number| Device {
                id: format!("{}{SEPARATOR}{number}", card.uuid),
                health: if card.healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
                topology: card
                    .numa
                    .map(|node| Topology { nodes: vec![NumaNode { id: i64::from(node) }] }),
            })
        });
        ListAndWatchResponse { devices: devices.collect() }
    }

    /// Checks that the kubelet can read the list: otherwise it registers the plugin and shows no device.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn check_size(&self) -> Result<(), TooMany> {
        let mut worst = self.clone();
        worst.cards.iter_mut().for_each(|card| card.healthy = false);
        let list = worst.list(Resource::Memory);
        let bytes = list.encoded_len();
        if bytes + SPARE <= MESSAGE_MAX {
            return Ok(());
        }
        Err(TooMany {
            devices: list.devices.len(),
            unit: self.unit,
            bytes,
            smallest: self.smallest(bytes / list.devices.len()),
        })
    }

    /// The smallest unit, a power of two of MiB, whose list fits with ids of this size.
    fn smallest(&self, bytes_of_id: usize) -> Unit {
        let fits = |unit: &Unit| {
            let units: u64 = self.cards.iter().map(|card| card.total.0 / unit.0.0).sum();
            units as usize * bytes_of_id + SPARE <= MESSAGE_MAX
        };
        let units = (20..40).map(|power| Unit(Bytes(1 << power)));
        units.into_iter().find(fits).unwrap_or(Unit(Bytes(1 << 40)))
    }

    /// The GPU of each id, by position in `cards`.
    ///
    /// # Errors
    /// [`BadId`] if one id is not a device of the resource, or is repeated.
    pub fn cards_of(&self, resource: Resource, ids: &[String]) -> Result<Vec<usize>, BadId> {
        let all: u64 = self.cards.iter().map(|card| card.count(resource)).sum();
        if ids.is_empty() {
            return Err(BadId::None);
        }
        if ids.len() as u64 > all {
            return Err(BadId::TooMany(ids.len()));
        }
        let mut seen = BTreeSet::new();
        ids.iter()
            .map(|id| match seen.insert(id) {
                true => self.card_of(resource, id),
                false => Err(BadId::Repeated(id.clone())),
            })
            .collect()
    }

    fn card_of(&self, resource: Resource, id: &str) -> Result<usize, BadId> {
        let unknown = || BadId::Unknown(id.chars().take(63).collect());
        let (uuid, number) = id.split_once(SEPARATOR).ok_or_else(unknown)?;
        let uuid: GpuUuid = uuid.parse().map_err(|_| unknown())?;
        let number: u64 = number.parse().map_err(|_| unknown())?;
        let at = self.cards.iter().position(|card| card.uuid == uuid);
        let at = at.ok_or_else(|| BadId::Foreign(id.to_owned()))?;
        // The text itself must be one that was sent: `+1` and `01` are numbers too.
        let same = id == format!("{uuid}{SEPARATOR}{number}");
        match number < self.cards[at].count(resource) && same {
            true => Ok(at),
            false => Err(unknown()),
        }
    }

    /// Of the available ids, the ones that a container on these GPUs should have, as many from each GPU as from the
    /// others. Fewer than `size` if they do not suffice.
    #[must_use]
    pub fn prefer(&self, available: &[String], cards: &[usize], size: usize) -> Vec<String> {
        let each = size.div_ceil(cards.len().max(1));
        let of_card = |&at: &usize| {
            let prefix = format!("{}{SEPARATOR}", self.cards[at].uuid);
            let ours = available.iter().filter(move |id| id.starts_with(&prefix));
            ours.take(each).cloned()
        };
        cards.iter().flat_map(of_card).take(size).collect()
    }
}

impl Card {
    fn count(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Memory => self.units,
            Resource::Cores => u64::from(CORES),
        }
    }

    /// The cap for a number of units: the same part of the physical memory, in whole MiB. All units together are all
    /// of the memory, although a GPU of 15079 MiB has 14 of a GiB.
    #[must_use]
    pub fn cap(&self, units: u64) -> Bytes {
        let all = u128::from(self.total.0 >> 20);
        let part = all * u128::from(units) / u128::from(self.units.max(1));
        Bytes(u64::try_from(part).unwrap_or(u64::MAX >> 20) << 20)
    }

    /// The units of which this memory is the cap, rounded up.
    #[must_use]
    pub fn units_of(&self, cap: Bytes) -> u64 {
        let all = u128::from(cap.0) * u128::from(self.units);
        u64::try_from(all.div_ceil(u128::from(self.total.0.max(1)))).unwrap_or(u64::MAX)
    }

    /// The units that are free when this memory is left.
    #[must_use]
    pub fn free_units(&self, left: Bytes) -> u64 {
        let all = u128::from(left.0) * u128::from(self.units);
        let free = all.checked_div(u128::from(self.total.0)).unwrap_or(0);
        u64::try_from(free).unwrap_or(self.units).min(self.units)
    }
}

#[cfg(test)]
mod tests;
