//! The `:authority` with which kubelets dial, and what a server makes of each.

use gpuslice_k8s::grpc;
use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// How a kubelet dials.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Style {
    /// From 1.26 on.
    #[default]
    Localhost,
    /// The socket's path with `/` escaped: `plugins_registry` in all versions so far.
    Escaped,
}

/// A path as an authority.
pub fn escaped(path: &Path) -> String {
    path.display().to_string().replace('/', "%2F")
}

impl Style {
    /// Connects to a socket.
    pub async fn dial(self, path: &Path) -> Result<Channel, tonic::transport::Error> {
        if self == Style::Localhost {
            return grpc::connect(path).await;
        }
        let origin: Uri = format!("http://{}", escaped(path)).parse().expect("valid with an @");
        let path: PathBuf = path.to_owned();
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost").origin(origin);
        endpoint.connect_with_connector(connector).await
    }
}

/// What a server does with a request of a client that does not check its own authority.
#[derive(Debug, PartialEq, Eq)]
pub enum Reaction {
    Headers,
    /// With an error code; 1 is PROTOCOL_ERROR.
    Reset(u32),
    Closed,
}

/// Sends one request without a body as raw HTTP/2 frames.
pub async fn raw(path: &Path, authority: &str, method: &str) -> Reaction {
    let mut stream = UnixStream::connect(path).await.expect("the server listens");
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A literal field without indexing, name and value as they are.
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127 + 128, "one more byte of length is enough");
            match text.len() {
                short @ ..127 => block.push(short as u8),
                long => block.extend([127, (long - 127) as u8]),
            }
            block.extend(text.as_bytes());
        }
    }
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    out.extend(frame(4, 0, 0, &[]));
    out.extend(frame(1, 4, 1, &block));
    out.extend(frame(0, 1, 1, &[0, 0, 0, 0, 0]));
    stream.write_all(&out).await.expect("sent");
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return Reaction::Closed;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.expect("a whole frame");
        match head[3] {
            1 => return Reaction::Headers,
            3 => {
                return Reaction::Reset(u32::from_be_bytes(
                    payload[..4].try_into().expect("4 bytes"),
                ));
            }
            _ => {}
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}
