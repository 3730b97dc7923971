//! The hash of rendezvous hashing: with integers only, so that every platform and every language computes the same.

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// How many bids are computed side by side. Within one bid each byte has to wait for the multiplication of the byte before. The
/// processor works on the other bids meanwhile.
const AT_ONCE: usize = 4;

/// The bid of this shard for this key: FNV-1a (64 bits) of the shard's id, a zero byte, the byte `i` and the key, through the
/// finalizer of splitmix64. A shard of weight `w` bids for each `i` below `w`; the greatest bid of all has the key.
///
/// ```
/// assert_eq!(fencelock_composite::hash("a", 0, "report"), 0x9d35_3ca6_1df0_4bc5);
/// ```
#[must_use]
pub fn hash(id: &str, i: u8, key: &str) -> u64 {
    let bytes = key.bytes();
    finish(bytes.fold(before_key(id, i), step))
}

/// The state of a bid's hash when only the key is to come.
fn before_key(id: &str, i: u8) -> u64 {
    let bytes = id.bytes().chain([0, i]);
    bytes.fold(FNV_OFFSET, step)
}

const fn step(state: u64, byte: u8) -> u64 {
    (state ^ byte as u64).wrapping_mul(FNV_PRIME)
}

const fn finish(fnv: u64) -> u64 {
    let mixed = (fnv ^ (fnv >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The bids of all shards of a map, each hashed as far as it can be without the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bids(Vec<AtOnce>);

/// Some bids. Places that are left over repeat the last bid, which changes nothing.
type AtOnce = [Bid; AT_ONCE];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bid {
    before_key: u64,
    /// The place of the shard in the order of the ids.
    shard: usize,
}

impl Bids {
    /// The bids of shards with these ids and weights, in the order of the ids.
    pub(crate) fn of<'a>(shards: impl Iterator<Item = (&'a str, u8)>) -> Self {
        let bids = shards.enumerate().flat_map(|(shard, (id, weight))| {
            (0..weight).map(move |i| Bid {
                before_key: before_key(id, i),
                shard,
            })
        });
        let bids: Vec<Bid> = bids.collect();
        let at_once = bids.chunks(AT_ONCE);
        let at_once = at_once.map(|some| std::array::from_fn(|at| some[at.min(some.len() - 1)]));
        Self(at_once.collect())
    }

    /// The place of the shard with the greatest bid for the key, and of equal ones that of the first id.
    pub(crate) fn greatest(&self, key: &str) -> usize {
        let mut best: Option<(u64, usize)> = None;
        for bids in &self.0 {
            let mut states = bids.map(|bid| bid.before_key);
            for byte in key.bytes() {
                states = states.map(|state| step(state, byte));
            }
            for (bid, state) in bids.iter().zip(states) {
                let bid = (finish(state), bid.shard);
                if best.is_none_or(|best| bid.0 > best.0) {
                    best = Some(bid);
                }
            }
        }
        best.map_or(0, |(_, shard)| shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_of_many_is_that_of_each_by_itself() {
        for shards in [
            &[("a", 1)][..],
            &[("a", 1), ("b", 1), ("c", 1)],
            &[("a", 1), ("b", 2), ("c", 1)],
            &[("a", 100), ("b", 7), ("shard_2", 3)],
        ] {
            let bids = Bids::of(shards.iter().copied());
            for number in 0..1000 {
                let key = format!("order/{number}");
                let alone = shards.iter().enumerate().flat_map(|(shard, (id, weight))| {
                    let key = &key;
                    (0..*weight).map(move |i| (hash(id, i, key), std::cmp::Reverse(shard)))
                });
                let greatest = alone.max().map(|(_, shard)| shard.0);
                assert_eq!(Some(bids.greatest(&key)), greatest, "{key} {shards:?}");
            }
        }
    }
}
