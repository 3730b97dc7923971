//! `strategy=advisory`: an advisory lock of the session, on the name's 64-bit hash as the server computes it. The server's
//! `idle_session_timeout` is the lease.

mod acquire;
mod connection;
mod engine;
mod inspect;
mod record;
mod statements;

pub(crate) use connection::Advisory;
