//! Owners. An owner may enter again a lock that it holds.

use std::fmt;
use std::sync::Arc;

use super::error::{Error, Result};
use super::token::ClaimId;

/// The longest owner text, in bytes; the same for labels.
pub(crate) const MAX_TEXT_BYTES: usize = 255;

/// Separates the readable part of an owner text from the part that makes it unique.
pub(crate) const MARK: char = '#';

/// Separates an owner from one within it, which adds this many hex digits.
const WITHIN: char = '/';
const WITHIN_DIGITS: usize = 8;

/// An owner may enter again a lock that it holds: tasks that share an owner share its locks. Made by
/// [`Client::owner`](crate::Client::owner); a child process gets its text and calls [`Client::join`](crate::Client::join).
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let owner = client.owner();
/// let guard = client.lock("report").owner(&owner).await?;
/// assert_eq!(guard.owner(), owner.as_str()); // the text for a child process
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Owner {
    pub(crate) text: Arc<str>,
    /// Whether an outer owner, in another process, may hold the locks that it requests.
    pub(crate) outer: bool,
}

impl Owner {
    pub(crate) fn fresh(who: &str, id: ClaimId) -> Self {
        let text = format!("{who}{MARK}{id}").into();
        let outer = false;
        Self { text, outer }
    }

    /// A new owner within the owner with this text. Two such owners within one do not enter each other's locks.
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

    /// The text that the store keeps and with which a child process may join.
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

/// The owners around one, the nearest first.
pub(crate) fn around(text: &str) -> impl Iterator<Item = &str> {
    fn next(text: &str) -> Option<&str> {
        let (around, within) = text.rsplit_once(WITHIN)?;
        (within.len() == WITHIN_DIGITS && around.contains(MARK)).then_some(around)
    }
    std::iter::successors(next(text), |text| next(text))
}

/// Refuses an owner text or label that an engine need not accept.
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
