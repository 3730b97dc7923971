//! The audit log: one JSON line for each deed that may have to be explained later. It has no keys and no secrets.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencelock_core::support::Mutex;
use fencelock_core::{ClaimId, Token};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::config::AuditLog;

/// How many lines may wait to be written. Further lines are dropped and counted.
const WAITING: usize = 4096;

/// How many more orders may wait whose outcome somebody awaits. An eviction is done only when its line is written.
const RESERVED: usize = 256;

/// How many lines in a second may be about callers without known credentials.
pub(crate) const STRANGERS_PER_S: f64 = 10.0;

/// How many of the last lines the dashboard shows.
const TAIL: usize = 200;

/// What was done, or refused.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Deed {
    Evict,
    RequestRelease,
    Refused,
    Reload,
    Grant,
    Release,
    Login,
}

impl Deed {
    /// The word for it in the log.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Evict => "evict",
            Self::RequestRelease => "request-release",
            Self::Refused => "refused",
            Self::Reload => "reload",
            Self::Grant => "grant",
            Self::Release => "release",
            Self::Login => "login",
        }
    }
}

/// One line.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) at: String,
    replica: String,
    pub(crate) principal: String,
    pub(crate) peer: Option<String>,
    pub(crate) r#do: Deed,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<ClaimId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Token>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<String>,
}

impl Line {
    pub(crate) fn new(replica: &str, principal: &str, peer: Option<String>, deed: Deed) -> Self {
        Self {
            at: rfc3339(SystemTime::now()),
            replica: replica.to_owned(),
            principal: principal.to_owned(),
            peer,
            r#do: deed,
            name: None,
            claim: None,
            token: None,
            outcome: None,
        }
    }

    pub(crate) fn principal(mut self, principal: &str) -> Self {
        self.principal = principal.to_owned();
        self
    }

    pub(crate) fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    pub(crate) fn claim(mut self, claim: ClaimId) -> Self {
        self.claim = Some(claim);
        self
    }

    pub(crate) fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    pub(crate) fn outcome(mut self, outcome: impl Into<String>) -> Self {
        self.outcome = Some(outcome.into());
        self
    }

    fn text(&self) -> String {
        // A line has only texts and numbers, which can always be written as JSON.
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// The last lines, for the dashboard. They are kept even if no log is written.
#[derive(Debug, Default)]
pub(crate) struct Tail(Mutex<VecDeque<Line>>);

impl Tail {
    pub(crate) fn push(&self, line: Line) {
        let mut lines = self.0.lock();
        if lines.len() == TAIL {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The newest first.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.0.lock().iter().rev().cloned().collect()
    }
}

/// Where the lines go. Dropping it ends its thread when everything is written.
#[derive(Debug)]
pub(crate) struct Audit {
    orders: SyncSender<Order>,
    dropped: Arc<AtomicU64>,
    /// How many lines wait that nobody awaits.
    waiting: Arc<AtomicUsize>,
    /// Whether grants and releases are written, too.
    pub(crate) grants: bool,
}

enum Order {
    Write(String),
    /// A line whose writer waits until it is written.
    Confirm(String, oneshot::Sender<io::Result<()>>),
    /// The file was moved away. The caller waits for the outcome.
    Reopen(oneshot::Sender<io::Result<()>>),
}

impl Audit {
    pub(crate) fn open(log: &AuditLog) -> io::Result<Self> {
        let file = log.path().map(Path::to_owned);
        let out = Out::open(file.as_deref())?;
        let (orders, ordered) = sync_channel(WAITING + RESERVED);
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let dropped = Arc::new(AtomicU64::new(0));
        let waiting = Arc::new(AtomicUsize::new(0));
        let (failed, written) = (Arc::clone(&dropped), Arc::clone(&waiting));
        thread.spawn(move || write_all(out, file, &ordered, &failed, &written))?;
        Ok(Self {
            orders,
            dropped,
            waiting,
            grants: log.grants,
        })
    }

    /// Queues a line to be written, without waiting.
    pub(crate) fn note(&self, line: &Line) {
        let has_room = self.waiting.fetch_add(1, Ordering::Relaxed) < WAITING;
        if !has_room || self.orders.try_send(Order::Write(line.text())).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.note_dropped();
        }
    }

    /// Counts a line that is not written.
    pub(crate) fn note_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns once the line is written.
    pub(crate) async fn confirm(&self, line: &Line) -> io::Result<()> {
        let (sender, written) = oneshot::channel();
        let sent = self.orders.try_send(Order::Confirm(line.text(), sender));
        sent.map_err(|_| io::Error::other("too many lines wait to be written"))?;
        let gone = |_| io::Error::other("the audit log has ended");
        written.await.map_err(gone)?
    }

    /// Opens the file again by its name. The lines that were queued before are in the earlier file. If it fails, the earlier
    /// file goes on.
    pub(crate) fn reopen(&self) -> Reopened {
        let (sender, opened) = oneshot::channel();
        let sent = self.orders.try_send(Order::Reopen(sender));
        Reopened(sent.is_ok().then_some(opened))
    }

    /// How many lines were not written.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The outcome of opening the file again.
#[derive(Debug)]
pub(crate) struct Reopened(Option<oneshot::Receiver<io::Result<()>>>);

impl Reopened {
    pub(crate) async fn outcome(self) -> io::Result<()> {
        let gone = || io::Error::other("the audit log cannot be written");
        let opened = self.0.ok_or_else(gone)?;
        opened.await.map_err(|_| gone())?
    }
}

/// What is open.
struct Out {
    /// Standard output if there is none.
    file: Option<File>,
    /// Whether the end of the file is a part of a line, such as a full disk leaves behind.
    torn: bool,
}

impl Out {
    fn open(path: Option<&Path>) -> io::Result<Self> {
        let append = |path| OpenOptions::new().create(true).append(true).open(path);
        let file = path.map(append).transpose()?;
        let torn = path.is_some_and(|path| ends_torn(path).unwrap_or(false));
        Ok(Self { file, torn })
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        match &mut self.file {
            Some(file) => write_line(file, &mut self.torn, text),
            None => write_line(&mut io::stdout().lock(), &mut self.torn, text),
        }
    }
}

/// Whether a file ends within a line.
fn ends_torn(path: &Path) -> io::Result<bool> {
    if !path.metadata()?.is_file() {
        return Ok(false);
    }
    let mut file = File::open(path)?;
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

fn write_all(
    mut out: Out,
    file: Option<PathBuf>,
    ordered: &Receiver<Order>,
    dropped: &AtomicU64,
    waiting: &AtomicUsize,
) {
    while let Ok(order) = ordered.recv() {
        match order {
            Order::Write(text) => {
                waiting.fetch_sub(1, Ordering::Relaxed);
                if let Err(error) = out.write(&text) {
                    dropped.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(%error, "the audit log cannot be written");
                }
            }
            Order::Confirm(text, done) => {
                let _ = done.send(out.write(&text));
            }
            Order::Reopen(done) => {
                let opened = Out::open(file.as_deref()).map(|opened| out = opened);
                if let Err(error) = &opened {
                    tracing::error!(%error, "the audit log cannot be opened again");
                }
                let _ = done.send(opened);
            }
        }
    }
}

/// Writes a line in one call, so that lines of several processes do not mix. After a part of a line it begins a new one.
fn write_line(out: &mut impl Write, torn: &mut bool, text: &str) -> io::Result<()> {
    let begun_anew;
    let mut rest = match torn {
        true => {
            begun_anew = format!("\n{text}");
            begun_anew.as_bytes()
        }
        false => text.as_bytes(),
    };
    while !rest.is_empty() {
        match out.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                rest = &rest[written..];
                *torn = !rest.is_empty();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    out.flush()
}

/// A time in RFC 3339, in UTC with milliseconds.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // The civil calendar from days: eras of 400 years that begin on 1 March of year 0.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn lines_that_cannot_be_written_are_counted() {
        let audit = Audit::open(&AuditLog::new("/dev/full")).unwrap();
        let line = Line::new("r", "somebody", None, Deed::Grant);
        audit.note(&line);
        // The line is queued, not written at once.
        assert!(audit.confirm(&line).await.is_err());
        assert_eq!(audit.dropped(), 1);
    }

    /// A slice has room for so many bytes, like a disk.
    #[test]
    fn a_line_after_a_part_of_one_begins_anew() {
        let (mut disk, mut torn) = ([0; 8], false);
        let mut full = &mut disk[..];
        write_line(&mut full, &mut torn, "one\n").unwrap();
        assert!(!torn);
        write_line(&mut full, &mut torn, "two two\n").unwrap_err();
        assert!(torn && full.is_empty());
        // It fails again without a byte written.
        write_line(&mut full, &mut torn, "three\n").unwrap_err();
        let mut rest = Vec::new();
        write_line(&mut rest, &mut torn, "four\n").unwrap();
        write_line(&mut rest, &mut torn, "five\n").unwrap();
        assert_eq!([&disk[..], &rest].concat(), b"one\ntwo \nfour\nfive\n");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
