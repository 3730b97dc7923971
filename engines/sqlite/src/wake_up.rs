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

/// Where an engine listens: its network namespace, and a random name in it. In namespace 0 a missing socket does not prove that
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
    pub(crate) fn is_reachable_from(&self, namespace: u64) -> bool {
        namespace != 0 && self.0[..8] == namespace.to_be_bytes()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0[8..].first_chunk().copied().unwrap_or_default();
        fmt::Debug::fmt(&ClaimId::from_bytes(name), f)
    }
}

/// The content of a wake-up.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// It may be this waiter's turn.
    Turn(LockName, ClaimId),
    /// Something happened to this holder.
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
    /// No process listens at the address: it has ended.
    Gone,
}

/// What the receiver of a wake-up uses of it. What happened, and to which lock, it reads from the file.
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

pub(crate) fn encode(message: &Message) -> Vec<u8> {
    let (kind, name, claim) = match message {
        Message::Turn(name, claim) => (TURN, name, claim),
        Message::Held(name, Event::Lost(claim) | Event::Ended(claim, _)) => (LOST, name, claim),
        Message::Held(name, Event::Asked(claim)) => (ASKED, name, claim),
    };
    let mut bytes = vec![kind];
    bytes.extend_from_slice(claim.as_bytes());
    bytes.extend_from_slice(name.as_str().as_bytes());
    bytes
}

pub(crate) fn decode(bytes: &[u8]) -> Option<Received> {
    let (kind, rest) = bytes.split_first()?;
    let claim = ClaimId::from_bytes(*rest.first_chunk()?);
    match *kind {
        TURN => Some(Received::Turn(claim)),
        LOST | ASKED => Some(Received::Held(claim)),
        _ => None,
    }
}

/// The inode of this process's network namespace; 0 if it is unknown.
pub(crate) fn network_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino())
}
