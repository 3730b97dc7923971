//! The content of the token base's node: the bases so far, each with the transaction that set it. Also what one connection
//! knows of it (see `token_base.rs`).

use std::fmt::{self, Write};
use std::pin::Pin;
use std::sync::Arc;

use fencelock_core::Token;
use fencelock_core::support::Mutex;
use futures_util::FutureExt;
use zookeeper_client::OneshotWatcher;

use crate::stored;

/// How many changes are kept. A claim that is older than all of them has the oldest base that is kept. So its token is above
/// those of the claims before it.
const KEPT: usize = 64;

/// The bases, each with the transaction that set it, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History(Vec<(i64, u64)>);

impl History {
    /// The first token of a node that this transaction created.
    pub(crate) fn first_token(&self, czxid: i64) -> Token {
        let before = self.0.iter().rev().find(|(set, _)| *set < czxid);
        let base = before.map_or(0, |(_, base)| *base);
        Token(base + stored::first_token(czxid).get())
    }

    pub(crate) fn base(&self) -> u64 {
        self.0.last().map_or(0, |(_, base)| *base)
    }

    pub(crate) fn read(bytes: &[u8], set: i64) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines();
        if lines.next() != Some("fl1") {
            return None;
        }
        let (mut history, mut base) = (Vec::new(), None);
        for line in lines {
            match line.split_once('=')? {
                ("before", entry) => {
                    let (set, base) = entry.split_once(':')?;
                    history.push((set.parse().ok()?, base.parse().ok()?));
                }
                ("base", number) => base = Some(number.parse().ok()?),
                // A later fencelock may add keys.
                _ => {}
            }
        }
        history.push((set, base?));
        Some(Self(history))
    }

    /// The node's new content when this base is set.
    pub(crate) fn write(&self, base: u64) -> String {
        let mut text = "fl1\n".to_owned();
        let skipped = self.0.len().saturating_sub(KEPT);
        for (index, (set, base)) in self.0.iter().enumerate().skip(skipped) {
            // The oldest stands for those before it.
            let set = if index > 0 && index == skipped {
                0
            } else {
                *set
            };
            // Writing to a String does not fail.
            let _ = writeln!(text, "before={set}:{base}");
        }
        let _ = writeln!(text, "base={base}");
        text
    }
}

/// The history as one connection knows it.
#[derive(Default)]
pub(crate) struct Watched(Mutex<Option<Known>>);

struct Known {
    history: Arc<History>,
    changed: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

impl Watched {
    /// The history, if its watch has not fired.
    ///
    /// It must only be called while the connection is open.
    pub(crate) fn current(&self) -> Option<Arc<History>> {
        let mut known = self.0.lock();
        let found = known.as_mut()?;
        if (&mut found.changed).now_or_never().is_some() {
            *known = None;
            return None;
        }
        Some(Arc::clone(&found.history))
    }

    /// Notes the history, and its watch, which was set before it was read.
    pub(crate) fn set(&self, history: &Arc<History>, watcher: OneshotWatcher) {
        let known = Known {
            history: Arc::clone(history),
            changed: Box::pin(watcher.changed().map(drop)),
        };
        // The old watch is dropped outside the lock.
        let old = self.0.lock().replace(known);
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_follows_from_the_transaction_that_created_the_node() {
        let first = History::read(History::default().write(3200).as_bytes(), 70).unwrap();
        let second = History::read(first.write(6400).as_bytes(), 90).unwrap();
        assert_eq!(second, History(vec![(70, 3200), (90, 6400)]));
        let token = |history: &History, czxid| history.first_token(czxid).get();
        assert_eq!(token(&History::default(), 60), 60 * 32);
        for history in [&first, &second] {
            assert_eq!(token(history, 69), 69 * 32);
            assert_eq!(token(history, 71), 3200 + 71 * 32);
            assert_eq!(token(history, 89), 3200 + 89 * 32);
        }
        assert_eq!(token(&second, 91), 6400 + 91 * 32);
    }

    #[test]
    fn a_claim_that_is_older_than_all_kept_bases_has_the_oldest_of_them() {
        let mut history = History::default();
        for set in 1..=200_u64 {
            let text = history.write(set * 3200);
            history = History::read(text.as_bytes(), (set * 10).cast_signed()).unwrap();
        }
        assert!(history.0.len() <= KEPT + 1);
        let (_, oldest) = history.0[0];
        assert_eq!(history.first_token(15).get(), oldest + 15 * 32);
        assert!(history.first_token(15) < history.first_token(16));
        assert!(history.first_token(16) < history.first_token(1999));
    }

    #[test]
    fn a_node_of_another_format_is_refused() {
        for text in [
            "",
            "fl2\nbase=1\n",
            "fl1\n",
            "fl1\nbase=x\n",
            "fl1\nbefore=1\nbase=1\n",
        ] {
            assert_eq!(History::read(text.as_bytes(), 1), None, "{text:?}");
        }
        assert!(History::read(b"fl1\nnew=1\nbase=1\n", 1).is_some());
    }
}
