//! One PostgreSQL server, replicas that stream from it, and a PgBouncer in front of it.

mod builder;
mod pooler;
mod programs;
mod server;

pub use builder::PostgresBuilder;
pub use pooler::Pooler;
pub use server::Postgres;
