//! The servers that a URL names.

use fencelock_core::{Result, StoreUrl};

/// A server's name or address, and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name, an address, or the directory of a socket.
    pub name: String,
    /// Its port.
    pub port: u16,
}

/// The hosts of a URL, in its order.
///
/// # Errors
/// [`Error::Config`](fencelock_core::Error::Config) if there is no host, one is named twice, or a port is not a number.
pub fn hosts(url: &StoreUrl, default_port: u16) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for text in &url.hosts {
        // An IPv6 address stands in brackets.
        let (name, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) => (address, port.strip_prefix(':')),
            None => match text.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (text.as_str(), None),
            },
        };
        let port = match port {
            None => default_port,
            Some(port) => {
                let parsed = port.parse().ok().filter(|port| *port != 0);
                parsed.ok_or_else(|| {
                    url.refuse("the port after the colon of a host is not a number from 1 to 65535")
                })?
            }
        };
        let name = name.to_owned();
        let host = Host { name, port };
        if hosts.contains(&host) {
            return Err(url.refuse(format!("it names the host {text} twice")));
        }
        hosts.push(host);
    }
    if hosts.is_empty() {
        let scheme = &url.scheme;
        return Err(url.refuse(format!(
            "it names no host; write {scheme}://USER@HOST:{default_port}/DATABASE"
        )));
    }
    Ok(hosts)
}
