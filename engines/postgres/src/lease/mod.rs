//! `strategy=lease`: the lease engine's requests in the SQL of PostgreSQL. Each is one statement, most of them a function of
//! `schema.sql`, so each is one round trip and one transaction. Waiters are notified, or their ears
//! are woken (`listen.rs`).

mod connection;
mod engine;
mod inspect;
mod listen;
mod message;
mod record;
mod statements;
mod stored;
mod write;

pub(crate) use connection::Leases;
