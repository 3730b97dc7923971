//! Owners: who may enter again what is held already.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::{Error, Result};
use crate::hold::Hold;
use crate::name::LockName;
use crate::token::ClaimId;

/// The longest owner text, in bytes; the same for labels.
pub(crate) const MAX_TEXT_BYTES: usize = 255;

/// Stands between who an owner is, for people, and what makes it unlike any other.
const MARK: char = '#';

/// Stands between an owner and one within it, which has so many hex digits of its own.
const WITHIN: char = '/';
const WITHIN_DIGITS: usize = 8;

/// Somebody who may enter again what it holds: tasks that share an owner share its locks. Made by
/// [`Client::owner`](crate::Client::owner); a child process gets its text and calls [`Client::join`](crate::Client::join).
#[derive(Clone, PartialEq, Eq)]
pub struct Owner {
    pub(crate) text: Arc<str>,
    /// What it is to hold may be held by an owner around it, in another process.
    pub(crate) outer: bool,
}

impl Owner {
    pub(crate) fn fresh(who: &str, id: ClaimId) -> Self {
        let text = format!("{who}{MARK}{id}").into();
        let outer = false;
        Self { text, outer }
    }

    /// One within the owner with this text: of its own, so that two commands side by side within one do not enter each
    /// other's locks.
    pub(crate) fn within(text: &str, id: ClaimId) -> Result<Self> {
        let Some((_, rest)) = text.rsplit_once(MARK) else {
            let why = "it must be what FENCELOCK_OWNER held in the outer process";
            return Err(Error::invalid("owner", text, why));
        };
        let mut parts = rest.split(WITHIN);
        let first = parts.next().map(str::parse::<ClaimId>);
        let digits = |part: &str| {
            part.len() == WITHIN_DIGITS && part.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        if !matches!(first, Some(Ok(_))) || !parts.all(digits) {
            let why =
                "it must end in # and 32 hex digits, and / and 8 of them for each lock within";
            return Err(Error::invalid("owner", text, why));
        }
        let id = id.to_string();
        let text = format!("{text}{WITHIN}{}", &id[..WITHIN_DIGITS]);
        check_text("owner", &text)?;
        let (text, outer) = (text.into(), true);
        Ok(Self { text, outer })
    }

    /// The text that the store keeps and that a child process may join by.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.text)
    }
}

/// The owners around one, from within.
pub(crate) fn around(text: &str) -> impl Iterator<Item = &str> {
    fn next(text: &str) -> Option<&str> {
        let (around, within) = text.rsplit_once(WITHIN)?;
        (within.len() == WITHIN_DIGITS && around.contains(MARK)).then_some(around)
    }
    std::iter::successors(next(text), |text| next(text))
}

/// Refuses an owner or label that engines need not take.
pub(crate) fn check_text(what: &'static str, text: &str) -> Result<()> {
    if text.len() > MAX_TEXT_BYTES {
        let why = format!("it has {} bytes; {MAX_TEXT_BYTES} are allowed", text.len());
        return Err(Error::invalid(what, text, why));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::invalid(
            what,
            text,
            "it has a control character; leave it out",
        ));
    }
    Ok(())
}

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

/// The holds of each owner in this process.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    by_name: HashMap<(Arc<str>, LockName), Slot>,
    /// How many there may be before the next sweep.
    sweep_at: usize,
}

/// One owner and one name: whoever has it locked decides whether to join or to place.
pub(crate) type Slot = Arc<tokio::sync::Mutex<Weak<Hold>>>;

impl Owners {
    pub(crate) fn slot(&self, owner: &Arc<str>, name: &LockName) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
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
