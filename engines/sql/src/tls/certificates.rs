//! Trusted authorities, the client's certificate, and errors of certificates.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use fencelock_core::engine::TlsFiles;
use fencelock_core::{ConfigPart, Result, StoreUrl};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

/// The TLS library has one cryptography provider per process. If the application has chosen one, that one stays.
pub(super) fn choose_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// What `tls=require` checks, read when the store is opened.
pub struct Trust {
    /// The authorities to trust.
    pub authorities: Vec<CertificateDer<'static>>,
    /// Certificate and key of this client, as they are in the files.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// All of it as a configuration, for drivers that leave the handshake to their caller.
    pub config: Arc<ClientConfig>,
}

impl Trust {
    pub(super) fn read(url: &StoreUrl, files: &TlsFiles) -> Result<Self> {
        let mut store = RootCertStore::empty();
        let authorities = match files.ca.as_deref() {
            // `system` is the word of PostgreSQL's own clients.
            None | Some("system") => of_this_machine(url, &mut store)?,
            Some(file) => {
                let authorities = certificates(
                    url,
                    "tls-ca",
                    file,
                    &TlsFiles::contents(url, "tls-ca", file)?,
                )?;
                for authority in &authorities {
                    let added = store.add(authority.clone());
                    let refuse = |error| {
                        url.refuse_part(
                            ConfigPart::File,
                            format!("the file {file} of tls-ca: {error}"),
                        )
                    };
                    added.map_err(refuse)?;
                }
                authorities
            }
        };
        let builder = ClientConfig::builder().with_root_certificates(store);
        let (config, identity) = match (&files.cert, &files.key) {
            (Some(cert), Some(key)) => {
                let text = (
                    TlsFiles::contents(url, "tls-cert", cert)?,
                    TlsFiles::contents(url, "tls-key", key)?,
                );
                let chain = certificates(url, "tls-cert", cert, &text.0)?;
                let secret = PrivateKeyDer::from_pem_slice(&text.1).map_err(|_| {
                    let why = format!(
                        "the file {key} of tls-key has no private key in PEM form that can be read; name another file, and decrypt an encrypted key"
                    );
                    url.refuse_part(ConfigPart::File, why)
                })?;
                let config = builder.with_client_auth_cert(chain, secret);
                let refuse = |error| {
                    url.refuse_part(ConfigPart::File, format!("tls-cert and tls-key: {error}"))
                };
                (config.map_err(refuse)?, Some(text))
            }
            _ => (builder.with_no_client_auth(), None),
        };
        Ok(Self {
            authorities,
            identity,
            config: Arc::new(config),
        })
    }
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Trust({} authorities)", self.authorities.len())
    }
}

fn certificates(
    url: &StoreUrl,
    option: &str,
    file: &str,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(url.refuse_part(
            ConfigPart::File,
            format!(
                "the file {file} of {option} has no certificate in PEM form; name another file"
            ),
        )),
        Err(error) => Err(url.refuse_part(
            ConfigPart::File,
            format!("the file {file} of {option}: {error}"),
        )),
    }
}

/// The authorities that this machine trusts; those that cannot be read are left out.
fn of_this_machine(
    url: &StoreUrl,
    store: &mut RootCertStore,
) -> Result<Vec<CertificateDer<'static>>> {
    let mut authorities = rustls_native_certs::load_native_certs().certs;
    authorities.retain(|authority| store.add(authority.clone()).is_ok());
    if authorities.is_empty() {
        let why = "TLS needs a trusted authority, and this machine has no list of them (on Debian the package ca-certificates); \
                   give tls-ca=FILE";
        return Err(url.refuse(why));
    }
    Ok(authorities)
}

/// What to change so that a failed handshake can succeed; `None` if a retry may succeed.
pub fn explain(error: &(dyn StdError + 'static), host: &str) -> Option<String> {
    if find::<InvalidDnsNameError>(error).is_some() {
        return Some(format!(
            "{host} is not a name that a certificate can have; name the host as its certificate does"
        ));
    }
    match find::<rustls::Error>(error)? {
        rustls::Error::InvalidCertificate(error) => Some(certificate(error, host)),
        rustls::Error::NoCertificatesPresented => {
            Some(format!("{host} shows no certificate; give the server one"))
        }
        rustls::Error::PeerIncompatible(why) => Some(nothing_in_common(host, why)),
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => Some(format!(
                "{host} requires a certificate of this client; give tls-cert and tls-key"
            )),
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied => Some(format!(
                "{host} does not accept the certificate of tls-cert: {alert:?}; give one of an authority that it trusts"
            )),
            AlertDescription::ProtocolVersion
            | AlertDescription::HandshakeFailure
            | AlertDescription::InsufficientSecurity => Some(nothing_in_common(host, alert)),
            _ => None,
        },
        _ => None,
    }
}

fn nothing_in_common(host: &str, why: &dyn std::fmt::Debug) -> String {
    format!(
        "{host} and this client have no TLS version and cipher in common: {why:?}; the server needs TLS 1.2 or later"
    )
}

fn certificate(error: &CertificateError, host: &str) -> String {
    let change = "give the server a certificate for that name (subjectAltName), or use the certificate's name in the URL";
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "the authority of {host}'s certificate is not trusted here; if it is the right one, give it in tls-ca=FILE (PEM)"
        ),
        CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
            let names: Vec<&str> = presented.iter().map(|name| plain(name)).collect();
            let names = names.join(", ");
            format!("the certificate is for {names}, and not for {host}; {change}")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the certificate is not for {host}; {change}")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!(
                "the certificate of {host} has expired, or the clock of this machine is wrong; renew it, or set the clock"
            )
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!(
                "the certificate of {host} is not valid yet, or the clock of this machine is wrong; check both"
            )
        }
        other => {
            let text = other.to_string();
            let more = match text.as_str() {
                text if text.contains("CaUsedAsEndEntity") => {
                    ": it is an authority's own (self-signed); give the server one that an authority has signed"
                }
                text if text.contains("UnsupportedCertVersion") => {
                    ": it is of an old version, which names no hosts; make it with subjectAltName"
                }
                _ => "",
            };
            format!("the certificate of {host} cannot be used: {text}{more}")
        }
    }
}

/// The bare name in text such as `DnsName("db.example")`.
fn plain(name: &str) -> &str {
    let inner = name
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

/// An error of this type in the chain of causes.
fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    // The inner error of an I/O error is not its source.
    let inner = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    inner
        .and_then(|inner| find(inner))
        .or_else(|| find(error.source()?))
}
