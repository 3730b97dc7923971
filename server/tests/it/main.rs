//! The service over real sockets.

mod boundary;
mod client;
mod faults;
mod inputs;
mod many;
mod redis;
mod rights;
mod simple;
mod status;
mod waiting;
