//! TLS of servers that have a certificate.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::small_file::{DOCUMENT_BYTES, read_given_bytes};

/// Reasons why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or has other contents.
    #[error("cannot read {expected} in PEM format from {}: {reason}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Expected contents.
        expected: &'static str,
        /// Reason.
        reason: String,
    },
    /// Certificate and key do not match, or are of an unsupported kind.
    #[error("cannot use the certificate with this key: {0}")]
    Pair(#[from] rustls::Error),
}

/// Creates the acceptor of a TLS server from PEM files with its certificate chain and private key.
///
/// # Errors
///
/// Fails if a file is invalid, or the two do not match.
pub fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let wrong = |path: &Path, expected, reason: String| TlsError::File {
        path: path.to_owned(),
        expected,
        reason,
    };
    let chain = read_chain(certificate).map_err(|error| wrong(certificate, "a certificate", error.to_string()))?;
    let secret = read_pem(key)
        .and_then(|pem| PrivateKeyDer::from_pem_slice(&pem).map_err(io::Error::other))
        .map_err(|error| wrong(key, "a private key", error.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn read_pem(path: &Path) -> io::Result<Vec<u8>> {
    read_given_bytes(path, DOCUMENT_BYTES)
}

fn read_chain(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = read_pem(path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)?;
    match chain.is_empty() {
        true => Err(io::Error::other("no certificate found")),
        false => Ok(chain),
    }
}
