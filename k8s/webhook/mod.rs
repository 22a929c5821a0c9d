//! The admission webhook: limits of GPU memory and compute become claims, so that unmodified pods are placed by the
//! stock scheduler.
//!
//! [`decide`] is pure: a pod in, its changes and the templates of its claims out. The server around it makes the
//! templates, since a claim of a pod is made from a template of its namespace. A template's name tells its amounts, so
//! equal amounts of all pods have one template.

pub mod decide;
mod tls;

use crate::api::client::{Client, status};
use crate::http::{self, Body, read, reply};
use crate::names;
use crate::plugin::devices::Unit;
use crate::plugin::identity::ResourceNames;
use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use decide::{Change, Settings, Template};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tracing::{info, warn};

pub use tls::Files;

/// Bytes of a review, at most: the API server's own limit on a request is 3 MiB.
const REVIEW_MAX: usize = 8 << 20;

/// Serve the admission webhook that turns limits into claims
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Address to listen at
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Certificate of the server, PEM; read again when it changes
    #[arg(long, value_name = "FILE")]
    certificate: PathBuf,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
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

/// Runs the webhook until it fails.
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
    let files = Files::read(&options.certificate, &options.key)?;
    let listener = TcpListener::bind(options.listen).await;
    let listener = listener.with_context(|| format!("listening at {}", options.listen))?;
    serve(Arc::new(Webhook { settings, api }), listener, files).await
}

/// The webhook.
pub struct Webhook {
    pub settings: Settings,
    pub api: Client,
}

/// Serves reviews with TLS.
///
/// # Errors
/// The socket fails.
pub async fn serve(webhook: Arc<Webhook>, listener: TcpListener, files: Files) -> Result<()> {
    http::serve(listener, files, move |request| answer(webhook.clone(), request)).await
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
    #[serde(default)]
    dry_run: bool,
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
        (&Method::POST, "/mutate") => match read::<Review>(request, REVIEW_MAX).await {
            Ok(review) => webhook.review(review).await,
            Err(error) => reply(StatusCode::BAD_REQUEST, &json!({ "error": format!("{error:#}") })),
        },
        _ => reply(StatusCode::NOT_FOUND, &json!({ "error": "reviews are sent to /mutate" })),
    }
}

impl Webhook {
    async fn review(&self, review: Review) -> Response<Body> {
        if review.api_version != "admission.k8s.io/v1" || review.kind != "AdmissionReview" {
            let error = "only reviews of admission.k8s.io/v1 are answered";
            return reply(StatusCode::BAD_REQUEST, &json!({ "error": error }));
        }
        let asked = review.request;
        let is_pod = asked.kind.group.is_empty() && asked.kind.kind == "Pod";
        let mut response = json!({ "uid": asked.uid, "allowed": true });
        if is_pod && asked.operation == "CREATE" {
            match self.change(&asked).await {
                Ok(change) if change.operations.is_empty() => {}
                Ok(change) => {
                    response["patchType"] = json!("JSONPatch");
                    response["patch"] =
                        json!(STANDARD.encode(json!(change.operations).to_string()));
                }
                Err((code, message)) => {
                    warn!(namespace = asked.namespace, "refused: {message}");
                    response["allowed"] = json!(false);
                    response["status"] = json!({ "code": code, "message": message });
                }
            }
        }
        let answer = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
        });
        reply(StatusCode::OK, &answer)
    }

    async fn change(&self, asked: &Asked) -> Result<Change, (u16, String)> {
        let change = decide::decide(&asked.object, &self.settings);
        let change = change.map_err(|error| (422, error.to_string()))?;
        for template in &change.templates {
            if !asked.dry_run {
                let made = self.make(&asked.namespace, template).await;
                made.map_err(|error| (503, format!("the template of the pod's claim: {error:#}")))?;
            }
        }
        Ok(change)
    }

    /// Makes a template, unless it is there.
    async fn make(&self, namespace: &str, template: &Template) -> Result<()> {
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
        anyhow::ensure!(
            !namespace.is_empty() && namespace.chars().all(valid),
            "{namespace:?} is no namespace"
        );
        let path =
            format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates");
        let object = template.object(namespace, &self.settings.class);
        match self.api.create(&path, &object).await {
            Ok(_) => {
                info!(namespace, name = template.name(), "made a template of claims");
                Ok(())
            }
            // Its words are in its name; one of the same name with other words would be another's, and is refused.
            Err(error) if status(&error).is_some_and(|it| it.as_u16() == 409) => {
                let kept: Value = self.api.get(&format!("{path}/{}", template.name())).await?;
                anyhow::ensure!(
                    crate::dra::slices::covers(&object["spec"], &kept["spec"]),
                    "{} exists with other words; delete it",
                    template.name()
                );
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
