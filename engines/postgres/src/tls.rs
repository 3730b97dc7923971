//! TLS to PostgreSQL. Before the handshake the client sends only the eight bytes that ask for TLS.

use fencelock_core::Error;
use fencelock_sql::server::Host;
use fencelock_sql::tls::{self, Mode};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;

use super::error::caller_error;

#[cfg(feature = "tls")]
pub(super) use encrypted::Connector;

/// What connects without TLS.
#[cfg(not(feature = "tls"))]
pub(super) type Connector = tokio_postgres::NoTls;

pub(super) const fn ssl_mode(mode: Mode) -> SslMode {
    match mode {
        Mode::Off => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Require => SslMode::Require,
    }
}

/// Makes the TLS handshake with a host.
#[cfg(feature = "tls")]
pub(super) fn connector(tls: &tls::Tls, host: &Host) -> Connector {
    match tls.mode(host) {
        Mode::Off => Connector::none(),
        Mode::Prefer => Connector::any(),
        Mode::Require => Connector::trusting(tls),
    }
}

#[cfg(not(feature = "tls"))]
pub(super) const fn connector(_tls: &tls::Tls, _host: &Host) -> Connector {
    tokio_postgres::NoTls
}

/// What a failure to connect means.
pub(super) fn refused(
    store: &str,
    tls: &tls::Tls,
    host: &Host,
    error: tokio_postgres::Error,
) -> Error {
    #[cfg(feature = "tls")]
    if let Some(why) = encrypted::explain(&error, host) {
        return Error::config(store, why);
    }
    match error.as_db_error() {
        Some(reported) if *reported.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            let more = tls::hint(tls, tls.mode(host));
            Error::refused(store, "connect", format!("{}{more}", reported.message()))
        }
        _ => caller_error(store, "connect", error),
    }
}

#[cfg(feature = "tls")]
mod encrypted {
    use std::error::Error as StdError;
    use std::future::Future;
    use std::io;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use rustls::ClientConfig;
    use rustls::pki_types::{InvalidDnsNameError, ServerName};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    use tokio_postgres::Socket;
    use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

    use crate::any_certificate::trusting_any;

    use fencelock_sql::server::Host;
    use fencelock_sql::tls::{self, Tls};

    /// The driver's error when the server offers no TLS, or seems not to.
    const NOT_OFFERED: &str = "server does not support TLS";

    pub(super) fn explain(error: &tokio_postgres::Error, host: &Host) -> Option<String> {
        if error
            .source()
            .is_some_and(|cause| cause.to_string() == NOT_OFFERED)
        {
            return Some(tls::not_offered(&host.name));
        }
        tls::explain(error, &host.name)
    }

    pub(crate) struct Connector(Option<Arc<ClientConfig>>);

    impl Connector {
        pub(super) const fn none() -> Self {
            Self(None)
        }

        pub(super) fn any() -> Self {
            Self(Some(trusting_any()))
        }

        pub(super) fn trusting(tls: &Tls) -> Self {
            Self(tls.trust.as_ref().map(|trust| Arc::clone(&trust.config)))
        }
    }

    impl MakeTlsConnect<Socket> for Connector {
        type Stream = Encrypted;
        type TlsConnect = Handshake;
        type Error = InvalidDnsNameError;

        fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, InvalidDnsNameError> {
            let with = |config: &Arc<ClientConfig>| {
                let name = ServerName::try_from(host.to_owned())?;
                Ok((Arc::clone(config), name))
            };
            self.0.as_ref().map(with).transpose().map(Handshake)
        }
    }

    /// One handshake, and the name of the server.
    pub(crate) struct Handshake(Option<(Arc<ClientConfig>, ServerName<'static>)>);

    impl TlsConnect<Socket> for Handshake {
        type Stream = Encrypted;
        type Error = io::Error;
        type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

        fn connect(self, stream: Socket) -> Self::Future {
            Box::pin(async move {
                let (config, name) = self.0.ok_or_else(|| io::Error::other("TLS is off"))?;
                let connector = tokio_rustls::TlsConnector::from(config);
                connector.connect(name, stream).await.map(Encrypted)
            })
        }
    }

    pub(crate) struct Encrypted(tokio_rustls::client::TlsStream<Socket>);

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

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(context)
        }
    }
}
