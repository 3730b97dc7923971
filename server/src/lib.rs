//! The lock service: one HTTP API over every store, for programs in any language.
//!
//! A replica translates between HTTP and one [`Engine`](fencelock_core::Engine). It makes no decision of its own: the store
//! keeps the locks, the client decides how long it believes in a grant, and the replica forwards. So any number of replicas may
//! serve one store. If any process may continue the claims of a store, any replica serves any request of any claim. The end of
//! a replica then costs one repeated request. On other stores a claim belongs to the replica that placed it.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use fencelock_core::Memory;
//! use fencelock_server::{Config, Server, Service};
//!
//! let service = Service::new(Arc::new(Memory::new()), Config::default())?;
//! let server = Server::start("127.0.0.1:0".parse()?, service).await?;
//! println!("http://{}", server.address());
//! server.drain(std::time::Duration::from_secs(1)).await;
//! # Ok(())
//! # }
//! ```

mod about;
mod access;
mod asked;
mod audit;
mod batch;
mod bound;
mod boundary;
mod caller;
mod carried;
mod census;
mod config;
mod dashboard;
mod direct;
mod events;
mod go_on;
mod hour;
mod identity;
mod incoming;
mod known;
mod lines;
mod listing;
mod locks;
mod many;
mod measured;
mod metrics;
mod openapi;
#[cfg(fencelock_planted)]
mod planted;
mod principal;
mod pulse;
mod refusal;
mod renewer;
mod replica;
mod reply;
mod reserve;
mod router;
mod scrape;
mod seen;
mod series;
mod server;
mod service;
mod settings;
mod simple;
mod slow;
mod spans;
mod stream;
mod take;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;

pub use config::{AuditLog, Config, Limits, TlsFiles};
pub use principal::{BadToken, BearerToken, Grant, Principal, Right, Sha256Text, TokenHash};
pub use server::Server;
pub use service::{Reload, Service};
pub use settings::Settings;
