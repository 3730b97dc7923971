//! The data of a claim's node: lines of text. The first line is the format's version.

use std::fmt::Write;
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{Token, Tokens};

/// The low bits of a token, which count the tokens of one grant. A process hands on 0 to 15; 16 is the token after a downgrade.
const TOKEN_BITS: u32 = 5;

/// The least distance between the first tokens of two transactions.
pub(crate) const TOKENS_PER_TRANSACTION: u64 = 1 << TOKEN_BITS;

/// The most tokens of one grant.
pub(crate) const MAX_TOKENS: u32 = 16;

/// The first token of a node that this transaction created, before the token base is added. The ids of transactions increase
/// over all servers and elections, and the claims of one queue hold in the order of these ids.
pub(crate) fn first_token(czxid: i64) -> Token {
    Token((czxid as u64) << TOKEN_BITS)
}

/// The token after a downgrade: above all earlier ones of the grant, and below those of the next node.
pub(crate) fn downgraded(first: Token) -> Token {
    Token(((first.0 >> TOKEN_BITS) << TOKEN_BITS) + u64::from(MAX_TOKENS))
}

/// The data of a claim's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimData {
    pub(crate) owner: String,
    pub(crate) label: Option<String>,
    pub(crate) ttl: Duration,
    pub(crate) lock_delay: Duration,
    pub(crate) count: u32,
    /// The first token and the present one, once they differ from those that follow from the node's creation.
    pub(crate) tokens: Option<(Token, Token)>,
    /// Another client asked for the lock.
    pub(crate) asked: bool,
    /// The number of the last ping that is not answered (see `attest.rs`).
    pub(crate) ping: Option<u64>,
    /// The number of the last ping that the holder answered, and how long its hold was valid then.
    pub(crate) pong: Option<(u64, Duration)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Another library has written the data.
    Foreign,
    /// The data have this newer version of the format.
    Newer(String),
}

impl ClaimData {
    pub(crate) fn of(claim: &Claim, count: u32) -> Self {
        Self {
            owner: claim.owner.to_string(),
            label: claim.label.as_deref().map(str::to_owned),
            ttl: claim.ttl,
            lock_delay: claim.lock_delay,
            count,
            tokens: None,
            asked: false,
            ping: None,
            pong: None,
        }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut text = String::with_capacity(192);
        // Writing to a String does not fail.
        let _ = writeln!(text, "fl1\nowner={}", self.owner);
        if let Some(label) = &self.label {
            let _ = writeln!(text, "label={label}");
        }
        // Both are far below 2^64 ms, and u64 is faster to format than u128.
        let (ttl, delay) = (
            self.ttl.as_millis() as u64,
            self.lock_delay.as_millis() as u64,
        );
        let count = self.count;
        let _ = writeln!(text, "ttl-ms={ttl}\nlock-delay-ms={delay}\ncount={count}");
        if let Some((first, token)) = self.tokens {
            let _ = writeln!(text, "first={first}\ntoken={token}");
        }
        if self.asked {
            text += "asked=1\n";
        }
        if let Some(number) = self.ping {
            let _ = writeln!(text, "ping={number}");
        }
        if let Some((number, left)) = self.pong {
            let _ = writeln!(text, "pong={number}/{}", left.as_millis());
        }
        text.into_bytes()
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let text = std::str::from_utf8(bytes).map_err(|_| Unreadable::Foreign)?;
        let mut lines = text.lines();
        let version = lines.next().and_then(|line| line.strip_prefix("fl"));
        match version {
            Some("1") => {}
            Some(newer) if !newer.is_empty() && newer.bytes().all(|b| b.is_ascii_digit()) => {
                return Err(Unreadable::Newer(newer.to_owned()));
            }
            _ => return Err(Unreadable::Foreign),
        }
        let mut data = Self {
            owner: String::new(),
            label: None,
            ttl: Duration::ZERO,
            lock_delay: Duration::ZERO,
            count: 1,
            tokens: None,
            asked: false,
            ping: None,
            pong: None,
        };
        let (mut first, mut token) = (None, None);
        for line in lines {
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let number = || value.parse::<u64>().ok();
            let millis = || Duration::from_millis(number().unwrap_or(0));
            match key {
                "owner" => data.owner = value.to_owned(),
                "label" => data.label = Some(value.to_owned()),
                "ttl-ms" => data.ttl = millis(),
                "lock-delay-ms" => data.lock_delay = millis(),
                "count" => data.count = value.parse().unwrap_or(1),
                "first" => first = number().map(Token),
                "token" => token = number().map(Token),
                "asked" => data.asked = true,
                "ping" => data.ping = number(),
                "pong" => {
                    let answer = value.split_once('/').and_then(|(number, left)| {
                        let left = Duration::from_millis(left.parse().ok()?);
                        Some((number.parse().ok()?, left))
                    });
                    data.pong = answer;
                }
                // A later fencelock may add keys.
                _ => {}
            }
        }
        let known = |token: &Token| *token < Token::END;
        data.tokens = first.zip(token).filter(|(a, b)| known(a) && known(b));
        Ok(data)
    }

    /// The tokens of the grant, and the present token. `node` is the first token that follows from the node's creation.
    pub(crate) fn tokens(&self, node: Token) -> (Tokens, Token) {
        let (first, token) = self.tokens.unwrap_or((node, node));
        let count = self.count.clamp(1, MAX_TOKENS);
        (Tokens::new(first, count), token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let data = ClaimData {
            owner: "ann@host:1#x=y".into(),
            label: Some("nightly, \"quoted\" = ünïcode".into()),
            ttl: Duration::from_secs(30),
            lock_delay: Duration::from_millis(1500),
            count: 16,
            tokens: Some((Token(320), Token(323))),
            asked: true,
            ping: Some(u64::MAX),
            pong: Some((7, Duration::from_millis(19_999))),
        };
        assert_eq!(ClaimData::read(&data.write()), Ok(data.clone()));
        assert_eq!(data.tokens(Token(99)).1, Token(323));
        let plain = ClaimData {
            label: None,
            tokens: None,
            asked: false,
            ping: None,
            pong: None,
            ..data
        };
        assert_eq!(ClaimData::read(&plain.write()), Ok(plain.clone()));
        assert_eq!(plain.tokens(Token(320)).1, Token(320));
    }

    #[test]
    fn newer_and_foreign_data_are_told_apart() {
        assert_eq!(
            ClaimData::read(b"fl2\nwhatever"),
            Err(Unreadable::Newer("2".into()))
        );
        for foreign in [&b"192.168.0.7"[..], b"", b"flx", b"fl", b"\xff\xfe"] {
            assert_eq!(ClaimData::read(foreign), Err(Unreadable::Foreign));
        }
    }

    #[test]
    fn the_token_of_a_downgrade_is_below_that_of_the_next_node() {
        let (this, next) = (first_token(7), first_token(8));
        assert!(
            Token(this.0 + u64::from(MAX_TOKENS) - 1) < downgraded(this) && downgraded(this) < next
        );
    }
}
