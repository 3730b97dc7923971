//! The format on the server, which `scripts/lib.lua` describes: how it is written, and how it is read without trusting it.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use fencelock_core::engine::{Claim, HeldClaim, HolderView, WaiterView};
use fencelock_core::{ClaimId, LockName, Mode, Token};
use redis::Cmd;

/// The length of [`mark`].
pub(crate) const MARK_LEN: usize = 36;

/// Between owner and label, which contain no control characters.
const SEPARATOR: u8 = 0x1f;

/// The beginning of a claim's stored value: `fl`, the version of the format, and the claim's id.
pub(crate) fn mark(id: &ClaimId) -> [u8; MARK_LEN] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut mark = *b"fl1:00000000000000000000000000000000";
    for (i, byte) in id.as_bytes().iter().enumerate() {
        mark[4 + 2 * i] = DIGITS[usize::from(byte >> 4)];
        mark[5 + 2 * i] = DIGITS[usize::from(byte & 15)];
    }
    mark
}

pub(crate) fn push_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// A duration in milliseconds, rounded up: the server never keeps a lock for less than was asked.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// For how long the server keeps the claim's lock, in ms.
pub(crate) fn px(claim: &Claim) -> u64 {
    millis(claim.ttl.saturating_add(claim.lock_delay)).max(1)
}

/// Appends the lease of a renewal, after a `=` if it must be set even if that ends the lease sooner.
pub(crate) fn push_lease(command: &mut Cmd, held: &HeldClaim) {
    let px = px(&held.claim);
    match held.shorten {
        true => command.arg(format!("={px}")),
        false => command.arg(px),
    };
}

/// Appends the part that scripts copy without reading it: lock-delay, channel, owner, label.
pub(crate) fn push_rest(out: &mut Vec<u8>, claim: &Claim, channel: &str) {
    push_number(out, millis(claim.lock_delay));
    out.push(b':');
    out.extend_from_slice(channel.as_bytes());
    out.push(b':');
    out.extend_from_slice(claim.owner.as_bytes());
    if let Some(label) = &claim.label {
        out.push(SEPARATOR);
        out.extend_from_slice(label.as_bytes());
    }
}

/// The value that the fast path stores. Its token is not known yet.
pub(crate) fn unrecorded(claim: &Claim, channel: &str) -> Vec<u8> {
    let label = claim.label.as_ref().map_or(0, |label| label.len() + 1);
    let mut value = Vec::with_capacity(MARK_LEN + 60 + claim.owner.len() + label);
    value.extend_from_slice(&mark(&claim.id));
    value.extend_from_slice(b":0:1:0");
    push_after_token(&mut value, claim, channel);
    value
}

/// Appends what follows the token of a claim that holds at once.
pub(crate) fn push_after_token(value: &mut Vec<u8>, claim: &Claim, channel: &str) {
    value.push(b':');
    push_number(value, px(claim));
    value.extend_from_slice(b":0:0:");
    push_rest(value, claim, channel);
}

/// The mode's name in scripts.
pub(crate) fn kind(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Permit { of } => format!("p{of}"),
    }
}

fn mode(kind: &str) -> Option<Mode> {
    match kind {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => {
            let of = kind.strip_prefix('p')?.parse::<NonZeroU32>().ok()?;
            Some(Mode::Permit { of })
        }
    }
}

/// The value at a lock's key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// One claim holds.
    Exclusive(Hold),
    /// Claims of this mode (shared or permits) hold.
    Shared(Mode),
    /// A value of a newer version of fencelock, or a damaged one.
    Unreadable,
    /// A value of another kind of client.
    Foreign,
}

/// A claim that holds, as stored.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    claim: Option<ClaimId>,
    token: Option<Token>,
    /// The length of the lease when it was last set, in ms.
    px: u64,
    /// Since when it holds, by the server's time in ms.
    since: Option<u64>,
    rest: Rest,
}

#[derive(Debug, PartialEq, Eq)]
struct Rest {
    lock_delay: Duration,
    owner: String,
    label: Option<String>,
}

impl Rest {
    fn parse(text: &str) -> Option<Self> {
        let (delay, rest) = text.split_once(':')?;
        let (_channel, people) = rest.split_once(':')?;
        let (owner, label) = match people.split_once(SEPARATOR as char) {
            Some((owner, label)) => (owner, Some(label.to_owned())),
            None => (people, None),
        };
        Some(Self {
            lock_delay: Duration::from_millis(delay.parse().ok()?),
            owner: owner.to_owned(),
            label,
        })
    }
}

impl Stored {
    /// Reads the value at a lock's key. Any client may have written it.
    pub(crate) fn parse(value: &[u8]) -> Self {
        let Some(rest) = value.strip_prefix(b"fl") else {
            return Self::Foreign;
        };
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 || rest.get(digits) != Some(&b':') {
            return Self::Foreign;
        }
        if &rest[..digits] != b"1" {
            return Self::Unreadable;
        }
        let Ok(text) = std::str::from_utf8(&rest[2..]) else {
            return Self::Unreadable;
        };
        let parsed = match text.strip_prefix("*:") {
            Some(kind) => mode(kind).map(Self::Shared),
            None => Hold::parse(text).map(Self::Exclusive),
        };
        parsed.unwrap_or(Self::Unreadable)
    }
}

impl Hold {
    /// `<claim>:<first>:<count>:<token>:<px>:<since>:<asked>:<rest>`
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(8, ':');
        let claim = ClaimId::from_str(parts.next()?).ok()?;
        let _first: u64 = parts.next()?.parse().ok()?;
        let _count: u64 = parts.next()?.parse().ok()?;
        Self::parse_tail(parts, Some(claim))
    }

    /// `<token>:<px>:<since>:<asked>:<rest>`, as stored for each shared holder.
    pub(crate) fn parse_shared(claim: &str, text: &str) -> Option<Self> {
        let claim = ClaimId::from_str(claim).ok()?;
        Self::parse_tail(text.splitn(5, ':'), Some(claim))
    }

    fn parse_tail<'a>(
        mut parts: impl Iterator<Item = &'a str>,
        claim: Option<ClaimId>,
    ) -> Option<Self> {
        let token: u64 = parts.next()?.parse().ok()?;
        let px = parts.next()?.parse().ok()?;
        let since: u64 = parts.next()?.parse().ok()?;
        let _asked = parts.next()?;
        Some(Self {
            claim,
            token: (token != 0).then_some(Token(token)),
            px,
            since: (since != 0).then_some(since),
            rest: Rest::parse(parts.next()?)?,
        })
    }

    /// The holder as shown; `left` is the rest of its lease, `now` the server's time in ms.
    pub(crate) fn view(self, mode: Mode, left: Option<Duration>, now: u64) -> HolderView {
        let held = match (self.since, left) {
            (Some(since), _) => Some(now.saturating_sub(since)),
            // The hold has not been renewed, so it began one lease before its end.
            (None, Some(left)) => Some(self.px.saturating_sub(millis(left))),
            (None, None) => None,
        };
        HolderView::new(self.rest.owner, mode)
            .claim(self.claim)
            .token(self.token)
            .ttl_left(left)
            .lock_delay(self.rest.lock_delay)
            .held(held.map(Duration::from_millis))
            .label(self.rest.label)
    }
}

/// A holder of another kind, shown by its value, which is shortened.
pub(crate) fn foreign_view(value: &[u8], left: Option<Duration>) -> HolderView {
    let text = String::from_utf8_lossy(value);
    let mut owner: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
    if owner.len() < text.len() {
        owner.push_str("...");
    }
    HolderView::new(owner, Mode::Exclusive).ttl_left(left)
}

/// `<window>:<seen>:<reserve>:<kind>:<rest>`, as stored for each waiter.
pub(crate) fn waiter_view(text: &str) -> Option<WaiterView> {
    let mut parts = text.splitn(5, ':');
    let (_window, _seen, _reserve) = (parts.next()?, parts.next()?, parts.next()?);
    let mode = mode(parts.next()?)?;
    let Rest { owner, label, .. } = Rest::parse(parts.next()?)?;
    Some(WaiterView::new(owner, mode).label(label))
}

/// A message on the channel of a process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The lock was granted to a waiter.
    Granted {
        claim: ClaimId,
        first: u64,
        count: u32,
        name: LockName,
    },
    /// The lock was taken from a holder.
    Lost(ClaimId),
    /// A holder is asked to release.
    Asked(ClaimId),
}

impl Message {
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload).ok()?;
        let claim = |text: &str| ClaimId::from_str(text).ok();
        match text.split_at_checked(1)? {
            ("g", rest) => {
                let mut parts = rest.splitn(4, ':');
                Some(Self::Granted {
                    claim: claim(parts.next()?)?,
                    first: parts.next()?.parse().ok()?,
                    count: parts.next()?.parse().ok()?,
                    name: LockName::new(parts.next()?).ok()?,
                })
            }
            ("l", id) => Some(Self::Lost(claim(id)?)),
            ("a", id) => Some(Self::Asked(claim(id)?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_any_value() {
        assert_eq!(Stored::parse(b""), Stored::Foreign);
        assert_eq!(Stored::parse(b"fl"), Stored::Foreign);
        assert_eq!(Stored::parse(b"flower:1"), Stored::Foreign);
        assert_eq!(Stored::parse(b"fl2:anything"), Stored::Unreadable);
        assert_eq!(Stored::parse(b"fl1:damaged"), Stored::Unreadable);
        assert_eq!(Stored::parse(b"fl1:*:s"), Stored::Shared(Mode::Shared));
        assert_eq!(Stored::parse(b"fl1:*:p0"), Stored::Unreadable);
        let id = "0123456789abcdef0123456789abcdef";
        let value = format!("fl1:{id}:5:3:7:30000:0:0:250:chan:me: myself\u{1f}why: not");
        let Stored::Exclusive(hold) = Stored::parse(value.as_bytes()) else {
            panic!("{value} is not read");
        };
        let view = hold.view(Mode::Exclusive, Some(Duration::from_secs(20)), 0);
        assert_eq!(view.token, Some(Token(7)));
        assert_eq!(view.owner, "me: myself");
        assert_eq!(view.label.as_deref(), Some("why: not"));
        assert_eq!(view.held, Some(Duration::from_secs(10)));
        assert_eq!(view.lock_delay, Duration::from_millis(250));
    }

    #[test]
    fn never_panics() {
        let mut random = fastrand::Rng::with_seed(7);
        let whole = b"fl1:0123456789abcdef0123456789abcdef:5:3:7:30000:0:0:250:chan:me\x1flabel";
        for _ in 0..20_000 {
            let mut bytes = whole[..random.usize(..=whole.len())].to_vec();
            for _ in 0..random.usize(..4) {
                if !bytes.is_empty() {
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(..);
                }
            }
            let _ = Stored::parse(&bytes);
            let _ = Message::parse(&bytes);
            let _ = waiter_view(&String::from_utf8_lossy(&bytes));
        }
    }
}
