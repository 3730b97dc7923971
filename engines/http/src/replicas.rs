//! The replicas, and in which order to use them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::{BootInstant, ClaimId, Clock};

use crate::choices::Spread;

/// For how long a replica that failed is used last.
const AVOIDED: Duration = Duration::from_secs(2);

/// One replica, or a load balancer.
#[derive(Debug)]
struct Replica {
    address: String,
    /// In nanoseconds on the boot clock; 0 if it is not avoided.
    avoided_until: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Replicas {
    all: Vec<Replica>,
    spread: Spread,
}

impl Replicas {
    pub(crate) fn new(addresses: &[String], spread: Spread) -> Self {
        let all = addresses.iter().map(|address| Replica {
            address: address.clone(),
            avoided_until: AtomicU64::new(0),
        });
        let all = all.collect();
        Self { all, spread }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn address(&self, index: usize) -> &str {
        &self.all[index].address
    }

    /// The order in which to try the replicas, for a claim or for another request.
    pub(crate) fn order(&self, claim: Option<&ClaimId>) -> Vec<usize> {
        let count = self.all.len();
        let first = match (self.spread, claim) {
            (Spread::Claim, Some(claim)) => {
                // The first ten bytes of an id were drawn by the client, the others are a counter.
                let bytes = claim.as_bytes();
                let drawn = u16::from_be_bytes([bytes[8], bytes[9]]);
                let counted = u16::from_be_bytes([bytes[14], bytes[15]]);
                usize::from(drawn) + usize::from(counted)
            }
            _ => fastrand::usize(..count),
        };
        let mut order: Vec<usize> = (first..first + count).map(|index| index % count).collect();
        if count > 1 {
            let now = Clock::Boot.now().as_nanos();
            // A stable sort, so that the first replica that works stays the first.
            order.sort_by_key(|index| {
                let until = self.all[*index].avoided_until.load(Ordering::Relaxed);
                if until > now { until } else { 0 }
            });
        }
        order
    }

    /// Whether another replica has not failed lately.
    pub(crate) fn has_another(&self, than: usize) -> bool {
        let now = Clock::Boot.now().as_nanos();
        let mut all = self.all.iter().enumerate();
        all.any(|(index, replica)| {
            index != than && replica.avoided_until.load(Ordering::Relaxed) <= now
        })
    }

    /// Notes that a replica did not answer, or cannot serve now.
    pub(crate) fn failed(&self, index: usize) {
        let until: BootInstant = Clock::Boot.now() + AVOIDED;
        self.all[index]
            .avoided_until
            .store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Notes that a replica answered.
    pub(crate) fn answered(&self, index: usize) {
        self.all[index].avoided_until.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::ClaimIds;

    use super::*;

    fn three(spread: Spread) -> Replicas {
        Replicas::new(&["a", "b", "c"].map(str::to_owned), spread)
    }

    #[test]
    fn a_claim_stays_where_it_is_and_claims_are_spread() {
        let (replicas, ids) = (three(Spread::Claim), ClaimIds::new().unwrap());
        let mut firsts = Vec::new();
        for _ in 0..3 {
            let id = ids.next();
            let order = replicas.order(Some(&id));
            assert_eq!(order, replicas.order(Some(&id)));
            firsts.push(order[0]);
        }
        firsts.sort_unstable();
        assert_eq!(firsts, [0, 1, 2]);
    }

    #[test]
    fn the_first_claims_of_many_clients_are_spread() {
        let replicas = three(Spread::Claim);
        let firsts = (0..200).map(|_| replicas.order(Some(&ClaimIds::new().unwrap().next()))[0]);
        assert_eq!(firsts.collect::<std::collections::HashSet<_>>().len(), 3);
    }

    #[test]
    fn a_replica_that_failed_is_tried_last_until_it_answers() {
        for spread in [Spread::Claim, Spread::Request] {
            let (replicas, id) = (three(spread), ClaimIds::new().unwrap().next());
            let first = replicas.order(Some(&id))[0];
            replicas.failed(first);
            for _ in 0..20 {
                let order = replicas.order(Some(&id));
                assert_eq!((order.len(), order[2]), (3, first));
            }
            replicas.answered(first);
            let again = (0..100).any(|_| replicas.order(Some(&id))[0] == first);
            assert!(again);
        }
    }

    #[test]
    fn requests_are_spread_at_random() {
        let (replicas, id) = (three(Spread::Request), ClaimIds::new().unwrap().next());
        let firsts: std::collections::HashSet<_> =
            (0..200).map(|_| replicas.order(Some(&id))[0]).collect();
        assert_eq!(firsts.len(), 3);
    }
}
