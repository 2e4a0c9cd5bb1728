//! TLS, where the server is given a certificate.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::small_file::{DOCUMENT_BYTES, read_given_bytes};

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read, or is not what it should be.
    #[error("{} is not {wanted} in PEM form: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What it should be.
        wanted: &'static str,
        /// Why it is not.
        reason: String,
    },
    /// Certificate and key do not belong together, or are of a kind that is not supported.
    #[error("certificate and key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
}

/// What a TLS server presents: PEM files with its certificate chain and its key.
///
/// # Errors
///
/// Which file is wrong, or that the two do not belong together.
pub fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let wrong = |path: &Path, wanted, reason: String| TlsError::File {
        path: path.to_owned(),
        wanted,
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
        true => Err(io::Error::other("it holds none")),
        false => Ok(chain),
    }
}
