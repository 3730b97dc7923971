//! What `run` and its guard process tell each other, over a pair of sockets, nine bytes a message.

use fencelock::BootInstant;

/// The bytes of a message.
pub(crate) const FRAME: usize = 9;

/// From `run` to the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The lock is held until then.
    Deadline(BootInstant),
    /// Pass this signal on to the command's group.
    Signal(i32),
    /// The lock is lost: end the command now.
    Lost,
}

/// From the guard to `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The command runs, as the leader of the process group with its own id.
    Started(i32),
    /// There is no process for the command, with the operating system's error number.
    NotStarted(i32),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The guard has begun to end the command.
    Ending(Why),
    /// The command, or a part of it, runs as a user whom the guard may not signal.
    Denied,
    /// The command itself is over, and a part of it goes on that could not be ended.
    Left,
    /// The command is over.
    Ended(Outcome, Option<Why>),
}

/// Why the guard ends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The validity is over, or is about to be.
    Lost,
    /// `--max-hold` is over.
    MaxHold,
    /// `run` is gone.
    Abandoned,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With this exit code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

impl Outcome {
    /// The exit code that a shell would show for it.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }
}

impl Order {
    /// The message's bytes.
    pub(crate) fn encode(self) -> [u8; FRAME] {
        match self {
            Self::Deadline(at) => frame(b'd', at.as_nanos()),
            Self::Signal(signal) => frame(b's', number(signal)),
            Self::Lost => frame(b'l', 0),
        }
    }

    /// The message in `bytes`, if it is one.
    pub(crate) fn decode(bytes: [u8; FRAME]) -> Option<Self> {
        let (kind, value) = unframe(bytes);
        match kind {
            b'd' => Some(Self::Deadline(BootInstant::from_nanos(value))),
            b's' => Some(Self::Signal(i32::try_from(value).ok()?)),
            b'l' => Some(Self::Lost),
            _ => None,
        }
    }
}

impl News {
    /// The message's bytes.
    pub(crate) fn encode(self) -> [u8; FRAME] {
        match self {
            Self::Started(pid) => frame(b'p', number(pid)),
            Self::NotStarted(errno) => frame(b'n', number(errno)),
            Self::Stopped(signal) => frame(b'z', number(signal)),
            Self::Ending(why) => frame(b'e', why.number()),
            Self::Denied => frame(b'd', 0),
            Self::Left => frame(b'l', 0),
            Self::Ended(outcome, why) => {
                let how = match outcome {
                    Outcome::Code(code) => u64::from(code),
                    Outcome::Signal(signal) => u64::from(signal) | 1 << 8,
                };
                frame(b'x', how | why.map_or(0, Why::number) << 16)
            }
        }
    }

    /// The message in `bytes`, if it is one.
    pub(crate) fn decode(bytes: [u8; FRAME]) -> Option<Self> {
        let (kind, value) = unframe(bytes);
        let signed = i32::try_from(value).ok();
        match kind {
            b'p' => Some(Self::Started(signed?)),
            b'n' => Some(Self::NotStarted(signed?)),
            b'z' => Some(Self::Stopped(signed?)),
            b'e' => Some(Self::Ending(Why::from_number(value)?)),
            b'd' => Some(Self::Denied),
            b'l' => Some(Self::Left),
            b'x' => {
                let [how, signalled, why, ..] = value.to_le_bytes();
                let outcome = match signalled {
                    0 => Outcome::Code(how),
                    _ => Outcome::Signal(how),
                };
                Some(Self::Ended(outcome, Why::from_number(why.into())))
            }
            _ => None,
        }
    }
}

impl Why {
    fn number(self) -> u64 {
        match self {
            Self::Lost => 1,
            Self::MaxHold => 2,
            Self::Abandoned => 3,
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        let all = [Self::Lost, Self::MaxHold, Self::Abandoned];
        all.into_iter().find(|why| why.number() == number)
    }
}

fn frame(kind: u8, value: u64) -> [u8; FRAME] {
    let mut bytes = [kind; FRAME];
    bytes[1..].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn unframe(bytes: [u8; FRAME]) -> (u8, u64) {
    let [kind, value @ ..] = bytes;
    (kind, u64::from_le_bytes(value))
}

/// Process ids, signals and error numbers are never negative.
fn number(value: i32) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_arrives() {
        for order in [
            Order::Deadline(BootInstant::from_nanos(u64::MAX)),
            Order::Signal(15),
            Order::Lost,
        ] {
            assert_eq!(Order::decode(order.encode()), Some(order));
        }
        for news in [
            News::Started(4_194_304),
            News::NotStarted(2),
            News::Stopped(20),
            News::Ending(Why::MaxHold),
            News::Denied,
            News::Left,
            News::Ended(Outcome::Code(255), None),
            News::Ended(Outcome::Signal(9), Some(Why::Lost)),
            News::Ended(Outcome::Code(0), Some(Why::Abandoned)),
        ] {
            assert_eq!(News::decode(news.encode()), Some(news));
        }
        assert_eq!(Order::decode([0; FRAME]), None);
        assert_eq!(News::decode([0; FRAME]), None);
    }
}
