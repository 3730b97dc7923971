//! One ZooKeeper server, and an ensemble of three whose links can be cut.

mod administration;
mod builder;
mod ensemble;
mod server;

pub use builder::ZooKeeperBuilder;
pub use ensemble::Ensemble;
pub use server::ZooKeeper;
