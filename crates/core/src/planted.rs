//! Planted bugs, for the test that shows that each of them is caught. They exist only under `--cfg fencelock_planted`, which no
//! feature sets. An environment variable names the active one.

/// Whether this bug is on.
#[must_use]
pub fn is(bug: &str) -> bool {
    std::env::var_os("FENCELOCK_PLANTED").is_some_and(|planted| planted == bug)
}
