//! Who may make requests about a claim. A client makes a key, and the ids of its claims begin with a digest of that
//! key. So the service can check each request without stored data.

use std::fmt;
use std::str::FromStr;

use fencelock_core::ClaimId;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The secret of a client: 43 to 86 characters of `A-Z a-z 0-9 _ -` with at least 256 random bits. Not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct ClaimKey {
    text: String,
    /// Computed once, since every request compares it.
    claim_ids: [u8; 10],
}

/// The text is no claim key. The error does not repeat the text, which may be a key with a typing error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadKey;

impl fmt::Display for BadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a claim key must have 43 to 86 characters of A-Z, a-z, 0-9, _ and -")
    }
}

impl std::error::Error for BadKey {}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl ClaimKey {
    /// A new key.
    ///
    /// # Errors
    /// The operating system has no random numbers.
    pub fn draw() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 43];
        getrandom::fill(&mut bytes)?;
        let text = bytes
            .iter()
            .map(|byte| char::from(ALPHABET[usize::from(byte % 64)]));
        Ok(Self::of(text.collect()))
    }

    fn of(text: String) -> Self {
        let digest = Sha256::digest(text.as_bytes());
        let mut claim_ids = [0; 10];
        claim_ids.copy_from_slice(&digest[..10]);
        Self { text, claim_ids }
    }

    /// The text, which a request sends in the header [`KEY`](crate::KEY).
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.text
    }

    /// The first ten bytes of the ids of this key's claims: the first bytes of the SHA-256 of its text.
    #[must_use]
    pub const fn claim_ids(&self) -> [u8; 10] {
        self.claim_ids
    }

    /// Whether the claim belongs to this key. The comparison takes the same time for each wrong claim.
    #[must_use]
    pub fn speaks_for(&self, claim: &ClaimId) -> bool {
        self.claim_ids.ct_eq(&claim.as_bytes()[..10]).into()
    }
}

impl FromStr for ClaimKey {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        let fits = (43..=86).contains(&text.len());
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        match fits && text.bytes().all(is_known) {
            true => Ok(Self::of(text.to_owned())),
            false => Err(BadKey),
        }
    }
}

impl fmt::Debug for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClaimKey(***)")
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::ClaimIds;

    use super::*;

    #[test]
    fn a_key_speaks_for_its_own_claims_only() {
        let (mine, other) = (ClaimKey::draw().unwrap(), ClaimKey::draw().unwrap());
        let claim = ClaimIds::with(mine.claim_ids()).next();
        assert!(mine.speaks_for(&claim));
        assert!(!other.speaks_for(&claim));
        assert_eq!(mine.secret().parse(), Ok(mine.clone()));
        assert!(!format!("{mine:?}").contains(mine.secret()));
    }

    #[test]
    fn the_digest_is_over_the_text() {
        let key: ClaimKey = "a".repeat(43).parse().unwrap();
        let claim = ClaimIds::with(key.claim_ids()).next();
        // printf %s aaa… | sha256sum | cut -c1-20
        assert_eq!(&claim.to_string()[..20], "66d34fba71f8f450f7e4");
    }

    #[test]
    fn what_is_no_key() {
        for text in [
            "",
            &"a".repeat(42),
            &"a".repeat(87),
            &"ä".repeat(43),
            &format!("{} ", "a".repeat(43)),
        ] {
            assert_eq!(text.parse::<ClaimKey>(), Err(BadKey), "{text}");
        }
    }
}
