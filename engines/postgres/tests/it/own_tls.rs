//! A TLS connector of the program, of a kind that the engine does not know.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fencelock_postgres::Options;
use fencelock_testbed::Postgres;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Config, Socket};

use crate::shared::{locks_for, open_with, take};

/// Trusts one authority, which no other setting names.
#[derive(Clone)]
struct Own(Arc<ClientConfig>);

struct Shake(tokio_rustls::TlsConnector, ServerName<'static>);

struct Encrypted(tokio_rustls::client::TlsStream<Socket>);

impl MakeTlsConnect<Socket> for Own {
    type Stream = Encrypted;
    type TlsConnect = Shake;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Shake, InvalidDnsNameError> {
        let name = ServerName::try_from(host.to_owned())?;
        Ok(Shake(Arc::clone(&self.0).into(), name))
    }
}

impl TlsConnect<Socket> for Shake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move { self.0.connect(self.1, socket).await.map(Encrypted) })
    }
}

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

fn trusting(ca: &str) -> Own {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(ca).unwrap())
        .unwrap();
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(ring);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Own(Arc::new(config))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connector_of_the_program_encrypts() {
    let rule = "hostssl all all 127.0.0.1/32 trust";
    let server = Postgres::builder().tls().rule(rule).start().unwrap();
    let stranger = Postgres::builder().tls().start().unwrap();
    let mut config = Config::new();
    config
        .host("127.0.0.1")
        .port(server.port())
        .user("lock")
        .dbname("lock");
    config.application_name("encrypted");
    let plain = open_with(Options::from_config(config.clone())).await;
    let error = plain.unwrap_err().to_string();
    assert!(error.contains("no encryption"), "{error}");
    config.ssl_mode(SslMode::Require);
    let options = Options::from_config(config);
    let url = format!("{}?tls-ca={}", server.url(), server.ca());
    let right = options.clone().tls_connector(trusting(&server.ca()));
    let client = locks_for(right, &url).await;
    let _held = take(&client, "b").await;
    let encrypted = "SELECT count(*) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) \
                     WHERE ssl AND application_name LIKE 'encrypted fencelock-%'";
    assert_ne!(server.psql("postgres", encrypted).unwrap(), "0");
    let wrong = options.tls_connector(trusting(&stranger.ca()));
    let error = open_with(wrong).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}
