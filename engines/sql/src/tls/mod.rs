//! TLS to the servers of a store.

#[cfg(feature = "tls")]
mod certificates;

use fencelock_core::engine::TlsFiles;
use fencelock_core::{Finding, Purpose, Result, StoreUrl};

use crate::server::Host;

#[cfg(feature = "tls")]
pub use certificates::{Trust, explain};

/// Whether a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    Off,
    /// If the server offers it; certificates are not checked.
    Prefer,
    /// Always, with a certificate for this host from a trusted authority.
    Require,
}

/// The words of the option `tls`.
pub const MODES: [(&str, Mode); 3] = [
    ("require", Mode::Require),
    ("prefer", Mode::Prefer),
    ("off", Mode::Off),
];

/// The names of `tls`, `tls-ca`, `tls-cert` and `tls-key` in the URLs of the database's own clients.
pub type Usual = [&'static str; 4];

/// The TLS options of a URL.
#[derive(Clone, Debug)]
pub struct Tls {
    asked: Option<Mode>,
    /// Present if a host requires it.
    #[cfg(feature = "tls")]
    pub trust: Option<std::sync::Arc<Trust>>,
}

impl Tls {
    /// Takes the options, and reads the files that they name.
    ///
    /// # Errors
    /// [`Error::Config`](fencelock_core::Error::Config) if they contradict each other, or a file cannot be used, or this
    /// build has no TLS and a host needs it.
    pub fn take(url: &mut StoreUrl, usual: Usual, hosts: &[Host]) -> Result<Self> {
        let [mode, ca, cert, key] = usual;
        let asked = take_mode(url, mode)?;
        let mut files = TlsFiles::default();
        files.ca = take_one(url, "tls-ca", ca)?;
        files.cert = take_one(url, "tls-cert", cert)?;
        files.key = take_one(url, "tls-key", key)?;
        let asked = with_files(url, asked, &files)?;
        if asked.is_some_and(|mode| mode != Mode::Off) && hosts.iter().any(is_socket) {
            return Err(url.refuse(
                "it asks for TLS over a socket of this machine, which has none; remove tls",
            ));
        }
        Self::with(url, asked, &files, hosts)
    }

    #[cfg(feature = "tls")]
    fn with(url: &StoreUrl, asked: Option<Mode>, files: &TlsFiles, hosts: &[Host]) -> Result<Self> {
        let mut tls = Self { asked, trust: None };
        if hosts.iter().any(|host| tls.mode(host) != Mode::Off) {
            certificates::choose_cryptography();
        }
        if hosts.iter().any(|host| tls.mode(host) == Mode::Require) {
            tls.trust = Some(std::sync::Arc::new(Trust::read(url, files)?));
        }
        Ok(tls)
    }

    #[cfg(not(feature = "tls"))]
    fn with(
        url: &StoreUrl,
        asked: Option<Mode>,
        _files: &TlsFiles,
        hosts: &[Host],
    ) -> Result<Self> {
        let tls = Self { asked };
        let change = "this build has no TLS; build with the feature tls, or use tls=off";
        match hosts.iter().find(|host| tls.mode(host) != Mode::Off) {
            None => Ok(tls),
            Some(_) if asked.is_some() => {
                Err(url.refuse_part(fencelock_core::ConfigPart::Build, change))
            }
            Some(Host { name, .. }) => Err(url.refuse_part(
                fencelock_core::ConfigPart::Build,
                format!("{name} is another machine, where TLS is the default, and {change}"),
            )),
        }
    }

    /// For connections whose TLS a program has set up itself.
    pub fn own(mode: Mode) -> Self {
        #[cfg(feature = "tls")]
        if mode != Mode::Off {
            certificates::choose_cryptography();
        }
        Self {
            asked: Some(mode),
            #[cfg(feature = "tls")]
            trust: None,
        }
    }

    /// How to connect to one of the hosts. By default a connection inside this machine is not encrypted.
    pub fn mode(&self, host: &Host) -> Mode {
        match self.asked {
            Some(mode) => mode,
            None if is_local(host) => Mode::Off,
            None => Mode::Require,
        }
    }

    /// What the connections to the hosts lack.
    pub fn finding(&self, hosts: &[Host]) -> Option<Finding> {
        let open = |host: &&Host| !is_local(host) && self.mode(host) != Mode::Require;
        let host = hosts.iter().find(open)?;
        let lacks = match self.mode(host) {
            Mode::Prefer => {
                "tls=prefer checks no certificate and goes on without TLS where none is offered: an attacker on the network \
                 who changes the traffic"
            }
            _ => "the connection is not encrypted: an attacker on the network",
        };
        Some(Finding::new(
            Purpose::Correctness,
            format!(
                "{} is another machine, and {lacks} can read the password and take every lock",
                host.name
            ),
            "use tls=require, with tls-ca=FILE for an authority of your own",
        ))
    }
}

/// The mode of the URL, by fencelock's own option or that of the database's own clients.
fn take_mode(url: &mut StoreUrl, usual: &'static str) -> Result<Option<Mode>> {
    let own = url.take("tls");
    let Some(value) = take_one_of(url, "tls", own.clone(), usual)? else {
        return Ok(None);
    };
    let mode = match value.to_ascii_lowercase().replace('_', "-").as_str() {
        "off" => Mode::Off,
        "prefer" => Mode::Prefer,
        "require" => Mode::Require,
        "disable" | "disabled" if own.is_none() => Mode::Off,
        "preferred" if own.is_none() => Mode::Prefer,
        // This checks at least what each of these words asks for.
        "required" | "verify-ca" | "verify-full" | "verify-identity" if own.is_none() => {
            Mode::Require
        }
        _ => {
            let option = if own.is_some() { "tls" } else { usual };
            return Err(url.refuse(format!(
                "{option}={value} is unknown; use tls=off, tls=prefer or tls=require"
            )));
        }
    };
    Ok(Some(mode))
}

/// An option that has two names.
fn take_one(url: &mut StoreUrl, own: &'static str, usual: &'static str) -> Result<Option<String>> {
    let value = url.take(own);
    take_one_of(url, own, value, usual)
}

fn take_one_of(
    url: &mut StoreUrl,
    own: &str,
    value: Option<String>,
    usual: &'static str,
) -> Result<Option<String>> {
    match (value, url.take(usual)) {
        (Some(_), Some(_)) => {
            Err(url.refuse(format!("{own} and {usual} mean the same; keep {own} alone")))
        }
        (own, usual) => Ok(own.or(usual)),
    }
}

/// A URL that names an authority or a certificate requires TLS.
fn with_files(url: &StoreUrl, asked: Option<Mode>, files: &TlsFiles) -> Result<Option<Mode>> {
    let Some(option) = files.given() else {
        return Ok(asked);
    };
    if files.cert.is_some() != files.key.is_some() {
        return Err(url.refuse("tls-cert and tls-key belong together; give both"));
    }
    match asked {
        None | Some(Mode::Require) => Ok(Some(Mode::Require)),
        Some(_) => Err(url.refuse(format!(
            "{option} needs tls=require, the only mode that checks certificates; remove one of the two"
        ))),
    }
}

fn is_socket(host: &Host) -> bool {
    host.name.starts_with('/')
}

fn is_local(host: &Host) -> bool {
    let address: Option<std::net::IpAddr> = host.name.parse().ok();
    is_socket(host)
        || host.name.eq_ignore_ascii_case("localhost")
        || address.is_some_and(|address| address.is_loopback())
}

/// The error for a server that offers no TLS.
#[cfg(feature = "tls")]
pub fn not_offered(host: &str) -> String {
    format!(
        "{host} offers no TLS, or an attacker on the network hides that it does; no password and no statement was sent. Switch \
         TLS on at the server, or use tls=off if the network is safe"
    )
}

/// What may help if a server refuses a user, as the end of a sentence.
pub fn hint(tls: &Tls, mode: Mode) -> &'static str {
    #[cfg(feature = "tls")]
    let certificate = tls
        .trust
        .as_ref()
        .is_some_and(|trust| trust.identity.is_some());
    #[cfg(not(feature = "tls"))]
    let certificate = tls.asked.is_none();
    match mode {
        Mode::Off => "; TLS is off here: if the server requires it, use tls=require",
        Mode::Require if !certificate => {
            "; if the server requires a certificate of this user, give tls-cert and tls-key"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Usual = ["sslmode", "sslrootcert", "sslcert", "sslkey"];

    fn read(options: &str, host: &str) -> Result<Mode> {
        let mut url = StoreUrl::parse(&format!("postgres://me@h/d?{options}"))?;
        let (name, port) = (host.to_owned(), 1);
        let host = Host { name, port };
        let tls = Tls::take(&mut url, USUAL, std::slice::from_ref(&host))?;
        url.finish()?;
        Ok(tls.mode(&host))
    }

    #[test]
    fn local_connections_are_not_encrypted_by_default() {
        for host in ["localhost", "127.0.0.1", "127.9.9.9", "::1", "/run/x"] {
            assert_eq!(read("", host).unwrap(), Mode::Off, "{host}");
        }
        assert_eq!(read("sslmode=disable", "10.0.0.1").unwrap(), Mode::Off);
        assert_eq!(read("tls=off", "10.0.0.1").unwrap(), Mode::Off);
    }

    #[test]
    fn contradicting_options_are_refused() {
        for (options, word) in [
            ("tls=on", "tls=require"),
            ("tls=verify-full", "tls=require"),
            ("sslmode=allow", "tls=prefer"),
            ("tls=off&sslmode=disable", "keep tls alone"),
            ("tls-ca=/x&sslrootcert=/x", "keep tls-ca alone"),
            ("tls-cert=/x", "give both"),
            ("sslkey=/x", "give both"),
            ("tls=prefer&tls-ca=/x", "tls=require"),
            ("tls=off&tls-cert=/x&tls-key=/y", "tls=require"),
        ] {
            let error = read(options, "localhost").unwrap_err().to_string();
            assert!(error.contains(word), "{options}: {error}");
        }
        let error = read("tls=require", "/run/x").unwrap_err().to_string();
        assert!(error.contains("socket"), "{error}");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_build_without_tls_says_so() {
        for (options, host) in [
            ("tls=require", "localhost"),
            ("tls=prefer", "localhost"),
            ("", "db.example"),
        ] {
            let error = read(options, host).unwrap_err().to_string();
            assert!(
                error.contains("build with the feature tls, or use tls=off"),
                "{error}"
            );
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn another_machine_is_reached_with_tls() {
        for host in ["db.example", "10.0.0.1", "localhost.example"] {
            assert_eq!(read("", host).unwrap(), Mode::Require, "{host}");
        }
        for word in [
            "require",
            "verify-ca",
            "verify-full",
            "VERIFY_IDENTITY",
            "REQUIRED",
        ] {
            let mode = read(&format!("sslmode={word}"), "localhost").unwrap();
            assert_eq!(mode, Mode::Require, "{word}");
        }
        assert_eq!(read("sslmode=prefer", "db").unwrap(), Mode::Prefer);
        for (options, word) in [
            ("tls-ca=/no/such/file", "the file /no/such/file of tls-ca"),
            ("sslrootcert=Cargo.toml", "no certificate in PEM form"),
            (
                "tls-cert=Cargo.toml&tls-key=Cargo.toml",
                "no certificate in PEM form",
            ),
        ] {
            let error = read(options, "localhost").unwrap_err().to_string();
            assert!(error.contains(word), "{options}: {error}");
        }
    }

    #[test]
    fn a_connection_that_others_can_read_is_reported() {
        let hosts = ["localhost", "db.example"].map(|name| Host {
            name: name.to_owned(),
            port: 1,
        });
        let found = |asked| {
            let tls = Tls {
                asked,
                ..Tls::own(Mode::Off)
            };
            tls.finding(&hosts).map(|finding| finding.what)
        };
        assert_eq!(found(None), None);
        assert_eq!(found(Some(Mode::Require)), None);
        let off = found(Some(Mode::Off)).unwrap();
        assert!(
            off.contains("db.example") && off.contains("not encrypted"),
            "{off}"
        );
        let prefer = found(Some(Mode::Prefer)).unwrap();
        assert!(prefer.contains("checks no certificate"), "{prefer}");
    }
}
