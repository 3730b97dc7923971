//! On which shard a name is.

use std::collections::BTreeMap;

use fencelock_composite::{KeyRule, Map, hash};

/// The test vectors of docs/composite.md.
const VECTORS: [(&str, u8, &str, u64); 32] = [
    ("a", 0, "report", 0x9d35_3ca6_1df0_4bc5),
    ("a", 99, "report", 0xb6df_925d_8f1e_6e5f),
    ("b", 0, "report", 0xe0ec_a090_852c_9131),
    ("b", 99, "report", 0xfa7c_79b9_f36c_f2ec),
    ("shard_2", 0, "report", 0x2a84_d3ac_c380_33fa),
    ("shard_2", 99, "report", 0x418d_fad9_147b_e22b),
    ("Z", 0, "report", 0xaf44_498e_5617_ed77),
    ("Z", 99, "report", 0xd3d6_67a0_cc60_d0c9),
    ("a", 0, "order/4711", 0x0d66_324c_6e0b_746a),
    ("a", 99, "order/4711", 0x702b_7247_1757_6bb5),
    ("b", 0, "order/4711", 0x42cd_15a5_0939_861b),
    ("b", 99, "order/4711", 0x5f13_f748_d49e_7921),
    ("shard_2", 0, "order/4711", 0x082f_7966_46a5_7b0b),
    ("shard_2", 99, "order/4711", 0xd197_ba57_65ca_ba14),
    ("Z", 0, "order/4711", 0xf7b2_1941_d65e_a3ea),
    ("Z", 99, "order/4711", 0x4fd9_ac0d_c78f_a77d),
    ("a", 0, "customer-7", 0xf08b_098d_c381_8b1d),
    ("a", 99, "customer-7", 0x9bcd_ede1_d765_2640),
    ("b", 0, "customer-7", 0x562e_3d5f_c021_a15e),
    ("b", 99, "customer-7", 0xc0d7_a688_af7a_02f9),
    ("shard_2", 0, "customer-7", 0x51ab_97d1_91c4_2d04),
    ("shard_2", 99, "customer-7", 0x8752_d2ea_09b2_5474),
    ("Z", 0, "customer-7", 0x9a83_9f72_cba7_dd4d),
    ("Z", 99, "customer-7", 0x0200_2354_4ea5_3c09),
    ("a", 0, "Grüße", 0x9581_09b9_7703_d270),
    ("a", 99, "Grüße", 0x84de_6cdd_0026_ae59),
    ("b", 0, "Grüße", 0x8a28_d96b_4db8_936e),
    ("b", 99, "Grüße", 0x99fb_9bd1_e585_be61),
    ("shard_2", 0, "Grüße", 0x604d_7b28_ef0a_c0d0),
    ("shard_2", 99, "Grüße", 0x45e7_93a3_5361_cc64),
    ("Z", 0, "Grüße", 0xe00b_f45b_0efd_f03d),
    ("Z", 99, "Grüße", 0xf6f6_2a5d_658e_002d),
];

#[test]
fn the_vectors_are_those_of_the_documentation() {
    let page = include_str!("../../../../docs/composite.md");
    for (id, i, key, expected) in VECTORS {
        assert_eq!(hash(id, i, key), expected, "{id} {i} {key}");
        let row = format!("| `{id}` | {i} | `{key}` | `{expected:016x}` |");
        assert!(page.contains(&row), "docs/composite.md does not have {row}");
    }
}

fn map(shards: &[(&'static str, u8)], key: KeyRule) -> Map {
    Map::new(shards.iter().copied(), key).unwrap()
}

const NAMES: u32 = 30_000;

fn counts(map: &Map) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for number in 0..NAMES {
        let shard = map.shard_of(&format!("order/{number}")).to_owned();
        *counts.entry(shard).or_default() += 1.0 / f64::from(NAMES);
    }
    counts
}

#[test]
fn names_are_spread_by_weight() {
    let map = map(&[("a", 1), ("b", 1), ("c", 2)], KeyRule::Braces);
    for (id, part) in counts(&map) {
        let wanted = if id == "c" { 0.5 } else { 0.25 };
        assert!((part - wanted).abs() < 0.015, "{id}: {part}");
    }
}

#[test]
fn a_new_shard_takes_its_part_and_moves_nothing_else() {
    let before = map(&[("a", 1), ("b", 1), ("c", 1)], KeyRule::Braces);
    let after = map(&[("d", 1), ("c", 1), ("b", 1), ("a", 1)], KeyRule::Braces);
    let mut moved = 0;
    for number in 0..NAMES {
        let name = format!("order/{number}");
        if before.shard_of(&name) != after.shard_of(&name) {
            assert_eq!(after.shard_of(&name), "d", "{name}");
            moved += 1;
        }
    }
    let part = f64::from(moved) / f64::from(NAMES);
    assert!((part - 0.25).abs() < 0.015, "{part}");
}

#[test]
fn names_with_one_key_are_on_one_shard() {
    for (rule, name, key) in [
        (KeyRule::Braces, "{customer-7}/invoice", "customer-7"),
        (KeyRule::Braces, "stock/{customer-7}{x}", "customer-7"),
        (KeyRule::Braces, "{}/x", "{}/x"),
        (KeyRule::Braces, "a{b", "a{b"),
        (KeyRule::Braces, "a}{b}c", "b"),
        (KeyRule::Slash, "customer-7/invoice/1", "customer-7"),
        (KeyRule::Slash, "/etc", "/etc"),
        (KeyRule::Slash, "{a}b", "{a}b"),
    ] {
        assert_eq!(rule.key(name), key, "{name}");
    }
    let shards = [("a", 1), ("b", 1), ("c", 1), ("d", 1)];
    let (braces, slash) = (map(&shards, KeyRule::Braces), map(&shards, KeyRule::Slash));
    for customer in 0..100 {
        let shard = braces.shard_of(&format!("{customer}"));
        assert_eq!(braces.shard_of(&format!("stock/{{{customer}}}")), shard);
        assert_eq!(slash.shard_of(&format!("{customer}/stock")), shard);
    }
}

#[test]
fn a_bad_map_is_refused() {
    for shards in [
        &[][..],
        &[("", 1)],
        &[("a:b", 1)],
        &[("a", 0)],
        &[("a", 101)],
        &[("a", 1), ("a", 1)],
    ] {
        let map = Map::new(shards.iter().copied(), KeyRule::Braces);
        assert!(map.is_err(), "{shards:?}");
    }
}
