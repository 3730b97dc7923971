//! What `run` and its supervisor process tell each other: the [`Terms`] on the supervisor's command line, then messages
//! of nine bytes over a pair of sockets.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fencelock::BootInstant;
use rustix::process::Pid;

/// The bytes of a message.
pub(crate) const FRAME: usize = 9;

/// What a supervisor knows from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The end of the validity of the lock.
    pub(crate) deadline: BootInstant,
    /// How long before the deadline the command gets SIGTERM.
    pub(crate) grace: Duration,
    /// How long before the deadline the command gets SIGKILL at the latest.
    pub(crate) reserve: Duration,
    /// The time from SIGTERM to SIGKILL when the deadline is not the cause.
    pub(crate) kill_after: Duration,
    /// When `--max-hold` is over.
    pub(crate) max_hold: Option<BootInstant>,
    /// The process group in the foreground that hands the terminal over to the command, if it does.
    pub(crate) foreground: Option<Pid>,
    /// Whether this `run` is inside another one. Then the command must end at once when this `run` is gone: the outer
    /// deadline may be what ended it.
    pub(crate) nested: bool,
}

impl Terms {
    /// The time until the command must be killed, whatever else happens.
    pub(crate) fn left(&self, now: BootInstant) -> Duration {
        // Subtracted from the duration: `deadline - reserve` could be before the clock's zero.
        self.deadline.since(now).saturating_sub(self.reserve)
    }

    /// The terms as one word of a command line.
    pub(crate) fn encode(&self) -> String {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let words = [
            self.deadline.as_nanos(),
            nanos(self.grace),
            nanos(self.reserve),
            nanos(self.kill_after),
            self.max_hold.map_or(u64::MAX, BootInstant::as_nanos),
            u64::from(Pid::as_raw(self.foreground).unsigned_abs()),
            self.nested.into(),
        ];
        words.map(|word| word.to_string()).join(",")
    }

    /// The terms in `text`, if they are complete.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let words: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
        let words: [u64; 7] = words.ok()?.try_into().ok()?;
        let [
            deadline,
            grace,
            reserve,
            kill_after,
            max_hold,
            foreground,
            nested,
        ] = words;
        Some(Self {
            deadline: BootInstant::from_nanos(deadline),
            grace: Duration::from_nanos(grace),
            reserve: Duration::from_nanos(reserve),
            kill_after: Duration::from_nanos(kill_after),
            max_hold: (max_hold != u64::MAX).then(|| BootInstant::from_nanos(max_hold)),
            foreground: i32::try_from(foreground).ok().and_then(Pid::from_raw),
            nested: nested != 0,
        })
    }
}

/// From `run` to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The new end of the validity.
    Deadline(BootInstant),
    /// Pass this signal on to the command's group.
    Signal(i32),
    /// The lock is lost: end the command now.
    Lost,
}

/// From the supervisor to `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command runs and leads the process group of this id.
    Started(i32),
    /// No process could be started for the command; the number of the operating system's error.
    NotStarted(i32),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The supervisor has begun to end the command.
    Ending(Cause),
    /// The command, or a part of it, runs as a user whom the supervisor may not signal.
    Denied,
    /// The command has ended, but a part of its group could not be ended and still runs.
    Survivors,
    /// The command has ended; the cause if the supervisor ended it.
    Ended(ChildExit, Option<Cause>),
}

/// Why the supervisor ends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The validity has ended, or is about to.
    Lost,
    /// `--max-hold` is over.
    MaxHold,
    /// `run` is gone.
    Abandoned,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildExit {
    /// With this exit code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

impl ChildExit {
    /// The exit code that a shell shows for this end.
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

impl Report {
    /// The message's bytes.
    pub(crate) fn encode(self) -> [u8; FRAME] {
        match self {
            Self::Started(pid) => frame(b'p', number(pid)),
            Self::NotStarted(errno) => frame(b'n', number(errno)),
            Self::Stopped(signal) => frame(b'z', number(signal)),
            Self::Ending(cause) => frame(b'e', cause.number()),
            Self::Denied => frame(b'd', 0),
            Self::Survivors => frame(b'l', 0),
            Self::Ended(exit, cause) => {
                let how = match exit {
                    ChildExit::Code(code) => u64::from(code),
                    ChildExit::Signal(signal) => u64::from(signal) | 1 << 8,
                };
                frame(b'x', how | cause.map_or(0, Cause::number) << 16)
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
            b'e' => Some(Self::Ending(Cause::from_number(value)?)),
            b'd' => Some(Self::Denied),
            b'l' => Some(Self::Survivors),
            b'x' => {
                let [how, signalled, cause, ..] = value.to_le_bytes();
                let exit = match signalled {
                    0 => ChildExit::Code(how),
                    _ => ChildExit::Signal(how),
                };
                Some(Self::Ended(exit, Cause::from_number(cause.into())))
            }
            _ => None,
        }
    }
}

impl Cause {
    fn number(self) -> u64 {
        match self {
            Self::Lost => 1,
            Self::MaxHold => 2,
            Self::Abandoned => 3,
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        let all = [Self::Lost, Self::MaxHold, Self::Abandoned];
        all.into_iter().find(|cause| cause.number() == number)
    }
}

/// The next message of a non-blocking socket, if one has arrived. Messages are written whole, so the rest of a message
/// follows its first byte at once.
pub(crate) fn read_frame(stream: &mut UnixStream) -> io::Result<Option<[u8; FRAME]>> {
    let mut bytes = [0; FRAME];
    let mut have = 0;
    while have < FRAME {
        match stream.read(&mut bytes[have..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => have += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && have == 0 => {
                return Ok(None);
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                // The peer was killed before it read all messages.
                io::ErrorKind::ConnectionReset => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                _ => return Err(error),
            },
        }
    }
    Ok(Some(bytes))
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
    fn messages_survive_encoding() {
        for order in [
            Order::Deadline(BootInstant::from_nanos(u64::MAX)),
            Order::Signal(15),
            Order::Lost,
        ] {
            assert_eq!(Order::decode(order.encode()), Some(order));
        }
        for report in [
            Report::Started(4_194_304),
            Report::NotStarted(2),
            Report::Stopped(20),
            Report::Ending(Cause::MaxHold),
            Report::Denied,
            Report::Survivors,
            Report::Ended(ChildExit::Code(255), None),
            Report::Ended(ChildExit::Signal(9), Some(Cause::Lost)),
            Report::Ended(ChildExit::Code(0), Some(Cause::Abandoned)),
        ] {
            assert_eq!(Report::decode(report.encode()), Some(report));
        }
        assert_eq!(Order::decode([0; FRAME]), None);
        assert_eq!(Report::decode([0; FRAME]), None);
    }

    #[test]
    fn terms_survive_the_command_line() {
        let mut terms = Terms {
            deadline: BootInstant::from_nanos(123_456_789_012),
            grace: Duration::from_millis(1500),
            reserve: Duration::from_millis(250),
            kill_after: Duration::from_secs(5),
            max_hold: None,
            foreground: Pid::from_raw(4711),
            nested: false,
        };
        assert_eq!(Terms::decode(&terms.encode()), Some(terms));
        terms.max_hold = Some(BootInstant::from_nanos(7));
        terms.foreground = None;
        terms.nested = true;
        assert_eq!(Terms::decode(&terms.encode()), Some(terms));
        assert_eq!(Terms::decode("1,2,3"), None);
    }
}
