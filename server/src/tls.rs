//! TLS: the certificate of the service, and those of clients.

use std::io;
use std::path::Path;
use std::sync::Arc;

use fencelock_core::support::Mutex;
use fencelock_core::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

use crate::config::TlsFiles;

/// Accepts connections with TLS. Its files can be read again.
#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    config: Mutex<Arc<ServerConfig>>,
}

impl Tls {
    pub(crate) fn open(files: &TlsFiles) -> Result<Self> {
        let config = Mutex::new(read(files)?);
        let files = files.clone();
        Ok(Self { files, config })
    }

    /// Reads the files again. If they cannot be used, the old ones stay in use.
    pub(crate) fn reload(&self) -> Result<()> {
        let config = read(&self.files)?;
        *self.config.lock() = config;
        Ok(())
    }

    /// Performs the handshake, and returns the name in the client's certificate, if it has one.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Option<Arc<str>>)> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.config.lock()));
        let stream = acceptor.accept(stream).await?;
        let certificates = stream.get_ref().1.peer_certificates();
        let name = certificates.and_then(|all| all.first()).and_then(name_in);
        Ok((stream, name))
    }
}

/// The first DNS name of a certificate that was verified, or else its first URI.
fn name_in(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let name = certificate.valid_dns_names().next();
    let name = name.or_else(|| certificate.valid_uri_names().next());
    name.map(Arc::from)
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>> {
    let chain = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key);
    let key = key.map_err(|error| bad(&files.key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let config = config
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&files.cert, &error))?;
    let config = match &files.client_ca {
        None => config.with_no_client_auth(),
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(ca)? {
                roots.add(certificate).map_err(|error| bad(ca, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match files.client_required {
                true => verifier,
                false => verifier.allow_unauthenticated(),
            };
            config.with_client_cert_verifier(verifier.build().map_err(|error| bad(ca, &error))?)
        }
    };
    let mut config = config
        .with_single_cert(chain, key)
        .map_err(|error| bad(&files.cert, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).map_err(|error| bad(file, &error))?;
    let read: std::result::Result<Vec<_>, _> = read.collect();
    let read = read.map_err(|error| bad(file, &error))?;
    match read.is_empty() {
        true => Err(bad(file, &"there is no certificate in it")),
        false => Ok(read),
    }
}

fn bad(file: &Path, why: &dyn std::fmt::Display) -> Error {
    let why = format!("the file {}: {why}", file.display());
    Error::config_file("section [serve.tls]", why)
}
