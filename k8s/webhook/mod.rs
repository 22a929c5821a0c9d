//! The admission webhook: limits of GPU memory and compute become claims, so that unmodified pods are placed by the
//! stock scheduler.
//!
//! [`decide`] is pure: a pod in, its changes out. A review changes nothing in the cluster, so a client that is no API
//! server learns what the change of a pod would be, and does nothing. A claim of a pod is made from a template of its
//! namespace, whose name tells its amounts; [`templates`] makes them for the pods that the API server has.
//! With an authority of clients, reviews of others are refused.

pub mod decide;
pub mod templates;
pub mod tls;

use crate::api::client::Client;
use crate::http::{self, Bodies, Body, Limits, Peer, reply};
use crate::listen::listen;
use crate::names::{self, ResourceNames};
use crate::plugin::devices::Unit;
use crate::signals::unrouted;
use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use decide::Settings;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use templates::Templates;
use tokio::net::TcpListener;
use tracing::warn;

pub use tls::Files;

/// A review has one object, and the API server's own limit on a request is 3 MiB. Reviews are parsed and answered one
/// at a time, as the runtime has one thread. So the most that clients make the process hold is 64 x 64 KiB of buffers,
/// as much of TLS, 12 MiB of bodies, 20,000 values of 632 bytes, and 64 answers of 0.3 MiB: 51 MiB. The chart's limit
/// is 128 MiB.
const LIMITS: Limits = Limits { connections: 64, body: 4 << 20, bodies: 12 << 20, values: 20_000 };

/// Serve the admission webhook that turns limits into claims
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Address to listen at
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8443")]
    listen: SocketAddr,
    /// Certificate of the server, PEM; read again when it changes
    #[arg(long, value_name = "FILE")]
    certificate: PathBuf,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Authority of the API server's certificate as a client, PEM; without it the reviews of any client are answered
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Label selector of the namespaces whose pods get claims
    #[arg(long, value_name = "SELECTOR", default_value = "gpuslice.io/claims=enabled")]
    namespaces: String,
    /// URL of an API server without TLS, as of kubectl proxy [default: the cluster's own]
    #[arg(long, value_name = "URL")]
    api: Option<String>,
    /// Memory of one unit: GiB, MiB or a size
    #[arg(long, value_name = "UNIT", default_value = "GiB")]
    memory_unit: Unit,
    /// Name of the resource for memory
    #[arg(long, value_name = "NAME", default_value = names::MEMORY)]
    memory_resource: String,
    /// Name of the resource for percent of compute
    #[arg(long, value_name = "NAME", default_value = names::CORES)]
    core_resource: String,
    /// Class of the devices that pods get
    #[arg(long, value_name = "NAME", default_value = "gpuslice.io")]
    device_class: String,
    /// Scheduler that pods name and that the stock one replaces
    #[arg(long, value_name = "NAME", default_value = "ack-co-scheduler")]
    scheduler: String,
}

/// Runs the webhook until it fails or is told to end.
///
/// # Errors
/// The address is in use, or the certificate or the API server's credentials cannot be read.
pub async fn run(options: &Options) -> Result<()> {
    let api = match &options.api {
        Some(url) => Client::plain(url)?,
        None => Client::in_cluster()?,
    };
    let settings = Settings {
        names: ResourceNames {
            memory: options.memory_resource.clone(),
            cores: options.core_resource.clone(),
        },
        unit: options.memory_unit,
        class: options.device_class.clone(),
        scheduler: options.scheduler.clone(),
    };
    let files = Files::read(&options.certificate, &options.key, options.client_ca.as_deref())?;
    let listener = listen(options.listen).await?;
    let class = options.device_class.clone();
    let templates = Templates { api, class, namespaces: options.namespaces.clone() };
    tokio::select! {
        ended = serve(settings, listener, files, unrouted()) => ended,
        () = templates.run() => Ok(()),
    }
}

/// The webhook.
struct Webhook {
    settings: Settings,
    bodies: Bodies,
    /// Reviews of clients without a certificate are refused.
    demands_certificate: bool,
}

/// Serves reviews with TLS, until `stop` is ready.
///
/// # Errors
/// The socket fails.
pub async fn serve(
    settings: Settings,
    listener: TcpListener,
    files: Files,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let demands_certificate = files.demands_certificate();
    let webhook = Arc::new(Webhook { settings, bodies: Bodies::new(LIMITS), demands_certificate });
    let answer = move |request| answer(webhook.clone(), request);
    http::serve(listener, files, LIMITS.connections, answer, stop).await
}

/// What the API server sends.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    kind: String,
    request: Asked,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    uid: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    object: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Kind {
    group: String,
    kind: String,
}

async fn answer(webhook: Arc<Webhook>, request: Request<Incoming>) -> Response<Body> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => http::text(StatusCode::OK, "text/plain", "ok".to_owned()),
        (&Method::POST, "/mutate") if !webhook.trusts(&request) => {
            let error = "reviews are answered only to a client with a certificate of --client-ca";
            reply(StatusCode::FORBIDDEN, &json!({ "error": error }))
        }
        (&Method::POST, "/mutate") => match webhook.bodies.read::<Review>(request).await {
            Ok(review) => webhook.review(review),
            Err(error) => reply(StatusCode::BAD_REQUEST, &json!({ "error": format!("{error:#}") })),
        },
        _ => reply(StatusCode::NOT_FOUND, &json!({ "error": "reviews are sent to /mutate" })),
    }
}

impl Webhook {
    fn trusts(&self, request: &Request<Incoming>) -> bool {
        let certified = request.extensions().get::<Peer>().is_some_and(|peer| peer.is_certified);
        certified || !self.demands_certificate
    }

    fn review(&self, review: Review) -> Response<Body> {
        if review.api_version != "admission.k8s.io/v1" || review.kind != "AdmissionReview" {
            let error = "only reviews of admission.k8s.io/v1 are answered";
            return reply(StatusCode::BAD_REQUEST, &json!({ "error": error }));
        }
        let asked = review.request;
        let is_pod = asked.kind.group.is_empty() && asked.kind.kind == "Pod";
        let mut response = json!({ "uid": asked.uid, "allowed": true });
        if is_pod && asked.operation == "CREATE" {
            match decide::decide(&asked.object, &self.settings) {
                Ok(operations) if operations.is_empty() => {}
                Ok(operations) => {
                    response["patchType"] = json!("JSONPatch");
                    let patch = Value::Array(operations).to_string();
                    response["patch"] = Value::String(STANDARD.encode(patch));
                }
                Err(refusal) => {
                    let namespace: String = asked.namespace.chars().take(63).collect();
                    warn!(namespace, "refused: {refusal}");
                    response["allowed"] = json!(false);
                    response["status"] = json!({ "code": 422, "message": refusal.to_string() });
                }
            }
        }
        let mut answer = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview" });
        answer["response"] = response;
        reply(StatusCode::OK, &answer)
    }
}
