//! The marks in the form of a row, and the SQL that checks and raises them.

use fencelock_core::{Mode, Sequencer};

use super::table::TableName;
use crate::error::{FenceError, Result};
use crate::marks::Marks;

/// The columns of the marks, in the order of [`StoredMarks`].
pub const COLUMNS: &str = "fence_exclusive, fence_top, fence_claim";

/// The marks in the form of a row: `fence_exclusive`, `fence_top`, `fence_claim`.
pub type StoredMarks = (i64, i64, String);

/// The definitions of the columns, in every dialect.
pub(super) const COLUMN_DEFINITIONS: &str = "fence_exclusive BIGINT NOT NULL DEFAULT 0, \
     fence_top BIGINT NOT NULL DEFAULT 0, fence_claim VARCHAR(32) NOT NULL DEFAULT ''";

/// The marks in a row of this table.
pub(super) fn marks_of(table: &TableName, stored: &StoredMarks) -> Result<Marks> {
    let (exclusive, top, claim) = stored;
    let damaged = || {
        let why = format!("{COLUMNS} are {stored:?}, which no fence wrote; restore them");
        FenceError::damaged(table.to_string(), why)
    };
    let number = |number: &i64| u64::try_from(*number).map_err(|_| damaged());
    let claim = match claim.trim_end() {
        "" => None,
        claim => Some(claim.parse().map_err(|_| damaged())?),
    };
    Ok(Marks {
        exclusive: number(exclusive)?,
        top: number(top)?,
        claim,
    })
}

/// The condition under which a holder passes, with `of` (such as `f.`) before each column.
pub(super) fn passes(of: &str, sequencer: &Sequencer) -> String {
    let (token, claim) = (sequencer.token, sequencer.claim);
    match sequencer.mode {
        Mode::Exclusive => format!(
            "({of}fence_top < {token} OR ({of}fence_top = {token} AND {of}fence_claim = '{claim}'))"
        ),
        Mode::Shared | Mode::Permit { .. } => format!("{of}fence_exclusive < {token}"),
    }
}

/// The assignments that raise the marks for a holder that passes. MySQL assigns from left to right and reads the new
/// values, so the claim comes before the top that it depends on.
pub(super) fn raise(of: &str, sequencer: &Sequencer) -> String {
    let (token, claim) = (sequencer.token, sequencer.claim);
    match sequencer.mode {
        Mode::Exclusive => {
            format!("fence_exclusive = {token}, fence_claim = '{claim}', fence_top = {token}")
        }
        Mode::Shared | Mode::Permit { .. } => format!(
            "fence_claim = CASE WHEN {of}fence_top < {token} THEN '{claim}' ELSE {of}fence_claim END, \
             fence_top = CASE WHEN {of}fence_top < {token} THEN {token} ELSE {of}fence_top END"
        ),
    }
}
