//! The doorbell between processes: who ends a hold tells the next in line, so that nobody has to poll quickly.
//!
//! Every engine listens on a Unix datagram socket with an abstract name (Linux only: no file is left behind, and the name is
//! gone with its process). Its address is stored with its rows. A ring is a hint and never more: it makes its receiver
//! look at the file. It may be lost, and it reaches nobody in another network namespace; polling covers that.
//!
//! Any user of the machine may write to the socket. What names no claim of this engine is dropped here.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

/// After so many rings in a row that were for nobody here, the listener pauses.
#[cfg(target_os = "linux")]
const IN_VAIN: u32 = 64;
#[cfg(target_os = "linux")]
const NAP: Duration = Duration::from_millis(5);

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

/// What a ring is about, as its receiver hears it. What happened, and to which lock, stands in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// A claim that waits.
    Turn(ClaimId),
    /// A claim that holds.
    Held(ClaimId),
}

fn decode(bytes: &[u8]) -> Option<Heard> {
    let (kind, rest) = bytes.split_first()?;
    let claim = ClaimId::from_bytes(*rest.first_chunk()?);
    match *kind {
        TURN => Some(Heard::Turn(claim)),
        LOST | ASKED => Some(Heard::Held(claim)),
        _ => None,
    }
}

#[cfg(target_os = "linux")]
mod socket {
    use std::net::Shutdown;
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
        /// Here, too: should the thread end early, others are not to find the name gone and take the waiters for dead.
        socket: Arc<UnixDatagram>,
        stop: Arc<AtomicBool>,
        ended: oneshot::Receiver<()>,
    }

    impl Listener {
        pub(in super::super) fn start(
            id: BellId,
            mut hear: impl FnMut(Heard) -> bool + Send + 'static,
        ) -> io::Result<Self> {
            let socket = Arc::new(UnixDatagram::bind_addr(&address(id)?)?);
            let stop = Arc::new(AtomicBool::new(false));
            let (heard, stopped) = (Arc::clone(&socket), Arc::clone(&stop));
            let (end, ended) = oneshot::channel();
            let listen = move || {
                listen(|buffer| heard.recv(buffer), &stopped, &mut hear);
                drop(heard);
                // Only who closes the engine waits for the end, not who drops it.
                let _ = end.send(());
            };
            let thread = std::thread::Builder::new().name("fencelock-bell".into());
            thread.stack_size(256 * 1024).spawn(listen)?;
            Ok(Self {
                socket,
                stop,
                ended,
            })
        }

        /// Returns when nobody can reach the socket any more; the thread is waited for no longer than that.
        pub(in super::super) async fn end(mut self, patience: Duration) {
            self.stop();
            // An error means that the thread is gone already.
            let _ = tokio::time::timeout(patience, &mut self.ended).await;
        }

        /// Ends the thread's wait. Needs no other socket, of which there may be none to be had.
        fn stop(&self) {
            self.stop.store(true, Ordering::Release);
            if let Err(error) = self.socket.shutdown(Shutdown::Read) {
                tracing::debug!(%error, "the socket could not be shut down");
            }
        }
    }

    /// Hears what comes until it is stopped. `hear` answers whether it was for this engine.
    pub(super) fn listen(
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
        stopped: &AtomicBool,
        hear: &mut impl FnMut(Heard) -> bool,
    ) {
        let (mut buffer, mut in_vain) = ([0; 1024], 0);
        loop {
            let received = receive(&mut buffer);
            if stopped.load(Ordering::Acquire) {
                return;
            }
            match received {
                Ok(length) => {
                    let heard = decode(&buffer[..length]);
                    in_vain = match heard.is_some_and(&mut *hear) {
                        true => 0,
                        false => in_vain + 1,
                    };
                    // Whoever floods the socket waits for its buffer, and not this process for the processor.
                    if in_vain >= IN_VAIN {
                        in_vain = 0;
                        std::thread::sleep(NAP);
                    }
                }
                // A signal.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "the socket to be woken through is broken; waiters here poll");
                    return;
                }
            }
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
            _hear: impl FnMut(Heard) -> bool + Send + 'static,
        ) -> io::Result<Self> {
            Ok(Self)
        }

        pub(in super::super) async fn end(self, _patience: Duration) {}
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

    #[test]
    fn a_signal_does_not_end_the_listening() {
        let (stop, mut heard) = (AtomicBool::new(false), 0);
        let ring = encode(&News::Turn(
            LockName::new("job").unwrap(),
            ClaimIds::new().unwrap().next(),
        ));
        let mut comes = [None, Some(ring), None].into_iter();
        let receive = |buffer: &mut [u8]| match comes.next() {
            Some(None) => Err(io::ErrorKind::Interrupted.into()),
            Some(Some(bytes)) => {
                buffer[..bytes.len()].copy_from_slice(&bytes);
                Ok(bytes.len())
            }
            None => {
                stop.store(true, Ordering::Release);
                Ok(0)
            }
        };
        let mut hear = |_| {
            heard += 1;
            true
        };
        socket::listen(receive, &stop, &mut hear);
        assert_eq!((heard, comes.next()), (1, None));
    }

    /// Those who ring would take the waiters of this engine out of line.
    #[tokio::test]
    async fn who_has_stopped_listening_is_not_gone_before_the_end() {
        let id = BellId::new().unwrap();
        let dies = |_| panic!("the thread ends");
        let listener = Listener::start(id, dies).unwrap();
        let ringer = Ringer::new();
        for _ in 0..100 {
            assert_eq!(ring(&ringer, id), Rung::Sent);
            tokio::task::yield_now().await;
        }
        listener.end(Duration::from_secs(10)).await;
        assert_eq!(ring(&ringer, id), Rung::Gone);
    }
}
