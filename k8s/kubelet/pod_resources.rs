//! `v1` of the kubelet's list of pods and their devices.

use crate::grpc::{self, Empty};
use std::path::Path;
use tonic::Status;

/// Bytes of the list, at most: it has one entry for each device id of each container.
const LIST_MAX: usize = 64 << 20;
/// Path of the method.
pub const LIST: &str = "/v1.PodResourcesLister/List";

#[derive(Clone, PartialEq, prost::Message)]
pub struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodResources>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PodResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    #[prost(string, tag = "1")]
    pub resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

impl PodResources {
    /// The device ids of a resource that one of the pod's containers has.
    pub fn device_ids<'a>(
        &'a self,
        container: &'a str,
        resource: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        let containers = self.containers.iter().filter(move |it| it.name == container);
        let devices = containers.flat_map(|it| &it.devices);
        let ours = devices.filter(move |it| it.resource_name == resource);
        ours.flat_map(|it| it.device_ids.iter().map(String::as_str))
    }
}

/// All pods that the kubelet has admitted or is admitting.
///
/// # Errors
/// The kubelet does not answer.
pub async fn list(socket: &Path) -> Result<Vec<PodResources>, Status> {
    let channel = grpc::connect(socket).await.map_err(|error| {
        let at = socket.display();
        Status::unavailable(format!("the kubelet does not list its pods at {at}: {error}"))
    })?;
    let list: ListResponse = grpc::ask(&channel, LIST, Empty {}, LIST_MAX).await?;
    Ok(list.pods)
}
