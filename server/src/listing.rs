//! A page of the locks that are held, for one caller. The store is asked only for names that begin with a prefix on which the
//! caller has the right to look: the store's cursor may have the last name in it, and whether there is one tells something, too.

use std::sync::Arc;

use fencelock_core::LockName;
use fencelock_core::engine::{Cursor, LockView, Page};

use crate::caller::Caller;
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::seen::Seen;

/// The most locks of a page.
pub(crate) const MOST: usize = 1000;

/// Where a page begins for a caller who may not look at everything: in which of the prefixes, and where in its listing.
#[derive(Debug, Default)]
struct Place {
    prefix: usize,
    within: Option<Cursor>,
}

impl Place {
    /// Reads `INDEX:CURSOR`, where the cursor is that of the store. It is empty at the beginning.
    fn read(text: &str, seen: &Seen<'_>) -> Result<Self, Refusal> {
        let refused = || Refusal::of(&Cursor(text.to_owned()).refused());
        let (prefix, within) = text.split_once(':').ok_or_else(refused)?;
        let prefix: usize = prefix.parse().map_err(|_| refused())?;
        if prefix >= seen.prefixes.len() {
            return Err(refused());
        }
        let within = (!within.is_empty()).then(|| Cursor(within.to_owned()));
        Ok(Self { prefix, within })
    }

    fn text(&self) -> String {
        let within = self.within.as_ref().map_or("", |within| &within.0);
        format!("{}:{within}", self.prefix)
    }
}

/// A page of what is held and what the caller may look at.
pub(crate) async fn list(
    replica: &Arc<Replica>,
    caller: &Caller,
    prefix: &str,
    at: Option<&str>,
    limit: usize,
) -> Result<Page<LockView>, Refusal> {
    if !prefix.is_empty() {
        // A prefix with which no name can begin is refused.
        LockName::new(prefix).map_err(|error| Refusal::invalid(format!("the prefix: {error}")))?;
    }
    let seen = caller.sees(prefix);
    if seen.is_all() {
        let at = at.map(|at| Cursor(at.to_owned()));
        return part(replica, prefix, at, limit).await;
    }
    let mut place = match at {
        Some(at) => Place::read(at, &seen)?,
        None => Place::default(),
    };
    let (mut items, mut most) = (Vec::new(), limit);
    while let Some(prefix) = seen.prefixes.get(place.prefix) {
        let page = part(replica, prefix, place.within.take(), most).await?;
        let shown = page.items.into_iter();
        items.extend(shown.filter(|view| seen.shows(view.name.as_str())));
        match page.next {
            // The cursor may have the name of a lock that is hidden.
            Some(next) if seen.may_tell(&next.0) => {
                place.within = Some(next);
                break;
            }
            Some(next) => {
                place.within = Some(next);
                most = MOST;
            }
            None => {
                place.prefix += 1;
                if items.len() >= limit {
                    break;
                }
                most = limit - items.len();
            }
        }
    }
    let more = place.prefix < seen.prefixes.len();
    Ok(Page::new(items, more.then(|| Cursor(place.text()))))
}

/// A page of the store's own listing.
async fn part(
    replica: &Arc<Replica>,
    prefix: &str,
    at: Option<Cursor>,
    limit: usize,
) -> Result<Page<LockView>, Refusal> {
    let (asked, prefix) = (Arc::clone(replica), prefix.to_owned());
    let call = async move { asked.engine.inspect().list(&prefix, at, limit).await };
    let page = replica.carry(call).await?;
    replica.hear(&page);
    page.map_err(|error| Refusal::of(&error))
}
