//! Where a lock is: from its name to the path of its node, and back.
//!
//! Every name is one node right below the chroot, whatever slashes it has, so that the children of one lock never lie
//! beside the nodes of another. Names of letters, digits and most other characters are their own node names, so that
//! other libraries find the lock at the same path; the rest is percent-encoded.

use std::num::NonZeroU32;

use fencelock_core::{ClaimId, LockName, Mode};
use percent_encoding::percent_decode_str;

/// ZooKeeper keeps this one right below the root for itself.
const RESERVED: &str = "zookeeper";

/// The node of a lock's name.
pub(crate) fn encode(name: &LockName) -> String {
    let name = name.as_str();
    if name == RESERVED || name == "." || name == ".." {
        return escape(name, |at, _| at > 0 && name == RESERVED);
    }
    escape(name, |_, c| is_plain(c))
}

fn escape(name: &str, plain: impl Fn(usize, char) -> bool) -> String {
    let mut node = String::with_capacity(name.len());
    for (at, c) in name.char_indices() {
        if plain(at, c) {
            node.push(c);
            continue;
        }
        let mut bytes = [0; 4];
        for byte in c.encode_utf8(&mut bytes).bytes() {
            node += &format!("%{byte:02X}");
        }
    }
    node
}

/// What a path may hold as it is: neither a slash nor a percent sign, nor what ZooKeeper refuses (it counts in UTF-16,
/// and takes neither surrogates nor the private use area nor specials).
fn is_plain(c: char) -> bool {
    c != '/' && c != '%' && matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{f900}'..='\u{ffef}')
}

/// The name of a lock's node; `None` if no name has this node.
pub(crate) fn decode(node: &str) -> Option<LockName> {
    let name = percent_decode_str(node).decode_utf8().ok()?;
    let name = LockName::new(&name).ok()?;
    // A node that another client made may look like one of ours.
    (encode(&name) == node).then_some(name)
}

/// The name of a claim's node before its sequence number: what Curator writes too, with the claim's id as its unique
/// part. All modes end in `-lock-`, so that Curator's mutex counts them.
pub(crate) fn prefix(id: ClaimId, mode: Mode) -> String {
    match mode {
        Mode::Exclusive => format!("_c_{id}-lock-"),
        Mode::Shared => format!("_c_{id}-shared-lock-"),
        Mode::Permit { of } => format!("_c_{id}-permit{of}-lock-"),
    }
}

/// Whether this is a node of that claim.
pub(crate) fn is_of(node: &str, id: ClaimId) -> bool {
    claim(node) == Some(id)
}

/// The claim whose node this is; none if it is another library's.
pub(crate) fn claim(node: &str) -> Option<ClaimId> {
    own(node).map(|(id, _)| id)
}

/// The claim of one of our nodes, and the rest of the node's name.
fn own(node: &str) -> Option<(ClaimId, &str)> {
    let (id, rest) = node.strip_prefix("_c_")?.split_once('-')?;
    Some((id.parse().ok()?, rest))
}

/// A node's name without its sequence number, and the number as it is written.
pub(crate) fn split(node: &str) -> Option<(&str, &str)> {
    let kept = node.trim_end_matches(|c: char| c.is_ascii_digit());
    if node.len() - kept.len() < 9 {
        return None;
    }
    // After 2^31 children of one parent numbers go on below zero.
    let negative = kept.ends_with("--") || kept.ends_with("_-");
    let at = kept.len() - usize::from(negative);
    Some(node.split_at(at))
}

/// How a node's owner wants to hold, by the node's name. `Err` with the word that a newer version may have put there.
pub(crate) fn mode(before: &str) -> Result<Mode, String> {
    // kazoo's and Curator's readers.
    if before.ends_with("__rlock__") || before.ends_with("__READ__") {
        return Ok(Mode::Shared);
    }
    let own = own(before).and_then(|(_, rest)| rest.strip_suffix("lock-"));
    let Some(word) = own.and_then(|word| word.strip_suffix('-')) else {
        return Ok(Mode::Exclusive);
    };
    if word == "shared" {
        return Ok(Mode::Shared);
    }
    let of = word.strip_prefix("permit").and_then(|of| of.parse().ok());
    let of: Option<NonZeroU32> = of;
    of.map(|of| Mode::Permit { of })
        .ok_or_else(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_their_own_nodes() {
        for name in ["a", "orders-2024", "größe", "名前", "a b", "_c_x", "locks"] {
            assert_eq!(encode(&LockName::new(name).unwrap()), name);
        }
    }

    #[test]
    fn every_name_is_one_node_and_comes_back() {
        let mut seen = std::collections::HashSet::new();
        for name in [
            "/a/b",
            "/a",
            "/ab",
            "a%2Fb",
            "a/b",
            ".",
            "..",
            "...",
            "zookeeper",
            "%7Aookeeper",
            "🔒",
            "\u{e000}",
            "\u{fffd}",
            "%",
            "/",
            "//",
        ] {
            let name = LockName::new(name).unwrap();
            let node = encode(&name);
            assert!(
                !node.contains('/') && node != "." && node != ".." && node != RESERVED,
                "{node}"
            );
            assert_eq!(decode(&node), Some(name));
            assert!(seen.insert(node));
        }
        assert_eq!(decode("%61"), None, "that is no node of ours");
        assert_eq!(decode("zookeeper"), None);
    }
}
