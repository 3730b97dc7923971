//! How the command ends: the exit codes, and the one line that says why.

use std::fmt::Display;
use std::io::{self, Write};

use fencelock::Error;

/// The exit codes that `fencelock` itself gives. A command's own code passes through `run` unchanged.
pub(crate) mod code {
    /// Done.
    pub(crate) const DONE: u8 = 0;
    /// The lock is held by another (`-E` changes this code), or the answer is no.
    pub(crate) const HELD: u8 = 1;
    /// Bad usage: the command line, a name or a duration.
    pub(crate) const USAGE: u8 = 64;
    /// The store does not answer.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// A bug, or a failure of the operating system.
    pub(crate) const INTERNAL: u8 = 70;
    /// The lock was lost, or `--max-hold` is over.
    pub(crate) const LOST: u8 = 75;
    /// The store refuses this user.
    pub(crate) const REFUSED: u8 = 77;
    /// A bad store URL or configuration.
    pub(crate) const CONFIG: u8 = 78;
    /// The command cannot be started.
    pub(crate) const NOT_STARTED: u8 = 126;
    /// The command is not found.
    pub(crate) const NOT_FOUND: u8 = 127;
    /// The base to which the number of a signal is added.
    pub(crate) const SIGNAL: u8 = 128;
}

/// A failure: the exit code and the message.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    /// Empty for no message.
    text: String,
}

/// The exit code of a subcommand, or its failure.
pub(crate) type Outcome = Result<u8, Failure>;

impl Failure {
    /// A failure with a code of [`code`] and a message of one line.
    pub(crate) fn new(code: u8, text: impl Display) -> Self {
        let text = one_line(&text.to_string());
        Self { code, text }
    }

    /// Bad usage.
    pub(crate) fn usage(text: impl Display) -> Self {
        Self::new(code::USAGE, text)
    }

    /// An internal error.
    pub(crate) fn internal(what: &str, error: impl Display) -> Self {
        Self::new(code::INTERNAL, format!("{what}: {error}"))
    }

    /// A failure without a message.
    pub(crate) fn silent(code: u8) -> Self {
        let text = String::new();
        Self { code, text }
    }

    /// Whether the lock is held by another.
    pub(crate) const fn is_conflict(&self) -> bool {
        self.code == code::HELD
    }

    /// Whether the store does not answer.
    pub(crate) const fn is_away(&self) -> bool {
        self.code == code::UNAVAILABLE
    }

    /// Adds to the message.
    pub(crate) fn add(&mut self, text: &str) {
        self.text += &format!(": {}", one_line(text));
    }

    /// Puts the name of the store before the message.
    pub(crate) fn of(mut self, what: &str) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }

    /// If the lock is held by another: the same failure with the code `conflict`, and without a message if `quiet`.
    pub(crate) fn conflict(mut self, conflict: u8, quiet: bool) -> Self {
        if self.is_conflict() {
            self.code = conflict;
            if quiet {
                self.text.clear();
            }
        }
        self
    }

    /// Prints the message on standard error, and returns the exit code.
    pub(crate) fn report(&self) -> u8 {
        if !self.text.is_empty() {
            say(&self.text);
        }
        self.code
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = code_of(&error);
        match code {
            code::REFUSED => Self::new(
                code,
                format!("{error} (docs/rights.md: the rights that a store needs)"),
            ),
            _ => Self::new(code, error),
        }
    }
}

/// The exit code of each kind of error.
pub(crate) fn code_of(error: &Error) -> u8 {
    match error {
        Error::Invalid { .. } | Error::Unsupported { .. } => code::USAGE,
        Error::Config { .. } | Error::ConfigFile { .. } | Error::NotALock { .. } => code::CONFIG,
        Error::Held { .. } | Error::TimedOut { .. } => code::HELD,
        Error::Unavailable { .. } => code::UNAVAILABLE,
        Error::Refused { .. } => code::REFUSED,
        Error::Lost { .. } => code::LOST,
        _ => code::INTERNAL,
    }
}

/// The exit code for two results: a store that cannot be used counts more than one that is away, and that counts more than a
/// finding.
pub(crate) fn worse(one: u8, other: u8) -> u8 {
    let weight = |code| match code {
        code::DONE => 0,
        code::HELD => 1,
        code::UNAVAILABLE => 2,
        _ => 3,
    };
    match weight(one) < weight(other) {
        true => other,
        false => one,
    }
}

/// Prints one line on standard error.
pub(crate) fn say(text: &str) {
    // Fails if standard error is closed. There is nowhere to report that.
    let _ = writeln!(io::stderr(), "fencelock: {}", one_line(text));
}

/// Prints text on standard output. A reader that has closed the pipe is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let written = write_out(text);
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::internal("writing to standard output", error)),
    }
}

/// Writes text to standard output and flushes it.
pub(crate) fn write_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The text without line breaks and other control characters, which may also come from a store.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            // These include the characters that change the direction of text.
            c if c.is_control()
                || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                line.extend(c.escape_default())
            }
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
        assert_eq!(one_line("a\u{202e}b"), "a\\u{202e}b");
    }

    #[test]
    fn only_a_conflict_takes_the_code_for_it() {
        let held = Failure::new(code::HELD, "held").conflict(9, true);
        assert_eq!((held.code, held.text.as_str()), (9, ""));
        let refused = Failure::new(code::REFUSED, "no").conflict(9, true);
        assert_eq!((refused.code, refused.text.as_str()), (code::REFUSED, "no"));
    }
}
