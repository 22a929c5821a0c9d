//! A small HTTP server: bounded in connections, heads and bodies, with TLS where certificates are given.

use anyhow::{Context, Result, anyhow};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// Connections at a time, at most.
const CONNECTIONS_MAX: usize = 64;
/// Time limit for a request's head, and for a TLS handshake.
const HEAD_LIMIT: Duration = Duration::from_secs(10);

/// A response's body.
pub type Body = Full<Bytes>;

/// How connections are secured.
pub trait Security: Send + Sync + 'static {
    /// The acceptor of the next connection; `None`: plain HTTP.
    ///
    /// # Errors
    /// The certificate or its key cannot be used.
    fn acceptor(&self) -> Result<Option<TlsAcceptor>>;
}

/// HTTP without TLS.
#[derive(Debug, Clone, Copy)]
pub struct Plain;

impl Security for Plain {
    fn acceptor(&self) -> Result<Option<TlsAcceptor>> {
        Ok(None)
    }
}

/// Serves until the socket fails.
///
/// # Errors
/// No connection can be accepted.
pub async fn serve<F, R>(listener: TcpListener, security: impl Security, answer: F) -> Result<()>
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let (stream, _) = listener.accept().await?;
        let room = room.clone().acquire_owned().await?;
        let (answer, acceptor) = (answer.clone(), security.acceptor());
        tokio::spawn(async move {
            match acceptor {
                Ok(None) => connection(stream, answer).await,
                Ok(Some(tls)) => {
                    if let Ok(Ok(stream)) =
                        tokio::time::timeout(HEAD_LIMIT, tls.accept(stream)).await
                    {
                        connection(stream, answer).await;
                    }
                }
                Err(error) => tracing::error!("no connection is accepted: {error:#}"),
            }
            drop(room);
        });
    }
}

async fn connection<F, R>(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, answer: F)
where
    F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
    // A client that goes away is no concern of others.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

/// Reads a request's JSON of at most `bytes_max`.
///
/// # Errors
/// The body is longer, broken off, or another shape.
pub async fn read<T: DeserializeOwned>(request: Request<Incoming>, bytes_max: usize) -> Result<T> {
    let body = Limited::new(request.into_body(), bytes_max).collect().await;
    let body = body.map_err(|error| anyhow!("the request's body: {error}"))?.to_bytes();
    serde_json::from_slice(&body).context("the request's body is not of the expected shape")
}

/// A response of JSON.
#[must_use]
pub fn reply(status: StatusCode, value: &Value) -> Response<Body> {
    text(status, "application/json", value.to_string())
}

/// A response of text.
#[must_use]
pub fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}
