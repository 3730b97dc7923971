//! Wake-ups between processes: a process that ends a hold wakes the next waiter, so that waiters need not poll quickly.
//!
//! Every engine listens on a Unix datagram socket with an abstract name (Linux only: no file is left behind, and the name
//! is gone with its process). Its address is stored in its rows (the column `bell`). A wake-up is only a hint: its receiver
//! reads the file. It may be lost, and it does not reach a process in another network namespace; polling covers that.
//!
//! Any user of the machine may write to the socket. A wake-up that names no claim of this engine is dropped.

use std::fmt;

use fencelock_core::engine::Event;
use fencelock_core::{ClaimId, ClaimIds, LockName, Result};

/// Where an engine listens: its network namespace, and a random name in it. In namespace 0 silence does not show that
/// the engine is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address([u8; 24]);

impl Address {
    pub(crate) fn new() -> Result<Self> {
        let mut address = [0; 24];
        address[..8].copy_from_slice(&network_namespace().to_be_bytes());
        address[8..].copy_from_slice(ClaimIds::new()?.next().as_bytes());
        Ok(Self(address))
    }

    /// The address of an engine without a socket, which no other process can reach.
    pub(crate) fn unreachable(self) -> Self {
        let mut address = self.0;
        address[..8].fill(0);
        Self(address)
    }

    /// Whether a process in that namespace would reach an engine that listens here.
    fn is_reachable_from(&self, namespace: u64) -> bool {
        namespace != 0 && self.0[..8] == namespace.to_be_bytes()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0[8..].first_chunk().copied().unwrap_or_default();
        fmt::Debug::fmt(&ClaimId::from_bytes(name), f)
    }
}

/// What a wake-up says.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// It may be this waiter's turn.
    Turn(LockName, ClaimId),
    /// Something was done to this holder.
    Held(LockName, Event),
}

/// A wake-up to be sent.
#[derive(Clone, Debug)]
pub(crate) struct WakeUp {
    /// The address in the row.
    pub(crate) to: Vec<u8>,
    pub(crate) message: Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It was sent, or may have been.
    Sent,
    /// Nobody listens at the address: that process has ended.
    Gone,
}

/// What the receiver of a wake-up believes of it. What happened, and to which lock, is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// It is about a claim that waits.
    Turn(ClaimId),
    /// It is about a claim that holds.
    Held(ClaimId),
}

const TURN: u8 = b't';
const LOST: u8 = b'l';
const ASKED: u8 = b'a';

fn encode(message: &Message) -> Vec<u8> {
    let (kind, name, claim) = match message {
        Message::Turn(name, claim) => (TURN, name, claim),
        Message::Held(name, Event::Lost(claim)) => (LOST, name, claim),
        Message::Held(name, Event::Asked(claim)) => (ASKED, name, claim),
    };
    let mut bytes = vec![kind];
    bytes.extend_from_slice(claim.as_bytes());
    bytes.extend_from_slice(name.as_str().as_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Received> {
    let (kind, rest) = bytes.split_first()?;
    let claim = ClaimId::from_bytes(*rest.first_chunk()?);
    match *kind {
        TURN => Some(Received::Turn(claim)),
        LOST | ASKED => Some(Received::Held(claim)),
        _ => None,
    }
}

#[cfg(target_os = "linux")]
mod socket {
    use std::io;
    use std::net::Shutdown;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::{Address, Delivery, Received, WakeUp, decode, encode, network_namespace};

    /// After so many wake-ups in a row for no claim of this engine, the listener pauses.
    const MOST_STRAY: u32 = 64;
    const PAUSE: Duration = Duration::from_millis(5);

    /// The socket that sends wake-ups.
    #[derive(Debug)]
    pub(crate) struct Sender {
        namespace: u64,
        socket: Option<UnixDatagram>,
    }

    impl Sender {
        /// Without a socket (no file descriptor is left) nothing is sent, and the others poll.
        pub(crate) fn new() -> Self {
            let socket = UnixDatagram::unbound().and_then(|socket| {
                socket.set_nonblocking(true)?;
                Ok(socket)
            });
            Self {
                namespace: network_namespace(),
                socket: socket.ok(),
            }
        }

        pub(crate) fn send(&self, wake_up: &WakeUp) -> Delivery {
            let (Some(socket), Some(to)) = (&self.socket, Address::from_bytes(&wake_up.to)) else {
                return Delivery::Sent;
            };
            let message = encode(&wake_up.message);
            let sent = socket_address(to).and_then(|to| socket.send_to_addr(&message, &to));
            match sent {
                Err(error)
                    if error.kind() == io::ErrorKind::ConnectionRefused
                        && to.is_reachable_from(self.namespace) =>
                {
                    Delivery::Gone
                }
                _ => Delivery::Sent,
            }
        }
    }

    /// The socket that receives wake-ups, on a thread of its own until this is dropped.
    #[derive(Debug)]
    pub(crate) struct Listener {
        /// Kept here, too: if the thread ends early, the name must stay, or others would reap the waiters of this engine.
        socket: Arc<UnixDatagram>,
        stop: Arc<AtomicBool>,
        ended: oneshot::Receiver<()>,
    }

    impl Listener {
        /// Calls `handle` with every wake-up. It returns whether the wake-up was for this engine.
        pub(crate) fn start(
            address: Address,
            mut handle: impl FnMut(Received) -> bool + Send + 'static,
        ) -> io::Result<Self> {
            let socket = Arc::new(UnixDatagram::bind_addr(&socket_address(address)?)?);
            let stop = Arc::new(AtomicBool::new(false));
            let (receiving, stopped) = (Arc::clone(&socket), Arc::clone(&stop));
            let (end, ended) = oneshot::channel();
            let run = move || {
                receive_all(|buffer| receiving.recv(buffer), &stopped, &mut handle);
                drop(receiving);
                // Nobody waits for the end if the engine was dropped.
                let _ = end.send(());
            };
            let thread = std::thread::Builder::new().name("fencelock-wake".into());
            thread.stack_size(256 * 1024).spawn(run)?;
            Ok(Self {
                socket,
                stop,
                ended,
            })
        }

        /// Returns when no process can reach the socket any more, or after `timeout`.
        pub(crate) async fn end(mut self, timeout: Duration) {
            self.stop();
            // An error means that the thread has ended already.
            let _ = tokio::time::timeout(timeout, &mut self.ended).await;
        }

        /// Ends the thread's `recv`. This needs no second socket, which may be impossible to get.
        fn stop(&self) {
            self.stop.store(true, Ordering::Release);
            if let Err(error) = self.socket.shutdown(Shutdown::Read) {
                tracing::debug!(%error, "the socket could not be shut down");
            }
        }
    }

    /// Handles what `receive` returns until `stopped`.
    pub(super) fn receive_all(
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
        stopped: &AtomicBool,
        handle: &mut impl FnMut(Received) -> bool,
    ) {
        let (mut buffer, mut stray) = ([0; 1024], 0);
        loop {
            let received = receive(&mut buffer);
            if stopped.load(Ordering::Acquire) {
                return;
            }
            match received {
                Ok(length) => {
                    let received = decode(&buffer[..length]);
                    stray = match received.is_some_and(&mut *handle) {
                        true => 0,
                        false => stray + 1,
                    };
                    // A process that floods the socket then waits for its buffer, and takes no processor time here.
                    if stray >= MOST_STRAY {
                        stray = 0;
                        std::thread::sleep(PAUSE);
                    }
                }
                // A signal.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "the wake-up socket is broken; waiters of this process poll");
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

    fn socket_address(address: Address) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("fencelock-{address:?}"))
    }
}

#[cfg(not(target_os = "linux"))]
mod socket {
    use std::io;
    use std::time::Duration;

    use super::{Address, Delivery, Received, WakeUp};

    #[derive(Debug)]
    pub(crate) struct Sender;

    impl Sender {
        pub(crate) fn new() -> Self {
            Self
        }

        pub(crate) fn send(&self, _wake_up: &WakeUp) -> Delivery {
            Delivery::Sent
        }
    }

    #[derive(Debug)]
    pub(crate) enum Listener {}

    impl Listener {
        pub(crate) fn start(
            _address: Address,
            _handle: impl FnMut(Received) -> bool + Send + 'static,
        ) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) async fn end(self, _timeout: Duration) {
            match self {}
        }
    }
}

pub(crate) use socket::{Listener, Sender};

/// The inode of this process's network namespace; 0 if it is unknown.
fn network_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino())
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    fn send(sender: &Sender, to: Address) -> Delivery {
        let claim = ClaimIds::new().unwrap().next();
        let name = LockName::new("job").unwrap();
        sender.send(&WakeUp {
            to: to.as_bytes().to_vec(),
            message: Message::Turn(name, claim),
        })
    }

    #[test]
    fn only_a_reachable_process_counts_as_gone() {
        let (sender, silent) = (Sender::new(), Address::new().unwrap());
        assert_eq!(send(&sender, silent), Delivery::Gone);
        assert_eq!(send(&sender, silent.unreachable()), Delivery::Sent);
        // Two unknown namespaces are not the same one.
        assert!(!silent.unreachable().is_reachable_from(0));
    }

    #[test]
    fn a_signal_does_not_end_the_listener() {
        let (stop, mut handled) = (AtomicBool::new(false), 0);
        let message = encode(&Message::Turn(
            LockName::new("job").unwrap(),
            ClaimIds::new().unwrap().next(),
        ));
        let mut results = [None, Some(message), None].into_iter();
        let receive = |buffer: &mut [u8]| match results.next() {
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
        let mut handle = |_| {
            handled += 1;
            true
        };
        socket::receive_all(receive, &stop, &mut handle);
        assert_eq!((handled, results.next()), (1, None));
    }

    /// Otherwise the senders would reap the waiters of this engine.
    #[tokio::test]
    async fn an_engine_whose_listener_died_is_not_gone_before_its_end() {
        let address = Address::new().unwrap();
        let panics = |_| panic!("the thread ends");
        let listener = Listener::start(address, panics).unwrap();
        let sender = Sender::new();
        for _ in 0..100 {
            assert_eq!(send(&sender, address), Delivery::Sent);
            tokio::task::yield_now().await;
        }
        listener.end(Duration::from_secs(10)).await;
        assert_eq!(send(&sender, address), Delivery::Gone);
    }
}
