//! The statements of every dialect.

use fencelock_fence::FenceError;
use fencelock_fence::sql::{Dialect, RowFence, TableFence};

use crate::{exclusive, says_who_won};

#[test]
fn no_name_contains_a_statement() {
    for bad in ["", "a b", "a;b", "a'b", "a\"b", "ä"] {
        assert!(RowFence::new(bad).is_err(), "{bad}");
        assert!(TableFence::in_table(Dialect::Mysql, bad).is_err(), "{bad}");
    }
    let statement = TableFence::new(Dialect::Postgres).mark(&exclusive(1));
    assert!(
        !statement.contains("ledger: \"") && statement.contains("ledger%3A"),
        "{statement}"
    );
}

#[test]
fn explain_and_judge_say_why() {
    let fence = RowFence::new("ledger").unwrap();
    let claim = exclusive(34).claim.to_string();
    let found = Some((34, 34, claim.clone()));
    says_who_won(
        fence
            .explain(found.clone(), &exclusive(33))
            .unwrap_err()
            .stale(),
    );
    fence.explain(found, &exclusive(34)).unwrap();
    let error = fence.explain(None, &exclusive(33)).unwrap_err();
    assert!(matches!(error, FenceError::NoRow { .. }), "{error:?}");
    for damaged in [(-1, 34, claim), (34, 34, "no claim".to_owned())] {
        let error = fence.explain(Some(damaged), &exclusive(35)).unwrap_err();
        assert!(matches!(error, FenceError::Damaged { .. }), "{error:?}");
    }
}
