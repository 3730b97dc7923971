//! Which errors of a driver mean a conflict with another writer. After such an error, roll back, and then repeat the whole
//! transaction: not every one of them ends the transaction.

/// Whether MySQL or MariaDB ended a statement because of another transaction: after a deadlock, or after a lock wait that took
/// too long. Roll back, and then repeat the whole transaction. After a lock wait that took too long the server has undone
/// only the statement (unless `innodb_rollback_on_timeout` is set): a `START TRANSACTION` would commit what came before it.
///
/// ```
/// # use fencelock_versioned::is_mysql_conflict;
/// use mysql_async::{Error, ServerError};
///
/// let (code, message, state) = (1213, "Deadlock found".to_owned(), "40001".to_owned());
/// assert!(is_mysql_conflict(&Error::Server(ServerError { code, message, state })));
/// ```
#[cfg(feature = "mysql")]
#[must_use]
pub fn is_mysql_conflict(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(server) if matches!(server.code, 1020 | 1205 | 1213))
}

/// Whether PostgreSQL ended a transaction because of another one: after a deadlock, a failed serialization, or a lock wait that
/// took too long. Roll back, and then repeat the whole transaction.
///
/// ```no_run
/// # use fencelock_versioned::is_postgres_conflict;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tokio_postgres::Error> {
/// # let (client, connection) = tokio_postgres::connect("host=localhost", tokio_postgres::NoTls).await?;
/// # tokio::spawn(connection);
/// if let Err(error) = client.batch_execute("UPDATE accounts SET balance = 90").await {
///     println!("try again: {}", is_postgres_conflict(&error));
/// }
/// # Ok(())
/// # }
/// ```
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
/// Roll back, and then repeat the whole transaction.
///
/// ```
/// # use fencelock_versioned::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bank = rusqlite::Connection::open_in_memory()?;
/// # bank.execute_batch("CREATE TABLE accounts (id INTEGER, version INTEGER, balance INTEGER)")?;
/// # bank.execute_batch("INSERT INTO accounts VALUES (7, 1, 100)")?;
/// # let accounts = Versioned::new("accounts")?;
/// if let Err(error) = bank.execute("UPDATE accounts SET balance = 90", []) {
///     println!("try again: {}", is_sqlite_conflict(&error));
/// }
/// # Ok(())
/// # }
/// ```
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
