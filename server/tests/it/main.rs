//! The service over real sockets.

mod bound;
mod boundary;
mod client;
#[cfg(feature = "tls")]
mod encrypted;
mod faults;
mod inputs;
mod many;
mod redis;
mod rights;
mod simple;
mod status;
mod waiting;
