//! A small HTTP server: bounded in connections, heads and bodies, with TLS where certificates are given.
//!
//! What clients send costs memory three times: as buffers of connections, as bodies, and as values once it is parsed,
//! of which an empty object takes 200 times its two bytes. [`Limits`] bounds each, so the product stays below the
//! memory limit of the program's container.

use anyhow::{Context, Result, anyhow, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
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
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Bytes of a connection that are read and not yet taken, at most. A request's head has to fit.
const BUFFER_MAX: usize = 64 << 10;
/// Time limit for a request's head, and for a TLS handshake.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for a request's body: the senders are the API server and the scheduler, on the same network.
const BODY_LIMIT: Duration = Duration::from_secs(4);
/// A connection's age at which it takes no further request. So a client that does not read keeps its place for a
/// while only.
const AGE_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for the last request of an old connection, and for those of all connections when the server ends.
const LAST_LIMIT: Duration = Duration::from_secs(10);

/// A response's body.
pub type Body = Full<Bytes>;

/// What a server holds for its clients, at most.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of one body.
    pub body: usize,
    /// Bytes of the bodies that are being read or answered. It is no less than those of one body.
    pub bodies: usize,
    /// JSON values of one body: numbers, texts, lists and objects, at any depth.
    pub values: usize,
}

/// On each request: what the TLS handshake proved of its client.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// It has a certificate of the authority that the server trusts.
    pub is_certified: bool,
}

/// The bodies that a server reads now.
#[derive(Debug)]
pub struct Bodies {
    limits: Limits,
    /// A permit is a KiB.
    room: Semaphore,
}

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

/// Serves until the socket fails, or `stop` is ready. Then it accepts no connection, and ends when the requests that it
/// has are answered.
///
/// # Errors
/// No connection can be accepted.
pub async fn serve<F, R>(
    listener: TcpListener,
    security: impl Security,
    connections: usize,
    answer: F,
    stop: impl Future<Output = ()>,
) -> Result<()>
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(connections));
    let (ending, ended) = watch::channel(());
    let mut stop = std::pin::pin!(stop);
    loop {
        let next = async {
            let (stream, _) = listener.accept().await?;
            anyhow::Ok((stream, room.clone().acquire_owned().await?))
        };
        let (stream, place) = tokio::select! {
            next = next => next?,
            () = &mut stop => break,
        };
        let (answer, acceptor, ended) = (answer.clone(), security.acceptor(), ended.clone());
        tokio::spawn(async move {
            match acceptor {
                Ok(None) => connection(stream, Peer { is_certified: false }, answer, ended).await,
                Ok(Some(tls)) => {
                    if let Ok(Ok(stream)) = timeout(HEAD_LIMIT, tls.accept(stream)).await {
                        let is_certified = stream.get_ref().1.peer_certificates().is_some();
                        connection(stream, Peer { is_certified }, answer, ended).await;
                    }
                }
                Err(error) => tracing::error!("no connection is accepted: {error:#}"),
            }
            drop(place);
        });
    }
    drop((listener, ending));
    let all = u32::try_from(connections).unwrap_or(u32::MAX);
    if timeout(LAST_LIMIT, room.acquire_many(all)).await.is_err() {
        tracing::warn!("requests are still without an answer after {LAST_LIMIT:?}");
    }
    Ok(())
}

/// `ended` closes when the server ends.
async fn connection<F, R>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    answer: F,
    mut ended: watch::Receiver<()>,
) where
    F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(BUFFER_MAX);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // A client that goes away is no concern of others.
        _ = connection.as_mut() => return,
        () = tokio::time::sleep(AGE_LIMIT) => {}
        _ = ended.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(LAST_LIMIT, connection).await;
}

impl Bodies {
    /// No body yet.
    #[must_use]
    pub fn new(limits: Limits) -> Bodies {
        Bodies { limits, room: Semaphore::new(limits.bodies.div_ceil(1024)) }
    }

    /// Reads a request's JSON. The body is gone when it is parsed.
    ///
    /// # Errors
    /// The body is longer than one may be, broken off, too slow, waits in vain for room beside others, has too many
    /// values, or another shape.
    pub async fn read<T: DeserializeOwned>(&self, request: Request<Incoming>) -> Result<T> {
        let late = |what| anyhow!("the request's body {what} within {BODY_LIMIT:?}");
        let bytes = self.size(&request)?;
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let room = timeout(BODY_LIMIT, self.room.acquire_many(kib)).await;
        let _room = room.map_err(|_| late("found no room beside others"))??;
        let body = timeout(BODY_LIMIT, collect(request.into_body(), bytes)).await;
        let body = body.map_err(|_| late("did not arrive"))??;
        let values = values(&body);
        let most = self.limits.values;
        ensure!(values <= most, "the request's body has {values} values, and {most} are read");
        serde_json::from_slice(&body).context("the request's body is not of the expected shape")
    }

    /// The bytes for which a body needs room: those that its head announces, or else as many as one may have.
    fn size(&self, request: &Request<Incoming>) -> Result<usize> {
        let most = self.limits.body;
        let told = request.body().size_hint().exact().unwrap_or(most as u64);
        let told = usize::try_from(told).unwrap_or(usize::MAX);
        ensure!(told <= most, "the request's body has {told} bytes, and {most} are read");
        Ok(told)
    }
}

/// A body of at most so many bytes, in one piece.
async fn collect(body: Incoming, bytes: usize) -> Result<Vec<u8>> {
    let mut body = Limited::new(body, bytes);
    let mut all = Vec::with_capacity(bytes);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| anyhow!("the request's body: {error}"))?;
        if let Ok(data) = frame.into_data() {
            all.extend_from_slice(&data);
        }
    }
    Ok(all)
}

/// No fewer values than a JSON text has: each but the first of a list or an object follows a comma, and the first
/// follows a bracket.
fn values(text: &[u8]) -> usize {
    let (mut found, mut quoted, mut escaped) = (1, false, false);
    for byte in text {
        match (quoted, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => quoted = !quoted,
            (false, b',' | b'[' | b'{') => found += 1,
            _ => {}
        }
    }
    found
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
    use crate::extender::lease::GIVE_UP_LIMIT;
    use crate::signals::ROUTED;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    const LIMITS: Limits = Limits { connections: 8, body: 4096, bodies: 8192, values: 9 };

    /// A server that answers with what it read.
    async fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let bodies = Arc::new(Bodies::new(LIMITS));
        let answer = async |bodies: Arc<Bodies>, request| match bodies.read::<Value>(request).await
        {
            Ok(value) => reply(StatusCode::OK, &value),
            Err(why) => text(StatusCode::BAD_REQUEST, "text/plain", format!("{why:#}")),
        };
        let answer = move |request| Box::pin(answer(bodies.clone(), request));
        let never = std::future::pending();
        tokio::spawn(serve(listener, Plain, LIMITS.connections, answer, never));
        at
    }

    /// A request of which so much has been sent, whatever length its head announces.
    async fn begin(at: SocketAddr, length: usize, body: &str) -> TcpStream {
        let mut client = TcpStream::connect(at).await.expect("connected");
        let head = format!(
            "POST / HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        client.write_all(head.as_bytes()).await.expect("sent");
        client
    }

    async fn end(mut client: TcpStream) -> String {
        let mut said = String::new();
        let read = timeout(4 * BODY_LIMIT, client.read_to_string(&mut said)).await;
        assert!(read.is_ok_and(|it| it.is_ok()), "{said}");
        said
    }

    /// As many clients as there are places begin a request and send no more of it.
    #[tokio::test]
    async fn requests_that_do_not_end_keep_no_place() {
        let at = server().await;
        let mut slow = Vec::new();
        for _ in 0..LIMITS.connections {
            slow.push(begin(at, 4, "t").await);
        }
        assert!(end(begin(at, 4, "true").await).await.ends_with("true"));
        let refused = end(slow.remove(0)).await;
        assert!(refused.contains("did not arrive within 4s"), "{refused}");
    }

    /// Of each kind of bad body come three times as many as there are places, and then a good one.
    #[tokio::test(start_paused = true)]
    async fn bad_bodies_keep_no_place() {
        let at = server().await;
        for (length, body, words) in [
            (4097, "", "has 4097 bytes"),
            (20, "[1,2,3,4,5,6,7,8, 9]", "has 10 values"),
            (4, "t", "did not arrive"),
        ] {
            let mut bad = Vec::new();
            for _ in 0..3 * LIMITS.connections {
                bad.push(begin(at, length, body).await);
            }
            for one in bad {
                let said = end(one).await;
                assert!(said.contains(words), "{words}: {said}");
            }
            assert!(end(begin(at, 4, "true").await).await.ends_with("true"), "{words}");
        }
    }

    /// Two bodies of the largest size have room at a time. A third one waits, and is answered after them.
    #[tokio::test]
    async fn bodies_wait_for_room() {
        let at = server().await;
        let slow = [begin(at, 4096, "\"").await, begin(at, 4096, "\"").await];
        tokio::time::sleep(Duration::from_millis(200)).await;
        let waits = begin(at, 4096, &format!("\"{}\"", "x".repeat(4094))).await;
        let early = timeout(Duration::from_millis(500), waits.readable()).await;
        assert!(early.is_err(), "it is answered although the others have all room");
        for one in slow {
            assert!(end(one).await.contains("did not arrive"));
        }
        assert!(end(waits).await.contains("200 OK"));
    }

    #[tokio::test]
    async fn long_bodies_and_many_values_are_refused() {
        let at = server().await;
        let long = end(begin(at, 4097, "").await).await;
        assert!(long.contains("has 4097 bytes, and 4096 are read"), "{long}");
        let many = end(begin(at, 20, "[1,2,3,4,5,6,7,8, 9]").await).await;
        assert!(many.contains("has 10 values, and 9 are read"), "{many}");
        assert!(end(begin(at, 17, "[1,2,3,4,5,6,7,8]").await).await.contains("200 OK"));
    }

    /// What was asked is answered, idle connections end, and new ones are refused.
    #[tokio::test]
    async fn a_server_that_is_told_to_end_answers_what_it_has() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let answer = |_| async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            text(StatusCode::OK, "text/plain", "late".to_owned())
        };
        let served = tokio::spawn(serve(listener, Plain, 2, answer, async { drop(stopped.await) }));
        let mut asked = TcpStream::connect(at).await.expect("connected");
        asked.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await.expect("sent");
        let idle = TcpStream::connect(at).await.expect("connected");
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(stop);
        assert!(end(asked).await.ends_with("late"));
        assert_eq!(end(idle).await, "");
        let ended = timeout(LAST_LIMIT / 2, served).await.expect("in time").expect("no panic");
        assert!(ended.is_ok());
        assert!(TcpStream::connect(at).await.is_err());
    }

    /// A pod has 30 s from its signal to its end: the webhook takes 15 of them, and the extender 20.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_never_comes_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let answer = |_| std::future::pending::<Response<Body>>();
        let served = tokio::spawn(serve(listener, Plain, 2, answer, async { drop(stopped.await) }));
        let mut asked = TcpStream::connect(at).await.expect("connected");
        asked.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await.expect("sent");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let told = Instant::now();
        drop(stop);
        assert!(served.await.expect("no panic").is_ok());
        assert_eq!(told.elapsed(), Duration::from_secs(10));
        let webhook = ROUTED + LAST_LIMIT;
        assert_eq!(webhook, Duration::from_secs(15));
        assert_eq!(webhook + GIVE_UP_LIMIT, Duration::from_secs(20));
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (text, expected) in
            [("5", 1), (r#"{"a":[1,2],"b":{"c":"x,[{"}}"#, 6), (r#"["\\\",[","\\",[]]"#, 5)]
        {
            assert_eq!(values(text.as_bytes()), expected, "{text}");
        }
    }
}
