//! The fuzzed parsers (tools/fuzz/targets.rs) on random text for a short while: random bytes, and valid texts with some
//! changed bytes.

#[path = "../../../tools/fuzz/targets.rs"]
mod targets;

use proptest::prelude::*;

/// Texts that each parser accepts; the random changes start from these.
const GOOD: [&str; 12] = [
    "redis://user:x@localhost:6379/0?claim-window=1s&prefix=a%2F",
    "redlock://a:1,b:2,c:3?quorum=2",
    "sqlite:/var/lib/x.db",
    "mysql://h1:3306,h2/db?strategy=get-lock",
    "redis+unix:///run/redis.sock",
    "fl1:x:1795260796412266:00112233445566778899aabbccddeeff:nightly%2Dreport",
    "fl1:p:1:00112233445566778899aabbccddeeff:%C3%A4",
    "nightly-report",
    "00112233445566778899aabbccddeeff",
    "1500ms",
    "1h30m",
    "30",
];

fn all(text: &str) {
    for (_, target) in targets::TARGETS {
        target(text);
    }
}

#[test]
fn good_texts_are_accepted() {
    for text in GOOD {
        all(text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        all(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn good_text_with_changes(
        which in 0..GOOD.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
    ) {
        let mut bytes = GOOD[which].as_bytes().to_vec();
        for (at, byte, how) in changes {
            let at = at.index(bytes.len() + 1);
            match how {
                0 => bytes.insert(at, byte),
                1 if at < bytes.len() => bytes[at] = byte,
                _ if at < bytes.len() => drop(bytes.remove(at)),
                _ => {}
            }
        }
        all(&String::from_utf8_lossy(&bytes));
    }
}
