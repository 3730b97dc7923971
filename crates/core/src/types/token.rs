//! Fencing tokens, claim ids and sequencers: what a holder can show to the protected resource.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::error::Error;
use super::mode::Mode;
use super::name::LockName;

/// A fencing token: strictly increasing over all grants of one name, even if holders and servers fail.
///
/// Below [`Token::END`], so that it survives JSON and Lua.
///
/// ```
/// # use fencelock_core::*;
/// let (early, late) = (Token(33), Token(34));
/// assert!(late > early);
/// assert_eq!(late.get(), 34);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl Token {
    /// 2^53: all tokens are below it, since JSON and Lua cannot represent larger whole numbers exactly.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert_eq!(Token::END, Token(9_007_199_254_740_992));
    /// ```
    pub const END: Self = Self(1 << 53);

    /// The token as a number.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert_eq!(Token(34).get(), 34);
    /// ```
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The tokens of one grant: `first`, `first + 1`, ... More than one only if the claim asked for a reserve.
///
/// ```
/// # use fencelock_core::*;
/// let tokens = Tokens::new(Token(34), 3);
/// assert!(tokens.contains(Token(36)) && !tokens.contains(Token(37)));
/// assert_eq!(Tokens::one(Token(34)).count, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tokens {
    /// The token of the claim that was granted.
    pub first: Token,
    /// How many, at least 1. The further tokens are for the tasks to which this process hands the lock on.
    pub count: u32,
}

impl Tokens {
    /// The tokens of a grant of `count` tokens.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let tokens = Tokens::new(Token(34), 3);
    /// assert_eq!((tokens.first, tokens.count), (Token(34), 3));
    /// ```
    #[must_use]
    pub const fn new(first: Token, count: u32) -> Self {
        Self { first, count }
    }

    /// The single token of a grant.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert_eq!(Tokens::one(Token(34)), Tokens::new(Token(34), 1));
    /// ```
    #[must_use]
    pub const fn one(first: Token) -> Self {
        Self::new(first, 1)
    }

    /// Whether `token` is one of these.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert!(Tokens::new(Token(34), 2).contains(Token(35)));
    /// ```
    #[must_use]
    pub const fn contains(self, token: Token) -> bool {
        token.0 >= self.first.0 && token.0 - self.first.0 < self.count as u64
    }
}

/// The identity of one claim, chosen by the client before the first byte is sent.
///
/// ```
/// # use fencelock_core::*;
/// # fn main() -> Result<()> {
/// let id = ClaimIds::new()?.next();
/// let text = id.to_string();
/// assert_eq!(text.parse::<ClaimId>()?, id);
/// assert_eq!(ClaimId::from_bytes(*id.as_bytes()), id);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId([u8; 16]);

/// Makes claim ids: ten random bytes drawn once, and a count of six, so that an id costs no system call.
///
/// ```
/// # use fencelock_core::*;
/// # fn main() -> Result<()> {
/// let ids = ClaimIds::new()?;
/// assert_ne!(ids.next(), ids.next());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ClaimIds {
    drawn: [u8; 10],
    count: AtomicU64,
}

impl ClaimIds {
    /// A new source, different from all others.
    ///
    /// # Errors
    /// [`Error::Internal`] if the operating system has no random numbers.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # fn main() -> Result<()> {
    /// let (one, other) = (ClaimIds::new()?, ClaimIds::new()?);
    /// assert_ne!(one.next(), other.next());
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Result<Self, Error> {
        let mut drawn = [0; 10];
        getrandom::fill(&mut drawn).map_err(|e| {
            Error::internal(
                "(none)",
                format!("the operating system gives no random numbers: {e}"),
            )
        })?;
        Ok(Self::with(drawn))
    }

    /// A source whose ids begin with these bytes, which no other source may use.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let id = ClaimIds::with([7; 10]).next();
    /// assert_eq!(id.as_bytes()[..10], [7; 10]);
    /// ```
    #[must_use]
    pub const fn with(drawn: [u8; 10]) -> Self {
        let count = AtomicU64::new(0);
        Self { drawn, count }
    }

    /// A new id.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let ids = ClaimIds::with([7; 10]);
    /// assert_ne!(ids.next(), ids.next());
    /// ```
    pub fn next(&self) -> ClaimId {
        let count = self.count.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let mut id = [0; 16];
        id[..10].copy_from_slice(&self.drawn);
        id[10..].copy_from_slice(&count[2..]);
        ClaimId(id)
    }
}

impl ClaimId {
    /// An id from its bytes.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let id = ClaimId::from_bytes([1; 16]);
    /// assert_eq!(id.to_string(), "01".repeat(16));
    /// ```
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The id's bytes.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert_eq!(ClaimId::from_bytes([1; 16]).as_bytes(), &[1; 16]);
    /// ```
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// 32 lower-case hex digits.
impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0u8; 32];
        for (i, byte) in self.0.iter().enumerate() {
            text[2 * i] = DIGITS[usize::from(byte >> 4)];
            text[2 * i + 1] = DIGITS[usize::from(byte & 15)];
        }
        // This cannot fail: hex digits are UTF-8.
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ClaimId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digit = |c: u8| match c {
            b'0'..=b'9' => Some(c - b'0'),
            b'a'..=b'f' => Some(c - b'a' + 10),
            _ => None,
        };
        let parse = || {
            let digits: &[u8; 32] = text.as_bytes().try_into().ok()?;
            let mut id = [0; 16];
            for (i, pair) in digits.chunks_exact(2).enumerate() {
                id[i] = digit(pair[0])? << 4 | digit(pair[1])?;
            }
            Some(Self(id))
        };
        parse()
            .ok_or_else(|| Error::invalid("claim id", text, "it must be 32 lower-case hex digits"))
    }
}

/// A grant in printable form, to be given to the protected resource (the word and the idea are Chubby's: Burrows, "The Chubby
/// lock service for loosely-coupled distributed systems", OSDI 2006, section 2.4).
///
/// As text: `fl1:x:<token>:<claim id, 32 hex digits>:<percent-encoded name>`, with `s` for shared and `p` for a permit.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let guard = client.lock("report").await?;
/// let text = guard.sequencer().await?.to_string(); // goes with the write
/// let sequencer: Sequencer = text.parse()?; // at the resource
/// assert_eq!((sequencer.token, sequencer.claim), (guard.token(), guard.claim_id()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Sequencer {
    /// The lock.
    pub name: LockName,
    /// How it is held. A permit's total is not part of a sequencer and reads back as 1.
    pub mode: Mode,
    /// The fencing token.
    pub token: Token,
    /// The claim that holds.
    pub claim: ClaimId,
}

impl Sequencer {
    /// The sequencer of a grant.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # fn main() -> Result<()> {
    /// let name = LockName::new("report")?;
    /// let claim = ClaimId::from_bytes([0; 16]);
    /// let sequencer = Sequencer::new(name, Mode::Exclusive, Token(34), claim);
    /// assert!(sequencer.to_string().starts_with("fl1:x:34:"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn new(name: LockName, mode: Mode, token: Token, claim: ClaimId) -> Self {
        Self {
            name,
            mode,
            token,
            claim,
        }
    }
}

impl fmt::Display for Sequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.mode.letter();
        let name = utf8_percent_encode(self.name.as_str(), NON_ALPHANUMERIC);
        write!(f, "fl1:{mode}:{}:{}:{name}", self.token, self.claim)
    }
}

impl FromStr for Sequencer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |why: &str| Error::invalid("sequencer", text, why);
        let form = "it must read fl1:MODE:TOKEN:CLAIM:NAME, as printed by `fencelock hold`";
        let mut parts = text.splitn(5, ':');
        let mut next = || parts.next().ok_or_else(|| bad(form));
        let (version, mode, token, claim, name) = (next()?, next()?, next()?, next()?, next()?);
        if version != "fl1" {
            let newer = version.starts_with("fl");
            return Err(bad(if newer {
                "it is of another version than fl1; use the fencelock that made it"
            } else {
                form
            }));
        }
        let mode = match mode {
            "x" => Mode::Exclusive,
            "s" => Mode::Shared,
            "p" => Mode::Permit {
                of: NonZeroU32::MIN,
            },
            _ => return Err(bad("its mode must be x, s or p")),
        };
        let digits = !token.is_empty() && token.bytes().all(|b| b.is_ascii_digit());
        let token = token.parse().ok().filter(|_| digits);
        let token = token.filter(|token| *token < Token::END.0);
        let token = token.ok_or_else(|| bad("its token must be a number below 2^53"))?;
        let hex = |digits: &str| digits.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
        if !name.split('%').skip(1).all(hex) {
            return Err(bad("its name has a % without two hex digits"));
        }
        let name = percent_decode_str(name)
            .decode_utf8()
            .map_err(|_| bad("its name is not UTF-8"))?;
        Ok(Self {
            name: LockName::new(&name)?,
            mode,
            token: Token(token),
            claim: claim.parse()?,
        })
    }
}
