//! Authentication: bearer tokens, client certificates, and TLS.

use std::sync::Arc;

use fencelock::{Error, Memory};
use fencelock_server::{
    BearerToken, Config, Grant, Principal, Right, Server, Service, TlsFiles, TokenHash,
};
use fencelock_testbed::Dir;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

use crate::{connect, soon};

async fn serve(config: Config) -> Server {
    let service = Service::new(Arc::new(Memory::new()), config).unwrap();
    let server = Server::start(([127, 0, 0, 1], 0).into(), service).await;
    server.unwrap()
}

/// A service that one principal may use.
fn for_billing(token: &BearerToken) -> Config {
    let mut billing = Principal::new("billing");
    billing.tokens.push(TokenHash {
        id: token.id().to_owned(),
        sha256: token.sha256(),
        not_after: None,
    });
    billing.rights.push(Grant {
        prefix: "billing/".to_owned(),
        rights: vec![Right::Take, Right::Look],
    });
    let mut config = Config::default();
    config.anonymous.clear();
    config.principals.push(billing);
    config
}

/// Writes a file, and returns its path.
fn written(dir: &Dir, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_authenticates_the_client() {
    let dir = Dir::new("http-access").unwrap();
    let token = BearerToken::draw().unwrap();
    let server = serve(for_billing(&token)).await;
    let url = format!("fencelock+http://{}", server.address());
    let file = written(&dir, "token", &format!("{}\n", token.secret()));
    let client = connect(&format!("{url}?token-file={file}")).await;
    let guard = soon("the lock", client.lock("billing/a")).await.unwrap();
    let view = client.look("billing/a").await.unwrap();
    assert_eq!(view.holders[0].owner, format!("billing/{}", guard.owner()));
    let error = soon("a refusal", client.lock("orders/a"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("billing"), "{error}");
    let wrong = written(&dir, "wrong", &BearerToken::draw().unwrap().secret());
    for bad in [url.clone(), format!("{url}?token-file={wrong}")] {
        let error = soon("a refusal", fencelock::connect(&bad))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains("token-file"), "{error}");
    }
}

/// The service stores the name of the principal before the owner. The owner's processes do not know that name.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_process_joins_the_hold_of_its_owner() {
    let dir = Dir::new("http-access").unwrap();
    let token = BearerToken::draw().unwrap();
    let server = serve(for_billing(&token)).await;
    let file = written(&dir, "token", &token.secret());
    let url = format!("fencelock+http://{}?token-file={file}", server.address());
    let (one, two) = (connect(&url).await, connect(&url).await);
    let owner = one.owner();
    let outer = one.lock("billing/a").owner(&owner).await.unwrap();
    let within = two.join(owner.as_str()).unwrap();
    let child = soon("joining", two.lock("billing/a").owner(&within));
    let child = child.await.unwrap();
    assert!(child.joined());
    assert_eq!(child.token(), outer.token());
}

/// An authority, and the files of a certificate that it signed.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        Self { issuer }
    }

    fn certify(&self, dir: &Dir, name: &str, of: SanType) -> [String; 2] {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names.push(of);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        [
            written(dir, &format!("{name}.crt"), &cert.pem()),
            written(dir, &format!("{name}.key"), &key.serialize_pem()),
        ]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_encrypted_and_both_sides_are_checked() {
    let dir = Dir::new("http-access").unwrap();
    let ours = Authority::new();
    let ca = written(&dir, "ca.pem", &ours.issuer.pem());
    let [cert, key] = ours.certify(&dir, "server", SanType::IpAddress([127, 0, 0, 1].into()));
    let name = "billing.internal".try_into().unwrap();
    let [client_cert, client_key] = ours.certify(&dir, "client", SanType::DnsName(name));
    let mut config = for_billing(&BearerToken::draw().unwrap());
    config.principals[0]
        .certificates
        .push("billing.internal".to_owned());
    config.tls = Some(TlsFiles {
        cert: cert.into(),
        key: key.into(),
        client_ca: Some(ca.clone().into()),
        client_required: false,
    });
    let server = serve(config).await;
    let url = format!("fencelock+https://{}", server.address());
    let identity = format!("tls-cert={client_cert}&tls-key={client_key}");
    let client = connect(&format!("{url}?tls-ca={ca}&{identity}")).await;
    let guard = soon("the lock", client.lock("billing/a")).await.unwrap();
    guard.release().await.unwrap();
    // Without a certificate the client is not authenticated.
    let error = soon(
        "a refusal",
        fencelock::connect(format!("{url}?tls-ca={ca}")),
    );
    let error = error.await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    // And the client refuses a service with a certificate of another authority.
    let other = written(&dir, "other.pem", &Authority::new().issuer.pem());
    let bad = format!("{url}?tls-ca={other}&{identity}&connect-timeout=100ms");
    let error = soon("an error", fencelock::connect(bad)).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}
