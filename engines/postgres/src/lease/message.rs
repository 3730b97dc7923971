//! The messages of NOTIFY, and what an ear finds.

use std::time::Duration;

use fencelock_core::engine::Event;
use fencelock_core::{BootInstant, Token, Tokens};
use fencelock_sql::server::{Message, PushedGrant};

/// The message in a notification.
pub(super) fn parse(text: &str) -> Option<Message> {
    if text == "missed" {
        return Some(Message::Missed);
    }
    let mut parts = text.split(' ');
    let (what, claim) = (parts.next()?, parts.next()?.parse().ok()?);
    match what {
        "held" => {
            let first = Token(parts.next()?.parse().ok()?);
            let count = parts.next()?.parse().ok()?;
            let window = Duration::from_micros(parts.next()?.parse().ok()?);
            let tokens = Tokens::new(first, count);
            let pushed = PushedGrant {
                claim,
                tokens,
                window,
                asked_at: None,
            };
            Some(Message::Granted(pushed))
        }
        "turn" => Some(Message::Turn(claim)),
        "lost" => Some(Message::Holder(Event::Lost(claim))),
        "asked" => Some(Message::Holder(Event::Asked(claim))),
        _ => None,
    }
}

/// The grants that an ear found with a request sent at `asked_at`.
pub(super) fn news(text: &str, asked_at: BootInstant) -> Vec<PushedGrant> {
    let grant = |line: &str| {
        let mut parts = line.split(' ');
        let claim = parts.next()?.parse().ok()?;
        let first = Token(parts.next()?.parse().ok()?);
        let tokens = Tokens::new(first, parts.next()?.parse().ok()?);
        let window = Duration::from_micros(parts.next()?.parse().ok()?);
        let asked_at = Some(asked_at);
        Some(PushedGrant {
            claim,
            tokens,
            window,
            asked_at,
        })
    };
    text.lines().filter_map(grant).collect()
}
