use std::fmt;

use fencelock_core::{ConfigPart, Error};
use fencelock_sql::server::Failure;
use tokio_postgres::error::SqlState;

/// The oldest PostgreSQL, as `server_version_num` has it: it ends silent sessions, and notices clients that are gone.
const OLDEST: u32 = 140_000;

/// The error for the caller.
pub(super) fn caller_error(store: &str, action: &str, error: tokio_postgres::Error) -> Error {
    let Some(reported) = error.as_db_error() else {
        return error_of_driver(store, action, &error);
    };
    let code = reported.code().clone();
    let said = match reported.hint() {
        Some(hint) => format!("{} ({hint})", reported.message()),
        None => reported.message().to_owned(),
    };
    if [
        SqlState::INVALID_PASSWORD,
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
    ]
    .contains(&code)
    {
        let action = format!("{action}; check user and password");
        return Error::refused(store, action, said);
    }
    if code == SqlState::INSUFFICIENT_PRIVILEGE {
        let said = format!("{said}; GRANT that right to this user");
        return Error::refused(store, action, said);
    }
    if code == SqlState::INVALID_CATALOG_NAME {
        return Error::config(
            store,
            ConfigPart::Server,
            format!("{said}; create it, or name another"),
        );
    }
    if code == SqlState::UNDEFINED_OBJECT {
        let oldest = OLDEST / 10_000;
        return Error::config(
            store,
            ConfigPart::Server,
            format!("{said}; this engine needs PostgreSQL {oldest} or later"),
        );
    }
    if said.contains("unsupported startup parameter") {
        return Error::config(
            store,
            ConfigPart::Server,
            format!("{said}: a pooler such as PgBouncer answers; connect to PostgreSQL itself"),
        );
    }
    Error::unavailable(store, action, ServerError { code, said })
}

/// The meaning of an error that the server did not report itself.
fn error_of_driver(store: &str, action: &str, error: &tokio_postgres::Error) -> Error {
    let said = text_of(error);
    // The driver finds the missing password before the server does.
    if said.contains("password missing") {
        let why = "the server asks for a password, and the URL has none: name a file with ?password-file=PATH or a \
                   variable with ?password-env=NAME";
        return Error::refused(store, action, why);
    }
    Error::unavailable(store, action, said)
}

/// The driver's text, with the cause.
pub(super) fn text_of(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Whether the answer is none of PostgreSQL's protocol. The driver tells it by its text only.
pub(super) fn is_of_another_protocol(error: &tokio_postgres::Error) -> bool {
    let text = error.to_string();
    let strange = ["parsing response", "unexpected message"];
    error.as_db_error().is_none() && strange.iter().any(|what| text.contains(what))
}

#[derive(Debug)]
struct ServerError {
    code: SqlState,
    said: String,
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for ServerError {}

/// Whether the server rolled a transaction back only because it conflicted with another one.
pub(super) fn is_conflict(error: &Error) -> bool {
    let Error::Unavailable { cause, .. } = error else {
        return false;
    };
    let conflicts = [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
    ];
    cause
        .downcast_ref::<ServerError>()
        .is_some_and(|said| conflicts.contains(&said.code))
}

/// Whether a table or a function does not exist.
pub(super) fn is_missing(error: &tokio_postgres::Error) -> bool {
    let missing = [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_FUNCTION];
    error.code().is_some_and(|code| missing.contains(code))
}

/// What a failed request of the lease engine means.
pub(super) fn failure(store: &str, action: &str, error: tokio_postgres::Error) -> Failure {
    let Some(code) = error.code().cloned() else {
        return Failure::Disconnected(error.into());
    };
    let again = [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::LOCK_NOT_AVAILABLE,
    ];
    let gone = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::IDLE_SESSION_TIMEOUT,
    ];
    if again.contains(&code) {
        return Failure::Conflict(error.into());
    }
    if gone.contains(&code) {
        return Failure::Disconnected(error.into());
    }
    if code == SqlState::READ_ONLY_SQL_TRANSACTION {
        return Failure::ReadOnly(error.into());
    }
    if is_missing(&error) {
        return Failure::NoTables(error.into());
    }
    Failure::Final(caller_error(store, action, error))
}
