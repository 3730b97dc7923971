//! The statements of a release.

use fencelock_core::Mode;

use crate::request::NOW;
use crate::tables::Tables;

/// Releases an exclusive hold, as a prepared compound statement. A gate at its claim's first version has nothing else behind
/// it, and goes at once; else the statement returns whether the hold was live.
pub(super) fn release_statement(tables: &Tables) -> String {
    let locks = &tables.locks;
    let [gate, live, last] = release(tables, Mode::Exclusive, "?", "?");
    format!(
        "BEGIN NOT ATOMIC \
             DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END; \
             DELETE FROM {locks} WHERE name = ? AND version = ? AND claim = ? AND state = 'held' AND expiry > {NOW}; \
             IF ROW_COUNT() = 0 THEN START TRANSACTION; {gate}; {live}; SET @fencelock_live = ROW_COUNT(); {last}; COMMIT; \
             SELECT @fencelock_live; END IF; END"
    )
}

/// The statements of a release. The first one locks the gate, so that the last one sees everything behind it. The second one
/// changes a row if the hold was live.
pub(super) fn release(tables: &Tables, mode: Mode, of: &str, id: &str) -> [String; 3] {
    let Tables {
        locks,
        holders,
        waiters,
        ..
    } = tables;
    let mine =
        format!("name = {of} AND claim = {id} AND state IN ('held', 'asked') AND expiry > {NOW}");
    [
        format!("UPDATE {locks} SET version = version + 1 WHERE name = {of}"),
        match mode {
            Mode::Exclusive => format!("UPDATE {locks} SET state = 'none' WHERE {mine}"),
            Mode::Shared | Mode::Permit { .. } => format!("DELETE FROM {holders} WHERE {mine}"),
        },
        format!(
            "DELETE FROM {locks} WHERE name = {of} AND state = 'none' \
             AND NOT EXISTS (SELECT 1 FROM {holders} AS h WHERE h.name = {locks}.name) \
             AND NOT EXISTS (SELECT 1 FROM {waiters} AS w WHERE w.name = {locks}.name)"
        ),
    ]
}
