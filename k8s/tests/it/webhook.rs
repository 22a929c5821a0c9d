//! The admission webhook behind TLS, asked as an API server asks.

use crate::api::Server;
use crate::world::{Agent, container};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gpuslice_k8s::api::client::Client;
use gpuslice_k8s::plugin::identity::ResourceNames;
use gpuslice_k8s::webhook::decide::Settings;
use gpuslice_k8s::webhook::{Files, Webhook, serve};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const NAME: &str = "gpuslice-webhook.gpuslice-system.svc";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";

/// A webhook that runs.
struct Running {
    api: Arc<Server>,
    dir: TempDir,
    address: SocketAddr,
    root: CertificateDer<'static>,
    _agent: Agent,
}

/// Writes a new certificate and its key.
fn renew(dir: &Path) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec![NAME.to_owned()]).expect("a certificate");
    std::fs::write(dir.join("tls.crt"), cert.pem()).expect("written");
    std::fs::write(dir.join("tls.key"), signing_key.serialize_pem()).expect("written");
    cert.der().clone()
}

impl Running {
    async fn start() -> Running {
        let api = Server::start().await;
        let dir = tempfile::tempdir().expect("a directory");
        let root = renew(dir.path());
        let files = Files::read(&dir.path().join("tls.crt"), &dir.path().join("tls.key"));
        let files = files.expect("a pair");
        let settings = Settings {
            names: ResourceNames::default(),
            unit: "GiB".parse().expect("a unit"),
            class: "gpuslice.io".to_owned(),
            scheduler: "ack-co-scheduler".to_owned(),
        };
        let client = Client::plain(&api.url()).expect("a URL");
        let webhook = Arc::new(Webhook { settings, api: client });
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("bound");
        free.set_nonblocking(true).expect("a socket");
        let agent = Agent::run(async move {
            let listener = TcpListener::from_std(free).expect("a socket");
            serve(webhook, listener, files).await.expect("serves");
        });
        Running { api, dir, address, root, _agent: agent }
    }

    /// Sends a request; status and body of the answer.
    async fn ask(
        &self,
        root: &CertificateDer<'static>,
        head: &str,
        body: &str,
    ) -> std::io::Result<(u16, Value)> {
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).expect("a certificate");
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(NAME).expect("a name");
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let request = format!(
            "{head} HTTP/1.1\r\nhost: n\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text).await;
        let status = text.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
        let body = text.split_once("\r\n\r\n").map_or("", |it| it.1);
        Ok((status, serde_json::from_str(body).unwrap_or_default()))
    }

    async fn review(&self, pod: &Value, dry_run: bool) -> Value {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "r-1", "namespace": "default", "operation": "CREATE", "dryRun": dry_run,
                "kind": { "group": "", "version": "v1", "kind": "Pod" }, "object": pod,
            },
        });
        let (status, answer) =
            self.ask(&self.root, "POST /mutate", &review.to_string()).await.expect("an answer");
        assert_eq!(status, 200, "{answer}");
        assert_eq!(
            (&answer["kind"], &answer["response"]["uid"]),
            (&json!("AdmissionReview"), &json!("r-1"))
        );
        answer["response"].clone()
    }
}

fn pod(memory: u64, cores: u64) -> Value {
    json!({ "metadata": { "generateName": "p-" }, "spec": { "containers": [container("main", memory, cores)] } })
}

#[tokio::test]
async fn limits_become_a_claim_and_its_template() {
    let webhook = Running::start().await;
    let answer = webhook.review(&pod(3, 20), true).await;
    assert!(
        answer["allowed"] == true && webhook.api.list(TEMPLATES).is_empty(),
        "a dry run makes nothing"
    );
    for _ in 0..2 {
        let answer = webhook.review(&pod(3, 20), false).await;
        assert_eq!((&answer["allowed"], &answer["patchType"]), (&json!(true), &json!("JSONPatch")));
        let patch = STANDARD.decode(answer["patch"].as_str().expect("a patch")).expect("base64");
        let patch: Vec<Value> = serde_json::from_slice(&patch).expect("operations");
        let paths: Vec<&str> = patch.iter().filter_map(|it| it["path"].as_str()).collect();
        assert_eq!(paths, ["/spec/containers/0/resources", "/spec/resourceClaims"]);
        assert_eq!(patch[1]["value"][0]["resourceClaimTemplateName"], "gpuslice-1x-3072mi-20pc");
    }
    let templates = webhook.api.list(TEMPLATES);
    assert_eq!(templates.len(), 1, "{templates:?}");
    let plain =
        webhook.review(&json!({ "spec": { "containers": [{ "name": "a" }] } }), false).await;
    assert_eq!(plain, json!({ "uid": "r-1", "allowed": true }));
    let refused = webhook.review(&pod(0, 20), false).await;
    assert_eq!((&refused["allowed"], &refused["status"]["code"]), (&json!(false), &json!(422)));
    // Another's template of the same name.
    let path = format!("{TEMPLATES}/gpuslice-1x-3072mi-20pc");
    webhook.api.put(&path, json!({ "metadata": { "name": "x" }, "spec": { "spec": {} } }));
    let refused = webhook.review(&pod(3, 20), false).await;
    let why = refused["status"]["message"].as_str().unwrap_or_default();
    assert!(refused["allowed"] == false && why.contains("exists with other words"), "{refused}");
}

#[tokio::test]
async fn strange_requests_and_renewed_certificates() {
    let webhook = Running::start().await;
    let long = "x".repeat(9 << 20);
    let v1beta1 = r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}"#;
    for (head, body, expected) in [
        ("POST /mutate", "", 400),
        ("POST /mutate", "[]", 400),
        ("POST /mutate", "{\"request\":{}}", 400),
        ("POST /mutate", v1beta1, 400),
        ("POST /mutate", long.as_str(), 400),
        ("GET /mutate", "", 404),
        ("POST /other", "{}", 404),
        ("GET /healthz", "", 200),
    ] {
        let root = &webhook.root;
        // A server that refuses a long body may close before it is sent.
        match webhook.ask(root, head, body).await {
            Ok((status, _)) => assert_eq!(status, expected, "{head} {:.40}", body),
            Err(_) => assert_eq!(body.len(), long.len()),
        }
    }
    // Plain HTTP gets no answer, and the next connection is served.
    let mut plain = TcpStream::connect(webhook.address).await.expect("it listens");
    plain.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // Half of a renewal: the old pair serves on.
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(webhook.dir.path().join("tls.key"), "half").expect("written");
    assert!(webhook.ask(&webhook.root, "GET /healthz", "").await.is_ok());
    std::thread::sleep(std::time::Duration::from_millis(20));
    let renewed = renew(webhook.dir.path());
    assert!(webhook.ask(&renewed, "GET /healthz", "").await.is_ok(), "the new one serves");
    assert!(
        webhook.ask(&webhook.root, "GET /healthz", "").await.is_err(),
        "and the old one no more"
    );
}
