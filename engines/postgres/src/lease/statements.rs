//! The statements of the lease strategy. The function of a fast path or a change is in `schema.sql`.

use crate::connection::has_mark;

pub(super) const TAKE: &str = "SELECT fencelock_take($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
pub(super) const QUEUE: &str = "\
    SELECT version_, ahead_, left_, drawn_ FROM fencelock_queue($1, $2, $3, $4, $5, $6, $7, $8, $9)";
/// Returns whether the claim held, and the channels of the ears that were granted the lock and must be woken.
pub(super) const RELEASE: &str = "SELECT held_, bells_ FROM fencelock_give($1, $2, $3)";
/// Wakes the ears, too. A procedure costs more than a function.
pub(super) const HAND_OFF: &str = "CALL fencelock_hand_off($1, $2, $3, NULL)";
/// Returns the channels of the ears among those that must be notified, too.
pub(super) const WRITE: &str = "\
    SELECT fencelock_change($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18), \
    ARRAY(SELECT bell FROM (SELECT unnest($18::text[]) UNION ALL SELECT bell FROM fencelock_holders \
        WHERE name = $1 AND first = $6 AND $5 IN ('release', 'ask')) AS told (bell) WHERE fencelock_hears(bell))";
pub(super) const WAKE: &str = "SELECT fencelock_ring($1)";
/// How many connections listen in this database, or are ears. 0 where NOTIFY wakes only those that listen on its channel.
pub(super) const CROWD: &str = "\
    SELECT CASE WHEN current_setting('server_version_num')::integer >= 190000 THEN 0 ELSE \
    (SELECT count(*) /* fencelock_hear */ FROM pg_stat_activity WHERE datname = current_database() \
        AND query ~ '^LISTEN fencelock_|fencelock_(hear|become_ear)\\M') END";
pub(super) const BECOME_EAR: &str = "SELECT fencelock_become_ear($1)";
pub(super) const NO_EAR: &str = "SELECT pg_advisory_unlock($1) /* fencelock_hear */";
pub(super) const HEAR: &str = "CALL fencelock_hear($1, $2, $3, $4, NULL)";
/// The gate with the time, the holders and the queue. It is one statement, so that all rows are of the same moment.
pub(super) const READ: &str = "\
    SELECT 0 AS kind, version AS number, fencelock_now() AS expiry, '' AS mode, ''::bytea AS claim, 0 AS count, \
    false AS abandoned, '' AS bell, (SELECT last_value FROM fencelock_tokens) AS drawn FROM fencelock_locks \
    WHERE name = $1 UNION ALL \
    SELECT 1, first, expiry, mode, claim, count, state = 'abandoned', bell, 0 FROM fencelock_holders WHERE name = $1 UNION ALL \
    SELECT 2, ticket, expiry, mode, claim, 0, false, bell, 0 FROM fencelock_waiters WHERE name = $1 ORDER BY 1, 2";
pub(super) const LOOK: &str = "\
    SELECT name, 1 AS kind, token AS number, mode, owner, claim, expiry - fencelock_now() AS left, lock_delay, \
    fencelock_now() - since AS held, label FROM fencelock_holders WHERE name = ANY($1) UNION ALL \
    SELECT name, 2, ticket, mode, owner, claim, expiry - fencelock_now(), 0, 0, label FROM fencelock_waiters WHERE name = ANY($1) \
    ORDER BY 1, 2, 3";
pub(super) const LIST: &str = "\
    SELECT DISTINCT name FROM fencelock_holders WHERE name >= $1 AND name > $2 AND expiry > fencelock_now() ORDER BY name LIMIT $3";
pub(super) const KEEP_PLACE: &str = "\
    UPDATE fencelock_waiters SET expiry = fencelock_now() + $4, bell = $5, mode = $6, tokens = $7 \
    WHERE name = $1 AND ticket = $2 AND claim = $3 AND expiry > fencelock_now() RETURNING 1";
pub(super) const RENEW: &str = "\
    UPDATE fencelock_holders AS h SET lock_delay = v.delay, token = greatest(h.token, v.token), \
    expiry = CASE WHEN v.shorten THEN fencelock_now() + v.lease ELSE greatest(h.expiry, fencelock_now() + v.lease) END, \
    state = CASE h.state WHEN 'given' THEN 'held' ELSE h.state END, owner = v.owner, label = v.label \
    FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], \
        $8::bool[], $9::text[]) AS v (name, claim, lease, delay, token, owner, label, shorten, mode) \
    WHERE h.name = v.name AND h.claim = v.claim AND h.mode = v.mode AND h.state <> 'abandoned' AND h.expiry > fencelock_now() \
    AND v.token >= h.first AND v.token < h.first + h.count RETURNING h.claim, h.state = 'asked'";
pub(super) const PROLONG: &str = "\
    UPDATE fencelock_holders SET expiry = greatest(expiry, fencelock_now() + $4), lock_delay = greatest(lock_delay, $5), \
    state = CASE state WHEN 'given' THEN 'held' ELSE state END \
    WHERE name = $1 AND claim = $2 AND first = $3 AND state <> 'abandoned' AND expiry > fencelock_now() RETURNING 1";
pub(super) const EXPIRED: &str = "\
    (SELECT name FROM fencelock_holders WHERE expiry <= fencelock_now() LIMIT 100) UNION \
    (SELECT name FROM fencelock_waiters WHERE expiry <= fencelock_now() LIMIT 100)";
pub(super) const END: &str = concat!(
    "SELECT pg_terminate_backend(pid, 500) FROM pg_stat_activity WHERE pid = $1 AND ",
    has_mark!("application_name", "$2::bigint")
);
