//! The service's part of the configuration file: `[serve]` and `[[principal]]`, in TOML. An unknown key is an error. The crate
//! `fencelock-config` reads the sections of stores (`[store.NAME]`).

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencelock_config::{check_sections, check_url, name_of, toml_error};
use fencelock_core::{Error, Result, parse_duration};
use serde::Deserialize;

use crate::config::{AuditLog, Config, TlsFiles};
use crate::principal::{Grant, Principal};
use crate::tls;

/// The settings of a configuration file. A missing key has its default.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// Where to listen.
    pub listen: Vec<SocketAddr>,
    /// The URL of the store, or `@` and the name that it has in the same file.
    pub store: Option<String>,
    /// What the locks are for: `efficiency` or `correctness`.
    pub purpose: Option<String>,
    /// How long draining may take.
    pub drain: Option<Duration>,
    /// Whether to serve other machines without TLS or without principals.
    pub insecure: bool,
    /// How a replica serves.
    pub config: Config,
}

/// The sections that are read here. Other sections are checked elsewhere.
#[derive(Default, Deserialize)]
struct File {
    #[serde(default)]
    serve: Serve,
    #[serde(default)]
    principal: Vec<Principal>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Serve {
    listen: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    proxies: Vec<IpAddr>,
    metrics: Metrics,
    advertise: Option<String>,
    hosts: Vec<String>,
    store: Option<String>,
    purpose: Option<String>,
    drain: Option<String>,
    insecure: bool,
    anonymous: Option<Vec<Grant>>,
    tls: Option<Tls>,
    limits: Limits,
    audit: Option<Audit>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client_cert: Option<ClientCert>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ClientCert {
    Optional,
    Required,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    connections: Option<usize>,
    polls: Option<usize>,
    max_ttl: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Metrics {
    names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Audit {
    file: PathBuf,
    #[serde(default)]
    grants: bool,
}

impl Settings {
    /// Reads the text of a configuration file. `file` is its name, for errors.
    ///
    /// # Errors
    /// [`Error::ConfigFile`] that names the file, and the line if there is one.
    pub fn read(file: &str, text: &str) -> Result<Self> {
        let bad = |why: String| Error::config_file(file, why);
        check_sections(file, text)?;
        let read: File = toml::from_str(text).map_err(|error| toml_error(file, text, &error))?;
        let serve = read.serve;
        let duration = |what, text: Option<String>| {
            let read = text.map(|text| parse_duration(what, &text));
            read.transpose().map_err(|error| bad(error.to_string()))
        };
        if let Some(url) = serve.store.as_deref()
            && name_of(url).is_none()
        {
            check_url(url).map_err(|error| bad(error.to_string()))?;
        }
        if let Some(purpose) = &serve.purpose
            && !matches!(purpose.as_str(), "efficiency" | "correctness")
        {
            return Err(bad(format!(
                "purpose {purpose:?} must be efficiency or correctness"
            )));
        }
        let mut config = Config {
            advertise: serve.advertise,
            hosts: serve.hosts,
            admin: serve.admin,
            proxies: serve.proxies,
            metrics: serve.metrics.names,
            ..Config::default()
        };
        let named = !read.principal.is_empty();
        config.principals = read.principal;
        match serve.anonymous {
            Some(rights) => config.anonymous = rights,
            // A service with principals serves no anonymous clients by default.
            None if named => config.anonymous.clear(),
            None => {}
        }
        config.audit = serve.audit.map(|audit| AuditLog {
            file: audit.file,
            grants: audit.grants,
        });
        config.tls = serve
            .tls
            .map(|tls| tls_files(tls).map_err(bad))
            .transpose()?;
        if let Some(connections) = serve.limits.connections {
            config.limits.connections = connections;
        }
        if let Some(polls) = serve.limits.polls {
            config.limits.polls = polls;
        }
        if let Some(most) = duration("max_ttl", serve.limits.max_ttl)? {
            config.limits.max_ttl = most;
        }
        config.check().map_err(|error| bad(error.to_string()))?;
        Ok(Self {
            listen: serve.listen,
            store: serve.store,
            purpose: serve.purpose,
            drain: duration("drain", serve.drain)?,
            insecure: serve.insecure,
            config,
        })
    }

    /// Checks whether the files that the settings name can be used: it reads those of TLS, and the audit log's directory must
    /// exist.
    ///
    /// # Errors
    /// [`Error::ConfigFile`] that names the file.
    pub fn check_files(&self) -> Result<()> {
        if let Some(files) = &self.config.tls {
            tls::Tls::open(files)?;
        }
        let log = self.config.audit.as_ref().and_then(AuditLog::path);
        // A name without a directory is in the working directory.
        let directory = log.and_then(Path::parent);
        match directory.filter(|directory| !directory.as_os_str().is_empty()) {
            Some(directory) if !directory.is_dir() => {
                let why = format!(
                    "the audit log: there is no directory {}",
                    directory.display()
                );
                Err(Error::config_file("section [serve.audit]", why))
            }
            _ => Ok(()),
        }
    }
}

fn tls_files(tls: Tls) -> std::result::Result<TlsFiles, String> {
    if tls.client_cert.is_some() && tls.client_ca.is_none() {
        return Err(
            "client_cert needs client_ca, the authority of the clients' certificates".to_owned(),
        );
    }
    Ok(TlsFiles {
        cert: tls.cert,
        key: tls.key,
        client_ca: tls.client_ca,
        client_required: tls.client_cert == Some(ClientCert::Required),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_file_is_read() {
        let text = r#"
            [serve]
            listen = ["0.0.0.0:7420", "[::1]:7420"]
            advertise = "https://gw-1.internal:7420"
            admin = "127.0.0.1:7421"
            proxies = ["10.0.0.9"]
            store = "redis://cache:6379"
            purpose = "correctness"
            drain = "20s"
            [serve.tls]
            cert = "/c"
            key = "/k"
            client_ca = "/a"
            client_cert = "optional"
            [serve.limits]
            connections = 100
            polls = 10
            max_ttl = "1d"
            [serve.audit]
            file = "stdout"
            [serve.metrics]
            names = ["orders/*"]
            [[principal]]
            name = "billing"
            streams = 5
            tokens = [{ id = "a1b2c3d4", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }]
            certificates = ["spiffe://corp/billing"]
            rights = [{ prefix = "billing/", rights = ["take", "look"] }]
            takes_per_s = 200
            waiting = 500
        "#;
        let settings = Settings::read("f", text).unwrap();
        assert_eq!(settings.listen.len(), 2);
        assert_eq!(settings.drain, Some(Duration::from_secs(20)));
        let config = settings.config;
        assert_eq!(config.limits.max_ttl, Duration::from_secs(86_400));
        assert_eq!(config.admin.map(|at| at.port()), Some(7421));
        assert_eq!((config.proxies.len(), config.metrics.len()), (1, 1));
        assert_eq!(config.principals[0].streams, Some(5));
        assert_eq!(config.principals[0].takes_per_s, Some(200));
        assert!(config.anonymous.is_empty() && config.audit.is_some() && config.tls.is_some());
    }

    #[test]
    fn other_sections_are_ignored() {
        let text = "[store.orders]\nurl = \"memory:\"\nwhat = 1\n[serve]\nstore = \"@orders\"";
        let settings = Settings::read("f", text).unwrap();
        assert_eq!(settings.store.as_deref(), Some("@orders"));
        let error = Settings::read("f", "\n[serve]\nlistenn = []").unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("line 3") && error.contains("`listen`"),
            "{error}"
        );
    }

    #[test]
    fn an_empty_file_is_the_default() {
        let settings = Settings::read("f", "").unwrap();
        assert_eq!(settings.config.anonymous.len(), 1);
        assert!(settings.listen.is_empty() && !settings.insecure);
    }

    #[test]
    fn invalid_files_are_refused() {
        for text in [
            "x = 1",
            "[serve]\nlisten = 1",
            "[serve]\nlistenn = []",
            "[serve]\ndrain = \"soon\"",
            "[serve]\npurpose = \"fun\"",
            "[serve.limits]\nx = 1",
            "[serve.metrics]\nx = 1",
            "[serve]\nproxies = [\"all\"]",
            "[serve.tls]\ncert = \"c\"",
            "[serve.tls]\ncert = \"c\"\nkey = \"k\"\nclient_cert = \"required\"",
            "[[principal]]\nrights = []",
            "[[principal]]\nname = \"a\"\nrights = [{ prefix = \"\", rights = [\"all\"] }]",
            "[[principal]]\nname = \"a\"\ntokens = [{ id = \"a\", sha256 = \"00\" }]",
            "[[principal]]\nname = \"a\"\npassword = \"x\"",
            "[[principal]]\nname = \"a\"\nrights = [{ prefix = \"nightly\", rights = [\"take\"] }]",
            "[serve]\nadvertise = \"nonsense with spaces\"",
            "[serve]\nadvertise = \"gw-1:7420\"",
            "[serve]\nadvertise = \"http://gw-1:7420/locks\"",
            "[serve]\nadvertise = \"http://u:hunter2@gw-1:7420\"",
            "[sevre]",
            "[serve]\nstore = \"redis://u:hunter2@h\"",
            "[serve]\nlisten = \"redis://u:hunter2@h\"",
            "[serve]\nstore = \"redis://u:hunter2@h",
        ] {
            let error = Settings::read("the-file", text).unwrap_err().to_string();
            assert!(error.contains("the-file"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
