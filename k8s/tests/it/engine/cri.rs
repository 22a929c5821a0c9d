//! The Container Runtime Interface, as far as a kubelet needs it to start a container with devices.

use gpuslice_k8s::grpc::ask;
use prost::Message;
use std::collections::BTreeMap;
use tonic::Status;
use tonic::transport::Channel;

/// Namespace mode of a pod on the host's network: no network plugin is needed.
const NODE_NETWORK: i32 = 2;
/// Bytes of an answer, at most.
const ANSWER_MAX: usize = 16 << 20;

#[derive(Clone, PartialEq, Message)]
pub struct Named {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Metadata of a pod.
#[derive(Clone, PartialEq, Message)]
pub struct PodMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Namespaces {
    #[prost(int32, tag = "1")]
    pub network: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSecurity {
    #[prost(message, optional, tag = "1")]
    pub namespaces: Option<Namespaces>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodLinux {
    #[prost(string, tag = "1")]
    pub cgroup_parent: String,
    #[prost(message, optional, tag = "2")]
    pub security: Option<PodSecurity>,
}

/// A pod's sandbox as it is asked for.
#[derive(Clone, PartialEq, Message)]
pub struct PodConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<PodMetadata>,
    #[prost(string, tag = "3")]
    pub log_directory: String,
    #[prost(btree_map = "string, string", tag = "7")]
    pub annotations: BTreeMap<String, String>,
    #[prost(message, optional, tag = "8")]
    pub linux: Option<PodLinux>,
}

impl PodConfig {
    /// A pod on the node's network.
    pub fn new(metadata: PodMetadata, log_directory: String, cgroup_parent: String) -> PodConfig {
        let namespaces = Some(Namespaces { network: NODE_NETWORK });
        let security = Some(PodSecurity { namespaces });
        let linux = Some(PodLinux { cgroup_parent, security });
        PodConfig { metadata: Some(metadata), log_directory, annotations: BTreeMap::new(), linux }
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct Variable {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Security {
    #[prost(message, optional, tag = "3")]
    pub namespaces: Option<Namespaces>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Linux {
    #[prost(message, optional, tag = "2")]
    pub security: Option<Security>,
}

/// A container as it is asked for.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<Named>,
    #[prost(message, optional, tag = "2")]
    pub image: Option<Named>,
    #[prost(string, repeated, tag = "3")]
    pub command: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub envs: Vec<Variable>,
    #[prost(btree_map = "string, string", tag = "10")]
    pub annotations: BTreeMap<String, String>,
    #[prost(string, tag = "11")]
    pub log_path: String,
    #[prost(message, optional, tag = "15")]
    pub linux: Option<Linux>,
    #[prost(message, repeated, tag = "17")]
    pub cdi_devices: Vec<Named>,
}

impl ContainerConfig {
    /// A container of an image, on the node's network, with its output in a file of its name.
    pub fn new(name: &str, image: &str, command: &[&str]) -> ContainerConfig {
        let named = |name: &str| Some(Named { name: name.to_owned() });
        let security = Some(Security { namespaces: Some(Namespaces { network: NODE_NETWORK }) });
        ContainerConfig {
            metadata: named(name),
            image: named(image),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            log_path: format!("{name}.log"),
            linux: Some(Linux { security }),
            ..ContainerConfig::default()
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct RunPod {
    #[prost(message, optional, tag = "1")]
    config: Option<PodConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct Create {
    #[prost(string, tag = "1")]
    pod: String,
    #[prost(message, optional, tag = "2")]
    config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    sandbox: Option<PodConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct Id {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct Nothing {}

/// An engine's service for pods and containers.
#[derive(Clone)]
pub struct Runtime(pub Channel);

impl Runtime {
    async fn call<Q, A>(&self, method: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        ask(&self.0, method, message, ANSWER_MAX).await
    }

    /// Starts a pod's sandbox; its id.
    pub async fn run_pod(&self, config: &PodConfig) -> Result<String, Status> {
        let request = RunPod { config: Some(config.clone()) };
        let answer: Id = self.call("/runtime.v1.RuntimeService/RunPodSandbox", request).await?;
        Ok(answer.id)
    }

    /// Creates and starts a container; its id.
    pub async fn run(
        &self,
        pod: &str,
        sandbox: &PodConfig,
        config: ContainerConfig,
    ) -> Result<String, Status> {
        let (config, sandbox) = (Some(config), Some(sandbox.clone()));
        let request = Create { pod: pod.to_owned(), config, sandbox };
        let id: Id = self.call("/runtime.v1.RuntimeService/CreateContainer", request).await?;
        let request = id.clone();
        let _: Nothing = self.call("/runtime.v1.RuntimeService/StartContainer", request).await?;
        Ok(id.id)
    }

    /// Ends a pod with its containers.
    pub async fn remove_pod(&self, id: &str) -> Result<(), Status> {
        let request = Id { id: id.to_owned() };
        let again = request.clone();
        let _: Nothing = self.call("/runtime.v1.RuntimeService/StopPodSandbox", request).await?;
        let _: Nothing = self.call("/runtime.v1.RuntimeService/RemovePodSandbox", again).await?;
        Ok(())
    }
}
