//! What a pod's limits become: a claim for each container, from a template that says the amounts.
//!
//! A container gives up the extended resources, which the stock scheduler would look for in vain, and names a claim. A
//! claim has `count` GPUs with the same amounts on each, as the pod's label says. Memory is the limit's number of
//! units, in bytes: where the device plugin gives a part of the GPU, a claim gives the amount itself.

use crate::api::quantity::Quantity;
use crate::names::COUNT;
use crate::place::CORES;
use crate::plugin::devices::Unit;
use crate::plugin::identity::ResourceNames;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Containers of a pod that are read, at most.
const CONTAINERS_MAX: usize = 256;
/// GPUs of a claim, at most.
const COUNT_MAX: u64 = gpuslice_wire::limits::GPUS_MAX as u64;
/// Units of a limit, at most: more bytes than any GPU has.
const UNITS_MAX: u64 = 1 << 24;

/// What an administrator chooses.
#[derive(Debug, Clone)]
pub struct Settings {
    pub names: ResourceNames,
    pub unit: Unit,
    /// The class of the devices.
    pub class: String,
    /// A scheduler's name that becomes the stock scheduler's.
    pub scheduler: String,
}

/// The amounts of a claim, on each of its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Template {
    pub mib: u64,
    /// Percent; 0: no share.
    pub cores: u64,
    pub count: u64,
}

/// A pod's changes, as operations of a JSON patch, and the templates that must be there first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    pub operations: Vec<Value>,
    pub templates: BTreeSet<Template>,
}

/// Why a pod is refused. The sentence is what its creator reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("container {container}: {amount} is no amount of {resource}; write a whole number")]
    Amount { container: String, resource: String, amount: String },
    #[error(
        "container {container} asks for {cores} and for no {memory}; a share of compute needs memory"
    )]
    NoMemory { container: String, cores: String, memory: String },
    #[error(
        "the label {COUNT} is {0:?}, and must be a number from 1 to {COUNT_MAX} that divides the amounts"
    )]
    Count(String),
    #[error("container {container}: {cores} percent of compute on one GPU are more than {CORES}")]
    Cores { container: String, cores: u64 },
    #[error("the pod has the claim {0:?} already, whose name the webhook uses")]
    Taken(String),
    #[error("the pod's {0} is not a list")]
    Shape(&'static str),
}

impl Template {
    /// Its name, which tells its words.
    #[must_use]
    pub fn name(&self) -> String {
        let Template { mib, cores, count } = self;
        format!("gpuslice-{count}x-{mib}mi-{cores}pc")
    }

    /// The object for the API server.
    #[must_use]
    pub fn object(&self, namespace: &str, class: &str) -> Value {
        let mut amounts = json!({ "memory": format!("{}Mi", self.mib) });
        if self.cores > 0 {
            amounts["cores"] = json!(self.cores.to_string());
        }
        let exactly = json!({
            "deviceClassName": class, "allocationMode": "ExactCount", "count": self.count,
            "capacity": { "requests": amounts },
        });
        json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": self.name(),
                "namespace": namespace,
                "labels": { "app.kubernetes.io/managed-by": "gpuslice-webhook" },
            },
            "spec": { "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": exactly }] } } },
        })
    }
}

/// The changes of a pod that is being created; none for a pod without these limits.
///
/// # Errors
/// [`Refusal`], with the sentence for the pod's creator.
pub fn decide(pod: &Value, settings: &Settings) -> Result<Change, Refusal> {
    let mut change = Change::default();
    let mut claims = Vec::new();
    for (list, letter) in [("initContainers", 'i'), ("containers", 'c')] {
        let containers = match &pod["spec"][list] {
            Value::Null => continue,
            found => found.as_array().ok_or(Refusal::Shape(list))?,
        };
        if containers.len() > CONTAINERS_MAX {
            return Err(Refusal::Shape(list));
        }
        for (at, container) in containers.iter().enumerate() {
            let Some(template) = wanted(pod, container, settings)? else {
                continue;
            };
            let name = format!("gpuslice-{letter}{at}");
            let path = format!("/spec/{list}/{at}/resources");
            let resources = without(container, settings, &name);
            change.operations.push(json!({ "op": "replace", "path": path, "value": resources }));
            claims.push(json!({ "name": name, "resourceClaimTemplateName": template.name() }));
            change.templates.insert(template);
        }
    }
    if claims.is_empty() {
        return Ok(change);
    }
    let before = match &pod["spec"]["resourceClaims"] {
        Value::Null => Vec::new(),
        found => found.as_array().ok_or(Refusal::Shape("resourceClaims"))?.clone(),
    };
    let taken = |claim: &&Value| before.iter().any(|it| it["name"] == claim["name"]);
    if let Some(claim) = claims.iter().find(taken) {
        return Err(Refusal::Taken(claim["name"].as_str().unwrap_or_default().to_owned()));
    }
    let all = [before, claims].concat();
    change.operations.push(json!({ "op": "add", "path": "/spec/resourceClaims", "value": all }));
    if pod["spec"]["schedulerName"] == settings.scheduler.as_str() {
        let stock = "default-scheduler";
        change
            .operations
            .push(json!({ "op": "replace", "path": "/spec/schedulerName", "value": stock }));
    }
    Ok(change)
}

/// What a container asks for; `None`: nothing of ours.
fn wanted(
    pod: &Value,
    container: &Value,
    settings: &Settings,
) -> Result<Option<Template>, Refusal> {
    let names = &settings.names;
    let memory = amount(container, &names.memory)?;
    let cores = amount(container, &names.cores)?;
    let named = || container["name"].as_str().unwrap_or_default().chars().take(63).collect();
    match (memory, cores) {
        (0, 0) => return Ok(None),
        (0, _) => {
            return Err(Refusal::NoMemory {
                container: named(),
                cores: names.cores.clone(),
                memory: names.memory.clone(),
            });
        }
        _ => {}
    }
    let label = &pod["metadata"]["labels"][COUNT];
    let count = match label {
        Value::Null => Some(1),
        text => text.as_str().and_then(|text| text.parse::<u64>().ok()),
    };
    let even =
        |count: &u64| (1..=COUNT_MAX).contains(count) && memory % count == 0 && cores % count == 0;
    let bad = || Refusal::Count(label.as_str().unwrap_or_default().chars().take(60).collect());
    let count = count.filter(even).ok_or_else(bad)?;
    if cores / count > u64::from(CORES) {
        return Err(Refusal::Cores { container: named(), cores: cores / count });
    }
    let mib = (memory / count).saturating_mul(settings.unit.0.0 >> 20);
    Ok(Some(Template { mib, cores: cores / count, count }))
}

/// A limit, or the request where there is no limit; 0 if there is neither.
fn amount(container: &Value, resource: &str) -> Result<u64, Refusal> {
    let resources = &container["resources"];
    let found = ["limits", "requests"].map(|part| &resources[part][resource]);
    let Some(found) = found.into_iter().find(|it| !it.is_null()) else {
        return Ok(0);
    };
    let text = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
    let bad = || Refusal::Amount {
        container: container["name"].as_str().unwrap_or_default().chars().take(63).collect(),
        resource: resource.to_owned(),
        amount: text.chars().take(60).collect(),
    };
    let quantity: Quantity = text.parse().map_err(|_| bad())?;
    let whole = Quantity::of(quantity.value()) == quantity && quantity.value() <= UNITS_MAX;
    if whole { Ok(quantity.value()) } else { Err(bad()) }
}

/// A container's resources without the extended ones, and with the claim.
fn without(container: &Value, settings: &Settings, claim: &str) -> Value {
    let mut resources = container["resources"].clone();
    let all = resources.as_object_mut();
    let all: &mut Map<String, Value> = match all {
        Some(all) => all,
        None => return json!({ "claims": [{ "name": claim }] }),
    };
    for part in ["limits", "requests"] {
        if let Some(amounts) = all.get_mut(part).and_then(Value::as_object_mut) {
            amounts.remove(&settings.names.memory);
            amounts.remove(&settings.names.cores);
        }
    }
    let claims = all.entry("claims").or_insert_with(|| json!([]));
    match claims.as_array_mut() {
        Some(claims) => claims.push(json!({ "name": claim })),
        None => *claims = json!([{ "name": claim }]),
    }
    resources
}

#[cfg(test)]
mod tests;
