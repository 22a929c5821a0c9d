//! Objects of the unit tests.

use crate::api::objects::Pod;
use crate::kubelet::pod_resources::{ContainerDevices, ContainerResources, PodResources};
use gpuslice_wire::ids::{GpuUuid, NvmlIndex};
use gpuslice_wire::limits::GPUS_MAX;
use gpuslice_wire::node::{GpuFacts, Health, Numa};
use gpuslice_wire::policy::Policy;
use gpuslice_wire::text::Text;
use gpuslice_wire::units::Bytes;
use serde_json::{Value, json};

/// The UUID of the GPU with this number.
pub fn uuid(number: u8) -> GpuUuid {
    GpuUuid([number + 1; 16])
}

/// A GPU that has no slices.
pub fn gpu(number: u8, total: Bytes) -> GpuFacts {
    GpuFacts {
        number,
        uuid: uuid(number),
        index: NvmlIndex(u32::from(number)),
        product: Text::EMPTY,
        pci: Text::EMPTY,
        numa: Numa(None),
        island: Text::EMPTY,
        links: [0; GPUS_MAX],
        near: [255; GPUS_MAX],
        capability: [9, 0],
        driver: Text::EMPTY,
        simulated: true,
        health: Health::default(),
        total,
        promised: Bytes(0),
        left: total,
        share_promised: 0,
        share_left: 100,
        slices: 0,
        policy: Policy::ALL[0],
    }
}

/// A container that asks for memory and compute; 0: not for that.
pub fn container(name: &str, memory: u64, cores: u64) -> Value {
    let amounts = [("aliyun.com/gpu-mem", memory), ("aliyun.com/gpu-core.percentage", cores)];
    let limits: serde_json::Map<String, Value> = amounts
        .into_iter()
        .filter(|it| it.1 > 0)
        .map(|(name, amount)| (name.to_owned(), json!(amount.to_string())))
        .collect();
    json!({ "name": name, "resources": { "limits": limits } })
}

/// A pod with these containers; its uid is its name with `uid-` before it.
pub fn pod(name: &str, init: &[Value], containers: &[Value]) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "spec": { "nodeName": "n", "initContainers": init, "containers": containers },
        "status": { "phase": "Pending" },
    }))
    .expect("a pod")
}

/// Device ids by resource.
type Devices<'a> = &'a [(&'a str, &'a [&'a str])];

/// A pod as the kubelet lists it: its containers' device ids.
pub fn listed(name: &str, containers: &[(&str, Devices<'_>)]) -> PodResources {
    let devices = |&(resource, ids): &(&str, &[&str])| ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    let container = |(name, all): &(&str, Devices<'_>)| ContainerResources {
        name: (*name).to_owned(),
        devices: all.iter().map(devices).collect(),
    };
    PodResources {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        containers: containers.iter().map(container).collect(),
    }
}
