//! One etcd server, and clusters whose members can be cut off from each other.

mod administration;
mod builder;
mod server;

pub use builder::EtcdBuilder;
pub use server::Etcd;
