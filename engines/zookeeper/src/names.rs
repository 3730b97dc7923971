//! The names of nodes: the node of a lock, and the nodes of claims below it.
//!
//! Every lock is one node directly below the chroot, even if its name has slashes. So the claims of one lock are never
//! siblings of another lock's node. Most names are also the name of their node, so that other libraries find the lock at
//! the same path. Special characters (see `is_plain`) are percent-encoded.

use std::num::NonZeroU32;

use fencelock_core::{ClaimId, LockName, Mode};
use percent_encoding::percent_decode_str;

/// ZooKeeper's own node directly below the root.
const RESERVED: &str = "zookeeper";

pub(crate) fn encode(name: &LockName) -> String {
    let name = name.as_str();
    if name == RESERVED || name == "." || name == ".." {
        return escape(name, |at, _| at > 0 && name == RESERVED);
    }
    escape(name, |_, c| is_plain(c))
}

/// The node of the record of a scope. No lock's node has such a name, since `%re` encodes nothing.
pub(crate) fn record_node(scope: &str) -> String {
    format!("%record{}", escape(scope, |_, c| is_plain(c)))
}

/// The node of the notice that the claim with this node held and was released. No lock's node has such a name either. It names the
/// node and not the claim, since a claim may have had others.
pub(crate) fn release_notice(node: &str) -> String {
    format!("%released-{node}")
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

/// Whether a character is written unencoded: not a slash, not a percent sign, and nothing that ZooKeeper refuses in UTF-16
/// (surrogates, the private use area, specials).
fn is_plain(c: char) -> bool {
    c != '/' && c != '%' && matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{f900}'..='\u{ffef}')
}

/// The lock whose node has this name; `None` if there is no such lock.
pub(crate) fn decode(node: &str) -> Option<LockName> {
    let name = percent_decode_str(node).decode_utf8().ok()?;
    let name = LockName::new(&name).ok()?;
    // Another client's node may look like an encoded name.
    (encode(&name) == node).then_some(name)
}

/// The name of a claim's node without its number: Curator's layout, with the claim's id as the unique part. All modes end
/// in `-lock-`, so that Curator's mutex counts them.
pub(crate) fn claim_prefix(id: ClaimId, mode: Mode) -> String {
    match mode {
        Mode::Exclusive => format!("_c_{id}-lock-"),
        Mode::Shared => format!("_c_{id}-shared-lock-"),
        Mode::Permit { of } => format!("_c_{id}-permit{of}-lock-"),
    }
}

/// The claim of a node; `None` if another library created it.
pub(crate) fn claim_id(node: &str) -> Option<ClaimId> {
    own_claim(node).map(|(id, _)| id)
}

/// The claim of a node that fencelock created, and the rest of the node's name.
fn own_claim(node: &str) -> Option<(ClaimId, &str)> {
    let (id, rest) = node.strip_prefix("_c_")?.split_once('-')?;
    Some((id.parse().ok()?, rest))
}

/// A node's name without its number, and the number as the server wrote it. `None` if there is none.
pub(crate) fn split_number(node: &str) -> Option<(&str, &str)> {
    let kept = node.trim_end_matches(|c: char| c.is_ascii_digit());
    if node.len() - kept.len() < 9 {
        return None;
    }
    // After 2^31 children of one node the numbers wrap around and are negative.
    let negative = kept.ends_with("--") || kept.ends_with("_-");
    let at = kept.len() - usize::from(negative);
    Some(node.split_at(at))
}

/// The mode in a node's name. `Err` with the word of a mode that only a newer version knows.
pub(crate) fn mode(before: &str) -> Result<Mode, String> {
    // kazoo's and Curator's readers.
    if before.ends_with("__rlock__") || before.ends_with("__READ__") {
        return Ok(Mode::Shared);
    }
    let own = own_claim(before).and_then(|(_, rest)| rest.strip_suffix("lock-"));
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

/// The mode of this client's claim with this node.
pub(crate) fn mode_of(node: &str) -> Option<Mode> {
    let (before, _) = split_number(node)?;
    mode(before).ok()
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
    fn a_record_is_no_lock() {
        for scope in ["", "a", "shop%/x:", "%"] {
            let node = record_node(scope);
            assert!(!node.contains('/') && decode(&node).is_none(), "{node}");
        }
    }

    #[test]
    fn every_name_encodes_to_one_node_and_decodes_again() {
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
        assert_eq!(decode("%61"), None, "encode never writes this");
        assert_eq!(decode("zookeeper"), None);
    }
}
