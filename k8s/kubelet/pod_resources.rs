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

/// Path of the method that lists the devices of all plugins.
pub const ALLOCATABLE: &str = "/v1.PodResourcesLister/GetAllocatableResources";

#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocatableResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
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
    let list: ListResponse = ask(socket, LIST).await?;
    Ok(list.pods)
}

/// The devices of all plugins.
///
/// # Errors
/// The kubelet does not answer, or is one before 1.23.
pub async fn allocatable(socket: &Path) -> Result<Vec<ContainerDevices>, Status> {
    let list: AllocatableResponse = ask(socket, ALLOCATABLE).await?;
    Ok(list.devices)
}

async fn ask<T: prost::Message + Default + 'static>(
    socket: &Path,
    method: &'static str,
) -> Result<T, Status> {
    let channel = grpc::connect(socket).await.map_err(|error| {
        let at = socket.display();
        Status::unavailable(format!("the kubelet does not list its pods at {at}: {error}"))
    })?;
    grpc::ask(&channel, method, Empty {}, LIST_MAX).await
}
