//! A text that a store keeps besides its locks: the description of a set of stores.

use crate::types::{Error, Result};

/// The longest text of a [`Record`], in bytes.
pub const MAX_RECORD_BYTES: usize = 4096;

/// A store's record; see [`Engine::record`](super::Engine::record).
///
/// ```
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let engine = Memory::new();
/// let none = engine.record("", None).await?;
/// assert_eq!(none, Record::default());
/// let first = engine.record("", Some(&RecordChange::new(none.version, "first")?)).await?;
/// assert_eq!(first.text, "first");
/// // It is too late for another first change: the answer is the stored record.
/// let late = engine.record("", Some(&RecordChange::new(none.version, "late")?)).await?;
/// assert_eq!(late, first);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// A different number after each change, never used before; 0 if there is no record.
    pub version: u64,
    /// The text; empty if there is no record.
    pub text: String,
}

impl Record {
    /// A record that exists.
    #[must_use]
    pub fn new(version: u64, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { version, text }
    }
}

/// A change of a [`Record`], which takes effect if the record was not changed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordChange {
    /// The version that the record must still have; 0 if there must be no record.
    pub from: u64,
    /// The new text.
    pub text: String,
}

impl RecordChange {
    /// A change from this version.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the text is empty or longer than [`MAX_RECORD_BYTES`].
    pub fn new(from: u64, text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        if text.is_empty() || text.len() > MAX_RECORD_BYTES {
            let why = format!("it must have 1 to {MAX_RECORD_BYTES} bytes");
            return Err(Error::invalid("record", text, why));
        }
        Ok(Self { from, text })
    }
}
