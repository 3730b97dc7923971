//! The environment variables that the command reads and sets.

use std::ffi::OsString;

/// The store, when `--store` does not name one.
pub(crate) const STORE: &str = "FENCELOCK_STORE";

/// The owner of the hold. A nested `run` joins the hold with it.
pub(crate) const OWNER: &str = "FENCELOCK_OWNER";

/// The name of the lock.
pub(crate) const NAME: &str = "FENCELOCK_NAME";

/// The fencing token.
pub(crate) const TOKEN: &str = "FENCELOCK_TOKEN";

/// The sequencer of the grant.
pub(crate) const SEQUENCER: &str = "FENCELOCK_SEQUENCER";

/// The owner of the surrounding `run`, if there is one. An empty value counts as unset.
pub(crate) fn outer_owner() -> Option<OsString> {
    std::env::var_os(OWNER).filter(|text| !text.is_empty())
}
