//! Reads the columns of records.

use std::time::Duration;

use fencelock_core::engine::HolderView;
use fencelock_core::{ClaimId, LockName, Mode, Token};
use fencelock_sql::bound::RecordView;
use mysql_async::Row;
use mysql_async::prelude::FromValue;

/// From the columns of [`BoundLocks::views`](super::connection::BoundLocks::views).
pub(super) fn record_view(mut row: Row) -> Option<RecordView> {
    let row = &mut row;
    let (name, count) = (name_of(row, 0)?, take::<u64>(row, 1)?);
    let holder = holder(row)?;
    Some(RecordView {
        name,
        holder,
        holds: count > 0,
    })
}

fn holder(row: &mut Row) -> Option<HolderView> {
    let label: Option<Vec<u8>> = take(row, 5)?;
    let held: i64 = take(row, 6)?;
    Some(
        HolderView::new(text_of(row, 3)?, Mode::Exclusive)
            .claim(claim_of(row, 2)?)
            .token(Token(take(row, 4)?))
            .ttl_left(Duration::from_micros(take(row, 7)?))
            .held(Duration::from_micros(held.max(0).unsigned_abs()))
            .label(match label {
                Some(label) => Some(String::from_utf8(label).ok()?),
                None => None,
            }),
    )
}

pub(super) fn take<T: FromValue>(row: &mut Row, at: usize) -> Option<T> {
    row.take_opt(at)?.ok()
}

pub(super) fn text_of(row: &mut Row, at: usize) -> Option<String> {
    String::from_utf8(take(row, at)?).ok()
}

fn name_of(row: &mut Row, at: usize) -> Option<LockName> {
    LockName::new(&text_of(row, at)?).ok()
}

pub(super) fn claim_of(row: &mut Row, at: usize) -> Option<ClaimId> {
    let bytes: Vec<u8> = take(row, at)?;
    Some(ClaimId::from_bytes(bytes.try_into().ok()?))
}
