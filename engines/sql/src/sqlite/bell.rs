//! The doorbell between processes: who ends a hold tells the next in line, so that nobody has to poll quickly.
//!
//! Every engine listens on a Unix datagram socket with an abstract name (Linux only: no file is left behind, and the name is
//! gone with its process). Its address is stored with its rows. A ring is a hint and never more: it makes its receiver
//! look at the file. It may be lost, and it reaches nobody in another network namespace; polling covers that.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencelock_core::engine::Event;
use fencelock_core::{ClaimId, ClaimIds, LockName, Result};

/// Where an engine listens: its network namespace, and a random name in it. Namespace 0 is none: nobody can tell from
/// such an address whether its engine is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct BellId([u8; 24]);

impl BellId {
    pub(super) fn new() -> Result<Self> {
        let mut id = [0; 24];
        id[..8].copy_from_slice(&network_namespace().to_be_bytes());
        id[8..].copy_from_slice(ClaimIds::new()?.next().as_bytes());
        Ok(Self(id))
    }

    /// The address of an engine that hears none but its own rings.
    pub(super) fn unheard(self) -> Self {
        let mut id = self.0;
        id[..8].fill(0);
        Self(id)
    }

    /// Whether an engine that is there is found at this address from that namespace.
    fn is_found_from(&self, namespace: u64) -> bool {
        namespace != 0 && self.0[..8] == namespace.to_be_bytes()
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Debug for BellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0[8..].first_chunk().copied().unwrap_or_default();
        fmt::Debug::fmt(&ClaimId::from_bytes(name), f)
    }
}

/// What a ring says.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// It may be this waiter's turn.
    Turn(LockName, ClaimId),
    /// Something was done to this holder.
    Held(LockName, Event),
}

/// A ring that is to be sent.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    /// The address that stands in the row.
    pub(super) to: Vec<u8>,
    pub(super) news: News,
}

/// What became of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// It was sent, or may have been.
    Sent,
    /// Nobody listens there any more: that process is gone.
    Gone,
}

const TURN: u8 = b't';
const LOST: u8 = b'l';
const ASKED: u8 = b'a';

fn encode(news: &News) -> Vec<u8> {
    let (kind, name, claim) = match news {
        News::Turn(name, claim) => (TURN, name, claim),
        News::Held(name, Event::Lost(claim)) => (LOST, name, claim),
        News::Held(name, Event::Asked(claim)) => (ASKED, name, claim),
    };
    let mut bytes = vec![kind];
    bytes.extend_from_slice(claim.as_bytes());
    bytes.extend_from_slice(name.as_str().as_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<News> {
    let (kind, rest) = bytes.split_first()?;
    let (claim, name) = rest.split_first_chunk()?;
    let claim = ClaimId::from_bytes(*claim);
    let name = LockName::new(std::str::from_utf8(name).ok()?).ok()?;
    match *kind {
        TURN => Some(News::Turn(name, claim)),
        LOST => Some(News::Held(name, Event::Lost(claim))),
        ASKED => Some(News::Held(name, Event::Asked(claim))),
        _ => None,
    }
}

#[cfg(target_os = "linux")]
mod socket {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use tokio::sync::oneshot;

    use super::*;

    /// The socket that rings others.
    #[derive(Debug)]
    pub(in super::super) struct Ringer {
        namespace: u64,
        socket: Option<UnixDatagram>,
    }

    impl Ringer {
        /// Without a socket (out of file descriptors) nobody is rung, and the others poll.
        pub(in super::super) fn new() -> Self {
            let socket = UnixDatagram::unbound().and_then(|socket| {
                socket.set_nonblocking(true)?;
                Ok(socket)
            });
            Self {
                namespace: network_namespace(),
                socket: socket.ok(),
            }
        }

        pub(in super::super) fn ring(&self, ring: &Ring) -> Rung {
            let (Some(socket), Some(to)) = (&self.socket, BellId::from_bytes(&ring.to)) else {
                return Rung::Sent;
            };
            let sent = address(to).and_then(|to| socket.send_to_addr(&encode(&ring.news), &to));
            match sent {
                Err(error)
                    if error.kind() == io::ErrorKind::ConnectionRefused
                        && to.is_found_from(self.namespace) =>
                {
                    Rung::Gone
                }
                _ => Rung::Sent,
            }
        }
    }

    /// The socket that hears others, on a thread of its own until this is dropped.
    #[derive(Debug)]
    pub(in super::super) struct Listener {
        id: BellId,
        stop: Arc<AtomicBool>,
        ended: oneshot::Receiver<()>,
    }

    impl Listener {
        pub(in super::super) fn start(
            id: BellId,
            mut hear: impl FnMut(News) + Send + 'static,
        ) -> io::Result<Self> {
            let socket = UnixDatagram::bind_addr(&address(id)?)?;
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            let (end, ended) = oneshot::channel();
            let listen = move || {
                let mut buffer = [0; 1024];
                while let Ok(length) = socket.recv(&mut buffer) {
                    if stopped.load(Ordering::Acquire) {
                        break;
                    }
                    if let Some(news) = decode(&buffer[..length]) {
                        hear(news);
                    }
                }
                drop(socket);
                // Only who closes the engine waits for the end, not who drops it.
                let _ = end.send(());
            };
            let thread = std::thread::Builder::new().name("fencelock-bell".into());
            thread.stack_size(256 * 1024).spawn(listen)?;
            Ok(Self { id, stop, ended })
        }

        /// Returns when nobody can reach the socket any more.
        pub(in super::super) async fn end(mut self) {
            self.stop();
            // An error means that the thread is gone already.
            let _ = (&mut self.ended).await;
        }

        fn stop(&self) {
            self.stop.store(true, Ordering::Release);
            let wake = || UnixDatagram::unbound()?.send_to_addr(&[], &address(self.id)?);
            // It fails if the thread is gone already.
            let _: io::Result<usize> = wake();
        }
    }

    impl Drop for Listener {
        fn drop(&mut self) {
            self.stop();
        }
    }

    fn address(id: BellId) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("fencelock-{id:?}"))
    }
}

#[cfg(not(target_os = "linux"))]
mod socket {
    use super::*;

    #[derive(Debug)]
    pub(in super::super) struct Ringer;

    impl Ringer {
        pub(in super::super) fn new() -> Self {
            Self
        }

        pub(in super::super) fn ring(&self, _ring: &Ring) -> Rung {
            Rung::Sent
        }
    }

    #[derive(Debug)]
    pub(in super::super) struct Listener;

    impl Listener {
        pub(in super::super) fn start(
            _id: BellId,
            _hear: impl FnMut(News) + Send + 'static,
        ) -> io::Result<Self> {
            Ok(Self)
        }

        pub(in super::super) async fn end(self) {}
    }
}

pub(super) use socket::{Listener, Ringer};

/// The inode of this process's network namespace; 0 if that cannot be told.
fn network_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino())
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ring(from: &Ringer, to: BellId) -> Rung {
        let claim = ClaimIds::new().unwrap().next();
        let name = LockName::new("job").unwrap();
        from.ring(&Ring {
            to: to.as_bytes().to_vec(),
            news: News::Turn(name, claim),
        })
    }

    #[test]
    fn only_who_would_be_found_is_gone() {
        let (ringer, silent) = (Ringer::new(), BellId::new().unwrap());
        assert_eq!(ring(&ringer, silent), Rung::Gone);
        assert_eq!(ring(&ringer, silent.unheard()), Rung::Sent);
        // Neither knows its namespace: that does not make it the same one.
        assert!(!silent.unheard().is_found_from(0));
    }
}
