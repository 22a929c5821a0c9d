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
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Connections at a time, at most.
const CONNECTIONS_MAX: usize = 64;
/// Time limit for a request's head, and for a TLS handshake.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for a request's body: the senders are the API server and the scheduler, on the same network.
const BODY_LIMIT: Duration = Duration::from_secs(4);
/// A connection's age at which it takes no further request. So a client that does not read keeps its place for a
/// while only.
const AGE_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for the last request of an old connection.
const LAST_LIMIT: Duration = Duration::from_secs(10);

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
                    if let Ok(Ok(stream)) = timeout(HEAD_LIMIT, tls.accept(stream)).await {
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
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    // A client that goes away is no concern of others.
    if timeout(AGE_LIMIT, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LAST_LIMIT, connection).await;
    }
}

/// Reads a request's JSON of at most `bytes_max`.
///
/// # Errors
/// The body is longer, broken off, too slow, or another shape.
pub async fn read<T: DeserializeOwned>(request: Request<Incoming>, bytes_max: usize) -> Result<T> {
    let body = timeout(BODY_LIMIT, Limited::new(request.into_body(), bytes_max).collect()).await;
    let body =
        body.map_err(|_| anyhow!("the request's body did not arrive within {BODY_LIMIT:?}"))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    /// As many clients as there are places begin a request and send no more of it.
    #[tokio::test]
    async fn requests_that_do_not_end_keep_no_place() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let answer = async |request| match read::<Value>(request, 1 << 20).await {
            Ok(value) => reply(StatusCode::OK, &value),
            Err(why) => text(StatusCode::BAD_REQUEST, "text/plain", format!("{why:#}")),
        };
        tokio::spawn(serve(listener, Plain, move |request| Box::pin(answer(request))));
        let post = async |body: &str| {
            let mut client = TcpStream::connect(at).await.expect("connected");
            let head =
                "POST / HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: 4\r\n\r\n";
            client.write_all(format!("{head}{body}").as_bytes()).await.expect("sent");
            client
        };
        let mut slow = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            slow.push(post("t").await);
        }
        let mut said = String::new();
        let mut client = post("true").await;
        let answered = timeout(4 * BODY_LIMIT, client.read_to_string(&mut said)).await;
        assert!(answered.is_ok_and(|read| read.is_ok()) && said.ends_with("true"), "{said}");
        let mut refused = String::new();
        slow.remove(0).read_to_string(&mut refused).await.expect("an answer");
        assert!(refused.contains("did not arrive within 4s"), "{refused}");
    }
}
