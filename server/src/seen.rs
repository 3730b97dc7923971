//! Which names a principal may look at, as a listing needs it.

use crate::principal::{Principal, Right};

/// The names that begin with a prefix and at which a principal may look.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    principal: &'a Principal,
    /// Each name begins with one of these, and none of these with another. Below them some names may be hidden.
    pub(crate) prefixes: Vec<&'a str>,
    /// The prefixes of the names that are hidden below.
    hidden: Vec<&'a str>,
    asked: &'a str,
}

impl<'a> Seen<'a> {
    pub(crate) fn new(principal: &'a Principal, asked: &'a str) -> Self {
        let below = principal.rights.iter().map(|grant| grant.prefix.as_str());
        let below = below.filter(|prefix| prefix.starts_with(asked));
        let mut all: Vec<&str> = below.chain([asked]).collect();
        all.sort_unstable();
        all.dedup();
        // A prefix comes before all names and prefixes that begin with it.
        let (looks, mut hidden): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|prefix| principal.may(Right::Look, prefix));
        let mut prefixes: Vec<&str> = Vec::new();
        for prefix in looks {
            if prefixes.last().is_none_or(|last| !prefix.starts_with(last)) {
                prefixes.push(prefix);
            }
        }
        hidden.retain(|hidden| prefixes.iter().any(|prefix| hidden.starts_with(prefix)));
        Self {
            principal,
            prefixes,
            hidden,
            asked,
        }
    }

    /// Whether it is every name that begins with the prefix.
    pub(crate) fn is_all(&self) -> bool {
        self.hidden.is_empty() && self.prefixes == [self.asked]
    }

    pub(crate) fn shows(&self, name: &str) -> bool {
        self.principal.may(Right::Look, name)
    }

    /// Whether this cursor of the store has no hidden name in it. The store may have written a slash as `%2F`.
    pub(crate) fn may_tell(&self, cursor: &str) -> bool {
        let plain = cursor.replace("%2F", "/").replace("%25", "%");
        [cursor, &plain].iter().all(|text| {
            self.hidden.iter().all(|hidden| {
                let mut found = text.match_indices(hidden);
                found.all(|(at, _)| self.shows(&text[at..]))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::Grant;

    fn principal(rights: &[(&str, &[Right])]) -> Principal {
        let grant = |(prefix, rights): &(&str, &[Right])| Grant {
            prefix: (*prefix).to_owned(),
            rights: rights.to_vec(),
        };
        let mut principal = Principal::new("p");
        principal.rights = rights.iter().map(grant).collect();
        principal
    }

    #[test]
    fn a_listing_is_of_the_prefixes_that_may_be_seen() {
        const LOOK: &[Right] = &[Right::Look];
        let some = principal(&[
            ("b/", LOOK),
            ("a/", LOOK),
            ("a/x/", LOOK),
            ("a/no/", &[]),
            ("a/no/but/", LOOK),
            ("take/", &[Right::Take]),
        ]);
        for (asked, prefixes) in [
            ("", &["a/", "b/"][..]),
            ("a", &["a/"]),
            ("a/", &["a/"]),
            ("a/y", &["a/y"]),
            ("a/no/", &["a/no/but/"]),
            ("a/no/1", &[]),
            ("c", &[]),
            ("take/", &[]),
        ] {
            let seen = Seen::new(&some, asked);
            assert_eq!(seen.prefixes, prefixes, "{asked}");
            assert_eq!(seen.is_all(), asked == "a/y", "{asked}");
        }
        let all = principal(&[("", LOOK), ("a/", Right::ALL)]);
        assert!(Seen::new(&all, "").is_all() && Seen::new(&all, "x").is_all());
        let most = principal(&[("", LOOK), ("a/", &[])]);
        assert!(!Seen::new(&most, "").is_all() && Seen::new(&most, "b").is_all());
    }

    #[test]
    fn a_cursor_with_a_hidden_name_is_not_told() {
        const LOOK: &[Right] = &[Right::Look];
        let most = principal(&[("a/", LOOK), ("a/no/", &[]), ("a/no/but/", LOOK)]);
        let seen = Seen::new(&most, "");
        for told in [
            "a/x",
            "s:a/x",
            "0:17",
            "a/no/but/1",
            "fencelock/lock/a%2Fno%2Fbut%2F1/e0",
        ] {
            assert!(seen.may_tell(told), "{told}");
        }
        for hidden in ["a/no/1", "s:a/no/1", "fencelock/lock/a%2Fno%2F1/e0"] {
            assert!(!seen.may_tell(hidden), "{hidden}");
        }
    }
}
