//! Locks as people see them, from the records.

use async_trait::async_trait;
use fencelock_core::engine::{
    Cursor, Evict, Finding, HolderView, Inspect, LockView, Page, WaiterView,
};
use fencelock_core::{LockName, Mode, Result, Token};

use super::control::on_control;
use super::dialect::Dialect;
use super::state::{RECORD_AFTER, State};

/// How often a look checks that all holders are recorded. After that it returns the records that exist.
const CHECKS: u32 = 20;

/// A record as it was read from the database.
#[derive(Debug)]
pub struct RecordView {
    /// The lock.
    pub name: LockName,
    /// The claim; a waiter's has no token.
    pub holder: HolderView,
    /// Whether it holds; otherwise it waits.
    pub holds: bool,
}

/// The locks of these records, which are sorted by name. Of several exclusive holders only the newest is shown: the server
/// may list the ended connection of an older one for a moment.
pub fn views(records: impl IntoIterator<Item = RecordView>) -> Vec<LockView> {
    let mut views: Vec<LockView> = Vec::new();
    for RecordView {
        name,
        holder,
        holds,
    } in records
    {
        if views.last().is_none_or(|view| view.name != name) {
            views.push(LockView::free(name));
        }
        let Some(view) = views.last_mut() else {
            continue;
        };
        if holds {
            view.holders.push(holder);
        } else if view.waiters.len() < LockView::MOST_WAITERS {
            let HolderView {
                owner, mode, label, ..
            } = holder;
            view.waiters.push(WaiterView::new(owner, mode).label(label));
        }
    }
    for view in &mut views {
        let exclusive = |holder: &&HolderView| holder.mode == Mode::Exclusive;
        let newest = view.holders.iter().filter(exclusive);
        let newest = newest.map(|holder| holder.token).max();
        view.holders
            .retain(|holder| holder.mode != Mode::Exclusive || Some(holder.token) == newest);
    }
    views
}

#[async_trait]
impl<D: Dialect> Inspect for State<D> {
    /// If another process holds the lock and has not recorded that yet, the call waits for the record.
    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.check_open()?;
        let action = || format!("looking at lock {name}");
        if !self.dialect.inspect_only() {
            self.record_all().await;
            for _ in 0..CHECKS {
                if on_control!(self.control, action(), is_recorded(name))? {
                    break;
                }
                tokio::time::sleep(RECORD_AFTER / 2).await;
            }
        }
        on_control!(self.control, action(), look(name))
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.check_open()?;
        let after = at.map(|at| at.name(prefix)).transpose()?;
        let (after, limit) = (after.unwrap_or_default(), limit.clamp(1, 1000));
        self.record_all().await;
        on_control!(self.control, "listing locks", list(prefix, &after, limit))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.check_writes("an eviction")?;
        self.look(name).await?;
        let action = format!("evicting the holder of lock {name}");
        on_control!(self.control, action, evict(name, token, how))
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.check_open()?;
        self.dialect.findings().await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn record(name: &str, mode: Mode, token: u64) -> RecordView {
        RecordView {
            name: LockName::new(name).unwrap(),
            holder: HolderView::new(token.to_string(), mode).token(Token(token)),
            holds: token > 0,
        }
    }

    #[test]
    fn of_exclusive_holders_only_the_newest_is_shown() {
        let views = views([
            record("a", Mode::Exclusive, 16),
            record("a", Mode::Exclusive, 32),
            record("a", Mode::Exclusive, 0),
            record("b", Mode::Exclusive, 8),
            record("c", Mode::Shared, 64),
            record("c", Mode::Shared, 80),
        ]);
        let shown: Vec<(&str, Vec<&str>, usize)> = views
            .iter()
            .map(|view| {
                let owners = view.holders.iter().map(|holder| &*holder.owner).collect();
                (view.name.as_str(), owners, view.waiters.len())
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("a", vec!["32"], 1),
                ("b", vec!["8"], 0),
                ("c", vec!["64", "80"], 0)
            ]
        );
    }
}
