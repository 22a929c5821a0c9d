//! Admission: devices for each container, and what a container gets from its plugins.

use super::{Devices, Kubelet, State};
use gpuslice_k8s::grpc::{Empty, ask};
use gpuslice_k8s::kubelet::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredRequest, MESSAGE_MAX, PreStartContainerRequest, PreferredRequest,
    PreferredResponse, method,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A container with what its plugins gave.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    pub envs: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub cdi_devices: BTreeSet<String>,
    pub devices: Devices,
}

/// A pod that has ended before it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    pub reason: String,
    pub message: String,
}

fn failed(message: String) -> Failed {
    Failed { reason: "UnexpectedAdmissionError".to_owned(), message }
}

/// The containers in the order of allocation; true: an init container that ends.
pub fn containers(pod: &Value) -> impl Iterator<Item = (&Value, bool)> {
    let of = |name: &str| pod["spec"][name].as_array().map(Vec::as_slice).unwrap_or_default();
    let init = of("initContainers").iter().map(|it| (it, it["restartPolicy"] != "Always"));
    init.chain(of("containers").iter().map(|it| (it, false)))
}

fn wants(container: &Value) -> Vec<(String, usize)> {
    let limits = container["resources"]["limits"].as_object();
    let amount = |value: &Value| value.as_str().and_then(|it| it.parse().ok());
    let all = limits.into_iter().flatten();
    all.filter_map(|(name, value)| Some((name.clone(), amount(value)?))).collect()
}

impl Kubelet {
    /// Admits a pod that the scheduler has bound to this node.
    pub async fn admit(&self, pod: &Value) -> Result<Vec<Container>, Failed> {
        let _serial = self.admission.lock().await;
        let uid = pod["metadata"]["uid"].as_str().expect("a uid").to_owned();
        self.state().pods.push(pod.clone());
        let mut started = Vec::new();
        let mut reusable = Devices::new();
        for (container, ends) in containers(pod) {
            match self.container(&uid, container, ends, &mut reusable).await {
                Ok(container) => started.push(container),
                Err(failed) => {
                    self.remove(&uid);
                    return Err(failed);
                }
            }
        }
        Ok(started)
    }

    /// Asks which devices a pod should have, and then does not admit it.
    pub async fn advise(&self, pod: &Value, resource: &str, amount: usize) -> Vec<String> {
        let _serial = self.admission.lock().await;
        let available: Vec<String> =
            self.state().plugins[resource].devices.keys().cloned().collect();
        self.state().pods.push(pod.clone());
        let advice = self.prefer(resource, &available, &[], amount).await;
        self.remove(pod["metadata"]["uid"].as_str().expect("a uid"));
        advice
    }

    /// What precedes each start of a container: plugins that want to be asked are asked with its devices.
    pub async fn pre_start(&self, uid: &str, container: &str) -> Result<(), String> {
        let devices = {
            let state = self.state();
            state.allocated.get(&(uid.to_owned(), container.to_owned())).cloned()
        };
        for (resource, device_ids) in devices.unwrap_or_default() {
            let (channel, wanted) = {
                let state = self.state();
                let Some(plugin) = state.plugins.get(&resource) else {
                    return Err(format!("no plugin of {resource} is registered"));
                };
                (plugin.channel.clone(), plugin.options.pre_start_required)
            };
            if wanted {
                let request = PreStartContainerRequest { device_ids };
                let asked =
                    ask::<_, Empty>(&channel, method::PRE_START, request, MESSAGE_MAX).await;
                asked.map_err(|status| format!("PreStartContainer: {}", status.message()))?;
            }
        }
        Ok(())
    }

    /// Forgets a pod that has ended.
    pub fn remove(&self, uid: &str) {
        let mut state = self.state();
        state.pods.retain(|pod| pod["metadata"]["uid"] != uid);
        state.allocated.retain(|(of, _), _| of != uid);
    }

    async fn container(
        &self,
        uid: &str,
        container: &Value,
        ends: bool,
        reusable: &mut Devices,
    ) -> Result<Container, Failed> {
        let name = container["name"].as_str().expect("a name").to_owned();
        let mut merged = Container { name: name.clone(), ..Container::default() };
        let (mut order, mut answers) = (Vec::new(), Vec::new());
        let mut wanted = wants(container);
        while !wanted.is_empty() {
            let (resource, amount) = {
                let at = self.state().random(wanted.len());
                wanted.swap_remove(at)
            };
            if !self.state().plugins.contains_key(&resource) {
                continue;
            }
            let reuse = reusable.entry(resource.clone()).or_default();
            let ids = self.choose(&resource, amount, reuse).await?;
            match ends {
                true => reuse.extend(
                    ids.iter().filter(|id| !reuse.contains(id)).cloned().collect::<Vec<_>>(),
                ),
                false => reuse.retain(|id| !ids.contains(id)),
            }
            let answer = self.allocate(&resource, &ids).await?;
            merged.devices.insert(resource.clone(), ids.clone());
            order.push(resource.clone());
            answers.push(answer.clone());
            let mut state = self.state();
            state.merge(&mut merged, answer);
            let devices = state.allocated.entry((uid.to_owned(), name.clone())).or_default();
            devices.insert(resource, ids);
        }
        let mut state = self.state();
        if answers.iter().any(|it| *it != answers[0]) {
            state.log.push(format!("the answers for {name} differ: {answers:?}"));
        }
        state.orders.insert(order);
        Ok(merged)
    }

    /// The ids for a container: first those of init containers, then preferred ones, then any.
    async fn choose(
        &self,
        resource: &str,
        amount: usize,
        reuse: &[String],
    ) -> Result<Vec<String>, Failed> {
        let mut ids: Vec<String> = reuse.iter().take(amount).cloned().collect();
        let needed = amount - ids.len();
        if needed == 0 {
            return Ok(ids);
        }
        let (available, preferred) = {
            let state = self.state();
            let plugin = &state.plugins[resource];
            let used: BTreeSet<&String> =
                state.allocated.values().filter_map(|it| it.get(resource)).flatten().collect();
            let free = |(id, healthy): &(&String, &bool)| **healthy && !used.contains(id);
            let available: Vec<String> =
                plugin.devices.iter().filter(free).map(|(id, _)| id.clone()).collect();
            let asks = plugin.options.get_preferred_allocation_available && !state.asks_no_advice;
            (available, asks)
        };
        if available.len() < needed {
            let text = format!(
                "Allocate failed due to requested number of devices unavailable for {resource}. Requested: {needed}, \
                 Available: {}, which is unexpected",
                available.len()
            );
            return Err(failed(text));
        }
        let advice = match preferred {
            true => self.prefer(resource, &available, &ids, amount).await,
            false => Vec::new(),
        };
        let advised = advice.into_iter().filter(|id| available.contains(id));
        ids.extend(advised.take(needed).collect::<Vec<_>>());
        let mut rest: Vec<String> = available.into_iter().filter(|id| !ids.contains(id)).collect();
        while ids.len() < amount {
            let at = self.state().random(rest.len());
            ids.push(rest.swap_remove(at));
        }
        Ok(ids)
    }

    async fn prefer(
        &self,
        resource: &str,
        available: &[String],
        must: &[String],
        size: usize,
    ) -> Vec<String> {
        let channel = self.state().plugins[resource].channel.clone();
        let request = PreferredRequest {
            container_requests: vec![ContainerPreferredRequest {
                available: [must, available].concat(),
                must_include: must.to_vec(),
                size: size as i32,
            }],
        };
        let answer = ask(&channel, method::PREFERRED, request, MESSAGE_MAX).await;
        let answer: PreferredResponse = answer.unwrap_or_default();
        answer.container_responses.into_iter().flat_map(|it| it.device_ids).collect()
    }

    async fn allocate(
        &self,
        resource: &str,
        ids: &[String],
    ) -> Result<ContainerAllocateResponse, Failed> {
        let channel = self.state().plugins[resource].channel.clone();
        let one = ContainerAllocateRequest { device_ids: ids.to_vec() };
        let request = AllocateRequest { container_requests: vec![one] };
        let answer = ask(&channel, method::ALLOCATE, request, MESSAGE_MAX).await;
        let answer: AllocateResponse = answer.map_err(|status| {
            failed(format!(
                "Allocate failed due to rpc error: code = {:?} desc = {}, which is unexpected",
                status.code(),
                status.message()
            ))
        })?;
        let mut responses = answer.container_responses;
        responses.pop().ok_or_else(|| failed("no container response".to_owned()))
    }
}

impl State {
    /// Adds one plugin's answer; of two values for a key the first stays, and the conflict is logged.
    fn merge(&mut self, container: &mut Container, answer: ContainerAllocateResponse) {
        for (into, from) in
            [(&mut container.envs, answer.envs), (&mut container.annotations, answer.annotations)]
        {
            for (key, value) in from {
                match into.get(&key) {
                    Some(first) if *first != value => {
                        self.log.push(format!("conflict: {key} is {first} and {value}"));
                    }
                    Some(_) => {}
                    None => drop(into.insert(key, value)),
                }
            }
        }
        container.cdi_devices.extend(answer.cdi_devices.into_iter().map(|it| it.name));
    }
}

impl Kubelet {
    /// Calls `Allocate` with ids that a kubelet would not choose; the answer is the refusal's text.
    pub async fn refused(&self, resource: &str, ids: &[String]) -> String {
        self.allocate(resource, ids).await.expect_err("refused").message
    }
}
