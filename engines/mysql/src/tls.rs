//! TLS to MySQL and MariaDB. The server's greeting and the client's capabilities are sent in the clear; user and password
//! follow after the handshake.

use fencelock_core::{ConfigPart, Error};
use fencelock_sql::server::Host;
use fencelock_sql::tls::{Mode, Tls, hint};
#[cfg(feature = "tls")]
use fencelock_sql::tls::{explain, not_offered};
use mysql_async::{Conn, Opts, OptsBuilder};

use super::error::caller_error;

/// MySQL refuses a connection without TLS.
const INSECURE: u16 = 3159;
/// Access denied. Also the answer to a user who needs TLS or a certificate, and MariaDB's to any connection without TLS.
const DENIED: u16 = 1045;

/// The driver's options for a host, with the TLS mode of the URL.
#[cfg(feature = "tls")]
pub(super) fn options(options: OptsBuilder, tls: &Tls, host: &Host) -> Opts {
    use mysql_async::{ClientIdentity, SslOpts};
    let settings = match (tls.mode(host), &tls.trust) {
        (Mode::Off, _) => return options.into(),
        (Mode::Prefer, _) => SslOpts::default()
            .with_danger_accept_invalid_certs(true)
            .with_danger_skip_domain_validation(true),
        (Mode::Require, Some(trust)) => {
            let roots = trust.authorities.iter();
            let roots = roots.map(|root| root.to_vec().into()).collect();
            let identity = trust.identity.clone();
            let identity = identity.map(|(cert, key)| ClientIdentity::new(cert.into(), key.into()));
            SslOpts::default()
                .with_disable_built_in_roots(true)
                .with_root_certs(roots)
                .with_client_identity(identity)
        }
        // `Tls` always has the certificates in this mode. Without it no server is trusted.
        (Mode::Require, None) => SslOpts::default().with_disable_built_in_roots(true),
    };
    options.ssl_opts(settings).into()
}

#[cfg(not(feature = "tls"))]
pub(super) fn options(options: OptsBuilder, _tls: &Tls, _host: &Host) -> Opts {
    options.into()
}

pub(super) async fn connect(
    store: &str,
    tls: &Tls,
    host: &Host,
    options: &Opts,
    action: &str,
) -> Result<Conn, Error> {
    let connected = match Conn::new(options.clone()).await {
        Err(error) if tls.mode(host) == Mode::Prefer && offers_none(&error) => {
            Conn::new(OptsBuilder::from_opts(options.clone()).ssl_opts(None)).await
        }
        connected => connected,
    };
    connected.map_err(|error| refused(store, tls, host, action, error))
}

fn offers_none(error: &mysql_async::Error) -> bool {
    use mysql_async::DriverError::NoClientSslFlagFromServer;
    matches!(error, mysql_async::Error::Driver(NoClientSslFlagFromServer))
}

/// The error for a failure to connect.
fn refused(store: &str, tls: &Tls, host: &Host, action: &str, error: mysql_async::Error) -> Error {
    let mode = tls.mode(host);
    #[cfg(feature = "tls")]
    if offers_none(&error) {
        return Error::config(store, ConfigPart::Server, not_offered(&host.name));
    }
    #[cfg(feature = "tls")]
    if let Some(why) = explain(&error, &host.name) {
        return Error::config(store, ConfigPart::Server, why);
    }
    match &error {
        mysql_async::Error::Server(server) if server.code == INSECURE => Error::config(
            store,
            ConfigPart::Server,
            format!(
                "{} takes connections with TLS only; use tls=require",
                host.name
            ),
        ),
        mysql_async::Error::Server(server) if server.code == DENIED => {
            let more = hint(tls, mode);
            let action = format!("{action}; check user and password{more}");
            Error::refused(store, action, error)
        }
        _ => caller_error(store, action, error),
    }
}
