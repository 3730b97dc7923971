//! TLS, and clients with certificates.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Memory;
use fencelock_server::{Config, Grant, Principal, Right, Server, TlsFiles};
use fencelock_testbed::Dir;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::{replica_with, request};

/// An authority, and the files that it signs.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: Dir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = Dir::new("tls").unwrap();
        fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    /// Writes NAME.pem and NAME.key.
    fn sign(&self, name: &str, san: SanType) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![san];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.dir.path().join(format!("{name}.pem")), signed.pem()).unwrap();
        fs::write(
            self.dir.path().join(format!("{name}.key")),
            key.serialize_pem(),
        )
        .unwrap();
    }

    fn files(&self, required: bool) -> TlsFiles {
        let file = |name: &str| self.dir.path().join(name);
        TlsFiles {
            cert: file("server.pem"),
            key: file("server.key"),
            client_ca: Some(file("ca.pem")),
            client_required: required,
        }
    }

    /// Takes a lock with this client's certificate. Returns the status.
    async fn take(&self, at: &Server, client: Option<&str>) -> Option<u16> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.dir.path().join("ca.pem")).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match client {
            None => config.with_no_client_auth(),
            Some(name) => {
                let file = |end: &str| self.dir.path().join(format!("{name}.{end}"));
                let certificate = CertificateDer::from_pem_file(file("pem")).unwrap();
                let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
                config
                    .with_client_auth_cert(vec![certificate], key)
                    .unwrap()
            }
        };
        let stream = TcpStream::connect(at.address()).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .ok()?;
        let headers = [("Connection", "close")];
        let take = request(
            "POST",
            "/v1/claims",
            &headers,
            r#"{"name":"a/b","ttl_ms":100}"#,
        );
        stream.write_all(&take).await.ok()?;
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text).await;
        text.split(' ').nth(1)?.parse().ok()
    }
}

async fn serve(authority: &Authority, required: bool) -> Server {
    let mut config = Config::default();
    config.anonymous.clear();
    config.tls = Some(authority.files(required));
    for (name, certificate) in [("dns", "client.example"), ("uri", "spiffe://corp/billing")] {
        let mut principal = Principal::new(name);
        principal.certificates = vec![certificate.to_owned()];
        principal.rights = vec![Grant {
            prefix: "a/".to_owned(),
            rights: vec![Right::Take],
        }];
        config.principals.push(principal);
    }
    replica_with(Arc::new(Memory::new()), config).await
}

fn authority() -> Authority {
    let authority = Authority::new();
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    authority.sign("server", dns("localhost"));
    authority.sign("dns", dns("client.example"));
    authority.sign(
        "uri",
        SanType::URI("spiffe://corp/billing".try_into().unwrap()),
    );
    authority.sign("other", dns("other.example"));
    authority
}

#[tokio::test]
async fn a_certificate_names_its_principal() {
    let authority = authority();
    let at = serve(&authority, false).await;
    for (client, status) in [
        (Some("dns"), 201),
        (Some("uri"), 201),
        (Some("other"), 401),
        (None, 401),
    ] {
        let taken = authority.take(&at, client).await;
        // An earlier client may still hold the lock.
        assert!(
            taken == Some(status) || (status == 201 && taken == Some(409)),
            "{client:?}: {taken:?}"
        );
    }
    // The service reads the certificates again.
    let dns = SanType::DnsName("elsewhere.example".try_into().unwrap());
    authority.sign("server", dns);
    assert!(authority.take(&at, Some("dns")).await.is_some());
    at.reload_tls().unwrap();
    assert_eq!(authority.take(&at, Some("dns")).await, None);
    fs::write(authority.dir.path().join("server.pem"), "nonsense").unwrap();
    assert!(at.reload_tls().is_err());
}

#[tokio::test]
async fn a_certificate_can_be_required() {
    let authority = authority();
    let at = serve(&authority, true).await;
    assert_eq!(authority.take(&at, None).await, None);
    assert_eq!(authority.take(&at, Some("uri")).await, Some(201));
    let stranger = Authority::new();
    stranger.sign(
        "dns",
        SanType::DnsName("client.example".try_into().unwrap()),
    );
    for end in ["pem", "key"] {
        let file = format!("stranger.{end}");
        fs::copy(
            stranger.dir.path().join(format!("dns.{end}")),
            authority.dir.path().join(file),
        )
        .unwrap();
    }
    assert_eq!(authority.take(&at, Some("stranger")).await, None);
}

#[tokio::test]
async fn certificates_are_read_again_by_themselves() {
    let authority = authority();
    let mut config = Config::trusting();
    config.tls = Some(authority.files(false));
    config.limits.tls_reload = std::time::Duration::from_millis(50);
    let at = replica_with(Arc::new(Memory::new()), config).await;
    assert_eq!(authority.take(&at, None).await, Some(201));
    // The new certificate has another name, so that clients refuse it.
    let other = SanType::DnsName("other.example".try_into().unwrap());
    authority.sign("server", other);
    let refused = async {
        while authority.take(&at, None).await.is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let refused = tokio::time::timeout(std::time::Duration::from_secs(20), refused).await;
    refused.expect("the old certificate is still served");
}

#[tokio::test]
async fn a_handshake_has_its_time() {
    let authority = authority();
    let mut config = Config::default();
    config.tls = Some(authority.files(false));
    config.limits.handshake_timeout = Duration::from_millis(300);
    let at = replica_with(Arc::new(Memory::new()), config).await;
    // One connection sends nothing, and one sends the beginning of a greeting.
    for bytes in [&b""[..], b"\x16\x03\x01\x02\x00"] {
        let mut stream = TcpStream::connect(at.address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        let end = tokio::time::timeout(Duration::from_secs(20), end).await;
        // Unread bytes make it a reset.
        let _ = end.expect("the connection stays open");
        assert_eq!(rest, b"");
    }
    assert!(authority.take(&at, None).await.is_some(), "no handshake");
}
