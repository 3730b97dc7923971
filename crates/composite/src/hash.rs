//! The hash of rendezvous hashing: with integers only, so that every platform and every language computes the same.

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// The bid of this shard for this key: FNV-1a (64 bits) of the shard's id, a zero byte, the byte `i` and the key, through the
/// finalizer of splitmix64. A shard of weight `w` bids for each `i` below `w`; the greatest bid of all has the key.
///
/// ```
/// assert_eq!(fencelock_composite::hash("a", 0, "report"), 0x9d35_3ca6_1df0_4bc5);
/// ```
#[must_use]
pub fn hash(id: &str, i: u8, key: &str) -> u64 {
    let bytes = id.bytes().chain([0, i]).chain(key.bytes());
    let fnv = bytes.fold(FNV_OFFSET, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME)
    });
    let mixed = (fnv ^ (fnv >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
