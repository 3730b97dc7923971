//! How the command ends: the exit codes, and the one line that says why.

use std::fmt::Display;
use std::io::{self, Write};

use fencelock::Error;

/// The exit codes that `fencelock` itself gives. A command's own code passes through `run` unchanged.
pub(crate) mod code {
    /// Done.
    pub(crate) const DONE: u8 = 0;
    /// The lock is held by another (another code with `-E`), or the answer is no.
    pub(crate) const HELD: u8 = 1;
    /// A command line, a name or a duration that cannot be used.
    pub(crate) const USAGE: u8 = 64;
    /// The store does not answer.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// A bug, or an operating system that refuses the ordinary.
    pub(crate) const INTERNAL: u8 = 70;
    /// The lock was lost, or `--max-hold` is over.
    pub(crate) const LOST: u8 = 75;
    /// The store refuses this user.
    pub(crate) const REFUSED: u8 = 77;
    /// A store URL or a configuration that cannot be used.
    pub(crate) const CONFIG: u8 = 78;
    /// The command cannot be started.
    pub(crate) const NOT_STARTED: u8 = 126;
    /// The command is not found.
    pub(crate) const NOT_FOUND: u8 = 127;
    /// Added to the number of a signal.
    pub(crate) const SIGNAL: u8 = 128;
}

/// An end that is not the wanted one.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    /// Empty if nothing is left to say.
    text: String,
}

/// What a subcommand comes to: its exit code.
pub(crate) type Outcome = Result<u8, Failure>;

impl Failure {
    /// A failure with a code of [`code`] and one line for the person who reads it.
    pub(crate) fn new(code: u8, text: impl Display) -> Self {
        let text = one_line(&text.to_string());
        Self { code, text }
    }

    /// A command line that cannot be used.
    pub(crate) fn usage(text: impl Display) -> Self {
        Self::new(code::USAGE, text)
    }

    /// Something that must not happen.
    pub(crate) fn internal(what: &str, error: impl Display) -> Self {
        Self::new(code::INTERNAL, format!("{what}: {error}"))
    }

    /// An end that needs no words.
    pub(crate) fn silent(code: u8) -> Self {
        let text = String::new();
        Self { code, text }
    }

    /// The same with another code where the lock is held by another, and without words where `quiet`.
    pub(crate) fn conflict(mut self, conflict: u8, quiet: bool) -> Self {
        if self.code == code::HELD {
            self.code = conflict;
            if quiet {
                self.text.clear();
            }
        }
        self
    }

    /// Says it on standard error, and gives the exit code.
    pub(crate) fn report(&self) -> u8 {
        if !self.text.is_empty() {
            say(&self.text);
        }
        self.code
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(code_of(&error), error)
    }
}

/// The exit code of each kind of error.
fn code_of(error: &Error) -> u8 {
    match error {
        Error::Invalid { .. } | Error::Unsupported { .. } => code::USAGE,
        Error::Config { .. } | Error::NotALock { .. } => code::CONFIG,
        Error::Held { .. } | Error::TimedOut { .. } => code::HELD,
        Error::Unavailable { .. } => code::UNAVAILABLE,
        Error::Refused { .. } => code::REFUSED,
        Error::Lost { .. } => code::LOST,
        _ => code::INTERNAL,
    }
}

/// One line on standard error.
pub(crate) fn say(text: &str) {
    // Without a standard error there is nobody to be told.
    let _ = writeln!(io::stderr(), "fencelock: {}", one_line(text));
}

/// Text on standard output. A reader who has seen enough and left is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let written = write_out(text);
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::internal("writing to standard output", error)),
    }
}

/// Text on standard output, at once.
pub(crate) fn write_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The text without line breaks and other control characters, which could also come from a store.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_one_line() {
        assert_eq!(one_line("a\n  b\x1b[2J\n"), "a   b\\u{1b}[2J");
    }

    #[test]
    fn only_a_conflict_takes_the_code_for_it() {
        let held = Failure::new(code::HELD, "held").conflict(9, true);
        assert_eq!((held.code, held.text.as_str()), (9, ""));
        let refused = Failure::new(code::REFUSED, "no").conflict(9, true);
        assert_eq!((refused.code, refused.text.as_str()), (code::REFUSED, "no"));
    }
}
