//! Calls to a service behind a Unix socket.

use hyper_util::rt::TokioIo;
use prost::Message;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Error};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// Time limit for a connection and for each call on it.
const LIMIT: Duration = Duration::from_secs(10);

/// Connects to a socket.
///
/// # Errors
/// No process listens there.
pub async fn connect(path: &Path) -> Result<Channel, Error> {
    let path: PathBuf = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(LIMIT);
    endpoint.connect_with_connector(connector).await
}

/// Calls a method with one message and waits for the answer, of at most `bytes_max`.
///
/// # Errors
/// The service's own, or `unavailable` and `deadline_exceeded` without it.
pub async fn ask<Q, A>(
    channel: &Channel,
    method: &'static str,
    message: Q,
    bytes_max: usize,
) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(bytes_max);
    let call = async {
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(method);
        grpc.unary(Request::new(message), path, ProstCodec::<Q, A>::default()).await
    };
    let late = || Status::deadline_exceeded(format!("{method}: no answer within {LIMIT:?}"));
    let answer = tokio::time::timeout(LIMIT, call).await.map_err(|_| late())?;
    answer.map(tonic::Response::into_inner)
}

/// Calls a method that answers with a stream.
///
/// # Errors
/// As [`ask`].
pub async fn open_stream<Q, A>(
    channel: &Channel,
    method: &'static str,
    message: Q,
    bytes_max: usize,
) -> Result<Streaming<A>, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(bytes_max);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(method);
    let codec = ProstCodec::<Q, A>::default();
    grpc.server_streaming(Request::new(message), path, codec).await.map(tonic::Response::into_inner)
}
