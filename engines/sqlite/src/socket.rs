//! The sockets through which wake-ups are sent and received.

use std::io;
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::wake_up::{Address, Delivery, Received, WakeUp, decode, encode, network_namespace};

/// After this many wake-ups in a row that are for no claim of this engine, the listener pauses.
const MOST_STRAY: u32 = 64;
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Sender {
    namespace: u64,
    socket: Option<UnixDatagram>,
}

impl Sender {
    /// Without a socket (no file descriptor is left) nothing is sent, and the waiters of other processes poll.
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
    /// Kept here as well: if the thread ends early, the name must stay, since others would otherwise reap the waiters of this
    /// engine.
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
            // Sending fails if the engine was dropped.
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
fn receive_all(
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
                // During the pause a process that floods the socket waits for its buffer, and costs no processor time here.
                if stray >= MOST_STRAY {
                    stray = 0;
                    std::thread::sleep(PAUSE);
                }
            }
            // A signal interrupted the call.
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use fencelock_core::{ClaimIds, LockName};

    use super::*;
    use crate::wake_up::Message;

    fn send(sender: &Sender, to: Address) -> Delivery {
        let claim = ClaimIds::new().unwrap().next();
        let name = LockName::new("job").unwrap();
        sender.send(&WakeUp {
            to: to.as_bytes().to_vec(),
            message: Message::Turn(name, claim),
        })
    }

    #[test]
    fn only_a_reachable_process_can_count_as_gone() {
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
        receive_all(receive, &stop, &mut handle);
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
