//! The alarm for containers that run without the cap of their claim.
//!
//! A container engine that ignores CDI devices starts a container without its hook, silently. No later call tells:
//! the container runs, and its claim has no member. So the ledger's members are compared with the containers that
//! the API server reports as running. One that has run for [`LATE`] and never joined its claim is told to the
//! cluster, as an event of its pod and as a metric.

use super::COMPONENT;
use super::metrics::Metrics;
use crate::api::client::Client;
use crate::api::event::Warning;
use crate::api::objects::Pod;
use crate::api::store::Objects;
use crate::dra;
use crate::ledger::{Ledger, Rows};
use crate::names::ResourceNames;
use crate::plugin::identity;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{error, warn};

/// How long a container may run before it has joined its claim.
pub const LATE: Duration = Duration::from_secs(30);
/// Time between two comparisons.
const LOOK: Duration = Duration::from_secs(5);
/// The event's reason.
pub const REASON: &str = "GPUCapNotEnforced";

/// A container that runs without having joined its claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unadmitted {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    pub container: String,
    /// As its runtime names it: a container that starts again has another.
    pub id: String,
    pub claim: String,
}

/// The containers of these pods that run outside their claims now.
pub fn unadmitted<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    rows: &Rows,
    names: &ResourceNames,
) -> BTreeSet<Unadmitted> {
    let pods = pods.into_iter().filter(|pod| !pod.ended());
    pods.flat_map(|pod| of_pod(pod, rows, names)).collect()
}

fn of_pod(pod: &Pod, rows: &Rows, names: &ResourceNames) -> Vec<Unadmitted> {
    let meta = &pod.metadata;
    let found = |container: &str, id: &str, claim: &str| Unadmitted {
        namespace: meta.namespace.clone(),
        pod: meta.name.clone(),
        uid: meta.uid.clone(),
        container: container.to_owned(),
        id: id.to_owned(),
        claim: claim.to_owned(),
    };
    let joined = |id: &str| {
        let mut members = rows.claims.iter().flat_map(|row| &row.members);
        members.any(|member| member.as_str() == id)
    };
    let outside: Vec<(&str, &str)> = pod.running().filter(|it| !joined(it.1)).collect();
    let mut all = Vec::new();
    for one in identity::containers(pod) {
        let claim = one.claimant(names).claim();
        let reserved = rows.claims.iter().any(|row| row.claim.as_str() == claim && !row.released);
        let runs = outside.iter().find(|it| it.0 == one.container.name);
        if let Some((container, id)) = runs.filter(|_| reserved) {
            all.push(found(container, id, &claim));
        }
    }
    // A claim of the scheduler names a pod, and not which of its containers use it: one that joined suffices.
    let ours = rows.claims.iter().find(|row| {
        let of_driver = dra::uid_of_claim(row.claim.as_str()).is_some();
        of_driver && !row.released && row.owner.uid.as_str() == meta.uid
    });
    let uses = |name: &str| {
        let mut containers = identity::containers(pod).map(|it| it.container);
        containers.any(|it| it.name == name && !it.resources.claims.is_empty())
    };
    let users: Vec<(&str, &str)> = pod.running().filter(|it| uses(it.0)).collect();
    if let (Some(row), Some((container, id))) = (ours, users.first())
        && !users.iter().any(|it| joined(it.1))
    {
        all.push(found(container, id, row.claim.as_str()));
    }
    all
}

/// Since when containers run outside their claims, and which of them were told.
#[derive(Debug, Default)]
pub struct Watched {
    since: BTreeMap<Unadmitted, (Instant, bool)>,
}

impl Watched {
    /// Notes what was found; the containers that are late now, and those of them that are to be told.
    pub fn note(
        &mut self,
        found: BTreeSet<Unadmitted>,
        now: Instant,
    ) -> (Vec<Unadmitted>, Vec<Unadmitted>) {
        self.since.retain(|one, _| found.contains(one));
        for one in found {
            self.since.entry(one).or_insert((now, false));
        }
        let (mut late, mut fresh) = (Vec::new(), Vec::new());
        for (one, (since, told)) in &mut self.since {
            if now.duration_since(*since) >= LATE {
                late.push(one.clone());
                if !std::mem::replace(told, true) {
                    fresh.push(one.clone());
                }
            }
        }
        (late, fresh)
    }

    /// It could not be told: the next look tells it again.
    pub fn untold(&mut self, one: &Unadmitted) {
        if let Some((_, told)) = self.since.get_mut(one) {
            *told = false;
        }
    }
}

/// What the alarm needs.
pub struct Alarm {
    pub node: String,
    pub api: Client,
    pub ledger: Arc<dyn Ledger>,
    pub names: ResourceNames,
    /// The pods of this node.
    pub pods: watch::Receiver<Objects<Pod>>,
    pub metrics: Metrics,
}

impl Alarm {
    /// Compares until the process ends.
    pub async fn run(self) {
        let mut watched = Watched::default();
        loop {
            tokio::time::sleep(LOOK).await;
            // Without the ledger or the pods nothing is known, and nothing is said.
            let (Ok(rows), Some(pods)) = (self.ledger.rows().await, self.pods.borrow().clone())
            else {
                continue;
            };
            let found = unadmitted(pods.values(), &rows, &self.names);
            let (late, fresh) = watched.note(found, Instant::now());
            self.metrics.unadmitted(late);
            for one in fresh {
                error!(
                    pod = %one.pod, container = %one.container, claim = %one.claim,
                    "a container runs without its cap: the container engine ignored its CDI device; run gpuslice doctor \
                     --kubernetes on this node"
                );
                if let Err(why) = event(&one, &self.node).write(&self.api).await {
                    warn!("the event of pod {} is not written: {why:#}", one.pod);
                    watched.untold(&one);
                }
            }
        }
    }
}

/// The event. Its name is the container's, so that it exists once.
fn event<'a>(one: &Unadmitted, node: &'a str) -> Warning<'a> {
    let id: String = one.id.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
    let name: String = one.pod.chars().take(180).collect();
    Warning {
        object: json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": one.namespace, "name": one.pod, "uid": one.uid,
            "fieldPath": format!("spec.containers{{{}}}", one.container),
        }),
        name: format!("{name}.uncapped-{}", id.to_ascii_lowercase()),
        reason: REASON,
        message: format!(
            "container {} runs without its GPU cap: the container engine of node {node} ignored the CDI device of claim \
             {}; containerd from 1.7 on with enable_cdi = true is needed (gpuslice doctor --kubernetes)",
            one.container, one.claim
        ),
        component: COMPONENT,
        instance: node,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Claimed;
    use crate::testing::{container, pod};
    use gpuslice_wire::ids::ContainerId;
    use gpuslice_wire::owner::{ClaimId, Owner};
    use gpuslice_wire::text::Text;
    use gpuslice_wire::units::Bytes;
    use serde_json::Value;
    use std::time::SystemTime;

    fn running(mut pod: Pod, containers: &[(&str, &str)]) -> Pod {
        let one = |it: &(&str, &str)| json!({ "name": it.0, "containerID": format!("containerd://{}", it.1), "state": { "running": {} } });
        let all: Vec<Value> = containers.iter().map(one).collect();
        pod.status.container_statuses = serde_json::from_value(json!(all)).expect("statuses");
        pod
    }

    fn claimed(claim: &str, uid: &str, members: &[&str]) -> Claimed {
        Claimed {
            claim: ClaimId::new(claim).expect("a claim id"),
            owner: Owner { uid: Text::new(uid).expect("short"), ..Owner::default() },
            gpus: vec![0],
            memory: Bytes(1),
            used: Bytes(0),
            share: None,
            released: false,
            members: members.iter().map(|id| ContainerId::new(id).expect("an id")).collect(),
        }
    }

    fn ids(pods: &[Pod], claims: Vec<Claimed>) -> Vec<String> {
        let rows = Rows { claims, ..Rows::default() };
        let found = unadmitted(pods, &rows, &ResourceNames::default());
        found.into_iter().map(|it| it.id).collect()
    }

    #[test]
    fn a_container_outside_its_claim_is_found() {
        let two =
            || pod("p", &[], &[container("a", 3, 0), container("b", 3, 0), container("c", 0, 0)]);
        let runs = || running(two(), &[("a", "1a"), ("b", "1b"), ("c", "1c")]);
        let claims = |first: &[&str]| {
            vec![claimed("uid-p-c0", "uid-p", first), claimed("uid-p-c1", "uid-p", &["1b"])]
        };
        assert_eq!(ids(&[runs()], claims(&["1a"])), [""; 0]);
        assert_eq!(ids(&[runs()], claims(&[])), ["1a"]);
        // A container that started again is another one.
        assert_eq!(ids(&[runs()], claims(&["0a"])), ["1a"]);
        assert_eq!(ids(&[two()], claims(&[])), [""; 0], "none runs yet");
        assert_eq!(ids(&[runs()], vec![]), [""; 0], "no claim is reserved for them");
        let mut over = runs();
        over.status.phase = "Failed".to_owned();
        assert_eq!(ids(&[over], claims(&[])), [""; 0]);
    }

    #[test]
    fn a_claim_of_the_scheduler_needs_one_container_of_its_pod() {
        let mut one =
            pod("p", &[], &[container("a", 0, 0), container("b", 0, 0), container("c", 0, 0)]);
        for at in [0, 1] {
            let claims = serde_json::from_value(json!([{ "name": "gpu" }])).expect("a claim");
            one.spec.containers[at].resources.claims = claims;
        }
        let one = running(one, &[("c", "1c"), ("a", "1a"), ("b", "1b")]);
        assert_eq!(
            ids(std::slice::from_ref(&one), vec![claimed("u-r0", "uid-p", &["1b"])]),
            [""; 0]
        );
        assert_eq!(ids(std::slice::from_ref(&one), vec![claimed("u-r0", "uid-p", &[])]), ["1a"]);
        assert_eq!(ids(&[one], vec![claimed("u-r0", "uid-q", &[])]), [""; 0], "another pod's");
    }

    #[test]
    fn it_is_told_once_after_thirty_seconds() {
        let rows = Rows { claims: vec![claimed("uid-p-c0", "uid-p", &[])], ..Rows::default() };
        let runs = running(pod("p", &[], &[container("a", 3, 0)]), &[("a", "1a")]);
        let found = || unadmitted([&runs], &rows, &ResourceNames::default());
        let (mut watched, start) = (Watched::default(), Instant::now());
        let mut at = |second: u64, found| {
            let (late, fresh) = watched.note(found, start + Duration::from_secs(second));
            (late.len(), fresh.len())
        };
        assert_eq!(at(0, found()), (0, 0));
        assert_eq!(at(29, found()), (0, 0));
        assert_eq!(at(30, found()), (1, 1));
        assert_eq!(at(35, found()), (1, 0));
        assert_eq!(at(40, BTreeSet::new()), (0, 0), "it has joined");
        assert_eq!(at(45, found()), (0, 0), "and counts from the start again");
    }

    #[test]
    fn the_event_names_the_container_and_the_cure() {
        let runs = running(pod("p", &[], &[container("a", 3, 0)]), &[("a", "1A-b")]);
        let rows = Rows { claims: vec![claimed("uid-p-c0", "uid-p", &[])], ..Rows::default() };
        let one = unadmitted([&runs], &rows, &ResourceNames::default()).pop_first().expect("one");
        let event = event(&one, "n").event(SystemTime::UNIX_EPOCH);
        assert_eq!(event["metadata"]["name"], "p.uncapped-1ab");
        assert_eq!(event["firstTimestamp"], "1970-01-01T00:00:00Z");
        let message = event["message"].as_str().expect("text");
        assert!(
            message.contains("container a runs without") && message.contains("enable_cdi = true")
        );
    }
}
