//! The messages of NOTIFY.

use std::time::Duration;

use fencelock_core::engine::Event;
use fencelock_core::{Token, Tokens};
use fencelock_sql::server::{Message, PushedGrant};

/// The message in a notification.
pub(super) fn parse(text: &str) -> Option<Message> {
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
