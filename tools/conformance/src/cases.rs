//! The list of cases, one file per subject.

mod compound;
mod crashes;
mod dropping;
mod endings;
mod exclusion;
mod expiry;
mod faults;
mod floors;
mod going_on;
mod inspection;
mod modes;
mod names;
mod order;
mod owners;
mod process;
mod record;
mod refusal;
mod tokens;
mod waiting;

use crate::case::Case;

/// All cases.
#[must_use]
pub fn cases() -> Vec<&'static Case> {
    let groups = [
        exclusion::CASES,
        tokens::CASES,
        floors::CASES,
        order::CASES,
        modes::CASES,
        compound::CASES,
        owners::CASES,
        waiting::CASES,
        dropping::CASES,
        expiry::CASES,
        endings::CASES,
        going_on::CASES,
        inspection::CASES,
        record::CASES,
        process::CASES,
        names::CASES,
        refusal::CASES,
        crashes::CASES,
        faults::CASES,
    ];
    groups.into_iter().flatten().collect()
}
