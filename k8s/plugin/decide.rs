//! The decision for one container: its GPUs, memory and compute, taken together.
//!
//! The kubelet asks for memory and for compute in two calls, in any order. Both have the same answer, since the
//! decision depends on the pod and on the ledger only. After the first call the ledger has the claim, and the
//! second call finds it.

use super::devices::{Card, Inventory, Unit};
use super::identity::{Admitted, Position};
use crate::allocation::{self, BadAnnotation};
use crate::amounts::{self, BadAmounts, COUNT_MAX};
use crate::ledger::Rows;
use crate::names::{self, ResourceNames};
use crate::place::links::Scores;
use crate::place::{self, Ask, CORES, Gpu, Links, Placement};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::node::{GpuFacts, GpuList, Reservation};
use gpuslice_wire::owner::{ClaimId, Owner};
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::text::Text;
use gpuslice_wire::units::{Bytes, Percent};

/// What a container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub claim: ClaimId,
    pub owner: Owner,
    /// Positions in the inventory, and the GPUs' memory caps.
    pub cards: Vec<usize>,
    /// Units on each GPU.
    pub units: u64,
    /// Percent of each GPU's time; 0: no share is reserved.
    pub cores: u32,
}

/// Why a container gets nothing. The sentence is what a user reads in the pod's events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Annotation(#[from] BadAnnotation),
    #[error("{0}")]
    Amounts(#[from] BadAmounts),
    #[error("the container asks for {count} whole GPUs, and a claim has from 1 to {COUNT_MAX}")]
    Whole { count: u64 },
    #[error(
        "{wanted}, and no {set} of this node has that much room: {rooms}; memory of different GPUs cannot be \
         added up, so ask for less, or let a scheduler that knows GPUs place the pod"
    )]
    NoRoom { wanted: String, set: String, rooms: String },
    #[error(
        "a scheduler chose GPU {gpu} for the pod, {why}: delete the pod, so that it is scheduled again"
    )]
    Chosen { gpu: u32, why: String },
    #[error("the pod's {field} {text:?} is not one that a claim can have")]
    Name { field: &'static str, text: String },
}

/// What a decision depends on, besides the container.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    pub inventory: &'a Inventory,
    pub rows: &'a Rows,
    pub names: &'a ResourceNames,
    pub placement: Placement,
}

/// Decides for a container that is being admitted.
///
/// # Errors
/// [`Refusal`], with the sentence for the user.
pub fn decide(node: &Node<'_>, admitted: &Admitted<'_>) -> Result<Decision, Refusal> {
    let claimant = admitted.claimant(node.names);
    let text = claimant.claim();
    let claim = ClaimId::new(&text).map_err(|_| Refusal::Name { field: "uid", text })?;
    let ask = ask(node, &claimant)?;
    let existing = node.rows.claims.iter().find(|row| row.claim == claim && !row.released);
    let cards = match existing {
        // The GPUs stay; that the words are the same is for the ledger to check.
        Some(row) => positions(node.inventory, |card| row.gpus.contains(&card.number)),
        None => match chosen(node, &claimant, &ask)? {
            cards if !cards.is_empty() => cards,
            _ => place::choose_linked(&gpus(node), node.placement, &ask.place, &scores(node))
                .ok_or_else(|| no_room(node, &ask))?,
        },
    };
    Ok(Decision {
        claim,
        owner: owner(&claimant)?,
        cards,
        units: ask.units,
        cores: ask.place.cores,
    })
}

/// What a container asks for on each of its GPUs.
struct Wanted {
    place: Ask,
    units: u64,
}

fn ask(node: &Node<'_>, claimant: &Admitted<'_>) -> Result<Wanted, Refusal> {
    if node.inventory.unit == Unit::WHOLE {
        return whole(node, claimant);
    }
    let names = node.names;
    let count = amounts::count(claimant.pod.label(names::COUNT))?;
    let each = amounts::on_each(claimant.limits(names), count, names)?;
    let place = Ask {
        memory: Bytes(each.memory.saturating_mul(node.inventory.unit.0.0)),
        cores: each.cores,
        count: count as usize,
        links: Links::Prefer,
    };
    Ok(Wanted { place, units: each.memory })
}

/// As many GPUs as the container wants, each with all of its memory and time.
fn whole(node: &Node<'_>, claimant: &Admitted<'_>) -> Result<Wanted, Refusal> {
    let count = claimant.wants(&node.names.memory);
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(Refusal::Whole { count });
    }
    // A GPU has one unit, which is free or not; any amount asks for it.
    let place = Ask { memory: Bytes(1), cores: CORES, count: count as usize, links: Links::Prefer };
    Ok(Wanted { place, units: 1 })
}

/// The GPUs that a scheduler wrote on the pod; none if it wrote nothing.
fn chosen(node: &Node<'_>, claimant: &Admitted<'_>, ask: &Wanted) -> Result<Vec<usize>, Refusal> {
    if claimant.pod.annotation(names::OURS).is_some() {
        return Ok(Vec::new());
    }
    if node.inventory.unit == Unit::WHOLE {
        let group = allocation::group(claimant.pod)?;
        return checked(node, group.into_iter().map(|gpu| (gpu, 0)), ask);
    }
    let Position::Main(at) = claimant.position else {
        // Annotations number the main containers only. An init container goes where they go.
        let first = allocation::of_init(claimant.pod)?;
        return checked(node, first.into_iter().map(|gpu| (gpu, 0)), ask);
    };
    checked(node, allocation::of_container(claimant.pod, at)?.into_iter(), ask)
}

fn checked(
    node: &Node<'_>,
    chosen: impl Iterator<Item = (u32, u64)>,
    ask: &Wanted,
) -> Result<Vec<usize>, Refusal> {
    let gpus = gpus(node);
    let mut cards = Vec::new();
    for (gpu, units) in chosen {
        let bad = |why: String| Refusal::Chosen { gpu, why };
        let at = node.inventory.cards.iter().position(|card| card.index == gpu);
        let at = at.ok_or_else(|| bad("which this node does not have".to_owned()))?;
        if gpus[at].unhealthy {
            return Err(bad("which is not healthy now".to_owned()));
        }
        if units != 0 && units != ask.units {
            let wanted = ask.units;
            return Err(bad(format!(
                "with {units} units of memory, and the container asks for {wanted}"
            )));
        }
        if !gpus[at].fits(&ask.place) {
            return Err(bad(format!("which has no room for it: {}", room(node, at))));
        }
        cards.push(at);
    }
    match cards.len() == ask.place.count || cards.is_empty() {
        true => Ok(cards),
        false => {
            let wanted = ask.place.count;
            let why = format!("and {} GPUs in all, while the pod asks for {wanted}", cards.len());
            Err(Refusal::Chosen { gpu: node.inventory.cards[cards[0]].index, why })
        }
    }
}

/// The node's GPUs as the allocator sees them: memory in whole units.
fn gpus(node: &Node<'_>) -> Vec<Gpu> {
    let gpu = |card: &Card| {
        let Some(facts) = facts(node, card) else {
            return Gpu { unhealthy: true, ..Gpu::default() };
        };
        let memory = Bytes(card.units.saturating_mul(card.unit.0));
        let free = Bytes(card.free_units(facts.left).saturating_mul(card.unit.0));
        let island = facts.island.as_str();
        Gpu {
            island: (!island.is_empty()).then(|| island.to_owned()),
            memory,
            used: place::Usage {
                memory: memory.saturating_sub(free),
                cores: CORES.saturating_sub(facts.share_left),
                shares: facts.slices,
            },
            unhealthy: !card.healthy,
        }
    };
    node.inventory.cards.iter().map(gpu).collect()
}

/// How well pairs of the node's GPUs are connected; nothing while one of them is gone.
fn scores(node: &Node<'_>) -> Scores {
    let all = node.inventory.cards.iter().map(|card| facts(node, card));
    let all: Option<Vec<&GpuFacts>> = all.collect();
    all.map(|all| Scores::of(&all)).unwrap_or_default()
}

fn facts<'a>(node: &Node<'a>, card: &Card) -> Option<&'a GpuFacts> {
    node.rows.gpus.iter().find(|gpu| gpu.uuid == card.uuid)
}

fn no_room(node: &Node<'_>, ask: &Wanted) -> Refusal {
    let unit = node.inventory.unit;
    let cores = match ask.place.cores {
        0 => String::new(),
        cores => format!(" and {cores} percent of compute"),
    };
    let set = match ask.place.count {
        1 => "GPU".to_owned(),
        count => format!("set of {count} GPUs"),
    };
    let rooms: Vec<String> = (0..node.inventory.cards.len()).map(|at| room(node, at)).collect();
    let wanted = match unit {
        Unit::WHOLE => format!("the container asks for {} whole GPUs", ask.place.count),
        _ => format!("the container asks for {} x {unit} on a GPU{cores}", ask.units),
    };
    Refusal::NoRoom { wanted, set, rooms: rooms.join(", ") }
}

/// The room of one GPU, in words.
fn room(node: &Node<'_>, at: usize) -> String {
    let card = &node.inventory.cards[at];
    let Some(facts) = facts(node, card) else {
        return format!("GPU {} is gone", card.index);
    };
    if !card.healthy {
        return format!("GPU {} is not healthy", card.index);
    }
    let free = card.free_units(facts.left);
    format!("GPU {} has {free} and {} percent free", card.index, facts.share_left)
}

fn positions(inventory: &Inventory, wanted: impl Fn(&Card) -> bool) -> Vec<usize> {
    let all = inventory.cards.iter().enumerate();
    all.filter(|(_, card)| wanted(card)).map(|(at, _)| at).collect()
}

fn owner(admitted: &Admitted<'_>) -> Result<Owner, Refusal> {
    fn text<const N: usize>(field: &'static str, text: &str) -> Result<Text<N>, Refusal> {
        Text::new(text).map_err(|_| Refusal::Name { field, text: text.chars().take(60).collect() })
    }
    let meta = &admitted.pod.metadata;
    Ok(Owner {
        namespace: text("namespace", &meta.namespace)?,
        pod: text("name", &meta.name)?,
        uid: text("uid", &meta.uid)?,
        container: text("container", &admitted.container.name)?,
    })
}

impl Decision {
    /// The words for the ledger.
    #[must_use]
    pub fn reservation(&self, inventory: &Inventory) -> Reservation {
        let uuids: Vec<GpuUuid> = self.cards.iter().map(|&at| inventory.cards[at].uuid).collect();
        let caps = self.cards.iter().map(|&at| inventory.cards[at].cap(self.units));
        Reservation {
            claim: self.claim,
            owner: self.owner,
            // At most COUNT_MAX cards are chosen.
            gpus: GpuList::new(&uuids).unwrap_or_default(),
            memory: caps.min().unwrap_or_default(),
            share: Percent::new(self.cores).ok(),
            share_limit: None,
            weight: None,
            class: Class::default(),
            gang: Gangs::default(),
            pinned: None,
        }
    }
}

#[cfg(test)]
mod tests;
