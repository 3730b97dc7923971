//! Hosts in the URL of a store, and their credentials.

use std::fmt;

use crate::types::Result;

/// A host's name or address without brackets, and its port.
pub type Address = (String, u16);

/// An address as it is written in a URL.
#[must_use]
pub fn host_and_port((host, port): &Address) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// A host of a URL in which each host may have credentials of its own. `Debug` does not show the password.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UrlHost {
    /// `host` or `host:port`, as written.
    pub host: String,
    /// The user, percent-decoded.
    pub user: Option<String>,
    /// The password, percent-decoded.
    pub password: Option<String>,
}

impl fmt::Debug for UrlHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UrlHost({})", self.host)
    }
}

/// User and password before an `@`.
pub(super) fn credentials(
    userinfo: &str,
    decode: impl Fn(&str) -> Result<String>,
) -> Result<(Option<String>, Option<String>)> {
    let (name, secret) = match userinfo.split_once(':') {
        Some((name, secret)) => (name, Some(secret)),
        None => (userinfo, None),
    };
    let user = Some(decode(name)?).filter(|name| !name.is_empty());
    Ok((user, secret.map(decode).transpose()?))
}
