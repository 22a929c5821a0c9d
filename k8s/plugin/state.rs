//! What both plugins of the pair share: the node's devices, its pods, the ledger.

use super::answer::{self, Given};
use super::decide::{self, Decision, Node};
use super::devices::{Inventory, Offer, Resource, Unit};
use super::identity::{self, Answered, Position};
use crate::api::client::{Client, is_temporary};
use crate::api::objects::Pod;
use crate::api::store::{LATE_MAX, Objects};
use crate::kubelet::device_plugin::ContainerAllocateResponse;
use crate::kubelet::pod_resources::PodResources;
use crate::kubelet::{Directories, pod_resources};
use crate::ledger::{Ledger, Rows};
use crate::names::ResourceNames;
use crate::place::Placement;
use anyhow::{Context, Result, anyhow, bail};
use gpuslice_wire::owner::ClaimId;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;
use tracing::{info, warn};

/// How long a call waits for a pod that the kubelet admits already and this process has not seen yet.
const POD_WAIT: Duration = Duration::from_secs(2);

/// How often a pod's annotations are written until they are there, and the first pause after a failure: 8 s in all.
const WRITES: u32 = 6;
const WRITE_PAUSE: Duration = Duration::from_millis(250);

/// What an administrator chooses.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's name.
    pub node: String,
    pub names: ResourceNames,
    /// The resources of every mode: pods run on when the mode changes.
    pub all_names: Vec<String>,
    pub offer: Offer,
    pub unit: Unit,
    pub placement: Placement,
    pub kubelet: Directories,
    /// Namespace of the ConfigMaps that schedulers read.
    pub config_maps: String,
}

/// The state of the pair.
pub struct Pair {
    pub settings: Settings,
    pub ledger: Arc<dyn Ledger>,
    pub api: Client,
    /// The pods of this node.
    pub pods: watch::Receiver<Objects<Pod>>,
    /// A plugin has registered.
    pub registered: Notify,
    /// By uid, the claims of pods whose annotations this process writes.
    given: Mutex<BTreeMap<String, Vec<Given>>>,
    /// Init containers whose calls were answered.
    answered: Mutex<Answered>,
    /// By uid, pods that the watch had not told when their containers were decided for, and until when it may be late.
    untold: Mutex<BTreeMap<String, Instant>>,
    /// One decision at a time. A kubelet asks one after the other; its restart may leave a call behind. The decision is
    /// that of the last call, if that was for advice.
    turn: Mutex<Option<Advised>>,
}

impl Pair {
    /// A pair that has decided nothing yet.
    pub fn new(
        settings: Settings,
        ledger: Arc<dyn Ledger>,
        api: Client,
        pods: watch::Receiver<Objects<Pod>>,
    ) -> Pair {
        Pair {
            settings,
            ledger,
            api,
            pods,
            registered: Notify::new(),
            given: Mutex::default(),
            answered: Mutex::default(),
            untold: Mutex::default(),
            turn: Mutex::default(),
        }
    }

    /// The resource's name.
    #[must_use]
    pub fn name(&self, resource: Resource) -> &str {
        match resource {
            Resource::Memory => &self.settings.names.memory,
            Resource::Cores => &self.settings.names.cores,
        }
    }

    /// The devices as they are now.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        Inventory::of(&self.ledger.gpus().borrow(), self.settings.unit)
    }

    /// The GPUs, by position, that a container for which the kubelet will allocate should have.
    ///
    /// # Errors
    /// No container waits for this amount, or it has to be refused.
    pub async fn preview(
        &self,
        resource: Resource,
        amount: u64,
    ) -> Result<(Inventory, Vec<usize>)> {
        let mut turn = self.turn.lock().await;
        *turn = None;
        let found = self.decide(resource, amount, &mut Duration::default()).await?;
        let cards = (found.inventory.clone(), found.decision.cards.clone());
        *turn = Some(Advised { resource, ids: BTreeSet::new(), found });
        Ok(cards)
    }

    /// The devices that the kubelet was advised to take after the last [`Pair::preview`].
    pub async fn advised(&self, ids: &[String]) {
        if let Some(advised) = self.turn.lock().await.as_mut() {
            advised.ids = ids.iter().cloned().collect();
        }
    }

    /// Decides for the container that these devices are for, and reserves its claim.
    ///
    /// # Errors
    /// The sentence for the pod's events.
    pub async fn allocate(
        self: &Arc<Self>,
        resource: Resource,
        ids: &[String],
    ) -> Result<ContainerAllocateResponse> {
        let (began, mut listing) = (Instant::now(), Duration::ZERO);
        let mut turn = self.turn.lock().await;
        self.inventory().cards_of(resource, ids)?;
        let amount = ids.len() as u64;
        // A kubelet asks for advice and allocates at once, for the same container. Its list would say the same.
        let wanted: BTreeSet<String> = ids.iter().cloned().collect();
        let advised = turn.take().filter(|it| it.resource == resource && it.ids == wanted);
        let reserved = match advised {
            Some(Advised { found, .. }) => self.reserve(found).await.ok(),
            None => None,
        };
        let (found, device) = match reserved {
            Some(reserved) => reserved,
            None => self.reserve(self.decide(resource, amount, &mut listing).await?).await?,
        };
        let Found { inventory, pod, position, decision } = found;
        let (us, listing_us) = (began.elapsed().as_micros(), listing.as_micros());
        info!(claim = %decision.claim, pod = %pod.metadata.name, %device, us, listing_us, "allocated");
        if let Position::Init(at) = position {
            let key = (pod.metadata.uid.clone(), at, self.name(resource).to_owned());
            self.answered.lock().await.insert(key);
        }
        let names = &self.settings.names;
        let device = (self.settings.offer != Offer::Share).then_some(device.as_str());
        let answer = answer::answer(&inventory, &pod, &decision, names, device);
        self.annotate(&inventory, &pod, &decision).await;
        Ok(answer)
    }

    /// Reserves what was decided; returns the CDI device too.
    async fn reserve(&self, found: Found) -> Result<(Found, String)> {
        let device = self.ledger.reserve(&found.decision.reservation(&found.inventory)).await?;
        Ok((found, device))
    }

    /// Checks, before a container starts, that the claim reserved for it is its own: the kubelet knows by now which
    /// container has the devices.
    ///
    /// # Errors
    /// The container has no claim here, or its claim was released.
    pub async fn check_start(&self, resource: Resource, ids: &[String]) -> Result<()> {
        let listed = pod_resources::list(&self.settings.kubelet.pod_resources()).await;
        let listed = listed.map_err(|status| anyhow!("{}", status.message()))?;
        let Some(pods) = self.pods.borrow().clone() else {
            // A container that starts again without the API server has its CDI device still.
            return Ok(());
        };
        let found = identity::holder(pods.values(), &listed, self.name(resource), ids);
        let Some(container) = found else {
            return Ok(());
        };
        let claim = container.claimant(&self.settings.names).claim();
        let rows = self.ledger.rows().await?;
        match rows.claims.iter().find(|row| row.claim.as_str() == claim) {
            Some(row) if !row.released => Ok(()),
            _ => bail!(
                "container {} of pod {} has no share reserved (claim {claim}); delete the pod, so that it is \
                 created again",
                container.container.name,
                container.pod.metadata.name
            ),
        }
    }

    /// `listing`: the time that the kubelet took to list its pods is added to it.
    async fn decide(
        &self,
        resource: Resource,
        amount: u64,
        listing: &mut Duration,
    ) -> Result<Found> {
        let rows = self.ledger.rows().await?;
        let until = Instant::now() + POD_WAIT;
        let mut pods = self.pods.clone();
        loop {
            let asked = Instant::now();
            let listed = pod_resources::list(&self.settings.kubelet.pod_resources()).await;
            *listing += asked.elapsed();
            let listed = listed.map_err(|status| anyhow!("{}", status.message()))?;
            let known = pods.borrow_and_update().clone();
            if let Some(known) = &known {
                let call = (self.name(resource), amount);
                if let Some(found) = self.waiting(known.values(), &listed, call, &rows).await? {
                    return Ok(found);
                }
            }
            if tokio::time::timeout_at(until, pods.changed()).await.is_err() {
                let found = self.read_pods(resource, amount, &rows).await;
                return found?.with_context(|| self.unknown(resource, amount, known.is_some()));
            }
        }
    }

    /// Decides for the first container that waits for an amount; `None`: no container of these pods does.
    async fn waiting(
        &self,
        pods: impl IntoIterator<Item = &Pod>,
        listed: &[PodResources],
        call: (&str, u64),
        rows: &Rows,
    ) -> Result<Option<Found>> {
        let answered = self.answered.lock().await;
        let found = identity::candidates(pods, listed, &answered, call);
        if found.len() > 1 {
            let pods: Vec<&str> = found.iter().map(|it| it.pod.metadata.name.as_str()).collect();
            warn!(?pods, "several containers wait for the same amount; the first is taken");
        }
        let Some(first) = found.first() else {
            return Ok(None);
        };
        let inventory = Inventory::of(&rows.gpus, self.settings.unit);
        let node = Node {
            inventory: &inventory,
            rows,
            names: &self.settings.names,
            placement: self.settings.placement,
        };
        let decision = decide::decide(&node, first)?;
        let (pod, position) = (first.pod.clone(), first.position);
        Ok(Some(Found { inventory, pod, position, decision }))
    }

    /// Reads the node's pods once without the watch, whose connection may be silent, and decides by them.
    async fn read_pods(
        &self,
        resource: Resource,
        amount: u64,
        rows: &Rows,
    ) -> Result<Option<Found>> {
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.settings.node);
        let pods = match self.api.list::<Pod>(&path).await {
            Ok(list) => list.items,
            Err(error) => {
                warn!("the node's pods cannot be read: {error:#}");
                return Ok(None);
            }
        };
        let listed = pod_resources::list(&self.settings.kubelet.pod_resources()).await;
        let listed = listed.map_err(|status| anyhow!("{}", status.message()))?;
        let call = (self.name(resource), amount);
        let found = self.waiting(&pods, &listed, call, rows).await?;
        if let Some(found) = &found {
            let (uid, until) = (found.pod.metadata.uid.clone(), Instant::now() + LATE_MAX);
            self.untold.lock().await.insert(uid, until);
            warn!(pod = %found.pod.metadata.name, "the watch of the node's pods has not told this one");
        }
        Ok(found)
    }

    fn unknown(&self, resource: Resource, amount: u64, answered: bool) -> String {
        let name = self.name(resource);
        match answered {
            true => format!(
                "no pod of this node waits for {amount} x {name}; delete the pod, so that it is created again"
            ),
            false => format!(
                "the API server has not told which pods this node has, so no GPU can be chosen for {amount} x {name}"
            ),
        }
    }

    /// Writes the pod's annotations, beside the kubelet's work.
    async fn annotate(self: &Arc<Self>, inventory: &Inventory, pod: &Pod, decision: &Decision) {
        let now = Given::of(inventory, pod, decision, &self.settings.names);
        let mut all = self.given.lock().await;
        let given = all.entry(pod.metadata.uid.clone()).or_default();
        // The call for the other resource of the pair.
        if given.contains(&now) {
            return;
        }
        given.retain(|it| it.claim != now.claim);
        given.push(now);
        let (pair, inventory, pod) = (self.clone(), inventory.clone(), pod.clone());
        tokio::spawn(async move {
            if let Err(error) = pair.write_annotations(&inventory, &pod).await {
                warn!("the pod has its GPUs, and its annotations are not written: {error:#}");
            }
        });
    }

    /// Writes a pod's annotations as they are now, until they are written.
    async fn write_annotations(&self, inventory: &Inventory, pod: &Pod) -> Result<()> {
        let (meta, names) = (&pod.metadata, &self.settings.names);
        let path = format!("/api/v1/namespaces/{}/pods/{}", meta.namespace, meta.name);
        let mut pause = WRITE_PAUSE;
        for left in (0..WRITES).rev() {
            let Some(given) = self.given.lock().await.get(&meta.uid).cloned() else {
                return Ok(()); // the pod has ended
            };
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            let annotations = answer::annotations(inventory, pod, &given, names, now);
            // The uid keeps another pod with the same name from being annotated.
            let fields = json!({ "metadata": { "uid": meta.uid, "annotations": annotations } });
            match self.api.merge(&path, &fields).await {
                // The call for another container may have written more meanwhile, and before this.
                Ok(()) if self.given.lock().await.get(&meta.uid) != Some(&given) => {}
                Err(error) if left > 0 && is_temporary(&error) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                done => return done,
            }
        }
        Ok(())
    }

    /// Releases the claims of pods that are gone.
    ///
    /// # Errors
    /// The ledger or the kubelet does not answer, and nothing is released.
    pub async fn release_ended(&self) -> Result<usize> {
        // Claims first: a claim that is made after the pods were read would seem to have none.
        let rows = self.ledger.rows().await?;
        let Some(pods) = self.pods.borrow().clone() else {
            return Ok(0);
        };
        let all_names = &self.settings.all_names;
        // Mostly none has ended, and the list only shows that a pod still runs.
        if identity::ended(&rows.claims, &pods, &[], all_names).is_empty() {
            return Ok(0);
        }
        let listed = pod_resources::list(&self.settings.kubelet.pod_resources()).await;
        let listed = listed.map_err(|status| anyhow!("{}", status.message()))?;
        let _turn = self.turn.lock().await;
        let mut untold = self.untold.lock().await;
        untold.retain(|uid, until| !pods.contains_key(uid) && Instant::now() < *until);
        let mut ended = identity::ended(&rows.claims, &pods, &listed, all_names);
        // Where the watch is silent it has not told that a pod is gone either.
        let is_late = |claim: &ClaimId| {
            identity::pod_of_claim(claim.as_str()).is_some_and(|uid| untold.contains_key(uid))
        };
        ended.retain(|claim| !is_late(claim));
        for claim in &ended {
            self.ledger.release(*claim).await?;
            info!(%claim, "released: its pod has ended");
        }
        let lives = |uid: &String| pods.contains_key(uid) || untold.contains_key(uid);
        self.given.lock().await.retain(|uid, _| lives(uid));
        self.answered.lock().await.retain(|(uid, ..)| lives(uid));
        Ok(ended.len())
    }
}

/// A decision for which the kubelet was advised.
struct Advised {
    resource: Resource,
    /// What the kubelet was advised to take.
    ids: BTreeSet<String>,
    found: Found,
}

/// The container that a call is for, and its decision.
struct Found {
    inventory: Inventory,
    pod: Pod,
    position: Position,
    decision: Decision,
}
