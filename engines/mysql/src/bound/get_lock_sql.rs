//! The statements of `get-lock`.

/// Acquires a lock of the server's own, waiting for a number of seconds, and then draws a number: GET_LOCK is evaluated first.
/// A server that no longer takes writes draws 0, because another server may grant the lock already.
pub(super) const ACQUIRE: &str = "SELECT IF(GET_LOCK(?, ?) = 1, IF(CAST(@@global.read_only AS CHAR) IN ('0', 'OFF'), UUID_SHORT(), CAST(0 AS UNSIGNED)), NULL) AS number";
/// Whether the server still takes writes, for a statement that began long ago.
pub(super) const TAKES_WRITES: &str = "CAST(@@global.read_only AS CHAR) IN ('0', 'OFF')";
pub(super) const RELEASE: &str = "SELECT RELEASE_LOCK(?) AS released";
