//! The statements of `get-lock`.

/// Acquires a lock of the server's own, waiting for so many seconds, and draws a number after that: GET_LOCK is evaluated
/// first. A server that takes no writes any more draws 0, since another server may grant the lock by now.
pub(super) const ACQUIRE: &str = "SELECT IF(GET_LOCK(?, ?) = 1, IF(CAST(@@global.read_only AS CHAR) IN ('0', 'OFF'), UUID_SHORT(), CAST(0 AS UNSIGNED)), NULL) AS number";
/// The same question, for a statement that began long ago.
pub(super) const TAKES_WRITES: &str = "CAST(@@global.read_only AS CHAR) IN ('0', 'OFF')";
pub(super) const RELEASE: &str = "SELECT RELEASE_LOCK(?) AS released";
