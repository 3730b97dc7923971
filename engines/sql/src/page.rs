//! Pages of lock names.

use fencelock_core::engine::Cursor;
use fencelock_core::{LockName, Result};

/// From at most `limit` names, in the order of their bytes: those with the prefix, which are adjacent, and the next page.
pub fn page_of(
    names: Vec<String>,
    prefix: &str,
    limit: usize,
) -> Result<(Vec<LockName>, Option<Cursor>)> {
    let is_full = names.len() == limit;
    let with_prefix = names.iter().take_while(|name| name.starts_with(prefix));
    let wanted: Vec<LockName> = with_prefix
        .map(|name| LockName::new(name))
        .collect::<Result<_>>()?;
    let more = is_full && wanted.len() == limit;
    let last = wanted.last().filter(|_| more);
    let next = last.map(|name| Cursor(name.as_str().to_owned()));
    Ok((wanted, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_begins_after_a_full_one() {
        for (names, limit, wanted, more) in [
            (&["a1", "a2"][..], 2, 2, true),
            (&["a1", "a2"], 3, 2, false),
            (&["a1", "b"], 2, 1, false),
            (&[], 2, 0, false),
        ] {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let (page, next) = page_of(names, "a", limit).unwrap();
            assert_eq!((page.len(), next.is_some()), (wanted, more), "{page:?}");
        }
    }
}
