//! The transactions that put a claim.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use fencelock_core::Mode;
use fencelock_core::engine::Claim;

use crate::engine::Shared;
use crate::layout::{BASE, end_of};
use crate::session::Pin;
use crate::value;

impl Shared {
    /// The transaction: takes the lock if nobody is there, and asks for nothing else.
    pub(crate) fn taking(&self, claim: &Claim, key: &str, base: Option<u64>, hold: &Pin) -> Txn {
        let take = put(key, self.value(claim, base), hold);
        let free = self.is_free(claim, key, base);
        // Where it is not free, there may be another reason.
        let why = base.map(|_| TxnOp::get(BASE, None));
        let txn = Txn::new().when(free).and_then([take]);
        match why {
            Some(why) => txn.or_else([why]),
            None => txn,
        }
    }

    /// What must be so for a claim to hold at once: the line is empty (of those that matter), and tokens are counted as known.
    fn is_free(&self, claim: &Claim, key: &str, base: Option<u64>) -> Vec<Compare> {
        let prefix = self.layout().line(&claim.name);
        let absent = |from: String| {
            let end = end_of(&from);
            Compare::create_revision(from, CompareOp::Equal, 0).with_range(end)
        };
        match claim.mode {
            Mode::Shared => {
                let others = ["p", "x"].map(|mode| absent(format!("{prefix}{mode}")));
                // An earlier request may have put it: to put it again would keep its revision and change its session.
                is_new(key, base).into_iter().chain(others).collect()
            }
            Mode::Exclusive | Mode::Permit { .. } => {
                let counted = counted_from(base).into_iter();
                counted.chain([absent(prefix)]).collect()
            }
        }
    }

    /// The transaction: joins the line, and looks who stands right before.
    pub(crate) fn joining(&self, claim: &Claim, key: &str, base: Option<u64>, line: &Pin) -> Txn {
        let look = self.reading_line(claim);
        let join = put(key, self.value(claim, base), line);
        Txn::new()
            .when(is_new(key, base))
            .and_then([join, look.clone()])
            .or_else([TxnOp::get(BASE, None), TxnOp::get(key, None), look])
    }

    /// The transaction: if the line is empty (of those that matter), take the lock; else join the line, and look at it.
    pub(crate) fn placing(
        &self,
        claim: &Claim,
        key: &str,
        base: Option<u64>,
        (hold, line): (&Pin, Option<&Arc<Pin>>),
    ) -> Txn {
        let value = self.value(claim, base);
        let mut taken = Vec::new();
        if let Some(line) = line {
            let join = put(key, value.clone(), line);
            let join = Txn::new().when(is_new(key, base)).and_then([join]);
            taken.push(TxnOp::txn(join));
        }
        taken.push(TxnOp::get(BASE, None));
        taken.push(TxnOp::get(key, None));
        taken.push(self.reading_line(claim));
        Txn::new()
            .when(self.is_free(claim, key, base))
            .and_then([put(key, value, hold)])
            .or_else(taken)
    }

    /// Reads what is needed to know how a new claim stands: the last two, or everybody.
    fn reading_line(&self, claim: &Claim) -> TxnOp {
        let prefix = self.layout().line(&claim.name);
        let options = GetOptions::new().with_range(end_of(&prefix));
        let options = match claim.mode {
            Mode::Exclusive => options
                .with_sort(SortTarget::Create, SortOrder::Descend)
                .with_keys_only()
                .with_limit(2),
            Mode::Shared | Mode::Permit { .. } => {
                options.with_sort(SortTarget::Create, SortOrder::Ascend)
            }
        };
        TxnOp::get(prefix, Some(options))
    }

    fn value(&self, claim: &Claim, base: Option<u64>) -> String {
        value::write(claim, base, &self.client, 0)
    }
}

/// A request to put a claim's key in a session.
fn put(key: &str, value: String, on: &Pin) -> TxnOp {
    let options = PutOptions::new().with_lease(on.0.lease);
    TxnOp::put(key, value, Some(options))
}

/// What must be so while tokens are counted from there.
fn counted_from(base: Option<u64>) -> Option<Compare> {
    base.map(|base| Compare::value(BASE, CompareOp::Equal, base.to_string()))
}

/// What must be so for a claim to be put.
fn is_new(key: &str, base: Option<u64>) -> Vec<Compare> {
    let absent = Compare::create_revision(key, CompareOp::Equal, 0);
    counted_from(base).into_iter().chain([absent]).collect()
}

/// The revision at which a transaction was done.
pub(crate) fn revision(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, |header| header.revision())
}

/// What a transaction read, in order, each with whether there was more.
pub(crate) fn found(answer: &TxnResponse) -> impl Iterator<Item = (Vec<KeyValue>, bool)> {
    let all = answer.op_responses().into_iter();
    all.filter_map(|op| match op {
        TxnOpResponse::Get(mut got) => Some((got.take_kvs(), got.more())),
        _ => None,
    })
}
