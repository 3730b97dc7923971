//! Tasks that run while the engine is open: they find ended connections, and clean up.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::Clock;

use super::control::on_control;
use super::dialect::{Dialect, SessionId};
use super::entry::Entry;
use super::signal::CloseSignal;
use super::state::{EntryLock, State};

/// How often an engine in use cleans up after ended connections.
const CLEAN_UP: Duration = Duration::from_secs(5);

pub(super) async fn check_connections<D: Dialect>(state: Weak<State<D>>, every: Duration) {
    loop {
        tokio::time::sleep(every.mul_f32(0.75 + fastrand::f32() / 2.0)).await;
        let Some(state) = state.upgrade() else {
            return;
        };
        let entries: Vec<EntryLock<D>> = state.entries.lock().values().cloned().collect();
        let holding = entries.iter().filter_map(|entry| {
            // A task that works on an entry notices the end by itself.
            match &*entry.try_lock().ok()? {
                Entry::Holding(hold) => {
                    let signal = Arc::clone(&hold.conn.signal);
                    Some((state.session_id(&hold.conn), signal))
                }
                _ => None,
            }
        });
        let (ids, signals): (Vec<SessionId>, Vec<Arc<CloseSignal>>) = holding.unzip();
        if ids.is_empty() {
            continue;
        }
        // Without an answer nothing is known about these connections.
        let ended =
            on_control!(state.control, "checking connections", ended(&ids)).unwrap_or_default();
        let all = ids.iter().zip(&signals);
        for (_, signal) in all.filter(|(id, _)| ended.contains(id)) {
            signal.close();
        }
    }
}

pub(super) async fn clean_up<D: Dialect>(state: Weak<State<D>>) {
    loop {
        tokio::time::sleep(CLEAN_UP.mul_f32(0.75 + fastrand::f32() / 2.0)).await;
        let Some(state) = state.upgrade() else {
            return;
        };
        state.pool.trim();
        let now = Clock::Boot.now();
        // An entry that a call has, but has not locked yet, stays: the call may put a hold into it.
        let is_used = |entry: &EntryLock<D>| Arc::strong_count(entry) > 1;
        let is_over = |entry: &EntryLock<D>| match entry.try_lock().as_deref() {
            Ok(Entry::GivenUp { until, .. }) => *until <= now,
            _ => false,
        };
        state
            .entries
            .lock()
            .retain(|_, entry| is_used(entry) || !is_over(entry));
        let busy = !state.entries.lock().is_empty();
        if (state.used.swap(busy, Ordering::Relaxed) || busy)
            && let Err(error) = on_control!(state.control, "cleaning up", clean_up(false))
        {
            state.used.store(true, Ordering::Relaxed);
            tracing::debug!(store = %state.dialect, %error, "cleaning up failed; trying again later");
        }
    }
}
