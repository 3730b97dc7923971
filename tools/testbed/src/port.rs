//! Ports of the loopback interface that no two tests share.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;

use crate::failure::{Failure, Result};

/// Below the ports that the system hands to outgoing connections, which could take a port while its server is down.
const FIRST: u16 = 12_000;
const COUNT: u16 = 19_000;

/// A port on 127.0.0.1 that is free, and stays reserved against other tests, of this process and of others, until it is
/// dropped: also while the server on it is down.
#[derive(Debug)]
pub struct Port {
    number: u16,
    #[cfg(target_os = "linux")]
    _reserved: std::os::unix::net::UnixListener,
}

impl Port {
    /// Finds one.
    ///
    /// # Errors
    /// If there is none.
    pub fn free() -> Result<Self> {
        // Processes begin at different places, so that they seldom meet.
        let begin = std::process::id().wrapping_mul(7919);
        for step in 0..u32::from(COUNT) {
            let offset = begin.wrapping_add(step) % u32::from(COUNT);
            // Below COUNT, which is a u16.
            let number = FIRST + offset as u16;
            if let Some(port) = Self::reserve(number) {
                return Ok(port);
            }
        }
        Err(Failure::new(format!(
            "no port from {FIRST} to {} is free on 127.0.0.1",
            FIRST + COUNT - 1
        )))
    }

    /// The port's number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1` with the port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }

    /// A Unix socket without a file serves as the reservation: it is gone with this process, and nothing is left.
    #[cfg(target_os = "linux")]
    fn reserve(number: u16) -> Option<Self> {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("fencelock-testbed-port-{number}");
        let name = std::os::unix::net::SocketAddr::from_abstract_name(name).ok()?;
        let reserved = std::os::unix::net::UnixListener::bind_addr(&name).ok()?;
        is_free(number).then_some(Self {
            number,
            _reserved: reserved,
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn reserve(number: u16) -> Option<Self> {
        std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number })
    }
}

/// Whether nobody listens there. The probe does not listen either: a process that another thread is about to start has a copy
/// of it for a moment, and a copy that listens would keep the server from its port.
#[cfg(target_os = "linux")]
fn is_free(number: u16) -> bool {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let probe = || {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let probe = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&probe, true)?;
        bind(
            &probe,
            &std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, number),
        )
    };
    probe().is_ok()
}

/// Whether somebody listens at a socket of the file system. Cheaper to ask than a server's own client, which is a process.
pub(crate) fn is_open(socket: &str) -> bool {
    UnixStream::connect(socket).is_ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use super::{Ipv4Addr, is_free};

    #[test]
    fn where_somebody_listens_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let number = listener.local_addr().unwrap().port();
        assert!(!is_free(number));
        drop(listener);
        assert!(is_free(number));
    }
}
