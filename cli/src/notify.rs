//! What the service tells systemd: that it is ready, and that it stops (`Type=notify`).

#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::exit::say;

/// Where the manager listens, if there is one.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Tells the manager, if there is one. If that fails, the service continues.
pub(crate) fn tell_manager(state: &str) {
    let Some(path) = std::env::var_os(SOCKET).filter(|path| !path.is_empty()) else {
        return;
    };
    let told = address(path.as_bytes()).and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = told {
        say(&format!("warning: {SOCKET} {}: {error}", path.display()));
    }
}

/// A path, or a name in the abstract namespace of Linux, which begins with `@`.
#[cfg(target_os = "linux")]
fn address(path: &[u8]) -> std::io::Result<SocketAddr> {
    match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path)),
    }
}

#[cfg(not(target_os = "linux"))]
fn address(path: &[u8]) -> std::io::Result<SocketAddr> {
    SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))
}
