//! An API server that keeps objects by path: lists, watches, merge patches, conflicts, and a gate that is off.

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

type Body = BoxBody<Bytes, Infallible>;

/// The server.
pub struct Server {
    state: Mutex<State>,
    version: watch::Sender<u64>,
    /// Requests for paths with this text wait; empty: none.
    held: watch::Sender<String>,
    port: u16,
}

#[derive(Default)]
struct State {
    version: u64,
    /// Watches that continue from an older version get 410.
    oldest: u64,
    /// By path.
    objects: BTreeMap<String, Value>,
    /// Version, kind, path, object.
    events: Vec<(u64, &'static str, String, Value)>,
    /// Fields of `DRAConsumableCapacity` are dropped.
    gate_off: bool,
    /// Watches tell nothing.
    silent: bool,
    /// Requests for paths with this text get 500; empty: none.
    refused: String,
    /// Each request, as `METHOD PATH`.
    log: Vec<String>,
}

impl Server {
    /// Listens on a port of this machine.
    pub async fn start() -> Arc<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let ((version, _), (held, _)) = (watch::channel(0), watch::channel(String::new()));
        let server = Arc::new(Server { state: Mutex::default(), version, held, port });
        let ours = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let ours = ours.clone();
                let service = service_fn(move |request| ours.clone().answer(request));
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        server
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Drops the fields of consumable capacity from now on.
    pub fn gate_off(&self) {
        self.state.lock().expect("no panic").gate_off = true;
    }

    /// Answers requests for paths with this text with an error from now on; none for an empty text.
    pub fn refuse(&self, text: &str) {
        text.clone_into(&mut self.state.lock().expect("no panic").refused);
    }

    /// Lets requests for paths with this text wait from now on, until another text is given; none for an empty text.
    pub fn hold(&self, text: &str) {
        self.held.send_replace(text.to_owned());
    }

    /// Keeps watches open and tells them nothing from now on, as a connection that a firewall has forgotten.
    pub fn silence(&self) {
        self.state.lock().expect("no panic").silent = true;
    }

    /// Forgets what watches could continue from.
    pub fn compact(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.oldest = state.version + 1;
        state.version += 1;
        state.events.clear();
        self.version.send_replace(state.version);
    }

    /// The requests so far.
    pub fn log(&self) -> Vec<String> {
        self.state.lock().expect("no panic").log.clone()
    }

    /// An object.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().expect("no panic").objects.get(path).cloned()
    }

    /// All objects of a collection.
    pub fn list(&self, collection: &str) -> Vec<Value> {
        let state = self.state.lock().expect("no panic");
        let ours = state.objects.iter().filter(|(path, _)| is_in(path, collection));
        ours.map(|(_, object)| object.clone()).collect()
    }

    /// Creates or replaces an object.
    pub fn put(&self, path: &str, object: Value) -> Value {
        let mut state = self.state.lock().expect("no panic");
        let object = state.store(path, object);
        self.version.send_replace(state.version);
        object
    }

    /// Deletes an object; false if there is none.
    pub fn delete(&self, path: &str) -> bool {
        let mut state = self.state.lock().expect("no panic");
        let Some(object) = state.objects.remove(path) else {
            return false;
        };
        state.version += 1;
        let event = (state.version, "DELETED", path.to_owned(), object);
        state.events.push(event);
        self.version.send_replace(state.version);
        true
    }

    /// Adds a pod to the node.
    pub fn add_pod(&self, pod: &Value) {
        self.put(&pod_path(pod), pod.clone());
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        self.state.lock().expect("no panic").log.push(format!("{method} {uri}"));
        let goes_on = |held: &String| held.is_empty() || !uri.path().contains(held);
        let _ = self.held.subscribe().wait_for(goes_on).await;
        let refused = self.state.lock().expect("no panic").refused.clone();
        if !refused.is_empty() && uri.path().contains(&refused) {
            return Ok(refuse(StatusCode::INTERNAL_SERVER_ERROR, "refused by the test"));
        }
        let body = request.into_body().collect().await.map(|it| it.to_bytes()).unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
        if method == Method::GET && query.contains("watch=1") {
            return Ok(self.watch(path, &query));
        }
        Ok(match method {
            Method::GET => self.read(&path),
            Method::PATCH => self.patch(&path, &body),
            Method::POST => self.create(&path, body),
            Method::PUT => self.replace(&path, body),
            Method::DELETE if self.delete(&path) => json_body(StatusCode::OK, &json!({})),
            _ => refuse(StatusCode::NOT_FOUND, "not found"),
        })
    }

    fn read(&self, path: &str) -> Response<Body> {
        if let Some(object) = self.get(path) {
            return json_body(StatusCode::OK, &object);
        }
        if path.rsplit('/').next().is_some_and(|it| it.ends_with('s') && !it.contains('-')) {
            let version = self.state.lock().expect("no panic").version.to_string();
            let list =
                json!({ "metadata": { "resourceVersion": version }, "items": self.list(path) });
            return json_body(StatusCode::OK, &list);
        }
        refuse(StatusCode::NOT_FOUND, &format!("{path} not found"))
    }

    fn patch(&self, path: &str, fields: &Value) -> Response<Body> {
        let path = path.strip_suffix("/status").unwrap_or(path);
        let Some(mut object) = self.get(path) else {
            return refuse(StatusCode::NOT_FOUND, &format!("{path} not found"));
        };
        let uid = &fields["metadata"]["uid"];
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            return refuse(StatusCode::CONFLICT, "the uid in the precondition differs");
        }
        merge(&mut object, fields);
        json_body(StatusCode::OK, &self.put(path, object))
    }

    fn create(&self, collection: &str, object: Value) -> Response<Body> {
        if let Some(pod) = collection.strip_suffix("/binding") {
            return self.bind(pod, &object);
        }
        let path = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap_or("x"));
        match self.get(&path) {
            Some(_) => refuse(StatusCode::CONFLICT, "already exists"),
            None => json_body(StatusCode::CREATED, &self.put(&path, object)),
        }
    }

    fn bind(&self, pod: &str, binding: &Value) -> Response<Body> {
        let Some(mut object) = self.get(pod) else {
            return refuse(StatusCode::NOT_FOUND, "no such pod");
        };
        if object["spec"]["nodeName"].is_string() {
            return refuse(StatusCode::CONFLICT, "pod is already assigned to a node");
        }
        object["spec"]["nodeName"] = binding["target"]["name"].clone();
        self.put(pod, object);
        json_body(StatusCode::CREATED, &json!({ "status": "Success" }))
    }

    fn replace(&self, path: &str, mut object: Value) -> Response<Body> {
        let (Some(old), version) = (self.get(path), object["metadata"]["resourceVersion"].clone())
        else {
            return refuse(StatusCode::NOT_FOUND, "not found");
        };
        if version.is_string() && version != old["metadata"]["resourceVersion"] {
            return refuse(StatusCode::CONFLICT, "the object has been modified");
        }
        object["metadata"]["uid"] = old["metadata"]["uid"].clone();
        json_body(StatusCode::OK, &self.put(path, object))
    }

    fn watch(self: Arc<Self>, collection: String, query: &str) -> Response<Body> {
        let from = query.split('&').find_map(|it| it.strip_prefix("resourceVersion="));
        let mut seen: u64 = from.and_then(|it| it.parse().ok()).unwrap_or(0);
        let (sender, receiver) = mpsc::channel(64);
        tokio::spawn(async move {
            let mut version = self.version.subscribe();
            loop {
                let (lines, last) = self.since(&collection, seen);
                for line in lines {
                    if sender.send(Ok(Frame::data(Bytes::from(line)))).await.is_err() {
                        return;
                    }
                }
                let Some(last) = last else {
                    return;
                };
                seen = last;
                tokio::select! {
                    changed = version.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
            }
        });
        Response::new(BodyExt::boxed(StreamBody::new(ReceiverStream::new(receiver))))
    }

    /// Events after a version, and the version after them; none if that version is forgotten.
    fn since(&self, collection: &str, seen: u64) -> (Vec<String>, Option<u64>) {
        let state = self.state.lock().expect("no panic");
        if state.silent {
            return (Vec::new(), Some(seen));
        }
        if seen < state.oldest {
            let status = json!({ "code": 410, "message": "too old resource version" });
            return (vec![format!("{}\n", json!({ "type": "ERROR", "object": status }))], None);
        }
        let new = state.events.iter().filter(|it| it.0 > seen && is_in(&it.2, collection));
        let lines = new
            .map(|(_, kind, _, object)| format!("{}\n", json!({ "type": kind, "object": object })));
        (lines.collect(), Some(state.version))
    }
}

impl State {
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        }
        if self.gate_off {
            prune(&mut object);
        }
        let old = self.objects.insert(path.to_owned(), object.clone());
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        self.events.push((self.version, kind, path.to_owned(), object.clone()));
        object
    }
}

/// What a server drops whose gate for consumable capacity is off.
fn prune(object: &mut Value) {
    let devices = object.pointer_mut("/spec/devices").and_then(Value::as_array_mut);
    for device in devices.into_iter().flatten() {
        let Some(device) = device.as_object_mut() else {
            continue;
        };
        device.remove("allowMultipleAllocations");
        let capacity = device.get_mut("capacity").and_then(Value::as_object_mut);
        for one in capacity.into_iter().flat_map(|it| it.values_mut()) {
            one.as_object_mut().map(|it| it.remove("requestPolicy"));
        }
    }
}

fn merge(object: &mut Value, fields: &Value) {
    let Some(fields) = fields.as_object() else {
        fields.clone_into(object);
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in fields {
        match value {
            Value::Null => drop(object.as_object_mut().map(|it| it.remove(key))),
            value => merge(&mut object[key], value),
        }
    }
}

/// Whether an object belongs to a collection, of one namespace or of all.
fn is_in(path: &str, collection: &str) -> bool {
    let Some((parent, _)) = path.rsplit_once('/') else {
        return false;
    };
    let all = parent
        .split_once("/namespaces/")
        .and_then(|(root, rest)| rest.split_once('/').map(|(_, kind)| format!("{root}/{kind}")));
    parent == collection || all.is_some_and(|all| all == collection)
}

/// The path of a pod.
pub fn pod_path(pod: &Value) -> String {
    let text = |name: &str| pod["metadata"][name].as_str().expect("text");
    format!("/api/v1/namespaces/{}/pods/{}", text("namespace"), text("name"))
}

fn json_body(status: StatusCode, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

fn refuse(status: StatusCode, message: &str) -> Response<Body> {
    json_body(status, &json!({ "kind": "Status", "message": message, "code": status.as_u16() }))
}
