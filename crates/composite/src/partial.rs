//! Which shards of a set are away, and a listing that leaves them out.

use fencelock_core::engine::Cursor;
use fencelock_core::{Engine, Error, LockView, Result};
use futures_util::future::join_all;

/// Lists the locks of a set, all shards at once, like [`Inspect::list`](fencelock_core::Inspect::list), but leaves out the shards that do not
/// answer, and returns why. `set` may have layers around it; `ids` are the ids of its shards.
///
/// # Errors
/// The errors of the stores, except [`Error::Unavailable`].
pub async fn list_partial(
    set: &dyn Engine,
    ids: &[&str],
    prefix: &str,
) -> Result<(Vec<LockView>, Vec<Error>)> {
    let parts = ids.iter().map(|id| list_shard(set, id, prefix));
    let (mut found, mut away) = (Vec::new(), Vec::new());
    for part in join_all(parts).await {
        match part {
            Ok(locks) => found.extend(locks),
            Err(error @ Error::Unavailable { .. }) => away.push(error),
            Err(error) => return Err(error),
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name);
    Ok((found, away))
}

async fn list_shard(set: &dyn Engine, id: &str, prefix: &str) -> Result<Vec<LockView>> {
    let begin = format!("{id}:");
    let (mut found, mut at) = (Vec::new(), Some(Cursor(begin.clone())));
    while at.is_some() {
        let page = set.inspect().list(prefix, at, 1000).await?;
        found.extend(page.items);
        // After its last page, the cursor is that of the next shard.
        at = page.next.filter(|next| next.0.starts_with(&begin));
    }
    Ok(found)
}

/// Asks these shards of a set for one lock each, and returns why some do not answer. `set` may have layers around it.
pub async fn shards_away(set: &dyn Engine, ids: &[&str]) -> Vec<Error> {
    let asked = ids.iter().map(|id| {
        let begin = Cursor(format!("{id}:"));
        set.inspect().list("", Some(begin), 1)
    });
    let answers = join_all(asked).await;
    answers.into_iter().filter_map(Result::err).collect()
}
