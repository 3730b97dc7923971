//! The names of locks.

use std::fmt;
use std::sync::Arc;

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 512;

/// The name of a lock: UTF-8 of 1 to 512 bytes without control characters. Cheap to clone.
///
/// ```
/// # use fencelock_core::*;
/// # fn main() -> Result<()> {
/// let name = LockName::new("order/4711")?;
/// assert_eq!(name.as_str(), "order/4711");
/// assert!(LockName::new("").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

/// The reason why a text is no name: the text as it may be shown, and what is wrong with it.
pub(super) struct BadName {
    pub(super) shown: String,
    pub(super) why: String,
}

impl LockName {
    pub(super) fn checked(name: &str) -> Result<Self, BadName> {
        let refuse = |shown: &str, why: String| {
            let shown = shown.to_owned();
            Err(BadName { shown, why })
        };
        if name.is_empty() {
            return refuse(name, "it is empty; give a name of 1 to 512 bytes".into());
        }
        if name.len() > MAX_NAME_BYTES {
            let shown: String = name.chars().take(40).chain("...".chars()).collect();
            let why = format!("it has {} bytes; {MAX_NAME_BYTES} are allowed", name.len());
            return refuse(&shown, why);
        }
        // Most names are plain, and bytes are read faster than characters.
        let plain = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if !name.bytes().all(plain)
            && let Some(bad) = name.chars().find(|c| c.is_control())
        {
            let why = format!(
                "it has the control character U+{:04X}; leave it out",
                bad as u32
            );
            return refuse(name, why);
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # fn main() -> Result<()> {
    /// assert_eq!(LockName::new("report")?.as_str(), "report");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}
