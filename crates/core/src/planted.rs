//! Bugs on purpose, for the test that shows that each is caught. They exist under `--cfg fencelock_planted` alone, which no
//! feature sets, and there the environment names the one that is on.

/// Whether this bug is on.
#[must_use]
pub fn is(bug: &str) -> bool {
    std::env::var_os("FENCELOCK_PLANTED").is_some_and(|planted| planted == bug)
}
