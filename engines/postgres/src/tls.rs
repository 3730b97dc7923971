//! TLS to PostgreSQL. Before the handshake the client sends only the eight bytes that ask for TLS.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fencelock_core::{ConfigPart, Error};
use fencelock_sql::server::Host;
use fencelock_sql::tls::{self, Mode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

use super::error::caller_error;

/// The driver's error when the server offers no TLS, or seems not to.
#[cfg(feature = "tls")]
const NOT_OFFERED: &str = "server does not support TLS";

type AnyError = Box<dyn std::error::Error + Send + Sync>;
type Connecting = Pin<Box<dyn Future<Output = Result<Encrypted, AnyError>> + Send>>;
type Make = dyn Fn(&str) -> Result<Handshake, AnyError> + Send + Sync;

pub(super) const fn ssl_mode(mode: Mode) -> SslMode {
    match mode {
        Mode::Off => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Require => SslMode::Require,
    }
}

/// Makes the TLS handshake with a host.
pub(super) fn connector(tls: &tls::Tls, host: &Host) -> Connector {
    #[cfg(feature = "tls")]
    match (tls.mode(host), &tls.trust) {
        (Mode::Prefer, _) => return Connector::rustls(crate::any_certificate::trusting_any()),
        (Mode::Require, Some(trust)) => return Connector::rustls(Arc::clone(&trust.config)),
        _ => {}
    }
    let _ = (tls, host);
    Connector(Arc::new(|_| {
        // The driver makes one even if it does not use it.
        let off = |_| -> Connecting { Box::pin(async { Err("TLS is off".into()) }) };
        Ok(Handshake(Box::new(off)))
    }))
}

/// What a failure to connect means.
pub(super) fn refused(
    store: &str,
    tls: &tls::Tls,
    host: &Host,
    action: &str,
    error: tokio_postgres::Error,
) -> Error {
    #[cfg(feature = "tls")]
    if let Some(why) = explain(&error, host) {
        return Error::config(store, ConfigPart::Server, why);
    }
    match error.as_db_error() {
        Some(reported) if *reported.code() == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            let more = tls::hint(tls, tls.mode(host));
            Error::refused(store, action, format!("{}{more}", reported.message()))
        }
        _ => caller_error(store, action, error),
    }
}

#[cfg(feature = "tls")]
fn explain(error: &tokio_postgres::Error, host: &Host) -> Option<String> {
    let cause = std::error::Error::source(error);
    if cause.is_some_and(|cause| cause.to_string() == NOT_OFFERED) {
        return Some(tls::not_offered(&host.name));
    }
    tls::explain(error, &host.name)
}

/// Makes handshakes: ours, or those of a program's own connector.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Make>);

impl Connector {
    pub(crate) fn own<T>(make: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send + 'static,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send + 'static,
    {
        Self(Arc::new(move |host| {
            let handshake = make.clone().make_tls_connect(host).map_err(Into::into)?;
            Ok(Handshake(Box::new(move |socket| {
                let connecting = handshake.connect(socket);
                Box::pin(async move {
                    let stream = connecting.await.map_err(Into::into)?;
                    let binding = Cell::new(Some(stream.channel_binding()));
                    let stream = Box::new(stream);
                    Ok(Encrypted { stream, binding })
                })
            })))
        }))
    }

    #[cfg(feature = "tls")]
    fn rustls(config: Arc<rustls::ClientConfig>) -> Self {
        let connector = tokio_rustls::TlsConnector::from(config);
        Self(Arc::new(move |host| {
            let name = rustls::pki_types::ServerName::try_from(host.to_owned())?;
            let connecting = connector.clone();
            Ok(Handshake(Box::new(move |socket| {
                Box::pin(async move {
                    let stream = Box::new(connecting.connect(name, socket).await?);
                    let binding = Cell::default();
                    Ok(Encrypted { stream, binding })
                })
            })))
        }))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = AnyError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, AnyError> {
        (self.0)(host)
    }
}

/// One handshake.
pub(crate) struct Handshake(Box<dyn FnOnce(Socket) -> Connecting + Send>);

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = AnyError;
    type Future = Connecting;

    fn connect(self, socket: Socket) -> Connecting {
        (self.0)(socket)
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection with TLS.
pub(crate) struct Encrypted {
    stream: Box<dyn Stream>,
    /// The driver reads it once.
    binding: Cell<Option<ChannelBinding>>,
}

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        self.binding.take().unwrap_or_else(ChannelBinding::none)
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
