//! The environment variables that the command reads and sets.

use std::ffi::OsString;

use crate::exit::{Failure, code};

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

/// What the command line gave, else the value of a variable. An empty one counts as unset. One that is not UTF-8 is an error:
/// a command that took it for unset would use another store than the user means.
pub(crate) fn or_variable(given: Option<String>, name: &str) -> Result<Option<String>, Failure> {
    if given.is_some() {
        return Ok(given);
    }
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    let text = value.map(OsString::into_string).transpose();
    text.map_err(|_| Failure::new(code::CONFIG, format!("${name} is not UTF-8")))
}

/// The owner of the surrounding `run`, if there is one. An empty value counts as unset.
pub(crate) fn outer_owner() -> Option<OsString> {
    std::env::var_os(OWNER).filter(|text| !text.is_empty())
}
