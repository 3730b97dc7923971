//! Which errors of a driver mean a conflict with another writer. The whole transaction is then to be repeated.

/// Whether MySQL or MariaDB rolled a transaction back because of another one: a deadlock, or a lock wait that took too
/// long. Repeat the whole transaction.
#[cfg(feature = "mysql")]
#[must_use]
pub fn is_mysql_conflict(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(server) if matches!(server.code, 1020 | 1205 | 1213))
}

/// Whether PostgreSQL rolled a transaction back because of another one: a deadlock, a failed serialization, or a lock wait
/// that took too long. Repeat the whole transaction.
#[cfg(feature = "postgres")]
#[must_use]
pub fn is_postgres_conflict(error: &tokio_postgres::Error) -> bool {
    use tokio_postgres::error::SqlState;
    let conflicts = [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::LOCK_NOT_AVAILABLE,
    ];
    error.code().is_some_and(|code| conflicts.contains(code))
}

/// Whether SQLite refused a statement because of another connection: the file is locked, or was changed since it was read.
/// Repeat the whole transaction.
#[cfg(feature = "sqlite")]
#[must_use]
pub fn is_sqlite_conflict(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode;
    let code = error.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}
