//! What a pod's limits become: a claim for each container, from a template that says the amounts. An init container
//! that ends before the others start uses the claim of the first that wants at least as much. So it is with the device
//! plugin too.
//!
//! A container gives up the extended resources, which the stock scheduler would look for in vain, and names a claim.
//! The operations name only what changes, so an answer is short whatever else the pod has. A claim has `count` GPUs
//! with the same amounts on each, as the pod's label says. Memory is the limit's number of units, in bytes: where the
//! device plugin gives a part of the GPU, a claim gives the amount itself.

use crate::amounts::{self, BadAmounts, COUNT_MAX, Limits};
use crate::api::quantity::Quantity;
use crate::names::COUNT;
use crate::names::ResourceNames;
use crate::place::CORES;
use crate::plugin::devices::Unit;
use serde_json::{Value, json};

/// Containers of a pod that are read, at most.
const CONTAINERS_MAX: usize = 256;
/// Units of a limit, at most: more bytes than any GPU has.
const UNITS_MAX: u64 = 1 << 24;

/// MiB of a claim on one GPU, at most: 16 TiB.
const MIB_MAX: u64 = 1 << 24;

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

/// Why a pod is refused. The sentence is what its creator reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("container {container}: {amount} is no amount of {resource}; write a whole number")]
    Amount { container: String, resource: String, amount: String },
    #[error("{0}")]
    Amounts(#[from] BadAmounts),
    #[error("the pod has the claim {0:?} already, whose name the webhook uses")]
    Taken(String),
    #[error("the pod's {0} is not a list of at most {CONTAINERS_MAX}")]
    Shape(&'static str),
}

impl Template {
    /// Its name, which tells its words.
    #[must_use]
    pub fn name(&self) -> String {
        let Template { mib, cores, count } = self;
        format!("gpuslice-{count}x-{mib}mi-{cores}pc")
    }

    /// Whether a container that wants `other` can use a claim from this one.
    fn covers(&self, other: &Template) -> bool {
        self.mib >= other.mib && self.cores >= other.cores && self.count == other.count
    }

    /// The template that a name tells; `None`: another name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Template> {
        let rest = name.strip_prefix("gpuslice-")?.strip_suffix("pc")?;
        let (count, rest) = rest.split_once("x-")?;
        let (mib, cores) = rest.split_once("mi-")?;
        let read = |text: &str| text.parse::<u64>().ok();
        let template = Template { mib: read(mib)?, cores: read(cores)?, count: read(count)? };
        let valid = (1..=COUNT_MAX).contains(&template.count)
            && (1..=MIB_MAX).contains(&template.mib)
            && template.cores <= u64::from(CORES);
        // One amount has one name: no leading zero, no sign.
        (valid && template.name() == name).then_some(template)
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

/// The changes of a pod that is being created, as operations of a JSON patch; none for a pod without these limits.
///
/// # Errors
/// [`Refusal`], with the sentence for the pod's creator.
pub fn decide(pod: &Value, settings: &Settings) -> Result<Vec<Value>, Refusal> {
    let (mut operations, mut claims) = (Vec::new(), Vec::new());
    let mains = listed(&pod["spec"], "containers")?.iter().map(|it| wanted(pod, it, settings));
    let mains: Vec<Option<Template>> = mains.collect::<Result<_, _>>()?;
    for (list, letter) in [("initContainers", 'i'), ("containers", 'c')] {
        for (at, container) in listed(&pod["spec"], list)?.iter().enumerate() {
            let Some(template) = wanted(pod, container, settings)? else {
                continue;
            };
            let ends = letter == 'i' && container["restartPolicy"] != "Always";
            let successor = mains.iter().position(|it| it.is_some_and(|it| it.covers(&template)));
            let name = match successor.filter(|_| ends) {
                Some(main) => format!("gpuslice-c{main}"),
                None => {
                    let name = format!("gpuslice-{letter}{at}");
                    let from = template.name();
                    claims.push(json!({ "name": name, "resourceClaimTemplateName": from }));
                    name
                }
            };
            let path = format!("/spec/{list}/{at}/resources");
            operations.extend(exchange(&container["resources"], &path, settings, &name));
        }
    }
    if claims.is_empty() {
        return Ok(operations);
    }
    let before = listed(&pod["spec"], "resourceClaims")?;
    let taken = |claim: &&Value| before.iter().any(|it| it["name"] == claim["name"]);
    if let Some(claim) = claims.iter().find(taken) {
        return Err(Refusal::Taken(claim["name"].as_str().unwrap_or_default().to_owned()));
    }
    operations.extend(append(&pod["spec"], "/spec", "resourceClaims", claims));
    if pod["spec"]["schedulerName"] == settings.scheduler.as_str() {
        let stock = "default-scheduler";
        operations.push(json!({ "op": "replace", "path": "/spec/schedulerName", "value": stock }));
    }
    Ok(operations)
}

/// A list of the pod; nothing is an empty one.
fn listed<'a>(spec: &'a Value, list: &'static str) -> Result<&'a [Value], Refusal> {
    match &spec[list] {
        Value::Null => Ok(&[]),
        Value::Array(all) if all.len() <= CONTAINERS_MAX => Ok(all),
        _ => Err(Refusal::Shape(list)),
    }
}

/// Operations that add to a list of `parent`, which may have none.
fn append(parent: &Value, path: &str, list: &str, all: Vec<Value>) -> Vec<Value> {
    match parent[list].is_array() {
        true => {
            let add =
                |value| json!({ "op": "add", "path": format!("{path}/{list}/-"), "value": value });
            all.into_iter().map(add).collect()
        }
        false => vec![json!({ "op": "add", "path": format!("{path}/{list}"), "value": all })],
    }
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
    if memory == 0 && cores == 0 {
        return Ok(None);
    }
    let count = match &pod["metadata"]["labels"][COUNT] {
        Value::Null => amounts::count(None)?,
        // What is no text is no number of GPUs.
        label => amounts::count(Some(label.as_str().unwrap_or_default()))?,
    };
    let container = container["name"].as_str().unwrap_or_default();
    let each = amounts::on_each(Limits { container, memory, cores }, count, names)?;
    let mib = each.memory.saturating_mul(settings.unit.0.0 >> 20);
    Ok(Some(Template { mib, cores: u64::from(each.cores), count }))
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

/// Operations that take the extended resources from a container's resources and give it the claim.
fn exchange(resources: &Value, path: &str, settings: &Settings, claim: &str) -> Vec<Value> {
    let mut operations = Vec::new();
    for part in ["limits", "requests"] {
        for name in [&settings.names.memory, &settings.names.cores] {
            if !resources[part][name].is_null() {
                let name = name.replace('~', "~0").replace('/', "~1");
                operations.push(json!({ "op": "remove", "path": format!("{path}/{part}/{name}") }));
            }
        }
    }
    operations.extend(append(resources, path, "claims", vec![json!({ "name": claim })]));
    operations
}

#[cfg(test)]
mod tests;
