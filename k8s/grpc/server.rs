//! Services behind a Unix socket.

use prost::Message;
use std::convert::Infallible;
use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::UnixListener;
use tokio_stream::Stream;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::{Grpc, NamedService};
use tonic::{Status, transport};
use tonic_prost::ProstCodec;

/// A method's response, on its way.
pub type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// A gRPC service.
pub trait Methods: Send + Sync + 'static {
    /// The full name of the service, as `v1beta1.DevicePlugin`.
    const NAME: &'static str;

    /// Calls a method by its name; [`unknown`] for any other.
    fn call(self: Arc<Self>, method: &str, request: Request<Body>) -> Answer;
}

/// A service as tonic's router takes it.
pub struct Service<M>(Arc<M>);

impl<M> Service<M> {
    /// Serves these methods.
    pub fn new(methods: Arc<M>) -> Service<M> {
        Service(methods)
    }
}

impl<M> Clone for Service<M> {
    fn clone(&self) -> Self {
        Service(self.0.clone())
    }
}

impl<M: Methods> NamedService for Service<M> {
    const NAME: &'static str = M::NAME;
}

impl<M: Methods> tower::Service<Request<Body>> for Service<M> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let method = path.rsplit('/').next().unwrap_or_default().to_owned();
        let answer = self.0.clone().call(&method, request);
        Box::pin(async { Ok(answer.await) })
    }
}

/// A method as tonic's services are: they may be called more than once, and each is made for one call.
fn once<Q, T, F>(
    method: impl FnOnce(Q) -> F,
) -> impl tower::Service<
    tonic::Request<Q>,
    Response = tonic::Response<T>,
    Error = Status,
    Future = impl Future<Output = Result<tonic::Response<T>, Status>>,
>
where
    F: Future<Output = Result<T, Status>>,
{
    let mut method = Some(method);
    tower::service_fn(move |request: tonic::Request<Q>| {
        let answer = method.take().map(|method| method(request.into_inner()));
        async move {
            let answer = answer.ok_or_else(|| Status::internal("called twice"))?;
            answer.await.map(tonic::Response::new)
        }
    })
}

/// Answers one message with one message.
pub fn unary<Q, A, F>(
    request: Request<Body>,
    method: impl FnOnce(Q) -> F + Send + 'static,
) -> Answer
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    Box::pin(
        async move { Grpc::new(ProstCodec::<A, Q>::default()).unary(once(method), request).await },
    )
}

/// Answers one message with a stream of messages.
pub fn server_stream<Q, A, S>(
    request: Request<Body>,
    method: impl FnOnce(Q) -> S + Send + 'static,
) -> Answer
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    S: Stream<Item = Result<A, Status>> + Send + 'static,
{
    Box::pin(async move {
        let service = once(move |message| std::future::ready(Ok(method(message))));
        Grpc::new(ProstCodec::<A, Q>::default()).server_streaming(service, request).await
    })
}

/// The answer to a method that the service lacks.
pub fn unknown(method: &str) -> Answer {
    let status = Status::unimplemented(format!("no method {method}"));
    Box::pin(async move { status.into_http() })
}

/// A bound socket.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    listener: UnixListener,
}

/// Binds a socket in place of any that is left at the path. Only root and this user may connect.
///
/// # Errors
/// The directory cannot be written, or the path is longer than 107 bytes.
pub fn listen(path: &Path) -> io::Result<Listener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(Listener { path: path.to_owned(), listener })
}

impl Listener {
    /// The socket's file, as device and inode: a kubelet that starts removes it.
    ///
    /// # Errors
    /// The file is gone.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        identity(&self.path)
    }

    /// Serves until `stop` is ready.
    ///
    /// # Errors
    /// The socket cannot be read.
    pub async fn serve(
        self,
        router: transport::server::Router,
        stop: impl Future<Output = ()>,
    ) -> Result<(), transport::Error> {
        router.serve_with_incoming_shutdown(UnixListenerStream::new(self.listener), stop).await
    }
}

/// A file's device and inode.
///
/// # Errors
/// There is no such file.
pub fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|it| (it.dev(), it.ino()))
}
