//! How an etcd is set up.

/// The setup of an etcd; see [`Etcd::builder`](crate::Etcd::builder) and [`Etcd::cluster`](crate::Etcd::cluster).
#[derive(Debug)]
#[must_use = "nothing is started before `start`"]
pub struct EtcdBuilder {
    pub(super) members: usize,
    pub(super) tls: bool,
    pub(super) fsync: bool,
    pub(super) client_certificates: bool,
    pub(super) user: Option<(String, String)>,
    pub(super) rights: Vec<String>,
}

impl EtcdBuilder {
    /// Clients must use TLS. The servers have a certificate for `localhost` and 127.0.0.1 of their own authority
    /// ([`Etcd::ca`](crate::Etcd::ca)). Needs the command `openssl`.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Clients must use TLS with a certificate of the same authority ([`Etcd::certificate`](crate::Etcd::certificate)).
    pub fn client_certificates(mut self) -> Self {
        self.client_certificates = true;
        self.tls()
    }

    /// The servers flush every change to the disk before they confirm it, as they do by default. Otherwise they leave that to
    /// the kernel: changes survive the end of a server, but not of the machine, and a busy disk does not slow the servers down.
    pub fn fsync(mut self) -> Self {
        self.fsync = true;
        self
    }

    /// Clients must name a user and a password. The user may read and write keys that begin with `fencelock/`.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self.rights.push("fencelock/".to_owned());
        self
    }

    /// The user may also read and write keys with this prefix.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.rights.push(prefix.to_owned());
        self
    }
}
