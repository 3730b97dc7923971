//! Reading the server's replies.

use redis::{ErrorKind, RedisError, Value};

pub(crate) fn unexpected(value: &Value) -> RedisError {
    let shown: String = format!("{value:?}").chars().take(200).collect();
    RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "the server sent an unexpected reply",
        shown,
    ))
}

pub(crate) fn unexpected_all(values: &[Value]) -> RedisError {
    unexpected(&Value::Array(values.to_vec()))
}

pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

/// The value of one setting in the reply to `CONFIG GET`.
pub(crate) fn setting(value: &Value) -> Option<String> {
    match value {
        Value::Map(pairs) => pairs.first().and_then(|(_, value)| text(value)),
        Value::Array(items) => items.get(1).and_then(text),
        _ => None,
    }
}

/// The reply to `TIME`, in microseconds.
pub(crate) fn time_micros(value: &Value) -> Option<i64> {
    let Value::Array(parts) = value else {
        return None;
    };
    let number = |at: usize| match parts.get(at)? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse::<i64>().ok(),
        _ => None,
    };
    Some(number(0)? * 1_000_000 + number(1)?)
}
