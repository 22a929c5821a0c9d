//! The admission webhook behind TLS, asked as an API server asks.

use crate::api::Server;
use crate::ports;
use crate::world::{Agent, container, until};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gpuslice_k8s::api::client::Client;
use gpuslice_k8s::names::ResourceNames;
use gpuslice_k8s::webhook::decide::Settings;
use gpuslice_k8s::webhook::templates::Templates;
use gpuslice_k8s::webhook::{Files, serve};
use rcgen::generate_simple_self_signed;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, CertifiedKey, IsCa, KeyPair};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const NAME: &str = "gpuslice-webhook.gpuslice-system.svc";
const NAME_OF_3_20: &str = "gpuslice-1x-3072mi-20pc";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";

/// An authority, and a certificate of it with its key, both DER.
struct Authority {
    pem: String,
    client: (CertificateDer<'static>, PrivateKeyDer<'static>),
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"));
        let issuer = issuer.expect("an authority");
        let key = KeyPair::generate().expect("a key");
        let client = CertificateParams::new(vec!["apiserver".to_owned()]).expect("a name");
        let client = client.signed_by(&key, &issuer).expect("signed");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        Authority { pem: issuer.pem(), client: (client.der().clone(), key) }
    }
}

/// A webhook that runs.
struct Running {
    api: Arc<Server>,
    dir: TempDir,
    address: SocketAddr,
    root: CertificateDer<'static>,
    _agent: Agent,
}

/// Writes a new certificate and its key.
pub fn renew(dir: &Path) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec![NAME.to_owned()]).expect("a certificate");
    std::fs::write(dir.join("tls.crt"), cert.pem()).expect("written");
    std::fs::write(dir.join("tls.key"), signing_key.serialize_pem()).expect("written");
    cert.der().clone()
}

impl Running {
    async fn start() -> Running {
        Running::trusting(None).await
    }

    /// A webhook that answers only clients with a certificate of this authority.
    async fn trusting(clients: Option<&Authority>) -> Running {
        let api = Server::start().await;
        let dir = tempfile::tempdir().expect("a directory");
        let root = renew(dir.path());
        let path = |name: &str| dir.path().join(name);
        let clients = clients.map(|authority| {
            std::fs::write(path("clients.crt"), &authority.pem).expect("written");
            path("clients.crt")
        });
        let files = Files::read(&path("tls.crt"), &path("tls.key"), clients.as_deref());
        let files = files.expect("certificates");
        let settings = Settings {
            names: ResourceNames::default(),
            unit: "GiB".parse().expect("a unit"),
            class: "gpuslice.io".to_owned(),
            scheduler: "ack-co-scheduler".to_owned(),
        };
        let templates = Templates {
            api: Client::plain(&api.url()).expect("a URL"),
            class: "gpuslice.io".to_owned(),
            namespaces: "gpuslice.io/claims=enabled".to_owned(),
        };
        let (free, address) = ports::listener();
        let agent = Agent::run(async move {
            let listener = TcpListener::from_std(free).expect("a socket");
            tokio::select! {
                ended = serve(settings, listener, files, std::future::pending()) => ended.expect("serves"),
                () = templates.run() => {}
            }
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
        self.ask_as(None, root, head, body).await
    }

    /// The same as a client with a certificate.
    async fn ask_as(
        &self,
        client: Option<&Authority>,
        root: &CertificateDer<'static>,
        head: &str,
        body: &str,
    ) -> std::io::Result<(u16, Value)> {
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).expect("a certificate");
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match client {
            None => config.with_no_client_auth(),
            Some(Authority { client: (certificate, key), .. }) => config
                .with_client_auth_cert(vec![certificate.clone()], key.clone_key())
                .expect("a client"),
        };
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
        let status = text.split(' ').nth(1).and_then(|it| it.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other("no answer"))?;
        let body = text.split_once("\r\n\r\n").map_or("", |it| it.1);
        Ok((status, serde_json::from_str(body).unwrap_or_default()))
    }

    async fn review(&self, pod: &Value) -> Value {
        let review = asked(pod);
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

fn asked(pod: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "r-1", "namespace": "default", "operation": "CREATE",
            "kind": { "group": "", "version": "v1", "kind": "Pod" }, "object": pod,
        },
    })
}

fn pod(memory: u64, cores: u64) -> Value {
    json!({ "metadata": { "generateName": "p-" }, "spec": { "containers": [container("main", memory, cores)] } })
}

#[tokio::test]
async fn limits_become_a_claim() {
    let webhook = Running::start().await;
    let answer = webhook.review(&pod(3, 20)).await;
    assert_eq!((&answer["allowed"], &answer["patchType"]), (&json!(true), &json!("JSONPatch")));
    let patch = STANDARD.decode(answer["patch"].as_str().expect("a patch")).expect("base64");
    let patch: Vec<Value> = serde_json::from_slice(&patch).expect("operations");
    let last = patch.last().expect("operations");
    assert_eq!(last["path"], "/spec/resourceClaims");
    assert_eq!(last["value"][0]["resourceClaimTemplateName"], NAME_OF_3_20);
    let plain = webhook.review(&json!({ "spec": { "containers": [{ "name": "a" }] } })).await;
    assert_eq!(plain, json!({ "uid": "r-1", "allowed": true }));
    let refused = webhook.review(&pod(0, 20)).await;
    assert_eq!((&refused["allowed"], &refused["status"]["code"]), (&json!(false), &json!(422)));
}

/// Reviews change nothing: only a pod that the API server has gets a template.
#[tokio::test]
async fn templates_are_made_for_pods_that_exist() {
    let webhook = Running::start().await;
    let api = &webhook.api;
    let labelled =
        json!({ "metadata": { "name": "default", "labels": { "gpuslice.io/claims": "enabled" } } });
    api.put("/api/v1/namespaces/default", labelled);
    assert_eq!(webhook.review(&pod(3, 20)).await["allowed"], true);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let all =
        || [TEMPLATES, "/apis/resource.k8s.io/v1/resourceclaimtemplates"].map(|it| api.list(it));
    assert!(all().concat().is_empty(), "a review makes none");
    let waits = |namespace: &str, name: &str| {
        let claim = json!({ "name": "gpuslice-c0", "resourceClaimTemplateName": NAME_OF_3_20 });
        api.add_pod(&json!({
            "metadata": { "name": name, "namespace": namespace, "uid": format!("uid-{name}") },
            "spec": { "resourceClaims": [claim] }, "status": { "phase": "Pending" },
        }));
    };
    waits("elsewhere", "a");
    waits("default", "b");
    until("the template", || !api.list(TEMPLATES).is_empty()).await;
    let made = all();
    assert_eq!((made[0].len(), made[1].len()), (1, 1), "no label, no template: {made:?}");
    let owner = &made[0][0]["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Pod"), &json!("uid-b")));
    // Its pod is gone, and so is the template; the next pod needs it.
    let template = format!("{TEMPLATES}/{NAME_OF_3_20}");
    api.delete("/api/v1/namespaces/default/pods/b");
    api.delete(&template);
    waits("default", "c");
    until("the template", || api.get(&template).is_some()).await;
    // Another's template of the same name stays, and the pod's events say so.
    api.delete("/api/v1/namespaces/default/pods/c");
    api.put(&template, json!({ "metadata": { "name": NAME_OF_3_20 }, "spec": { "spec": {} } }));
    waits("default", "d");
    let events = "/api/v1/namespaces/default/events";
    until("an event", || !api.list(events).is_empty()).await;
    let event = api.list(events).remove(0);
    assert!(
        event["message"].as_str().is_some_and(|it| it.contains("exists with other words")),
        "{event}"
    );
    assert_eq!(api.get(&template).expect("it stays")["spec"], json!({ "spec": {} }));
}

#[tokio::test]
async fn only_a_client_with_a_certificate_of_the_authority_gets_reviews() {
    let (authority, other) = (Authority::new(), Authority::new());
    let webhook = Running::trusting(Some(&authority)).await;
    let review = asked(&pod(3, 20)).to_string();
    let ask = async |client, head| webhook.ask_as(client, &webhook.root, head, &review).await;
    let (status, answer) = ask(Some(&authority), "POST /mutate").await.expect("an answer");
    assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(true)));
    let (status, answer) = ask(None, "POST /mutate").await.expect("an answer");
    assert!(status == 403 && answer["error"].as_str().is_some_and(|it| it.contains("--client-ca")));
    assert!(ask(Some(&other), "POST /mutate").await.is_err(), "another authority's");
    let healthy = ask(None, "GET /healthz").await.expect("an answer");
    assert_eq!(healthy.0, 200, "as the kubelet asks");
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
