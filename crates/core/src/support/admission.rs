//! The one rule of admission: whether a claim may hold beside those that already hold
//!
//! Engines whose rule runs elsewhere (a Lua script, an SQL statement) repeat it there, and test that copy against
//! [`admits`] on every small input ([`small_inputs`]).

use std::num::NonZeroU32;

use crate::types::Mode;

/// Whether a claim of this mode may hold beside `holders`.
///
/// An exclusive claim holds alone. A shared claim holds beside shared ones. A permit holds beside permits of the same
/// semaphore, up to their number. Permits with different numbers exclude each other, since neither limit would be kept.
///
/// ```
/// # use fencelock_core::*;
/// # use fencelock_core::support::admission::admits;
/// assert!(admits(Mode::Shared, [Mode::Shared]));
/// assert!(!admits(Mode::Exclusive, [Mode::Shared]));
/// ```
#[must_use]
pub fn admits(mode: Mode, holders: impl IntoIterator<Item = Mode>) -> bool {
    let mut holders = holders.into_iter();
    match mode {
        Mode::Exclusive => holders.next().is_none(),
        Mode::Shared => holders.all(|held| held == Mode::Shared),
        Mode::Permit { of } => {
            let mut held = 0;
            holders.all(|other| {
                held += 1;
                other == mode && held < of.get()
            })
        }
    }
}

/// Every mode with permits of up to three, beside every list of up to three holders: the inputs on which an engine's own copy
/// of the rule is tested.
///
/// ```
/// # use fencelock_core::*;
/// # use fencelock_core::support::admission::{admits, small_inputs};
/// # let own_rule = |mode, holders: &[Mode]| admits(mode, holders.iter().copied());
/// for (mode, holders) in small_inputs() {
///     assert_eq!(own_rule(mode, &holders), admits(mode, holders));
/// }
/// ```
pub fn small_inputs() -> impl Iterator<Item = (Mode, Vec<Mode>)> {
    let modes: Vec<Mode> = [Mode::Exclusive, Mode::Shared]
        .into_iter()
        .chain(
            (1..=3)
                .filter_map(NonZeroU32::new)
                .map(|of| Mode::Permit { of }),
        )
        .collect();
    let mut lists = vec![Vec::new()];
    let mut longest = lists.clone();
    for _ in 0..3 {
        longest = longest
            .iter()
            .flat_map(|list| modes.iter().map(|mode| [&list[..], &[*mode]].concat()))
            .collect();
        lists.extend(longest.iter().cloned());
    }
    modes
        .clone()
        .into_iter()
        .flat_map(move |mode| lists.clone().into_iter().map(move |list| (mode, list)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(of: u32) -> Mode {
        Mode::Permit {
            of: NonZeroU32::new(of).unwrap(),
        }
    }

    #[test]
    fn the_rule() {
        let (x, s) = (Mode::Exclusive, Mode::Shared);
        for (mode, holders, admitted) in [
            (x, vec![], true),
            (x, vec![s], false),
            (x, vec![permit(2)], false),
            (s, vec![s, s], true),
            (s, vec![x], false),
            (s, vec![permit(2)], false),
            (permit(2), vec![], true),
            (permit(2), vec![permit(2)], true),
            (permit(2), vec![permit(2), permit(2)], false),
            (permit(1), vec![permit(1)], false),
            (permit(3), vec![permit(1)], false),
            (permit(1), vec![permit(3)], false),
            (permit(3), vec![permit(3), permit(2)], false),
            (permit(2), vec![s], false),
        ] {
            assert_eq!(
                admits(mode, holders.clone()),
                admitted,
                "{mode:?} beside {holders:?}"
            );
        }
    }

    #[test]
    fn admission_does_not_depend_on_the_order() {
        // Whether two claims fit together does not depend on their order.
        for (mode, holders) in small_inputs() {
            if let [held] = holders[..] {
                assert_eq!(
                    admits(mode, [held]),
                    admits(held, [mode]),
                    "{mode:?} {held:?}"
                );
            }
        }
    }
}
