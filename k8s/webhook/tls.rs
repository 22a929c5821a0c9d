//! The server's certificate. It is read again when its files change, as a cluster's certificates are renewed while
//! programs run.

use crate::http::Security;
use anyhow::{Context, Result};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// When the two files were written.
type Times = [Option<SystemTime>; 2];

/// Certificate and key.
pub struct Files {
    certificate: PathBuf,
    key: PathBuf,
    now: Mutex<(Times, TlsAcceptor)>,
}

impl Files {
    /// Reads both.
    ///
    /// # Errors
    /// One is missing or malformed, or they do not belong together.
    pub fn read(certificate: &Path, key: &Path) -> Result<Files> {
        let now = Mutex::new((times(certificate, key), acceptor(certificate, key)?));
        Ok(Files { certificate: certificate.to_owned(), key: key.to_owned(), now })
    }
}

impl Security for Files {
    fn acceptor(&self) -> Result<Option<TlsAcceptor>> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let times = times(&self.certificate, &self.key);
        if times != now.0 {
            match acceptor(&self.certificate, &self.key) {
                Ok(fresh) => *now = (times, fresh),
                // Half of a renewal: the old pair still works, and the next connection looks again.
                Err(error) => tracing::warn!("the certificate is not read again: {error:#}"),
            }
        }
        Ok(Some(now.1.clone()))
    }
}

fn times(certificate: &Path, key: &Path) -> Times {
    [certificate, key].map(|path| std::fs::metadata(path).and_then(|it| it.modified()).ok())
}

fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor> {
    let named = |path: &Path| path.display().to_string();
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .with_context(|| named(certificate))?;
    let private = PrivateKeyDer::from_pem_file(key).with_context(|| named(key))?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, private);
    Ok(TlsAcceptor::from(Arc::new(config.with_context(|| named(certificate))?)))
}
