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
    let addresses = url.addresses(default_port)?.into_iter();
    Ok(addresses.map(|(name, port)| Host { name, port }).collect())
}
