//! The identity of the store. The clients of several replicas compare it: a lock that is taken in two stores protects nothing.
//!
//! The URL of a server identifies it, together with the prefix of all names and, in a database, the schema. A file, or the memory of a process, is a different store on each machine under the same
//! name.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;

use fencelock_core::Engine;
use sha2::{Digest, Sha256};

/// The store's name. For a store that is no server, it also has what distinguishes it from stores of the same name elsewhere.
pub(crate) fn store_here(engine: &dyn Engine) -> String {
    let (name, identity) = (engine.to_string(), engine.identity());
    match engine.promises().engine {
        "memory" => format!("{identity} ({})", here(&this_process())),
        "sqlite" => format!("{identity} ({})", here(&file_of(&name))),
        // Files among its stores.
        "shards" | "migrate" if identity.contains("=sqlite:") => {
            format!("{identity} ({})", here(""))
        }
        _ => identity,
    }
}

/// Identifies this process among those of its machine. Processes of two containers may have the same number.
fn this_process() -> String {
    let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", space.display(), std::process::id())
}

/// Identifies a file of this machine. Files of two containers may have the same path.
fn file_of(name: &str) -> String {
    let path = name.strip_prefix("sqlite:").unwrap_or(name);
    let path = path.split('?').next().unwrap_or(path);
    // If the file cannot be examined, only its name identifies it.
    match fs::metadata(path) {
        Ok(found) => format!("{} {}", found.dev(), found.ino()),
        Err(_) => String::new(),
    }
}

/// 8 hex digits that identify something on this machine, until the machine restarts.
fn here(what: &str) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hash = Sha256::digest(format!("{} {what}", boot.trim()));
    let mut text = String::from("here: ");
    for byte in &hash[..4] {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_itself_under_one_name_and_not_another_one() {
        let (this, other) = (
            concat!("sqlite:", env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
            "sqlite:/proc/version",
        );
        assert_eq!(file_of(this), file_of(&format!("{this}?prefix=x")));
        assert_ne!(file_of(this), file_of(other));
        assert_ne!(here(&file_of(this)), here(&file_of(other)));
    }
}
