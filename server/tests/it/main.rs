//! The service over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod batch;
mod bound;
mod bound_end;
mod boundary;
mod client;
mod dashboard;
#[cfg(feature = "tls")]
mod encrypted;
mod ended;
mod events;
mod faults;
mod http2;
mod inputs;
mod lines;
mod listing;
mod many;
mod metrics;
mod openapi;
mod operation;
mod quotas;
mod redis;
mod rights;
mod simple;
mod spans;
mod status;
mod waiting;
