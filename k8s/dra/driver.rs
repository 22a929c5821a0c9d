//! Preparation: the kubelet asks before a pod's containers start, and tells when the pod is gone.
//!
//! Both calls may come any number of times, and the second for claims that are long forgotten. The ledger makes both
//! repeatable: it answers the same words with the same device, and releases an unknown claim without complaint.

use super::claim::{self, Claim, Group};
use super::{NAME, uid_of_claim};
use crate::api::client::Client;
use crate::grpc::{self, Answer, Empty, Methods, Service, listen, socket_name, unary, unknown};
use crate::kubelet::Directories;
use crate::kubelet::dra::{
    CLAIMS_MAX, ClaimsRequest, DRIVER, Device, PluginInfo, PrepareResponse, Prepared,
    RegistrationStatus, SUPPORTED, UnprepareResponse, Unprepared,
};
use crate::ledger::{Claimed, Ledger};
use anyhow::{Context, Result, ensure};
use gpuslice_wire::owner::ClaimId;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::{Status, transport};
use tracing::{info, warn};

/// Interval between two looks at the sockets.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(5);

/// What a preparation needs.
pub struct Driver {
    pub node: String,
    pub api: Client,
    pub ledger: Arc<dyn Ledger>,
}

/// The driver as `v1` of its service.
struct V1(Arc<Driver>);
/// The driver as `v1beta1`, for kubelets before 1.34.
struct V1Beta1(Arc<Driver>);

impl Methods for V1 {
    const NAME: &'static str = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin";

    fn call(self: Arc<Self>, method: &str, request: Request<Body>) -> Answer {
        self.0.clone().call(method, request)
    }
}

impl Methods for V1Beta1 {
    const NAME: &'static str = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin";

    fn call(self: Arc<Self>, method: &str, request: Request<Body>) -> Answer {
        self.0.clone().call(method, request)
    }
}

impl Driver {
    fn call(self: Arc<Self>, method: &str, request: Request<Body>) -> Answer {
        match method {
            "NodePrepareResources" => unary(request, move |it| self.prepare(it)),
            "NodeUnprepareResources" => unary(request, move |it| self.unprepare(it)),
            other => unknown(other),
        }
    }

    async fn prepare(self: Arc<Self>, request: ClaimsRequest) -> Result<PrepareResponse, Status> {
        bounded(&request)?;
        let mut response = PrepareResponse::default();
        for asked in request.claims {
            let prepared = match self.prepare_one(&asked.namespace, &asked.name, &asked.uid).await {
                Ok(devices) => Prepared { devices, error: String::new() },
                Err(error) => {
                    warn!("claim {}/{}: {error:#}", asked.namespace, asked.name);
                    Prepared { devices: Vec::new(), error: format!("{error:#}") }
                }
            };
            response.claims.insert(asked.uid, prepared);
        }
        Ok(response)
    }

    async fn prepare_one(&self, namespace: &str, name: &str, uid: &str) -> Result<Vec<Device>> {
        let plain = |text: &str| {
            let valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            !text.is_empty() && text.chars().all(valid)
        };
        ensure!(plain(namespace) && plain(name), "{namespace:?}/{name:?} is no claim's name");
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let began = Instant::now();
        let claim: Claim = self.api.get(&path).await?;
        let get_us = began.elapsed().as_micros();
        let rows = self.ledger.rows().await?;
        let groups = claim::groups(&claim, uid, &self.node, &rows)?;
        let mut devices = Vec::new();
        for group in &groups {
            // A claim whose second part does not fit keeps its first until it is unprepared or prepared again.
            let cdi = self.ledger.reserve(&group.words).await?;
            devices.extend(prepared(&claim, group, &cdi));
        }
        let us = began.elapsed().as_micros();
        info!(uid, devices = devices.len(), us, get_us, "prepared");
        Ok(devices)
    }

    async fn unprepare(
        self: Arc<Self>,
        request: ClaimsRequest,
    ) -> Result<UnprepareResponse, Status> {
        bounded(&request)?;
        let mut response = UnprepareResponse::default();
        for asked in request.claims {
            let error = match self.unprepare_one(&asked.uid).await {
                Ok(()) => String::new(),
                Err(error) => format!("{error:#}"),
            };
            response.claims.insert(asked.uid, Unprepared { error });
        }
        Ok(response)
    }

    async fn unprepare_one(&self, uid: &str) -> Result<()> {
        let rows = self.ledger.rows().await?;
        let ours = |claim: &ClaimId| uid_of_claim(claim.as_str()) == Some(uid);
        for row in rows.claims.iter().filter(|row| ours(&row.claim)) {
            self.ledger.release(row.claim).await?;
            info!(claim = %row.claim, "released");
        }
        Ok(())
    }

    /// Serves and announces the driver until the process ends.
    ///
    /// # Errors
    /// The kubelet's directories cannot be written.
    pub async fn run(self: Arc<Self>, directories: &Directories) -> Result<()> {
        let own = directories.driver(NAME);
        std::fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
        let socket = own.join("dra.sock");
        let announcement = directories.plugins_registry().join(socket_name(NAME));
        loop {
            let info = Arc::new(Registration(socket.clone()));
            let driver = transport::Server::builder()
                .add_service(Service::new(Arc::new(V1(self.clone()))))
                .add_service(Service::new(Arc::new(V1Beta1(self.clone()))));
            // The driver first: the kubelet dials it as soon as it sees the other.
            let driver = serve(&socket, driver)?;
            let router = transport::Server::builder().add_service(Service::new(info));
            let info = serve(&announcement, router)?;
            let same = |path: &Path, it: &Served| grpc::identity(path).ok() == it.file;
            while same(&socket, &driver) && same(&announcement, &info) {
                tokio::time::sleep(LOOK).await;
            }
            info!("a socket of the driver was removed; it is made again");
        }
    }
}

impl Driver {
    /// Serves the claims that are prepared, where the node's GPUs are offered in another way now, and then withdraws
    /// the driver. A pod with such a claim ends only when the kubelet has had it unprepared by its driver.
    pub async fn finish(self: Arc<Self>, directories: &Directories) {
        let unprepared = async {
            while self.has_claims().await {
                tokio::time::sleep(LOOK).await;
            }
        };
        let serve = async {
            // Where none is prepared, the kubelet must not see the driver again.
            while self.has_claims().await {
                info!("the driver serves the claims that are prepared, until they are unprepared");
                if let Err(error) = self.clone().run(directories).await {
                    warn!("pods with claims that are prepared cannot end for now: {error:#}");
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::select! {
            () = serve => {}
            () = unprepared => {}
        }
        let announcement = directories.plugins_registry().join(socket_name(NAME));
        let _ = std::fs::remove_file(announcement);
    }

    /// Whether the ledger has a claim of this driver; it is waited for.
    async fn has_claims(&self) -> bool {
        let prepared = |row: &Claimed| !row.released && uid_of_claim(row.claim.as_str()).is_some();
        loop {
            match self.ledger.rows().await {
                Ok(rows) => return rows.claims.iter().any(prepared),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }
}

/// The devices of a group, as the kubelet hands them to containers.
fn prepared(claim: &Claim, group: &Group, cdi: &str) -> Vec<Device> {
    let results = claim.status.allocation.iter().flat_map(|it| &it.devices.results);
    let ours = results.enumerate().filter(|(at, _)| group.results.contains(at));
    let device = |(_, result): (usize, &claim::AllocatedDevice)| Device {
        // Of alternatives the result names the one that was taken, as REQUEST/NAME; containers name the request.
        request_names: result.request.split('/').take(1).map(str::to_owned).collect(),
        pool_name: result.pool.clone(),
        device_name: result.device.clone(),
        cdi_device_ids: vec![cdi.to_owned()],
        share_id: result.share_id.clone(),
    };
    ours.map(device).collect()
}

/// A socket that serves until it is dropped.
struct Served {
    _stop: oneshot::Sender<()>,
    /// The socket's file.
    file: Option<(u64, u64)>,
}

fn serve(path: &Path, router: transport::server::Router) -> Result<Served> {
    let listener = listen(path).with_context(|| path.display().to_string())?;
    let file = listener.identity().ok();
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(listener.serve(router, async { drop(stopped.await) }));
    Ok(Served { _stop: stop, file })
}

fn bounded(request: &ClaimsRequest) -> Result<(), Status> {
    match request.claims.len() {
        0..=CLAIMS_MAX => Ok(()),
        many => Err(Status::invalid_argument(format!("{many} claims in one call"))),
    }
}

/// The announcement; it has the path of the driver's socket.
struct Registration(PathBuf);

impl Methods for Registration {
    const NAME: &'static str = "pluginregistration.Registration";

    fn call(self: Arc<Self>, method: &str, request: Request<Body>) -> Answer {
        match method {
            "GetInfo" => unary(request, async move |_: Empty| {
                Ok(PluginInfo {
                    kind: DRIVER.to_owned(),
                    name: NAME.to_owned(),
                    endpoint: self.0.display().to_string(),
                    supported_versions: SUPPORTED.map(str::to_owned).into(),
                })
            }),
            "NotifyRegistrationStatus" => unary(request, async |status: RegistrationStatus| {
                match status.registered {
                    true => info!("the kubelet has registered the driver"),
                    false => warn!("the kubelet refuses the driver: {}", status.error),
                }
                Ok(Empty {})
            }),
            other => unknown(other),
        }
    }
}
