//! A listing that leaves out the shards that are away.

use fencelock_core::engine::Cursor;
use fencelock_core::{Engine, Error, LockView, Result};

/// Lists the locks of a set like [`Inspect::list`](fencelock_core::Inspect::list), but leaves out the shards that do not
/// answer, and returns why. `set` may have layers around it; `ids` are the ids of its shards.
///
/// # Errors
/// The errors of the stores, except [`Error::Unavailable`].
pub async fn list_partial(
    set: &dyn Engine,
    ids: &[&str],
    prefix: &str,
) -> Result<(Vec<LockView>, Vec<Error>)> {
    let (mut found, mut away) = (Vec::new(), Vec::new());
    for id in ids {
        let begin = format!("{id}:");
        let mut at = Some(Cursor(begin.clone()));
        while at.is_some() {
            match set.inspect().list(prefix, at, 1000).await {
                Ok(page) => {
                    found.extend(page.items);
                    // The loop continues with the next shard.
                    at = page.next.filter(|next| next.0.starts_with(&begin));
                }
                Err(error @ Error::Unavailable { .. }) => {
                    away.push(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name);
    Ok((found, away))
}
