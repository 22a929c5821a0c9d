//! Which container a call is for.
//!
//! The kubelet's calls name devices and no pod. But it admits one pod at a time, and while it waits for an answer it
//! lists that pod, without the devices that are being allocated. So the container is the first one of a listed pod
//! that wants the resource and has none of it yet. The amount is checked against the call.
//!
//! A kubelet lists no init container that ends. Whether one has its devices is known here only, by the calls that
//! were answered; a process that started in between goes by the amount.

use crate::amounts::Limits;
use crate::api::objects::{Container, Pod, amount};
use crate::kubelet::pod_resources::PodResources;
use crate::ledger::Claimed;
use crate::names::{self, ResourceNames};
use gpuslice_wire::owner::ClaimId;
use std::collections::{BTreeMap, BTreeSet};

/// Where a container stands in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// It ends before the containers start.
    Init(usize),
    /// An init container that goes on beside them.
    Sidecar(usize),
    Main(usize),
}

/// A container that is being admitted.
#[derive(Debug, Clone, Copy)]
pub struct Admitted<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub position: Position,
}

/// The containers of a pod in the order in which the kubelet allocates for them.
pub fn containers(pod: &Pod) -> impl Iterator<Item = Admitted<'_>> {
    let admitted = |container, position| Admitted { pod, container, position };
    let init = pod.spec.init_containers.iter().enumerate().map(move |(at, container)| {
        let sidecar = container.restart_policy == "Always";
        admitted(container, if sidecar { Position::Sidecar(at) } else { Position::Init(at) })
    });
    let main = pod.spec.containers.iter().enumerate();
    init.chain(main.map(move |(at, container)| admitted(container, Position::Main(at))))
}

/// What a pod needs on its node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// Units.
    pub memory: u64,
    /// Percent.
    pub cores: u64,
}

/// What the claims of a pod take together.
///
/// Kubernetes counts containers and sidecars, and no less than an init container beside the sidecars that started
/// before it. So does this, except for an init container that wants more than each container alone. It has a claim of
/// its own beside theirs, and all are reserved when the pod is admitted: it is added.
#[must_use]
pub fn need(pod: &Pod, names: &ResourceNames) -> Need {
    claimants(pod, names).iter().fold(Need::default(), |sum, it| {
        let (memory, cores) = (it.wants(&names.memory), it.wants(&names.cores));
        let (memory, cores) = (sum.memory.saturating_add(memory), sum.cores.saturating_add(cores));
        Need { memory, cores }
    })
}

/// The containers of a pod that have claims of their own.
#[must_use]
pub fn claimants<'a>(pod: &'a Pod, names: &ResourceNames) -> Vec<Admitted<'a>> {
    let wants = |it: &Admitted<'_>| (it.wants(&names.memory), it.wants(&names.cores));
    let is_main = |it: &Admitted<'_>| matches!(it.position, Position::Main(_));
    let mut mains: Vec<(u64, u64)> = containers(pod).filter(is_main).map(|it| wants(&it)).collect();
    mains.sort_unstable_by(|a, b| b.cmp(a));
    let mut most = 0;
    for it in &mut mains {
        most = most.max(it.1);
        it.1 = most; // the most compute of those with at least as much memory
    }
    // As `claimant` finds it, without a look at each container: a pod may have thousands.
    let has_a_claimant = |(memory, cores)| {
        let enough = mains.partition_point(|it| it.0 >= memory);
        enough > 0 && mains[enough - 1].1 >= cores
    };
    let counts = |it: &Admitted<'_>| match it.position {
        Position::Init(_) => !has_a_claimant(wants(it)),
        Position::Sidecar(_) | Position::Main(_) => true,
    };
    containers(pod).filter(counts).collect()
}

/// Init containers that have their devices: uid of the pod, number, resource.
pub type Answered = BTreeSet<(String, usize, String)>;

/// The containers that a call for this amount of the resource may be for; one, unless pods wait at the same time.
#[must_use]
pub fn candidates<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    listed: &[PodResources],
    answered: &Answered,
    (resource, wanted): (&str, u64),
) -> Vec<Admitted<'a>> {
    let mut all: Vec<Admitted<'a>> = pods
        .into_iter()
        .filter(|pod| !pod.ended())
        .filter_map(|pod| waiting(pod, listed, answered, (resource, wanted)))
        .collect();
    // Of several, the one that the scheduler bound first.
    all.sort_by(|a, b| {
        bound(a.pod).cmp(&bound(b.pod)).then(a.pod.metadata.uid.cmp(&b.pod.metadata.uid))
    });
    all
}

/// When a pod was bound: the scheduler's time, else its creation.
fn bound(pod: &Pod) -> (u64, &str) {
    let time = pod.annotation(names::V1_ASSUME_TIME).and_then(|text| text.parse().ok());
    (time.unwrap_or(0), pod.metadata.creation_timestamp.as_str())
}

/// The first container of a pod that wants the resource and has none, if it wants this much.
fn waiting<'a>(
    pod: &'a Pod,
    listed: &[PodResources],
    answered: &Answered,
    (resource, wanted): (&str, u64),
) -> Option<Admitted<'a>> {
    let meta = &pod.metadata;
    let mine = listed.iter().find(|it| it.name == meta.name && it.namespace == meta.namespace)?;
    let has = |it: &Admitted<'_>| mine.device_ids(&it.container.name, resource).next().is_some();
    let is_main = |it: &Admitted<'_>| matches!(it.position, Position::Main(_));
    // Main containers have their devices last.
    let initialised =
        pod.status.phase == "Running" || containers(pod).any(|it| is_main(&it) && has(&it));
    let wants = |it: &Admitted<'_>| it.wants(resource) > 0 && !has(it);
    for it in containers(pod).filter(wants) {
        let Position::Init(at) = it.position else {
            return (it.wants(resource) == wanted).then_some(it);
        };
        let key = (meta.uid.clone(), at, resource.to_owned());
        if !initialised && !answered.contains(&key) && it.wants(resource) == wanted {
            return Some(it);
        }
    }
    None
}

/// The container that has all of these devices of a resource.
#[must_use]
pub fn holder<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    listed: &[PodResources],
    resource: &str,
    ids: &[String],
) -> Option<Admitted<'a>> {
    let mut live = pods.into_iter().filter(|pod| !pod.ended());
    live.find_map(|pod| {
        let meta = &pod.metadata;
        let mine =
            listed.iter().find(|it| it.name == meta.name && it.namespace == meta.namespace)?;
        // An init container's devices are given again to a later one; the first that wants as many is asked for.
        containers(pod).find(|it| {
            let has: Vec<&str> = mine.device_ids(&it.container.name, resource).collect();
            has.len() == ids.len() && ids.iter().all(|id| has.contains(&id.as_str()))
        })
    })
}

impl<'a> Admitted<'a> {
    /// The amount of a resource that the container wants.
    #[must_use]
    pub fn wants(&self, resource: &str) -> u64 {
        amount(&self.container.resources.limits, resource)
    }

    /// What the container's limits say.
    #[must_use]
    pub fn limits(&self, names: &ResourceNames) -> Limits<'a> {
        Limits {
            container: &self.container.name,
            memory: self.wants(&names.memory),
            cores: self.wants(&names.cores),
        }
    }

    /// The container whose claim this one uses, mostly itself.
    ///
    /// The kubelet gives an init container's devices again to a container that starts after its end, and counts them
    /// once. So both have one claim: that of the first container which wants at least as much.
    #[must_use]
    pub fn claimant(&self, names: &ResourceNames) -> Self {
        if !matches!(self.position, Position::Init(_)) {
            return *self;
        }
        let enough = |it: &Self| {
            matches!(it.position, Position::Main(_))
                && it.wants(&names.memory) >= self.wants(&names.memory)
                && it.wants(&names.cores) >= self.wants(&names.cores)
        };
        containers(self.pod).find(enough).map_or(*self, |it| Admitted { ..it })
    }

    /// The claim's id: the same after a restart of every part.
    #[must_use]
    pub fn claim(&self) -> String {
        let position = match self.position {
            Position::Init(at) | Position::Sidecar(at) => format!("i{at}"),
            Position::Main(at) => format!("c{at}"),
        };
        format!("{}-{position}", self.pod.metadata.uid)
    }
}

/// The pod of a claim that this plugin made, by uid.
#[must_use]
pub fn pod_of_claim(claim: &str) -> Option<&str> {
    let (uid, position) = claim.rsplit_once('-')?;
    let number = position.strip_prefix(['c', 'i'])?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(uid)
}

/// The claims of pods that have ended or are gone.
///
/// A pod for which the kubelet still lists a device of these resources has not ended here, whatever the API server
/// knows of it: a pod that was deleted by force runs on for a while.
#[must_use]
pub fn ended(
    claims: &[Claimed],
    pods: &BTreeMap<String, Pod>,
    listed: &[PodResources],
    resources: &[String],
) -> Vec<ClaimId> {
    let runs = |row: &Claimed, uid: &str| {
        let pod = pods.get(uid).is_some_and(|pod| !pod.ended());
        // The list has names only; a successor of the same name keeps the claim a little longer.
        let (namespace, name) = (row.owner.namespace.as_str(), row.owner.pod.as_str());
        let mut mine = listed.iter().filter(|it| it.name == name && it.namespace == namespace);
        let gone = !pods.contains_key(uid);
        let has = |it: &PodResources, resource: &String| {
            it.containers.iter().any(|c| it.device_ids(&c.name, resource).next().is_some())
        };
        let holds = gone && mine.any(|it| resources.iter().any(|resource| has(it, resource)));
        pod || holds
    };
    let over = |row: &&Claimed| {
        let uid = pod_of_claim(row.claim.as_str());
        !row.released && uid.is_some_and(|uid| uid == row.owner.uid.as_str() && !runs(row, uid))
    };
    claims.iter().filter(over).map(|row| row.claim).collect()
}

#[cfg(test)]
mod tests;
