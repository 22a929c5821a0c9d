//! A client of the API server: JSON over HTTP/1, in the cluster with TLS and the service account's token.
//!
//! A request has a connection of its own. An agent sends a few a minute, and a connection that lasts would have to
//! notice that the server went away.

use super::objects::List;
use super::pages::{BEGINNINGS, Pages};
use anyhow::{Context, Result, anyhow, bail, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::{Method, Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Bytes of an answer, at most.
const ANSWER_MAX: usize = 64 << 20;
/// Time limit for an answer's head, and for its body unless it is a watch.
const LIMIT: Duration = Duration::from_secs(10);
/// Where a pod finds its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The server refused.
#[derive(Debug, thiserror::Error)]
#[error("{method} {path}: {status}: {message}")]
pub struct Refused {
    pub status: StatusCode,
    method: Method,
    path: String,
    message: String,
}

/// The API server.
#[derive(Clone)]
pub struct Client {
    /// A name or an address; one of IPv6 without brackets, as a pod's environment has it.
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    /// Read for each request, since tokens are replaced while a pod runs.
    token: Option<PathBuf>,
}

impl Client {
    /// The server at a URL such as `http://127.0.0.1:8001`, where `kubectl proxy` listens.
    ///
    /// # Errors
    /// The URL is no `http` URL of a server.
    pub fn plain(url: &str) -> Result<Client> {
        let uri: Uri = url.parse().with_context(|| format!("{url:?} is no URL"))?;
        ensure!(uri.scheme_str() == Some("http"), "{url:?} must begin with http://");
        let host = uri.host().with_context(|| format!("{url:?} names no server"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Client { host, port: uri.port_u16().unwrap_or(80), tls: None, token: None })
    }

    /// The server of the cluster in which this process is a pod.
    ///
    /// # Errors
    /// The process is no pod, or has no service account.
    pub fn in_cluster() -> Result<Client> {
        let variable = |name: &str| {
            std::env::var(name).with_context(|| {
                format!(
                    "{name} is not set, as it is in a pod; elsewhere run `kubectl proxy` as a user with the agent's \
                     rights, and give its address: --api http://127.0.0.1:8001"
                )
            })
        };
        let host = variable("KUBERNETES_SERVICE_HOST")?;
        let account = Path::new(ACCOUNT);
        let roots = account.join("ca.crt");
        let mut store = RootCertStore::empty();
        let read = || roots.display().to_string();
        for certificate in CertificateDer::pem_file_iter(&roots).with_context(read)? {
            store.add(certificate.with_context(read)?).with_context(read)?;
        }
        let config = ClientConfig::builder().with_root_certificates(store).with_no_client_auth();
        Ok(Client {
            host,
            port: variable("KUBERNETES_SERVICE_PORT")?
                .parse()
                .context("KUBERNETES_SERVICE_PORT")?,
            tls: Some(TlsConnector::from(Arc::new(config))),
            token: Some(account.join("token")),
        })
    }

    /// Reads an object or a list.
    ///
    /// # Errors
    /// [`Refused`], or the server cannot be reached, or the answer is malformed.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let text = self.call(Method::GET, path, "", None).await?;
        serde_json::from_slice(&text).with_context(|| format!("the answer to GET {path}"))
    }

    /// Reads a list in pages.
    ///
    /// # Errors
    /// As [`Client::get`], or the list has too many pages.
    pub async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<List<T>> {
        let mut begun = 1;
        loop {
            match self.pages(path).await {
                Err(error) if status(&error) == Some(StatusCode::GONE) && begun < BEGINNINGS => {
                    begun += 1;
                }
                done => return done,
            }
        }
    }

    async fn pages<T: DeserializeOwned>(&self, path: &str) -> Result<List<T>> {
        let mut pages = Pages::of(path);
        while let Some(next) = pages.next() {
            pages.add(self.get(&next).await?)?;
        }
        Ok(pages.done())
    }

    /// Changes the named fields of an object.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn merge(&self, path: &str, fields: &Value) -> Result<()> {
        let kind = "application/merge-patch+json";
        self.call(Method::PATCH, path, kind, Some(fields)).await.map(drop)
    }

    /// Creates an object; the answer is the object as the server keeps it.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        self.send(Method::POST, path, object).await
    }

    /// Replaces an object; the answer is the object as the server keeps it.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn replace(&self, path: &str, object: &Value) -> Result<Value> {
        self.send(Method::PUT, path, object).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn delete(&self, path: &str) -> Result<()> {
        self.call(Method::DELETE, path, "", None).await.map(drop)
    }

    async fn send(&self, method: Method, path: &str, object: &Value) -> Result<Value> {
        let text = self.call(method, path, "application/json", Some(object)).await?;
        serde_json::from_slice(&text).with_context(|| format!("the answer to {path}"))
    }

    /// A watch's events, one JSON text after the other.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn watch(&self, path: &str) -> Result<Lines> {
        let response = self.respond(Method::GET, path, "", None).await?;
        Ok(Lines { body: response.into_body(), rest: Vec::new() })
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Option<&Value>,
    ) -> Result<Bytes> {
        let answer = async {
            let response = self.respond(method, path, kind, body).await?;
            let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
            Ok(body.map_err(|error| anyhow!("the answer to {path}: {error}"))?.to_bytes())
        };
        let late = || format!("{}: no answer within {LIMIT:?}", self.authority());
        tokio::time::timeout(LIMIT, answer).await.with_context(late)?
    }

    async fn respond(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let mut request = Request::builder().method(method.clone()).uri(path);
        request = request.header(header::HOST, self.authority());
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        if let Some(token) = &self.token {
            let token = std::fs::read_to_string(token).context("the service account's token")?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let request = request.body(Full::new(Bytes::from(text)))?;
        let response = tokio::time::timeout(LIMIT, self.exchange(request));
        let at = || format!("the API server at {}", self.authority());
        let response = response.await.context("no answer in time").with_context(at)?;
        let response = response.with_context(at)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = Limited::new(response.into_body(), 64 << 10).collect().await;
        let text = body.map(|body| body.to_bytes()).unwrap_or_default();
        let told: Value = serde_json::from_slice(&text).unwrap_or_default();
        // A proxy in between has its own words.
        let other = || String::from_utf8_lossy(&text).chars().take(200).collect();
        let message = told["message"].as_str().map_or_else(other, str::to_owned);
        bail!(Refused { status, method, path: path.to_owned(), message })
    }

    /// The server as a URL has it.
    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => exchange(stream, request).await,
            Some(tls) => {
                let name = ServerName::try_from(self.host.clone())?;
                exchange(tls.connect(name, stream).await?, request).await
            }
        }
    }
}

/// Sends one request on a connection, which ends with the response's body.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

/// The error's status, if the server refused.
#[must_use]
pub fn status(error: &anyhow::Error) -> Option<StatusCode> {
    error.downcast_ref::<Refused>().map(|refused| refused.status)
}

/// Whether the same request may succeed a moment later: it met another change, the server is busy, or does not answer.
#[must_use]
pub fn is_temporary(error: &anyhow::Error) -> bool {
    status(error).is_none_or(|it| matches!(it.as_u16(), 409 | 429) || it.is_server_error())
}

/// Texts that end with a newline.
#[derive(Debug)]
pub struct Lines {
    body: Incoming,
    rest: Vec<u8>,
}

impl Lines {
    /// The next text; `None` when the server ended the watch.
    ///
    /// # Errors
    /// The connection broke, or a text is longer than an answer may be.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let tail = self.rest.split_off(end + 1);
                return Ok(Some(std::mem::replace(&mut self.rest, tail)));
            }
            ensure!(
                self.rest.len() <= ANSWER_MAX,
                "an event of a watch is longer than {ANSWER_MAX}"
            );
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            if let Ok(data) = frame?.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Plain, reply, serve};
    use serde_json::json;
    use std::io::Write;
    use tokio::net::TcpListener;

    #[test]
    fn a_refusal_for_good_is_not_temporary() {
        let refused = |status: u16| {
            let status = StatusCode::from_u16(status).expect("a status");
            let (path, message) = (String::new(), String::new());
            is_temporary(&Refused { status, method: Method::GET, path, message }.into())
        };
        assert!([409, 429, 500, 503].into_iter().all(refused));
        assert!(![400, 401, 403, 404, 410, 422].into_iter().any(refused));
        assert!(is_temporary(&anyhow!("no answer in time")));
    }

    #[test]
    fn an_address_of_ipv6_has_brackets() {
        let client = |url: &str| Client::plain(url).expect("a URL");
        assert_eq!(client("http://[fd00::1]:8001").host, "fd00::1", "as it is connected to");
        for (host, authority) in [("fd00::1", "[fd00::1]:443"), ("10.0.0.1", "10.0.0.1:443")] {
            let host = host.to_owned();
            let told = Client { host, port: 443, tls: None, token: None }.authority();
            assert_eq!(told, authority);
            assert!(told.parse::<hyper::http::uri::Authority>().is_ok());
        }
    }

    #[tokio::test]
    async fn a_server_of_ipv6_is_reached_by_its_url() {
        let Ok(listener) = TcpListener::bind("[::1]:0").await else {
            let line = b"SKIP a_server_of_ipv6_is_reached_by_its_url: this machine has no IPv6\n";
            return std::io::stderr().write_all(line).expect("said");
        };
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let answer = |request: Request<Incoming>| {
            let host = request.headers()[header::HOST].to_str().expect("text").to_owned();
            std::future::ready(reply(StatusCode::OK, &json!(host)))
        };
        tokio::spawn(serve(listener, Plain, 4, answer, std::future::pending()));
        let told: String = Client::plain(&url).expect("a URL").get("/").await.expect("an answer");
        assert_eq!(format!("http://{told}"), url);
    }
}
