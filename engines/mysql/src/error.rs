use fencelock_core::{ConfigPart, Error};
use fencelock_sql::server::Failure;
use mysql_async::{DriverError, IoError};

/// Whether a retry may succeed. It may after a lock wait timeout, after a deadlock, and if the record has changed since it was
/// read. It may if another server's commit won, in a Galera cluster or a replication group. And it may if a statement or the wait
/// for a table's counter took too long, or if the table was changed while in use.
pub(super) const fn is_conflict(code: u16) -> bool {
    matches!(
        code,
        1205 | 1213 | 1020 | 1180 | 3101 | 1969 | 1467 | 1412 | 1615
    )
}

/// The meaning of a failed request.
pub(super) fn failure(store: &str, error: mysql_async::Error) -> Failure {
    let code = match &error {
        mysql_async::Error::Server(server) => server.code,
        mysql_async::Error::Io(_)
        | mysql_async::Error::Driver(
            DriverError::ConnectionClosed | DriverError::PacketOutOfOrder,
        ) => return Failure::Disconnected(error.into()),
        _ => {
            let (store, why) = (store.to_owned(), error.to_string());
            return Failure::Final(Error::internal(store, why));
        }
    };
    match code {
        code if is_conflict(code) => Failure::Conflict(error.into()),
        // Shutdown, aborted, interrupted, killed, closed for idling; a server that is not ready for queries (Galera, a
        // replication group) or offline.
        1053 | 1152 | 1184 | 1317 | 1927 | 3024 | 4031 | 1047 | 3100 | 3032 => {
            Failure::Disconnected(error.into())
        }
        // read_only, super_read_only, innodb_read_only, a read-only transaction.
        1290 | 1792 | 1836 | 1874 => Failure::ReadOnly(error.into()),
        // No such table; no row for draws (its value was NULL).
        1146 | 1048 => Failure::NoTables(error.into()),
        _ => Failure::Final(caller_error(store, "running a statement", error)),
    }
}

/// The error for the caller, for a failed connection or statement.
pub(super) fn caller_error(store: &str, action: &str, error: mysql_async::Error) -> Error {
    let mysql_async::Error::Server(server) = &error else {
        return match error {
            mysql_async::Error::Io(IoError::Io(io)) => Error::unavailable(store, action, io),
            other => Error::unavailable(store, action, other),
        };
    };
    let message = &server.message;
    match server.code {
        1045 | 1698 | 1251 | 1275 | 2061 => {
            Error::refused(store, format!("{action}; check user and password"), error)
        }
        1095 => Error::refused(
            store,
            format!("{action}; the connection is another user's"),
            error,
        ),
        1044 | 1142 | 1143 | 1227 | 1370 | 1410 => Error::refused(
            store,
            format!(
                "{action}; the user needs SELECT, INSERT, UPDATE and DELETE on the tables, and CREATE the first time \
                 unless an administrator has made them"
            ),
            error,
        ),
        1049 => Error::config(
            store,
            ConfigPart::Server,
            format!("{message}; create it, or name another"),
        ),
        1665 => Error::config(
            store,
            ConfigPart::Server,
            "binlog_format is STATEMENT, with which the server takes no writes at READ COMMITTED; set it to ROW or MIXED",
        ),
        // Too many connections, of all or of this user; a limit per hour; too many prepared statements.
        1040 | 1203 | 1226 | 1461 => Error::unavailable(store, action, error),
        code => Error::internal(store, format!("{action}: error {code}: {message}")),
    }
}

/// Whether a table does not exist.
pub(super) fn is_missing(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(server) if server.code == 1146)
}

pub(super) fn is_duplicate(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(server) if server.code == 1062)
}
