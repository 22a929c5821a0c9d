//! One plugin of the pair: its socket, its service, and its registration.
//!
//! A kubelet that starts removes all sockets of plugins and makes its own anew. So a plugin looks at both files
//! once a second, and binds and registers again when one is missing or another.

use super::devices::{Offer, Resource};
use super::state::Pair;
use crate::grpc::{
    self, Answer, Empty, Methods, Service, listen, server_stream, socket_name, unary, unknown,
};
use crate::kubelet::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerPreferredRequest, ContainerPreferredResponse,
    ListAndWatchResponse, Options, PreStartContainerRequest, PreferredRequest, PreferredResponse,
    RegisterRequest, VERSION, method,
};
use anyhow::{Context, Result};
use gpuslice_wire::node::GpuFacts;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::{Status, transport};
use tracing::{info, warn};

/// Interval between two looks at the sockets.
const LOOK: Duration = Duration::from_secs(1);
/// Containers of one request, at most: a kubelet sends one.
const CONTAINERS_MAX: usize = 64;

/// The service of one resource.
pub struct Plugin {
    pub pair: Arc<Pair>,
    pub resource: Resource,
}

impl Methods for Plugin {
    const NAME: &'static str = "v1beta1.DevicePlugin";

    fn call(self: Arc<Self>, method: &str, request: Request<Body>) -> Answer {
        match method {
            "GetDevicePluginOptions" => unary(request, async move |_: Empty| Ok(self.options())),
            "ListAndWatch" => server_stream(request, move |_: Empty| self.list()),
            "GetPreferredAllocation" => unary(request, move |it| self.preferred(it)),
            "Allocate" => unary(request, move |it| self.allocate(it)),
            "PreStartContainer" => unary(request, move |it| self.pre_start(it)),
            other => unknown(other),
        }
    }
}

impl Plugin {
    /// One of the pair is asked before a container starts; both would be told the same.
    fn options(&self) -> Options {
        let capped = self.pair.settings.offer != Offer::Share;
        Options {
            pre_start_required: capped && self.resource == Resource::Memory,
            get_preferred_allocation_available: true,
        }
    }

    async fn pre_start(
        self: Arc<Self>,
        request: PreStartContainerRequest,
    ) -> Result<Empty, Status> {
        let checked = self.pair.check_start(self.resource, &request.device_ids).await;
        checked.map_err(|error| {
            warn!("a container does not start: {error:#}");
            Status::failed_precondition(format!("{error:#}"))
        })?;
        Ok(Empty {})
    }

    /// The devices now, and again whenever the health of a GPU changes.
    fn list(
        self: Arc<Self>,
    ) -> impl tokio_stream::Stream<Item = Result<ListAndWatchResponse, Status>> {
        let mut sent = None;
        WatchStream::new(self.pair.ledger.gpus()).filter_map(move |_| {
            let list = self.pair.inventory().list(self.resource);
            let fresh = sent.as_ref() != Some(&list);
            sent = Some(list.clone());
            fresh.then_some(Ok(list))
        })
    }

    async fn preferred(
        self: Arc<Self>,
        request: PreferredRequest,
    ) -> Result<PreferredResponse, Status> {
        bounded(request.container_requests.len())?;
        let mut responses = Vec::new();
        for container in request.container_requests {
            responses.push(self.prefer(container).await);
        }
        Ok(PreferredResponse { container_responses: responses })
    }

    /// Advice. Without it the kubelet takes any ids, and its next call says what is wrong.
    async fn prefer(&self, wanted: ContainerPreferredRequest) -> ContainerPreferredResponse {
        let size = usize::try_from(wanted.size).unwrap_or(0);
        let Ok((inventory, cards)) = self.pair.preview(self.resource, size as u64).await else {
            return ContainerPreferredResponse::default();
        };
        let mut ids = wanted.must_include;
        ids.truncate(size);
        let rest: Vec<String> =
            wanted.available.into_iter().filter(|id| !ids.contains(id)).collect();
        ids.extend(inventory.prefer(&rest, &cards, size - ids.len()));
        self.pair.advised(&ids).await;
        ContainerPreferredResponse { device_ids: ids }
    }

    async fn allocate(
        self: Arc<Self>,
        request: AllocateRequest,
    ) -> Result<AllocateResponse, Status> {
        bounded(request.container_requests.len())?;
        let mut responses = Vec::new();
        for container in &request.container_requests {
            let answer = self.pair.allocate(self.resource, &container.device_ids).await;
            responses.push(answer.map_err(|error| {
                let name = self.pair.name(self.resource);
                warn!("refusing {} x {name}: {error:#}", container.device_ids.len());
                Status::failed_precondition(format!("{error:#}"))
            })?);
        }
        Ok(AllocateResponse { container_responses: responses })
    }

    fn file(&self) -> String {
        socket_name(match (self.resource, self.pair.settings.offer) {
            (Resource::Memory, Offer::Whole) => "gpu",
            (Resource::Memory, _) => "gpu-mem",
            (Resource::Cores, _) => "gpu-core",
        })
    }

    /// Serves and registers, again after each restart of the kubelet, until the process ends.
    ///
    /// # Errors
    /// The directory of the sockets cannot be written.
    pub async fn run(self: Arc<Self>) -> Result<()> {
        let directories = &self.pair.settings.kubelet;
        let path = directories.device_plugins().join(self.file());
        loop {
            let listener = listen(&path).with_context(|| path.display().to_string())?;
            let own = listener.identity().ok();
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let router = transport::Server::builder().add_service(Service::new(self.clone()));
            let server = tokio::spawn(listener.serve(router, async { drop(stopped.await) }));
            let kubelet = grpc::identity(&directories.device_plugin_registry()).ok();
            match self.register().await {
                Ok(()) => {
                    info!(resource = self.pair.name(self.resource), "registered");
                    self.pair.registered.notify_one();
                    self.while_same(own, kubelet).await;
                }
                Err(error) => {
                    warn!("the kubelet does not register {}: {error:#}", self.file());
                    tokio::time::sleep(LOOK).await;
                }
            }
            // An open stream keeps a server from ending by itself.
            drop(stop);
            server.abort();
        }
    }

    /// Waits until the socket of this plugin or of the kubelet is missing or another.
    async fn while_same(&self, own: Option<(u64, u64)>, kubelet: Option<(u64, u64)>) {
        let directories = &self.pair.settings.kubelet;
        let path = directories.device_plugins().join(self.file());
        let registry = directories.device_plugin_registry();
        let same =
            || grpc::identity(&path).ok() == own && grpc::identity(&registry).ok() == kubelet;
        while same() {
            tokio::time::sleep(LOOK).await;
        }
        info!("a socket in {} was replaced", directories.device_plugins().display());
    }

    async fn register(&self) -> Result<()> {
        let path = self.pair.settings.kubelet.device_plugin_registry();
        let channel = grpc::connect(&path).await.with_context(|| path.display().to_string())?;
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.file(),
            resource_name: self.pair.name(self.resource).to_owned(),
            options: Some(self.options()),
        };
        let _: Empty = grpc::ask(&channel, method::REGISTER, request, 1 << 20).await?;
        Ok(())
    }
}

fn bounded(containers: usize) -> Result<(), Status> {
    match containers <= CONTAINERS_MAX {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!("{containers} containers in one request"))),
    }
}

/// Waits until the daemon has told the node's GPUs.
pub async fn first_facts(gpus: &mut watch::Receiver<Arc<Vec<GpuFacts>>>) {
    // The sender lives as long as the ledger.
    let _ = gpus.wait_for(|gpus| !gpus.is_empty()).await;
}
