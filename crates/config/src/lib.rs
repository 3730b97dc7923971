//! The configuration file: one for the command, the library and the service, in TOML.
//!
//! It has the sections `[store.NAME]`, `[serve]` and `[[principal]]`. Each part reads its own sections and ignores the
//! others, but none accepts a section that no part knows ([`check_sections`]). [`Stores`] are the named stores; each
//! has a URL that the library opens.
//!
//! This crate knows no engine. No error quotes a value of the file, which may be a password in the wrong place.

mod file;
mod find;
mod in_file;
mod key;
mod resolve;
mod stores;

pub use file::{check_sections, error_at, toml_error};
pub use find::{DEFAULT_PATH, VARIABLE, path};
pub use in_file::check_url;
pub use stores::{Stores, name_of};
