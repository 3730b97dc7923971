//! TLS to MySQL and MariaDB: the server's greeting comes in the clear, and so do the capabilities that the client answers
//! with; whoever connects and with which password is told after the handshake.

use fencelock_core::Error;
use fencelock_sql::server::Host;
use fencelock_sql::tls::{self, Mode, Tls};
use mysql_async::{Conn, Opts, OptsBuilder};

use super::config::Config;
use super::wire::told;

/// Refused by MySQL for connecting without TLS.
const INSECURE: u16 = 3159;
/// Access denied: also to a user of whom the server wants TLS or a certificate, and by MariaDB to anybody without TLS.
const DENIED: u16 = 1045;

/// The driver's options to connect to a host as it is asked for.
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
        // It is there; were it not, nobody would be trusted.
        (Mode::Require, None) => SslOpts::default().with_disable_built_in_roots(true),
    };
    options.ssl_opts(settings).into()
}

#[cfg(not(feature = "tls"))]
pub(super) fn options(options: OptsBuilder, _tls: &Tls, _host: &Host) -> Opts {
    options.into()
}

/// Connects.
pub(super) async fn connect(config: &Config, host: &Host, at: &str) -> Result<Conn, Error> {
    let Some(options) = config.options(host) else {
        return Err(Error::config(
            &config.store,
            format!("it does not name {}", host.name),
        ));
    };
    let connected = match Conn::new(options.clone()).await {
        Err(error) if config.tls.mode(host) == Mode::Prefer && offers_none(&error) => {
            Conn::new(OptsBuilder::from_opts(options.clone()).ssl_opts(None)).await
        }
        connected => connected,
    };
    connected.map_err(|error| refused(config, host, at, error))
}

fn offers_none(error: &mysql_async::Error) -> bool {
    use mysql_async::DriverError::NoClientSslFlagFromServer;
    matches!(error, mysql_async::Error::Driver(NoClientSslFlagFromServer))
}

/// What a failure to connect means.
fn refused(config: &Config, host: &Host, at: &str, error: mysql_async::Error) -> Error {
    let mode = config.tls.mode(host);
    #[cfg(feature = "tls")]
    if offers_none(&error) {
        return Error::config(&config.store, tls::not_offered(&host.name));
    }
    #[cfg(feature = "tls")]
    if let Some(why) = tls::explain(&error, &host.name) {
        return Error::config(&config.store, why);
    }
    match &error {
        mysql_async::Error::Server(server) if server.code == INSECURE => Error::config(
            &config.store,
            format!(
                "{} takes connections with TLS only; say tls=require",
                host.name
            ),
        ),
        mysql_async::Error::Server(server) if server.code == DENIED => {
            let more = tls::hint(&config.tls, mode);
            let action = format!("{at}; check user and password{more}");
            Error::refused(&config.store, action, error)
        }
        _ => told(&config.store, at, error),
    }
}
