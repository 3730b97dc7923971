//! The statements of the advisory strategy.

use crate::connection::has_mark;

/// The advisory lock of a name. The seed of the hash is the class of these locks.
macro_rules! key {
    ($name:literal) => {
        concat!("hashtextextended(", $name, ", 7378697629483820646)")
    };
}
/// The strategy in each record.
pub(super) const STRATEGY: &str = "advisory";

/// CASE evaluates its condition before its result.
pub(super) const TRY_EXCLUSIVE: &str = concat!(
    "SELECT CASE WHEN pg_try_advisory_lock(",
    key!("$1"),
    ") THEN fencelock_draw() END"
);
pub(super) const TRY_SHARED: &str = concat!(
    "SELECT CASE WHEN pg_try_advisory_lock_shared(",
    key!("$1"),
    ") THEN fencelock_draw() END"
);
pub(super) const WAIT_EXCLUSIVE: &str = concat!(
    "SELECT CASE WHEN pg_advisory_lock(",
    key!("$1"),
    ")::text IS NOT NULL THEN fencelock_draw() END"
);
pub(super) const WAIT_SHARED: &str = concat!(
    "SELECT CASE WHEN pg_advisory_lock_shared(",
    key!("$1"),
    ")::text IS NOT NULL THEN fencelock_draw() END"
);
pub(super) const UNLOCK_EXCLUSIVE: &str = concat!("SELECT pg_advisory_unlock(", key!("$1"), ")");
pub(super) const UNLOCK_SHARED: &str =
    concat!("SELECT pg_advisory_unlock_shared(", key!("$1"), ")");
/// A downgrade without an answer may have taken both locks, or one of them twice. A connection serves one claim at a time.
pub(super) const RELEASE_EXCLUSIVE: &str = concat!(
    "SELECT pg_advisory_unlock(",
    key!("$1"),
    "), pg_advisory_unlock_all()"
);
pub(super) const RELEASE_SHARED: &str = concat!(
    "SELECT pg_advisory_unlock_shared(",
    key!("$1"),
    "), pg_advisory_unlock_all()"
);

/// Records of open connections, which have the marks of the records.
macro_rules! live {
    ($what:literal, $rest:literal) => {
        concat!(
            "SELECT ",
            $what,
            " FROM fencelock_bound AS b JOIN pg_stat_activity AS a ON a.pid = b.pid AND ",
            has_mark!("a.application_name", "b.started"),
            " ",
            $rest
        )
    };
}
pub(super) const LOOK: &str = live!(
    "b.name, b.claim, b.owner, b.token, b.mode, b.label, \
     greatest(0, extract(epoch FROM clock_timestamp() - b.since) * 1000)::bigint, \
     greatest(0, least(b.ttl_ms, b.ttl_ms - extract(epoch FROM clock_timestamp() - a.state_change) * 1000))::bigint, \
     b.count > 0",
    "WHERE b.strategy = $1 AND b.name = $2 ORDER BY b.token, b.since"
);
/// Holders without a record.
pub(super) const UNRECORDED: &str = concat!(
    "SELECT 1 FROM pg_locks AS l, (SELECT ",
    key!("$1"),
    " AS key) AS k \
     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted \
     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
     AND l.classid::bigint = (k.key >> 32) & 4294967295 AND l.objid::bigint = k.key & 4294967295 \
     AND NOT EXISTS (SELECT 1 FROM fencelock_bound AS b WHERE b.strategy = 'advisory' AND b.name = $1 AND b.pid = l.pid AND b.count > 0)"
);
pub(super) const LIST: &str = live!(
    "DISTINCT b.name",
    "WHERE b.strategy = $1 AND b.count > 0 AND b.name >= $2 AND b.name > $3 ORDER BY b.name LIMIT $4"
);
pub(super) const HOLDER: &str = live!(
    "b.claim, b.pid, b.started",
    "WHERE b.strategy = $1 AND b.name = $2 AND $3 >= b.first AND $3 < b.first + b.count"
);
pub(super) const RECORD: &str = "\
    INSERT INTO fencelock_bound (claim, strategy, name, mode, first, count, token, owner, label, ttl_ms, since, pid, started) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, clock_timestamp() - make_interval(secs => $11), $12, $13) \
    ON CONFLICT (claim) DO UPDATE SET mode = $4, first = $5, count = $6, token = $7, owner = $8, label = $9, ttl_ms = $10, \
    pid = $12, started = $13";
pub(super) const END: &str = concat!(
    "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE pid = $1 AND ",
    has_mark!("application_name", "$2::bigint")
);
pub(super) const IS_OPEN: &str = concat!(
    "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND ",
    has_mark!("application_name", "$2::bigint")
);
pub(super) const DELETE_ENDED: &str = concat!(
    "DELETE FROM fencelock_bound AS b WHERE NOT EXISTS \
     (SELECT 1 FROM pg_stat_activity AS a WHERE a.pid = b.pid AND ",
    has_mark!("a.application_name", "b.started"),
    ")"
);
