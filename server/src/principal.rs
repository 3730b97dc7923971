//! Who may do what: principals, their tokens, and their rights on prefixes of names.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// What every bearer token begins with.
const TOKEN: &str = "flk_";

/// How many characters the id and the secret of a token have.
const ID: usize = 8;
const SECRET: usize = 43;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A user of the service: a person or a program.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Principal {
    /// Its name, which stands before the owners of its claims.
    pub name: String,
    /// Its bearer tokens; two while the old one is being replaced.
    #[serde(default)]
    pub tokens: Vec<TokenHash>,
    /// The names in its certificates: the first DNS name, in any case, or URI of each.
    #[serde(default)]
    pub certificates: Vec<String>,
    /// What it may do. For each name, the longest prefix that fits applies.
    #[serde(default)]
    pub rights: Vec<Grant>,
    /// How many locks it may take a second at one replica; no limit by default.
    pub takes_per_s: Option<u32>,
    /// How many of its claims may wait at one replica; no limit by default.
    pub waiting: Option<usize>,
    /// How many streams of events it may have open at one replica; 1000 by default.
    pub streams: Option<usize>,
}

impl Principal {
    /// A principal without credentials and rights.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            tokens: Vec::new(),
            certificates: Vec::new(),
            rights: Vec::new(),
            takes_per_s: None,
            waiting: None,
            streams: None,
        }
    }

    /// Whether the principal has a right on a name.
    pub(crate) fn may(&self, right: Right, name: &str) -> bool {
        let fits = self
            .rights
            .iter()
            .filter(|grant| name.starts_with(&grant.prefix));
        let longest = fits.max_by_key(|grant| grant.prefix.len());
        longest.is_some_and(|grant| grant.rights.contains(&right))
    }
}

/// A bearer token as the service knows it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenHash {
    /// The first 8 characters, which are no secret.
    pub id: String,
    /// The SHA-256 of the secret.
    pub sha256: Sha256Text,
    /// The token is refused from this time on, in seconds since 1970.
    pub not_after: Option<u64>,
}

impl TokenHash {
    pub(crate) fn is_over(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or(Duration::ZERO).as_secs();
        self.not_after.is_some_and(|end| now >= end)
    }
}

/// A SHA-256, written as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Sha256Text(pub(crate) [u8; 32]);

impl TryFrom<String> for Sha256Text {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = || "a SHA-256 has 64 hex digits".to_owned();
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut hash = [0; 32];
        for (at, byte) in hash.iter_mut().enumerate() {
            let digits = text.get(2 * at..2 * at + 2).ok_or_else(bad)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
        }
        Ok(Self(hash))
    }
}

impl fmt::Display for Sha256Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Rights on the names that begin with a prefix.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Empty for all names, else it ends in `/`.
    pub prefix: String,
    /// What may be done.
    pub rights: Vec<Right>,
}

impl Grant {
    /// These rights on all names.
    #[must_use]
    pub fn on_all(rights: &[Right]) -> Self {
        Self {
            prefix: String::new(),
            rights: rights.to_vec(),
        }
    }
}

/// What may be done with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Take, renew and release locks.
    Take,
    /// See who holds and who waits.
    Look,
    /// Take a lock from its holder, or ask for it.
    Evict,
}

impl Right {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Take, Self::Look, Self::Evict];

    /// The word for it in a configuration file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Look => "look",
            Self::Evict => "evict",
        }
    }
}

/// A bearer token as its user has it: `flk_ID_SECRET`. `Debug` does not show the secret.
#[derive(Clone)]
pub struct BearerToken {
    id: String,
    secret: String,
}

impl BearerToken {
    /// Draws a new random token.
    ///
    /// # Errors
    /// The operating system has no random numbers.
    pub fn draw() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; ID + SECRET];
        getrandom::fill(&mut bytes)?;
        // The id has only letters and digits, since people type and quote it.
        let plain = |byte: &u8| char::from(ALPHABET[usize::from(byte % 62)]);
        let any = |byte: &u8| char::from(ALPHABET[usize::from(byte % 64)]);
        Ok(Self {
            id: bytes[..ID].iter().map(plain).collect(),
            secret: bytes[ID..].iter().map(any).collect(),
        })
    }

    /// The whole token, for its user.
    #[must_use]
    pub fn secret(&self) -> String {
        format!("{TOKEN}{}_{}", self.id, self.secret)
    }

    /// The id of the token.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The SHA-256 of the secret, for the configuration.
    #[must_use]
    pub fn sha256(&self) -> Sha256Text {
        Sha256Text(Sha256::digest(self.secret.as_bytes()).into())
    }
}

/// The error of a text that is no bearer token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadToken;

impl fmt::Display for BadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a bearer token reads flk_ID_SECRET, with an ID of 8 and a SECRET of 43 characters",
        )
    }
}

impl std::error::Error for BadToken {}

impl FromStr for BearerToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let rest = text.strip_prefix(TOKEN).ok_or(BadToken)?;
        let fits =
            rest.len() == ID + 1 + SECRET && rest.bytes().all(|byte| ALPHABET.contains(&byte));
        if !fits || rest.as_bytes()[ID] != b'_' {
            return Err(BadToken);
        }
        let (id, secret) = (rest[..ID].to_owned(), rest[ID + 1..].to_owned());
        Ok(Self { id, secret })
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BearerToken({}, ***)", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_hides_its_secret() {
        let token = BearerToken::draw().unwrap();
        let text = token.secret();
        let read: BearerToken = text.parse().unwrap();
        assert_eq!((read.id(), read.sha256()), (token.id(), token.sha256()));
        assert!(!format!("{token:?}").contains(&text[13..]));
        for bad in [
            "",
            "flk_",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text}a"),
            &text.replace("flk_", "flk-"),
        ] {
            assert!(bad.parse::<BearerToken>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_longest_prefix_counts() {
        let grant = |prefix: &str, rights: &[Right]| Grant {
            prefix: prefix.to_owned(),
            rights: rights.to_vec(),
        };
        let mut principal = Principal::new("p");
        principal.rights = vec![
            grant("", &[Right::Look]),
            grant("a/", &[Right::Take, Right::Look]),
            grant("a/secret/", &[]),
        ];
        assert!(principal.may(Right::Look, "b") && !principal.may(Right::Take, "b"));
        assert!(principal.may(Right::Take, "a/b") && !principal.may(Right::Evict, "a/b"));
        assert!(!principal.may(Right::Look, "a/secret/b"));
        assert!(!principal.may(Right::Take, "a"));
    }
}
