//! Where a lock is: from its name to the path of its node, and back.
//!
//! Every name is one node right below the chroot, whatever slashes it has, so that the children of one lock never lie
//! beside the nodes of another. Names of letters, digits and most other characters are their own node names, so that
//! other libraries find the lock at the same path; the rest is percent-encoded.

use fencelock_core::LockName;
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
