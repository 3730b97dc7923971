//! Ports of the loopback interface that no two tests share.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;

use crate::failure::{Failure, Result};

/// Below the range for outgoing connections. Such a connection could take a port while the server of that port is down.
const FIRST: u16 = 12_000;
const COUNT: u16 = 19_000;

/// A free port on 127.0.0.1. Until it is dropped, no other test in any process gets it, even while its server is down.
#[derive(Debug)]
pub struct Port {
    number: u16,
    #[cfg(target_os = "linux")]
    _reserved: std::os::unix::net::UnixListener,
}

impl Port {
    /// Finds a free port.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn free() -> Result<Self> {
        // Processes begin at different ports, so that they collide less.
        let begin = std::process::id().wrapping_mul(7919);
        for step in 0..u32::from(COUNT) {
            let offset = begin.wrapping_add(step) % u32::from(COUNT);
            // Fits: it is below COUNT, which is a u16.
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

    /// The reservation is an abstract Unix socket: it ends with this process and leaves no file.
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

/// Whether no process listens on the port. The probe does not listen either: a process that another thread starts at
/// this moment inherits a copy of the socket. A listening copy would keep the server from its port.
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

/// Whether a process listens on a Unix socket. This is cheaper than to run the server's client program.
pub(crate) fn is_open(socket: &str) -> bool {
    UnixStream::connect(socket).is_ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use crate::port::{Ipv4Addr, is_free};

    #[test]
    fn a_port_with_a_listener_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let number = listener.local_addr().unwrap().port();
        assert!(!is_free(number));
        drop(listener);
        assert!(is_free(number));
    }
}
