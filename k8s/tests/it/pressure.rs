//! What clients of the webhook and the extender make them hold, as real processes, beside the memory limits of the
//! chart.

use crate::api::Server;
use crate::ports::Port;
use crate::programs::Process;
use crate::world::until_asked;
use gpuslice_k8s::api::client::Client;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const NAME: &str = "webhook";
/// How long a client presses: one that reads nothing is otherwise kept for a minute.
const PRESS: Duration = Duration::from_secs(8);
/// Bytes of a body: the most that either reads.
const BODY: usize = 4 << 20;

/// The memory limit, in MiB, of a part of the chart.
fn limit_mib(part: &str) -> u64 {
    let chart =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/kubernetes/chart/values.yaml");
    let values = std::fs::read_to_string(chart).expect("the chart's values");
    let part = values.split(&format!("\n{part}:\n")).nth(1).expect("the part");
    let limit = part.split("limits: { memory: ").nth(1).and_then(|it| it.split("Mi").next());
    limit.and_then(|it| it.parse().ok()).expect("MiB")
}

/// The most memory that the process had, in MiB.
fn peak_mib(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id()));
    let status = status.expect("it lives");
    let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("kB") >> 10
}

fn start(words: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice-k8s"));
    command.args(words).stdin(Stdio::null()).stderr(Stdio::null());
    Process(command.spawn().expect("it starts"))
}

async fn connected(address: &str) -> TcpStream {
    for _ in 0..2000 {
        if let Ok(stream) = TcpStream::connect(address).await {
            return stream;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing listens at {address}");
}

/// Bodies that are dear in one way each: many values, many objects, one long text, lists in lists.
fn bodies(around: fn(&str) -> String) -> Vec<Arc<String>> {
    let repeated = |one: &str, most: usize| {
        let count = ((BODY - 1024) / (one.len() + 1)).min(most);
        around(&format!("[{}]", vec![one; count].join(",")))
    };
    let lists = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let all = [
        repeated("0", usize::MAX),
        repeated(r#"{"a":0}"#, usize::MAX),
        // As many as are read.
        repeated(r#"{"a":0}"#, 9_900),
        repeated(&lists, 190),
        around(&format!("\"{}\"", "x".repeat(BODY - 1024))),
    ];
    all.map(Arc::new).into()
}

/// Sends a body twice, and reads no answer before the end.
async fn press(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str, body: &str) {
    let head = format!("POST {path} HTTP/1.1\r\nHost: n\r\nContent-Length: {}\r\n\r\n", body.len());
    for _ in 0..2 {
        if stream.write_all(head.as_bytes()).await.is_err()
            || stream.write_all(body.as_bytes()).await.is_err()
        {
            return;
        }
    }
    let _ = tokio::time::timeout(Duration::from_secs(2), stream.read(&mut [0; 64])).await;
}

async fn press_all(
    clients: usize,
    address: &str,
    tls: Option<TlsConnector>,
    path: &'static str,
    bodies: Vec<Arc<String>>,
) {
    let mut all = JoinSet::new();
    for client in 0..clients {
        let (address, tls, body) =
            (address.to_owned(), tls.clone(), bodies[client % bodies.len()].clone());
        all.spawn(async move {
            let stream = connected(&address).await;
            let pressed = async {
                match tls {
                    None => press(stream, path, &body).await,
                    Some(tls) => {
                        let name = ServerName::try_from(NAME).expect("a name");
                        if let Ok(stream) = tls.connect(name, stream).await {
                            press(stream, path, &body).await;
                        }
                    }
                }
            };
            let _ = tokio::time::timeout(PRESS, pressed).await;
        });
    }
    while let Some(one) = all.join_next().await {
        one.expect("no panic");
    }
}

/// The process's memory stays below its container's limit, and the pressure was felt: it held two bodies at least.
fn judge(part: &str, process: &Process, before: u64) {
    let (peak, limit) = (peak_mib(process), limit_mib(part));
    assert!(
        peak >= before + ((2 * BODY as u64) >> 20),
        "{part} had {before} MiB, and {peak} MiB under pressure"
    );
    println!("{part}: {peak} MiB at most, limit {limit} MiB");
    assert!(peak < limit, "{part} had {peak} MiB, and its container may have {limit} MiB");
}

#[tokio::test]
async fn the_webhook_stays_below_its_memory_limit() {
    let (api, dir, port) =
        (Server::start().await, tempfile::tempdir().expect("a directory"), Port::reserve());
    let address = port.address.to_string();
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec![NAME.to_owned()]).expect("a certificate");
    let file = |name: &str, text: String| {
        std::fs::write(dir.path().join(name), text).expect("written");
        dir.path().join(name).to_str().expect("text").to_owned()
    };
    let (certificate, key) = (file("crt", cert.pem()), file("key", signing_key.serialize_pem()));
    let words = [
        "webhook",
        "--listen",
        &address,
        "--certificate",
        &certificate,
        "--key",
        &key,
        "--api",
        &api.url(),
    ];
    let webhook = start(&words);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(cert.der().to_vec())).expect("a certificate");
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let around = |object: &str| {
        format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"1","operation":"CREATE","kind":{{"group":"","kind":"Pod"}},"object":{{"spec":{{"containers":{object}}}}}}}}}"#
        )
    };
    let tls = TlsConnector::from(Arc::new(config));
    // More clients than it takes at a time.
    drop(connected(&address).await);
    let before = peak_mib(&webhook);
    press_all(80, &address, Some(tls), "/mutate", bodies(around)).await;
    judge("webhook", &webhook, before);
}

#[tokio::test]
async fn the_extender_stays_below_its_memory_limit() {
    let (api, port) = (Server::start().await, Port::reserve());
    let address = port.address.to_string();
    let amounts = json!({ "aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2" });
    let node = json!({ "metadata": { "name": "n" }, "status": { "capacity": amounts } });
    api.put("/api/v1/nodes/n", node);
    let extender = start(&["extender", "--listen", &address, "--api", &api.url()]);
    // Before the API server's answer it reads no request.
    let client = Client::plain(&format!("http://{address}")).expect("a URL");
    until_asked("it reads requests", async || {
        let inspected = client.get::<Value>("/gpushare-scheduler/inspect").await;
        inspected.is_ok_and(|it| it["nodes"].is_array())
    })
    .await;
    let around = |part: &str| {
        format!(r#"{{"Pod":{{"spec":{{"containers":{part}}}}},"NodeNames":{part},"Nodes":null}}"#)
    };
    let halves = bodies(around).into_iter().filter(|it| it.len() <= BODY);
    let mut all: Vec<Arc<String>> = halves.collect();
    // As many names as are read, each as long as one may be; and one that is as long as all of them.
    let names = vec![format!("\"{}\"", "x".repeat(253)); 14_999].join(",");
    all.push(Arc::new(format!(r#"{{"Pod":{{}},"NodeNames":[{names}]}}"#)));
    all.push(Arc::new(format!(r#"{{"Pod":{{}},"NodeNames":["{}"]}}"#, "x".repeat(BODY - 64))));
    let before = peak_mib(&extender);
    press_all(32, &address, None, "/gpushare-scheduler/filter", all).await;
    judge("extender", &extender, before);
}
