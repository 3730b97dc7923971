//! The statements of a release.

use fencelock_core::Mode;

use fencelock_sql::lease::CLAIM_WINDOW;
use fencelock_sql::server::{HANDOFF_WINDOW, micros};

use crate::ear::EAR;
use crate::request::{LIFTED_ID, NOW};
use crate::tables::Tables;

/// Releases an exclusive hold, as a prepared compound statement. A gate with its claim's first version has no other rows, so it
/// is deleted at once. Otherwise the statement returns whether the hold was live.
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

/// The statement of a release on a server where waiters can be woken. It grants the lock to the first waiter for a moment, if
/// that one asks for exclusive mode and its ear exists. It returns whether the hold was live, the ear of the first waiter, and
/// whether that waiter was granted the lock. Its parameters: name, version and claim; name and claim; the row for draws;
/// whether to lift the counter, and above which id.
///
/// A release does not wait for another client that draws: then the waiter is only woken. The gate is updated in place: deleting
/// and inserting it would deadlock with the clients that wait for it.
pub(super) fn hand_over_statement(tables: &Tables) -> String {
    let Tables {
        locks,
        holders,
        waiters,
        ears,
        draws,
        ..
    } = tables;
    let [gate, ..] = release(tables, Mode::Exclusive, "name_", "claim_");
    let mine = is_mine("name_", "claim_");
    let window = micros(HANDOFF_WINDOW);
    let lift = lift(locks, "least_").join("; ");
    format!(
        "BEGIN NOT ATOMIC \
             DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END; \
             DELETE FROM {locks} WHERE name = ? AND version = ? AND claim = ? AND state = 'held' AND expiry > {NOW}; \
             IF ROW_COUNT() = 0 THEN BEGIN \
             DECLARE name_ VARBINARY(512) DEFAULT ?; \
             DECLARE claim_, next_ BINARY(16) DEFAULT ?; \
             DECLARE draws_ INT DEFAULT ?; \
             DECLARE lifts_ INT DEFAULT ?; \
             DECLARE least_ BIGINT UNSIGNED DEFAULT ?; \
             DECLARE live_, granted_ INT DEFAULT 0; \
             DECLARE zero_, tokens_ INT; \
             DECLARE ticket_ BIGINT; \
             DECLARE mode_ VARBINARY(16); \
             DECLARE ear_ VARBINARY(32); \
             DECLARE owner_, label_ VARBINARY(255); \
             START TRANSACTION; \
             SELECT zero INTO zero_ FROM {draws} WHERE id = draws_ FOR UPDATE SKIP LOCKED; \
             UPDATE {locks} SET version = version + 1, state = 'none' WHERE {mine}; SET live_ = ROW_COUNT(); \
             IF live_ = 0 THEN {gate}; ELSE \
             SELECT w.ticket, w.claim, w.mode, w.owner, e.ear, e.tokens, e.label \
             INTO ticket_, next_, mode_, owner_, ear_, tokens_, label_ \
             FROM {waiters} AS w LEFT JOIN {ears} AS e ON e.name = w.name AND e.ticket = w.ticket AND e.claim = w.claim \
             WHERE w.name = name_ AND w.expiry > {NOW} ORDER BY w.ticket LIMIT 1; \
             IF zero_ = 0 AND mode_ = 'x' AND IS_USED_LOCK(CONCAT('{EAR}', ear_)) IS NOT NULL \
             AND NOT EXISTS (SELECT 1 FROM {holders} AS h WHERE h.name = name_) THEN \
             IF lifts_ THEN {lift}; END IF; \
             INSERT INTO {locks} (name, version, state, claim, tokens, current, expiry, lock_delay, since, owner, label) \
             VALUES (name_, 0, 'held', next_, tokens_, 0, {NOW} + {window}, 0, {NOW}, owner_, label_) \
             ON DUPLICATE KEY UPDATE id = VALUES(id), state = VALUES(state), claim = VALUES(claim), tokens = VALUES(tokens), \
             current = 0, expiry = VALUES(expiry), lock_delay = 0, since = VALUES(since), owner = VALUES(owner), \
             label = VALUES(label); \
             DELETE FROM {waiters} WHERE name = name_ AND ticket = ticket_; \
             DELETE FROM {ears} WHERE name = name_ AND ticket = ticket_; \
             SET granted_ = 1; \
             END IF; \
             END IF; \
             IF granted_ = 0 AND NOT EXISTS (SELECT 1 FROM {waiters} AS w WHERE w.name = name_) \
             AND NOT EXISTS (SELECT 1 FROM {holders} AS h WHERE h.name = name_) THEN \
             DELETE FROM {locks} WHERE name = name_ AND state = 'none'; END IF; \
             COMMIT; \
             SELECT live_, ear_, granted_; \
             END; END IF; END"
    )
}

/// Puts a new claim in the queue if it certainly has to wait: for an exclusive holder, or for another waiter. The statement
/// returns the gate's version, how many waiters are ahead, and how long the holder has left; or nothing. Its parameters: name,
/// claim, mode and owner; the ear, how many tokens, and the label.
pub(super) fn enqueue_statement(tables: &Tables) -> String {
    let Tables {
        locks,
        holders,
        waiters,
        ears,
        ..
    } = tables;
    let window = micros(CLAIM_WINDOW);
    format!(
        "BEGIN NOT ATOMIC \
             DECLARE name_ VARBINARY(512) DEFAULT ?; \
             DECLARE claim_ BINARY(16) DEFAULT ?; \
             DECLARE mode_ VARBINARY(16) DEFAULT ?; \
             DECLARE owner_ VARBINARY(255) DEFAULT ?; \
             DECLARE ear_ VARBINARY(32) DEFAULT ?; \
             DECLARE tokens_ INT DEFAULT ?; \
             DECLARE label_ VARBINARY(255) DEFAULT ?; \
             DECLARE version_ BIGINT UNSIGNED; \
             DECLARE left_, last_ BIGINT; \
             DECLARE ahead_, bars_, mine_ BIGINT DEFAULT 0; \
             DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END; \
             START TRANSACTION; \
             UPDATE {locks} SET version = version + 1 WHERE name = name_; \
             IF ROW_COUNT() = 1 THEN \
             SELECT MAX(l.version), MAX(IF(l.state = 'none', NULL, CAST(l.expiry AS SIGNED) - {NOW})), MAX(w.ticket), \
             IFNULL(SUM(w.expiry > {NOW}), 0), IFNULL(SUM(w.expiry > {NOW} AND (w.mode = 'x' OR mode_ = 'x')), 0), \
             MAX(l.state <> 'none' AND l.claim = claim_) + IFNULL(SUM(w.claim = claim_), 0) \
             INTO version_, left_, last_, ahead_, bars_, mine_ \
             FROM {locks} AS l LEFT JOIN {waiters} AS w ON w.name = l.name WHERE l.name = name_; \
             END IF; \
             IF (left_ > 0 OR bars_ > 0) AND mine_ = 0 \
             AND NOT EXISTS (SELECT 1 FROM {holders} AS h WHERE h.name = name_ AND h.claim = claim_) THEN \
             INSERT INTO {waiters} (name, ticket, claim, mode, expiry, owner) \
             VALUES (name_, IFNULL(last_, 0) + 1, claim_, mode_, {NOW} + {window}, owner_); \
             INSERT INTO {ears} (name, ticket, claim, ear, tokens, label, since) \
             VALUES (name_, IFNULL(last_, 0) + 1, claim_, ear_, tokens_, label_, {NOW}) \
             ON DUPLICATE KEY UPDATE claim = claim_, ear = ear_, tokens = tokens_, label = label_, since = VALUES(since); \
             COMMIT; \
             SELECT version_, ahead_, IF(left_ > 0, left_, NULL); \
             ELSE ROLLBACK; END IF; END"
    )
}

/// Lifts the counter of ids to the time, and above `least`. To do so, it inserts a row with an id: the counter is above that id
/// from then on, even if the row is rolled back, and it is never lowered. Each connection lifts to an id of its own, so that none
/// waits for the row of another.
pub(super) fn lift(locks: &str, least: &str) -> [String; 3] {
    [
        // Lock names have no control characters, so no lock has this name.
        format!(
            "SET @fencelock_id = GREATEST({LIFTED_ID} + CONNECTION_ID() % 1024, {least}), @fencelock_seed = CONCAT(x'00', CONNECTION_ID())"
        ),
        format!(
            "INSERT IGNORE INTO {locks} \
             (id, name, version, state, claim, tokens, current, expiry, lock_delay, since, owner) \
             VALUES (@fencelock_id, @fencelock_seed, 0, 'none', '', 0, 0, 0, 0, 0, '')"
        ),
        format!("DELETE FROM {locks} WHERE name = @fencelock_seed"),
    ]
}

/// The statements of a release. The first one locks the gate, so that the last one sees all rows of the lock. The second one
/// changes a row if the hold was live.
pub(super) fn release(tables: &Tables, mode: Mode, of: &str, id: &str) -> [String; 3] {
    let Tables {
        locks,
        holders,
        waiters,
        ..
    } = tables;
    let mine = is_mine(of, id);
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

/// The condition that a row is that of a live hold of this claim.
fn is_mine(of: &str, id: &str) -> String {
    format!("name = {of} AND claim = {id} AND state IN ('held', 'asked') AND expiry > {NOW}")
}
