//! The transactions that put a claim, and that read its standing.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use fencelock_core::Mode;
use fencelock_core::engine::Claim;

use crate::layout::{BASE, range_end};
use crate::session::Pin;
use crate::state::State;
use crate::stored;

pub(crate) struct NewClaim<'a> {
    pub(crate) claim: &'a Claim,
    pub(crate) key: &'a str,
    pub(crate) base: Option<u64>,
}

impl State {
    /// Takes the lock if the queue is empty, and reads nothing else.
    pub(crate) fn take_txn(&self, new: &NewClaim<'_>, hold: &Pin) -> Txn {
        let txn = Txn::new()
            .when(self.is_free(new))
            .and_then([self.put_op(new, hold)]);
        match new.base {
            // If it fails, the reason may be another base.
            Some(_) => txn.or_else([TxnOp::get(BASE, None)]),
            None => txn,
        }
    }

    /// Joins the queue, and reads the claim's predecessor.
    pub(crate) fn join_txn(&self, new: &NewClaim<'_>, waiting: &Pin) -> Txn {
        let look = self.read_queue(new.claim);
        Txn::new()
            .when(is_new(new))
            .and_then([self.put_op(new, waiting), look.clone()])
            .or_else([TxnOp::get(BASE, None), TxnOp::get(new.key, None), look])
    }

    /// Takes the lock if the queue is empty (of claims that matter). Otherwise joins the queue if there is a waiting session,
    /// and reads it.
    pub(crate) fn take_or_join_txn(
        &self,
        new: &NewClaim<'_>,
        hold: &Pin,
        waiting: Option<&Arc<Pin>>,
    ) -> Txn {
        let mut otherwise = Vec::new();
        if let Some(waiting) = waiting {
            let join = self.put_op(new, waiting);
            let join = Txn::new().when(is_new(new)).and_then([join]);
            otherwise.push(TxnOp::txn(join));
        }
        otherwise.push(TxnOp::get(BASE, None));
        otherwise.push(TxnOp::get(new.key, None));
        otherwise.push(self.read_queue(new.claim));
        Txn::new()
            .when(self.is_free(new))
            .and_then([self.put_op(new, hold)])
            .or_else(otherwise)
    }

    /// If the claim's key exists, reads it and the keys ahead of it: all of them, or for exclusive mode the last one. With
    /// `from_member` the connected member answers alone, without the quorum.
    pub(crate) fn standing_txn(
        &self,
        claim: &Claim,
        (key, revision): (String, i64),
        from_member: bool,
    ) -> Txn {
        let queue = self.layout().queue(&claim.name);
        let before = GetOptions::new()
            .with_range(range_end(&queue))
            .with_max_create_revision(revision - 1);
        let (own, before) = match claim.mode {
            Mode::Exclusive => (
                GetOptions::new().with_keys_only(),
                before
                    .with_sort(SortTarget::Create, SortOrder::Descend)
                    .with_keys_only()
                    .with_limit(1),
            ),
            _ => (
                GetOptions::new(),
                before.with_sort(SortTarget::Create, SortOrder::Ascend),
            ),
        };
        let gets = [(key.clone(), own), (queue, before)];
        let gets = gets.map(|(key, options)| {
            let options = match from_member {
                true => options.with_serializable(),
                false => options,
            };
            TxnOp::get(key, Some(options))
        });
        let mine = Compare::create_revision(key, CompareOp::Equal, revision);
        Txn::new().when([mine]).and_then(gets)
    }

    /// The condition for a claim to hold at once: the queue is empty (of claims that matter), and the base is as known.
    fn is_free(&self, new: &NewClaim<'_>) -> Vec<Compare> {
        let queue = self.layout().queue(&new.claim.name);
        let absent = |prefix: String| {
            let end = range_end(&prefix);
            Compare::create_revision(prefix, CompareOp::Equal, 0).with_range(end)
        };
        match new.claim.mode {
            Mode::Shared => {
                let others = ["p", "x"].map(|mode| absent(format!("{queue}{mode}")));
                // An earlier request may have put the key. A second put would keep its revision and change its session.
                is_new(new).into_iter().chain(others).collect()
            }
            Mode::Exclusive | Mode::Permit { .. } => {
                let same_base = base_is(new.base).into_iter();
                same_base.chain([absent(queue)]).collect()
            }
        }
    }

    /// Reads what shows the standing of a new claim: the last two keys in exclusive mode, all keys otherwise.
    fn read_queue(&self, claim: &Claim) -> TxnOp {
        let queue = self.layout().queue(&claim.name);
        let options = GetOptions::new().with_range(range_end(&queue));
        let options = match claim.mode {
            Mode::Exclusive => options
                .with_sort(SortTarget::Create, SortOrder::Descend)
                .with_keys_only()
                .with_limit(2),
            Mode::Shared | Mode::Permit { .. } => {
                options.with_sort(SortTarget::Create, SortOrder::Ascend)
            }
        };
        TxnOp::get(queue, Some(options))
    }

    fn put_op(&self, new: &NewClaim<'_>, pin: &Pin) -> TxnOp {
        let value = stored::write(new.claim, new.base, &self.client, 0);
        let options = PutOptions::new().with_lease(pin.session.lease);
        TxnOp::put(new.key, value, Some(options))
    }
}

/// The condition that the base is as known.
fn base_is(base: Option<u64>) -> Option<Compare> {
    base.map(|base| Compare::value(BASE, CompareOp::Equal, base.to_string()))
}

/// The condition that the key does not exist, and the base is as known.
fn is_new(new: &NewClaim<'_>) -> Vec<Compare> {
    let absent = Compare::create_revision(new.key, CompareOp::Equal, 0);
    base_is(new.base).into_iter().chain([absent]).collect()
}

/// The revision of a transaction.
pub(crate) fn revision(reply: &TxnResponse) -> i64 {
    reply.header().map_or(0, |header| header.revision())
}

/// What a transaction read, in order, each with whether there was more.
pub(crate) fn found(reply: &TxnResponse) -> impl Iterator<Item = (Vec<KeyValue>, bool)> {
    let all = reply.op_responses().into_iter();
    all.filter_map(|op| match op {
        TxnOpResponse::Get(mut got) => Some((got.take_kvs(), got.more())),
        _ => None,
    })
}
