//! TLS to the replicas: the authorities to trust, and this client's certificate.

use std::fmt;

use fencelock_core::engine::TlsFiles;
use fencelock_core::{ConfigPart, Result, StoreUrl};

/// The TLS options of a URL.
pub(crate) struct Tls {
    #[cfg(feature = "tls")]
    pub(crate) config: rustls::ClientConfig,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Takes the options, and reads the files that they name.
    pub(crate) fn take(url: &mut StoreUrl, encrypted: bool) -> Result<Option<Self>> {
        let files = TlsFiles::take(url);
        match files.given() {
            Some(option) if !encrypted => {
                Err(url.refuse(format!("{option} needs TLS; write fencelock+https://")))
            }
            _ if !encrypted => Ok(None),
            _ => Self::read(url, &files).map(Some),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn read(url: &StoreUrl, _files: &TlsFiles) -> Result<Self> {
        Err(url.refuse_part(
            ConfigPart::Build,
            "this build has no TLS; build it with the feature tls",
        ))
    }

    #[cfg(feature = "tls")]
    fn read(url: &StoreUrl, files: &TlsFiles) -> Result<Self> {
        use std::sync::Arc;

        let texts = files.read(url)?;
        let roots = match &texts.ca {
            Some(ca) => of_file(url, ca)?,
            None => of_this_machine(url)?,
        };
        // Only for this client: the process may have another default provider.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| url.refuse(format!("TLS: {error}")))?;
        let builder = builder.with_root_certificates(roots);
        let config = match texts.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => with_identity(url, builder, &cert, &key)?,
        };
        Ok(Self { config })
    }
}

#[cfg(feature = "tls")]
fn of_file(url: &StoreUrl, text: &[u8]) -> Result<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    for authority in certificates(url, "tls-ca", text)? {
        let added = roots.add(authority);
        added.map_err(|error| {
            url.refuse_part(ConfigPart::File, format!("the file of tls-ca: {error}"))
        })?;
    }
    Ok(roots)
}

/// The authorities that this machine trusts. Those that cannot be read are left out.
#[cfg(feature = "tls")]
fn of_this_machine(url: &StoreUrl) -> Result<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    for authority in rustls_native_certs::load_native_certs().certs {
        drop(roots.add(authority));
    }
    match roots.is_empty() {
        false => Ok(roots),
        true => Err(url.refuse(
            "TLS needs a trusted authority, and this machine has no list of them (on Debian the package ca-certificates); \
             give tls-ca=FILE",
        )),
    }
}

#[cfg(feature = "tls")]
fn certificates(
    url: &StoreUrl,
    option: &str,
    text: &[u8],
) -> Result<Vec<rustls::pki_types::CertificateDer<'static>>> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};

    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(url.refuse_part(
            ConfigPart::File,
            format!("the file of {option} has no certificate in PEM form; name another file"),
        )),
        Err(error) => {
            Err(url.refuse_part(ConfigPart::File, format!("the file of {option}: {error}")))
        }
    }
}

#[cfg(feature = "tls")]
fn with_identity(
    url: &StoreUrl,
    builder: rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert>,
    cert: &[u8],
    key: &[u8],
) -> Result<rustls::ClientConfig> {
    use rustls::pki_types::{PrivateKeyDer, pem::PemObject};

    let chain = certificates(url, "tls-cert", cert)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        let why = "the file of tls-key has no private key in PEM form that can be read; name another file, and decrypt an encrypted \
                   key";
        url.refuse_part(ConfigPart::File, why)
    })?;
    let config = builder.with_client_auth_cert(chain, key);
    config.map_err(|error| {
        url.refuse_part(ConfigPart::File, format!("tls-cert and tls-key: {error}"))
    })
}
