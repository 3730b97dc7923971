//! The service over real sockets.

mod boundary;
mod client;
mod faults;
mod inputs;
mod many;
mod redis;
mod simple;
mod status;
mod waiting;
