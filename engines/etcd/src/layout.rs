//! The names of keys on the server.

use std::borrow::Cow;

use fencelock_core::engine::Claim;
use fencelock_core::{ClaimId, Error, LockName, Result};

/// The prefix of all keys but the locks of `layout=concurrency`.
const ROOT: &str = "fencelock/";

const RELEASE_NOTICES: &str = "fencelock/released/";

pub(crate) const BASE: &str = "fencelock/base";

/// The beginning of the keys of the store's records. Their scopes follow.
pub(crate) const RECORD: &str = "fencelock/record/";

/// The most bytes that follow the lock's name in a key, including the overhead of sending a key.
const MAX_SUFFIX: usize = 64;

/// How the keys of locks are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// fencelock's own.
    Fencelock,
    /// The layout of Go's package `concurrency` and of `etcdctl lock`.
    Concurrency,
}

pub(crate) const LAYOUTS: [(&str, Layout); 2] = [
    ("fencelock", Layout::Fencelock),
    ("concurrency", Layout::Concurrency),
];

/// What distinguishes a claim's key from others of the same client for the same lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyNumber {
    pub(crate) series: u64,
    pub(crate) index: u32,
}

impl Layout {
    /// Refuses a lock whose queue would contain fencelock's own keys.
    pub(crate) fn check_name(self, name: &LockName) -> Result<()> {
        if self == Self::Fencelock || !self.queue(name).starts_with(ROOT) {
            return Ok(());
        }
        let why = "with layout=concurrency the keys below fencelock/ are fencelock's own; use another name";
        Err(Error::invalid("lock name", name.as_str(), why))
    }

    /// The prefix of the keys of all claims for a lock.
    pub(crate) fn queue(self, name: &LockName) -> String {
        match self {
            Self::Fencelock => format!("{}{}/", self.root(), escape(name.as_str())),
            Self::Concurrency => format!("{name}/"),
        }
    }

    /// The prefix of the keys of all claims.
    fn root(self) -> &'static str {
        match self {
            Self::Fencelock => "fencelock/lock/",
            Self::Concurrency => "",
        }
    }

    /// The prefix of the keys of all claims for locks whose name begins with `prefix`.
    pub(crate) fn listing(self, prefix: &str) -> String {
        match self {
            Self::Fencelock => format!("{}{}", self.root(), escape(prefix)),
            Self::Concurrency => prefix.to_owned(),
        }
    }

    /// The key of a claim of this client. In Go's layout it is named after a lease.
    pub(crate) fn key(self, claim: &Claim, client: &str, number: KeyNumber, lease: i64) -> String {
        let queue = self.queue(&claim.name);
        let KeyNumber { series, index } = number;
        match self {
            Self::Fencelock => {
                format!(
                    "{queue}{}{client}-{series:x}-{index:x}",
                    claim.mode.letter()
                )
            }
            Self::Concurrency => format!("{queue}{lease:x}"),
        }
    }

    /// The most bytes that a key for this lock takes.
    pub(crate) fn max_key_len(self, name: &LockName) -> usize {
        self.root().len() + escape(name.as_str()).len() + MAX_SUFFIX
    }

    /// The lock that a key is a claim for. `None` if the key is something else.
    pub(crate) fn name_of(self, key: &[u8]) -> Option<LockName> {
        let key = std::str::from_utf8(key).ok()?;
        let (name, last) = key.strip_prefix(self.root())?.rsplit_once('/')?;
        match self {
            Self::Fencelock => LockName::new(&unescape(name)?).ok(),
            Self::Concurrency if key.starts_with(ROOT) => None,
            Self::Concurrency => {
                let is_lease = !last.is_empty() && i64::from_str_radix(last, 16).is_ok();
                is_lease.then(|| LockName::new(name).ok())?
            }
        }
    }
}

/// The key of the release notice of the claim with this key. `None` in Go's layout.
pub(crate) fn release_notice(key: &[u8]) -> Option<String> {
    let key = std::str::from_utf8(key).ok()?;
    let rest = key.strip_prefix(Layout::Fencelock.root())?;
    Some(format!("{RELEASE_NOTICES}{rest}"))
}

pub(crate) fn is_release_notice(key: &[u8]) -> bool {
    key.starts_with(RELEASE_NOTICES.as_bytes())
}

/// The prefix of the messages to a client.
pub(crate) fn mailbox(client: &str) -> String {
    format!("{ROOT}mail/{client}/")
}

pub(crate) fn message_key(client: &str, claim: ClaimId) -> String {
    format!("{}{claim}", mailbox(client))
}

/// The end of the range of keys with this prefix. The prefix is not empty and ends with a byte below 0xff.
pub(crate) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// The name without slashes, so that no lock lies within another.
fn escape(name: &str) -> Cow<'_, str> {
    if !name.contains(['%', '/']) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(name.replace('%', "%25").replace('/', "%2F"))
}

/// `None` for a name that [`escape`] does not write.
fn unescape(name: &str) -> Option<String> {
    let decoded = name.replace("%2F", "/").replace("%25", "%");
    (escape(&decoded) == name).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_the_names_of_locks() {
        for text in [
            "a", "/", "/a", "/a/b", "a%", "%2F", "a%252F/", "ä/ö", "%25%2F/",
        ] {
            let name = LockName::new(text).unwrap();
            let queue = Layout::Fencelock.queue(&name);
            assert_eq!(queue.matches('/').count(), 3, "{queue}");
            let key = format!("{queue}x0123");
            assert_eq!(
                Layout::Fencelock.name_of(key.as_bytes()),
                Some(name.clone())
            );
            let key = format!("{name}/694d7f");
            assert_eq!(Layout::Concurrency.name_of(key.as_bytes()), Some(name));
        }
        for other in ["fencelock/base", "fencelock/mail/12/ab", "x/nothex", "x/"] {
            assert_eq!(
                Layout::Concurrency.name_of(other.as_bytes()),
                None,
                "{other}"
            );
            assert_eq!(Layout::Fencelock.name_of(other.as_bytes()), None, "{other}");
        }
    }
}
