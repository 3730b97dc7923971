//! What each owner holds in this process.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::hold::Hold;
use crate::support::Mutex;
use crate::types::{LockName, MARK};

/// `user@host:pid`, for people.
pub(crate) fn who_am_i() -> Arc<str> {
    let user = ["USER", "LOGNAME"]
        .iter()
        .find_map(|v| std::env::var(v).ok());
    let user =
        user.unwrap_or_else(|| "uid".to_owned() + &rustix::process::getuid().as_raw().to_string());
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let clean = |text: &str| {
        let kept = text.chars().filter(|c| !c.is_control() && *c != MARK);
        kept.take(40).collect::<String>()
    };
    format!("{}@{}:{}", clean(&user), clean(&host), std::process::id()).into()
}

#[derive(Debug, Default)]
pub(crate) struct Owners {
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    by_name: HashMap<(Arc<str>, LockName), Slot>,
    /// The number of entries at which the next sweep runs.
    sweep_at: usize,
}

/// The slot of one owner and one name. The task that has it locked decides whether to join or to place.
pub(crate) type Slot = Arc<tokio::sync::Mutex<Weak<Hold>>>;

impl Owners {
    pub(crate) fn slot(&self, owner: &Arc<str>, name: &LockName) -> Slot {
        let mut slots = self.slots.lock();
        if slots.by_name.len() >= slots.sweep_at {
            let alive = |slot: &Slot| {
                Arc::strong_count(slot) > 1
                    || slot.try_lock().map_or(true, |hold| hold.strong_count() > 0)
            };
            slots.by_name.retain(|_, slot| alive(slot));
            slots.sweep_at = slots.by_name.len() * 2 + 64;
        }
        let key = (Arc::clone(owner), name.clone());
        Arc::clone(slots.by_name.entry(key).or_default())
    }
}
