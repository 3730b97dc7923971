//! The driver's errors by meaning, as errors that say what to do.

use fencelock_core::{Cause, ConfigPart, Error, Finding, LockName, Purpose};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// What an error means for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The server replied: the connection works.
    Answered,
    /// No reply in time: the connection may still work.
    Silent,
    /// The connection is lost, or leads to a server that serves no requests.
    Broken,
}

pub(crate) fn meaning(error: &RedisError) -> Meaning {
    match error.kind() {
        ErrorKind::Server(
            ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown,
        ) => Meaning::Broken,
        ErrorKind::Server(_) | ErrorKind::Extension => {
            // Older servers wrap the error of a command within a script.
            let text = error.to_string();
            let broken = ["READONLY", "LOADING", "MASTERDOWN"];
            if broken.iter().any(|code| text.contains(code)) {
                Meaning::Broken
            } else {
                Meaning::Answered
            }
        }
        _ if error.is_timeout() => Meaning::Silent,
        ErrorKind::Io | ErrorKind::Parse => Meaning::Broken,
        _ => Meaning::Answered,
    }
}

pub(crate) const NOT_REDIS: &str = "there is no Redis server at this address (the one that answers does not speak Redis' protocol); \
                                   check host and port, and whether it needs another scheme";

pub(crate) fn is_noscript(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// What was tried, with the lock that it concerned: `taking lock` becomes `taking lock a`.
pub(crate) fn about(action: &str, name: Option<&LockName>) -> String {
    match (name, action.strip_suffix(" lock")) {
        (Some(name), Some(_)) => format!("{action} {name}"),
        (None, Some(verb)) => format!("{verb} a lock"),
        (_, None) => action.to_owned(),
    }
}

/// The driver's error as an error of the core. `action` says what was tried; see [`about`].
pub(crate) fn explain(
    store: &str,
    action: &str,
    name: Option<&LockName>,
    error: RedisError,
) -> Error {
    let text = error.to_string();
    let code = error.code().unwrap_or_default().to_owned();
    let change = right_missing(action, &code, &text);
    let action = about(action, name);
    let has = |word: &str| code == word || text.contains(word);
    if has("WRONGTYPE") {
        return match name {
            Some(name) => {
                let why = "the key, or one beside it, holds a value of another type (Redisson keeps a hash there); use \
                      another name, or remove the key if nobody needs it";
                Error::not_a_lock(store, name, why)
            }
            None => Error::config(
                store,
                ConfigPart::Server,
                "a key beginning with fencelock: holds a value of another type; remove it",
            ),
        };
    }
    if error.kind() == ErrorKind::AuthenticationFailed || has("WRONGPASS") || has("NOAUTH") {
        let action = format!("{action}; check user and password");
        return Error::refused(store, action, error);
    }
    if let Some(change) = change {
        let action = format!("{action}; {change}");
        return Error::refused(store, action, without_script(error));
    }
    if let Some((what, change)) = takes_no_writes(&code, &text) {
        return Error::unavailable(store, action, format!("{what}; {change}"));
    }
    if error.is_timeout() {
        let action = format!("{action}: no answer in time");
        return Error::unavailable(store, action, error);
    }
    if error.is_connection_refusal() {
        let what = "nothing listens at this address; is the server started, and the address right?";
        return Error::unavailable(store, action, format!("{what} ({error})"));
    }
    if action.starts_with("connecting") && error.is_connection_dropped() {
        let what = "the server closed the connection before it answered";
        let change = "is it a Redis server, does it want TLS (rediss://), has it room for more clients (maxclients)?";
        return Error::unavailable(store, action, format!("{what} ({error}); {change}"));
    }
    if error.kind() == ErrorKind::Parse {
        return Error::unavailable(store, action, format!("{NOT_REDIS} ({error})"));
    }
    Error::unavailable(store, action, without_script(error))
}

/// The error of a command within a script, without the script's hash and line.
fn without_script(error: RedisError) -> Cause {
    let text = error.to_string();
    match text.split_once(" script: ") {
        Some((said, _)) => said.into(),
        None => error.into(),
    }
}

/// Which right to grant the user, if one is missing.
fn right_missing(action: &str, code: &str, text: &str) -> Option<&'static str> {
    let says = [
        "NOPERM",
        "ACL failure",
        "The user executing the script can't",
    ];
    if code != "NOPERM" && !says.iter().any(|words| text.contains(words)) {
        return None;
    }
    if text.contains("channel") || action.contains("channel") {
        return Some("allow it with ACL SETUSER <user> &fencelock:* +subscribe +publish");
    }
    Some(
        "allow this user the keys that it locks, those with fencelock: in them, the channels &fencelock:*, and the commands \
         that the documentation of this engine lists",
    )
}

/// If a server accepts no writes at the moment: why, and what to do.
fn takes_no_writes(code: &str, text: &str) -> Option<(&'static str, &'static str)> {
    // Older servers wrap the error of a command within a script.
    let has = |word: &str| code == word || text.contains(&format!("-{word} "));
    if has("READONLY") {
        return Some((
            "the server is a replica, which takes no writes",
            "name its master, or let Sentinels name it (redis+sentinel://)",
        ));
    }
    if has("OOM") {
        return Some((
            "the server's memory is full (maxmemory), and it accepts no writes",
            "free some memory, or allow more: CONFIG SET maxmemory, and CONFIG REWRITE, so that it lasts",
        ));
    }
    if has("MISCONF") {
        return Some((
            "the server cannot write to its disk, and takes no writes meanwhile (MISCONF)",
            "see its log for the reason",
        ));
    }
    if has("NOREPLICAS") {
        return Some((
            "the server takes no writes while fewer replicas are in step with it than min-replicas-to-write",
            "find out why they are away",
        ));
    }
    None
}

/// The finding that no lock can be taken on a server, by its reply to an attempt.
pub(crate) fn untakeable(server: &str, action: &str, error: &RedisError) -> Finding {
    let (code, text) = (error.code().unwrap_or_default(), error.to_string());
    let (why, change) = match takes_no_writes(code, &text) {
        Some((what, change)) => (what, change),
        None => (
            text.split(" script: ").next().unwrap_or_default(),
            right_missing(action, code, &text).unwrap_or("find out why it answers so"),
        ),
    };
    let what = format!("no lock can be taken on {server}: {action}: {why}");
    Finding::new(Purpose::Efficiency, what, change)
}

/// This version cannot read the stored value.
pub(crate) fn unreadable(store: &str, name: &LockName) -> Error {
    let why = "it was stored by a newer version of fencelock, or is damaged; use that version, or another name";
    Error::not_a_lock(store, name, why)
}
