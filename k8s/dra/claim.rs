//! A claim as the scheduler allocated it, and the words for the ledger.
//!
//! A claim may have several results: one for each GPU of each request. A container gets all results of a request, so
//! results of one request with equal amounts form one reservation with several GPUs. Amounts are read from
//! `consumedCapacity`, which only the scheduler writes.

use super::{CORES, MEMORY, NAME, slices};
use crate::api::objects::Metadata;
use crate::api::quantity::Quantity;
use crate::ledger::{Claimed, Rows};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::node::{GpuList, Reservation};
use gpuslice_wire::owner::{ClaimId, Owner};
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::text::Text;
use gpuslice_wire::units::{Bytes, Percent, Weight};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Results of a claim, at most: Kubernetes' own limit.
const RESULTS_MAX: usize = 32;

/// A claim, as far as it is read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Claim {
    pub metadata: Metadata,
    pub status: Status,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    pub allocation: Option<Allocation>,
    pub reserved_for: Vec<Consumer>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Consumer {
    pub resource: String,
    pub name: String,
    pub uid: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Allocation {
    pub devices: Devices,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Devices {
    pub results: Vec<AllocatedDevice>,
    pub config: Vec<Config>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllocatedDevice {
    pub request: String,
    pub driver: String,
    pub pool: String,
    pub device: String,
    #[serde(rename = "shareID")]
    pub share_id: Option<String>,
    pub consumed_capacity: BTreeMap<String, Quantity>,
}

/// Parameters that a class or a claim carries for a driver.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Of these requests; empty: of all.
    pub requests: Vec<String>,
    pub opaque: Option<Opaque>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Opaque {
    pub driver: String,
    pub parameters: Value,
}

/// What this driver's parameters may say. Later ones replace earlier ones, field by field.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Parameters {
    #[serde(rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(rename = "kind")]
    _kind: Option<String>,
    weight: Option<u32>,
    priority: Option<String>,
    share_limit: Option<u32>,
    gang: Option<String>,
}

/// Why a claim is not prepared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadClaim {
    #[error(
        "the claim has another uid ({found}): it was deleted and made again, so the pod's claim is gone"
    )]
    Uid { found: String },
    #[error("the claim is not allocated yet")]
    NotAllocated,
    #[error("the claim has {0} results, and at most {RESULTS_MAX} are possible")]
    TooMany(usize),
    #[error("the claim has no device of driver {NAME} on this node")]
    NoDevice,
    #[error("{0} is no GPU of this node")]
    NoGpu(String),
    #[error(
        "{request:?} has GPU {device} twice with equal amounts; give each request its own amounts"
    )]
    Twice { request: String, device: String },
    #[error(
        "the scheduler recorded no {MEMORY} for {0}: the feature gate DRAConsumableCapacity is off in the \
         scheduler or the API server"
    )]
    NoAmounts(String),
    #[error("{amount} percent of compute on {device} are more than 100")]
    Cores { device: String, amount: u64 },
    #[error("the parameters for driver {NAME} are wrong: {0}")]
    Parameters(String),
    #[error("{field} {text:?} is not one that a claim can have")]
    Name { field: &'static str, text: String },
}

/// A reservation, and the results that it is for, by position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub words: Reservation,
    pub results: Vec<usize>,
}

/// The reservations of a claim, in the order of its results.
///
/// # Errors
/// [`BadClaim`]; nothing of the claim may be prepared then.
pub fn groups(claim: &Claim, uid: &str, node: &str, rows: &Rows) -> Result<Vec<Group>, BadClaim> {
    if claim.metadata.uid != uid {
        return Err(BadClaim::Uid { found: claim.metadata.uid.clone() });
    }
    let allocation = claim.status.allocation.as_ref().ok_or(BadClaim::NotAllocated)?;
    let devices = &allocation.devices;
    if devices.results.len() > RESULTS_MAX {
        return Err(BadClaim::TooMany(devices.results.len()));
    }
    let mut parts: Vec<Part> = Vec::new();
    for (at, result) in devices.results.iter().enumerate() {
        if result.driver != NAME || result.pool != node {
            continue;
        }
        let gpu = rows.gpus.iter().find(|gpu| slices::device_name(gpu) == result.device);
        let gpu = gpu.ok_or_else(|| BadClaim::NoGpu(result.device.clone()))?;
        let amounts = amounts(result)?;
        match parts.iter_mut().find(|it| it.request == result.request && it.amounts == amounts) {
            Some(part) if part.gpus.contains(&gpu.uuid) => {
                let (request, device) = (result.request.clone(), result.device.clone());
                return Err(BadClaim::Twice { request, device });
            }
            Some(part) => {
                part.results.push(at);
                part.gpus.push(gpu.uuid);
            }
            None => parts.push(Part {
                request: &result.request,
                amounts,
                results: vec![at],
                gpus: vec![gpu.uuid],
            }),
        }
    }
    if parts.is_empty() {
        return Err(BadClaim::NoDevice);
    }
    let group = |(number, part): (usize, Part)| {
        let words = words(claim, number, &part, rows)?;
        Ok(Group { words, results: part.results })
    };
    parts.into_iter().enumerate().map(group).collect()
}

/// Results of one request with equal amounts.
struct Part<'a> {
    request: &'a str,
    amounts: Amounts,
    /// By position.
    results: Vec<usize>,
    gpus: Vec<GpuUuid>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Amounts {
    memory: Bytes,
    cores: u32,
}

fn amounts(result: &AllocatedDevice) -> Result<Amounts, BadClaim> {
    let device = || result.device.clone();
    let consumed = |name: &str| result.consumed_capacity.get(name).map(|it| it.value());
    let memory = consumed(MEMORY).filter(|bytes| *bytes > 0);
    let memory = Bytes(memory.ok_or_else(|| BadClaim::NoAmounts(device()))?);
    let amount = consumed(CORES).unwrap_or(0);
    match u32::try_from(amount) {
        Ok(cores @ 0..=100) => Ok(Amounts { memory, cores }),
        _ => Err(BadClaim::Cores { device: device(), amount }),
    }
}

fn words(claim: &Claim, number: usize, part: &Part, rows: &Rows) -> Result<Reservation, BadClaim> {
    let id = format!("{}-r{number}", claim.metadata.uid);
    let id = ClaimId::new(&id).map_err(|_| BadClaim::Name { field: "uid", text: id })?;
    let parameters = parameters(claim, part.request)?;
    let bad = |error: &dyn std::fmt::Display| BadClaim::Parameters(error.to_string());
    let weight = parameters.weight.map(Weight::new).transpose().map_err(|e| bad(&e))?;
    let limit = parameters.share_limit.map(Percent::new).transpose().map_err(|e| bad(&e))?;
    let class = match parameters.priority.as_deref() {
        None => Class::default(),
        Some(text) => text.parse::<Class>().map_err(|error| bad(&error))?,
    };
    let gang = match parameters.gang.as_deref() {
        None | Some("auto") => Gangs::Auto,
        Some("never") => Gangs::Never,
        Some(other) => return Err(bad(&format!("gang is {other:?}; auto and never are known"))),
    };
    // The words of a reservation never change, and the first pod of a claim may be gone.
    let known = rows.claims.iter().find(|row| row.claim == id).map(|row: &Claimed| row.owner);
    Ok(Reservation {
        claim: id,
        owner: known.map_or_else(|| owner(claim), Ok)?,
        gpus: GpuList::new(&part.gpus).unwrap_or_default(),
        memory: part.amounts.memory,
        share: Percent::new(part.amounts.cores).ok(),
        share_limit: limit,
        weight,
        class,
        gang,
        pinned: None,
    })
}

/// The parameters of a request: those of the class come first, then the claim's.
fn parameters(claim: &Claim, request: &str) -> Result<Parameters, BadClaim> {
    let mut all = Parameters::default();
    let config = claim.status.allocation.iter().flat_map(|it| &it.devices.config);
    for one in config {
        // A request with alternatives has results named `request/alternative`.
        let main = request.split('/').next().unwrap_or(request);
        let meant =
            one.requests.is_empty() || one.requests.iter().any(|it| it == request || it == main);
        let Some(opaque) = one.opaque.as_ref().filter(|it| meant && it.driver == NAME) else {
            continue;
        };
        let told: Parameters = serde_json::from_value(opaque.parameters.clone())
            .map_err(|error| BadClaim::Parameters(error.to_string()))?;
        all.weight = told.weight.or(all.weight);
        all.priority = told.priority.or(all.priority);
        all.share_limit = told.share_limit.or(all.share_limit);
        all.gang = told.gang.or(all.gang);
    }
    Ok(all)
}

fn owner(claim: &Claim) -> Result<Owner, BadClaim> {
    fn text<const N: usize>(field: &'static str, text: &str) -> Result<Text<N>, BadClaim> {
        Text::new(text).map_err(|_| BadClaim::Name { field, text: text.chars().take(60).collect() })
    }
    let pod = claim.status.reserved_for.iter().find(|it| it.resource == "pods");
    let (name, uid) = pod.map_or(("", ""), |pod| (&pod.name, &pod.uid));
    Ok(Owner {
        namespace: text("namespace", &claim.metadata.namespace)?,
        pod: text("pod", name)?,
        uid: text("uid", uid)?,
        container: Text::EMPTY,
    })
}

#[cfg(test)]
mod tests;
