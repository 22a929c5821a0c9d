//! The server's certificate, and the authority of its clients. They are read again when their files change, as a
//! cluster's certificates are renewed while programs run.
//!
//! A client without a certificate may connect, as the kubelet does to ask whether the server is healthy; which requests
//! need one is the server's matter. A client with a certificate of another authority may not.

use crate::http::Security;
use anyhow::{Context, Result};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// When the files were written.
type Times = [Option<SystemTime>; 3];

/// Certificate, key, and the authority of clients.
pub struct Files {
    paths: Paths,
    now: Mutex<(Times, TlsAcceptor)>,
}

#[derive(Debug)]
struct Paths {
    certificate: PathBuf,
    key: PathBuf,
    clients: Option<PathBuf>,
}

impl Files {
    /// Reads them.
    ///
    /// # Errors
    /// One is missing or malformed, or certificate and key do not belong together.
    pub fn read(certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<Files> {
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        let paths = Paths { certificate, key, clients: clients.map(Path::to_owned) };
        let now = Mutex::new((paths.times(), paths.acceptor()?));
        Ok(Files { paths, now })
    }

    /// Whether clients can prove who they are, and have to.
    #[must_use]
    pub fn demands_certificate(&self) -> bool {
        self.paths.clients.is_some()
    }
}

impl Security for Files {
    fn acceptor(&self) -> Result<Option<TlsAcceptor>> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let times = self.paths.times();
        if times != now.0 {
            match self.paths.acceptor() {
                Ok(fresh) => *now = (times, fresh),
                // Half of a renewal: the old pair still works, and the next connection looks again.
                Err(error) => tracing::warn!("the certificate is not read again: {error:#}"),
            }
        }
        Ok(Some(now.1.clone()))
    }
}

impl Paths {
    fn times(&self) -> Times {
        let written = |path: &Path| std::fs::metadata(path).and_then(|it| it.modified()).ok();
        let clients = self.clients.as_deref().and_then(written);
        [written(&self.certificate), written(&self.key), clients]
    }

    fn acceptor(&self) -> Result<TlsAcceptor> {
        let chain = certificates(&self.certificate)?;
        let private = PrivateKeyDer::from_pem_file(&self.key).with_context(|| named(&self.key))?;
        let builder = match &self.clients {
            None => ServerConfig::builder().with_no_client_auth(),
            Some(path) => ServerConfig::builder().with_client_cert_verifier(verifier(path)?),
        };
        let config = builder.with_single_cert(chain, private);
        Ok(TlsAcceptor::from(Arc::new(config.with_context(|| named(&self.certificate))?)))
    }
}

fn verifier(clients: &Path) -> Result<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for root in certificates(clients)? {
        roots.add(root).with_context(|| named(clients))?;
    }
    let builder = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated();
    builder.build().with_context(|| named(clients))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    all.with_context(|| named(path))
}

fn named(path: &Path) -> String {
    path.display().to_string()
}
