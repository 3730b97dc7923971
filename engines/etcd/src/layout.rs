//! Which keys there are.

use std::borrow::Cow;

use fencelock_core::engine::Claim;
use fencelock_core::{ClaimId, LockName};

use crate::claims::Number;

/// What everything but the locks of `layout=concurrency` stands under.
const ROOT: &str = "fencelock/";

/// What keys begin with that tell of a release.
const RELEASED: &str = "fencelock/released/";

/// From where tokens are counted.
pub(crate) const BASE: &str = "fencelock/base";

/// The longest that follows the name in a key, and what it takes to send a key.
const LAST: usize = 64;

/// How the keys of locks are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Our own.
    Fencelock,
    /// That of Go's package `concurrency` and of `etcdctl lock`.
    Concurrency,
}

impl Layout {
    /// What the keys of all claims for a name begin with.
    pub(crate) fn line(self, name: &LockName) -> String {
        match self {
            Self::Fencelock => format!("{}{}/", self.all(), escaped(name.as_str())),
            Self::Concurrency => format!("{name}/"),
        }
    }

    /// What the keys of all claims begin with.
    fn all(self) -> &'static str {
        match self {
            Self::Fencelock => "fencelock/lock/",
            Self::Concurrency => "",
        }
    }

    /// What the keys of all claims begin with whose name begins with `prefix`.
    pub(crate) fn beginning(self, prefix: &str) -> String {
        match self {
            Self::Fencelock => format!("{}{}", self.all(), escaped(prefix)),
            Self::Concurrency => prefix.to_owned(),
        }
    }

    /// The key of a claim of this client. In Go's layout it is named after a lease.
    pub(crate) fn key(self, claim: &Claim, client: &str, number: Number, lease: i64) -> String {
        let line = self.line(&claim.name);
        let Number { series, at } = number;
        match self {
            Self::Fencelock => {
                format!("{line}{}{client}-{series:x}-{at:x}", claim.mode.letter())
            }
            Self::Concurrency => format!("{line}{lease:x}"),
        }
    }

    /// How long a key for this name may get.
    pub(crate) fn longest(self, name: &LockName) -> usize {
        self.all().len() + escaped(name.as_str()).len() + LAST
    }

    /// The name of the lock that a key is a claim for; `None` if it is something else.
    pub(crate) fn name_of(self, key: &[u8]) -> Option<LockName> {
        let key = std::str::from_utf8(key).ok()?;
        let (name, last) = key.strip_prefix(self.all())?.rsplit_once('/')?;
        match self {
            Self::Fencelock => LockName::new(&unescaped(name)?).ok(),
            Self::Concurrency if key.starts_with(ROOT) => None,
            Self::Concurrency => {
                let is_lease = !last.is_empty() && i64::from_str_radix(last, 16).is_ok();
                is_lease.then(|| LockName::new(name).ok())?
            }
        }
    }
}

/// The key that tells of the release by a claim that held, of which this is the key.
pub(crate) fn released(key: &[u8]) -> Option<String> {
    let key = std::str::from_utf8(key).ok()?;
    let rest = key.strip_prefix(Layout::Fencelock.all())?;
    Some(format!("{RELEASED}{rest}"))
}

/// Whether a key tells of a release.
pub(crate) fn is_released(key: &[u8]) -> bool {
    key.starts_with(RELEASED.as_bytes())
}

/// What the mail of a client begins with.
pub(crate) fn mailbox(client: &str) -> String {
    format!("{ROOT}mail/{client}/")
}

/// The key of a letter about a claim.
pub(crate) fn letter(client: &str, claim: ClaimId) -> String {
    format!("{}{claim}", mailbox(client))
}

/// The end of the range of all keys that begin with `prefix`, which is not empty and ends with a byte below 0xff.
pub(crate) fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// Without slashes, so that no name stands within another.
fn escaped(name: &str) -> Cow<'_, str> {
    if !name.contains(['%', '/']) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(name.replace('%', "%25").replace('/', "%2F"))
}

fn unescaped(name: &str) -> Option<String> {
    let decoded = name.replace("%2F", "/").replace("%25", "%");
    // Whatever else there may be was not written by us.
    (escaped(&decoded) == name).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_from_keys() {
        for text in [
            "a", "/", "/a", "/a/b", "a%", "%2F", "a%252F/", "ä/ö", "%25%2F/",
        ] {
            let name = LockName::new(text).unwrap();
            let line = Layout::Fencelock.line(&name);
            assert_eq!(line.matches('/').count(), 3, "{line}");
            let key = format!("{line}x0123");
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
