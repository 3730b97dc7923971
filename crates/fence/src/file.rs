//! Marks in a file: one line for each change, appended and synced before anybody is told; rewritten when most lines are
//! old.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use fencelock_core::LockName;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::{FenceError, Result};
use crate::marks::Marks;

const HEADER: &str = "fencelock marks 1\n";
/// So many lines more than names before the file is rewritten.
const SPARE_LINES: usize = 4096;

/// The open file; nobody else has it while this lives.
#[derive(Debug)]
pub(crate) struct MarksFile {
    path: PathBuf,
    file: File,
    /// Held locked. Not the file itself, which is replaced by another one when it is rewritten.
    _lock: File,
    /// Where the last whole line ends.
    good: u64,
    lines: usize,
    /// A write failed half-way and could not be undone, or a sync failed: what the disk has is unknown.
    broken: bool,
}

impl MarksFile {
    /// Opens or creates it. With `wait`, for as long as another process has it.
    pub(crate) fn open(path: &Path, wait: bool) -> Result<(Self, HashMap<LockName, Marks>)> {
        let lock = Self::lock(path, wait)?;
        let at = |action| move |cause: std::io::Error| failed(path, action, cause);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(at("open"))?;
        if !file.metadata().map_err(at("look at"))?.is_file() {
            let why = "it is no regular file; name another one";
            return Err(FenceError::damaged(path.display().to_string(), why));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(at("read"))?;
        let mut this = Self {
            path: path.to_owned(),
            file,
            _lock: lock,
            good: 0,
            lines: 0,
            broken: false,
        };
        // A header that is not whole was never synced, so nobody was told anything yet.
        if text.len() < HEADER.len() && HEADER.as_bytes().starts_with(&text) {
            this.begin().map_err(at("begin"))?;
            return Ok((this, HashMap::new()));
        }
        let marks = this.read(&text)?;
        // Cuts off a line that was being written in the crash.
        this.file.set_len(this.good).map_err(at("mend"))?;
        this.file.seek(SeekFrom::End(0)).map_err(at("mend"))?;
        Ok((this, marks))
    }

    fn lock(path: &Path, wait: bool) -> Result<File> {
        let beside = with_suffix(path, ".lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&beside)
            .map_err(|cause| failed(&beside, "open", cause))?;
        let locked = match wait {
            true => lock.lock(),
            false => match lock.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    let resource = path.display().to_string();
                    return Err(FenceError::InUse { resource });
                }
                Err(TryLockError::Error(error)) => Err(error),
                Ok(()) => Ok(()),
            },
        };
        locked.map_err(|cause| failed(&beside, "lock", cause))?;
        Ok(lock)
    }

    fn begin(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(HEADER.as_bytes())?;
        self.file.sync_all()?;
        sync_directory(&self.path)?;
        self.good = HEADER.len() as u64;
        Ok(())
    }

    fn read(&mut self, text: &[u8]) -> Result<HashMap<LockName, Marks>> {
        let resource = || self.path.display().to_string();
        let Some(mut rest) = text.strip_prefix(HEADER.as_bytes()) else {
            let why = "it does not begin as a file of marks does; name another one";
            return Err(FenceError::damaged(resource(), why));
        };
        let mut marks = HashMap::new();
        let (mut good, mut lines) = (HEADER.len(), 0);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let Some((name, of_name)) = parse(&rest[..end]) else {
                // The last line may be half of one, with a newline that was on the disk before: it was never synced.
                if rest.len() == end + 1 {
                    break;
                }
                let why = format!(
                    "line {} is damaged; restore the file, or make a new one once every holder of now is gone",
                    lines + 2
                );
                return Err(FenceError::damaged(resource(), why));
            };
            marks.insert(name, of_name);
            (good, lines) = (good + end + 1, lines + 1);
            rest = &rest[end + 1..];
        }
        (self.good, self.lines) = (good as u64, lines);
        Ok(marks)
    }

    /// Writes the marks of one name. They are on the disk when this returns `Ok`; after an error nobody may pass by them.
    pub(crate) fn append(
        &mut self,
        name: &LockName,
        marks: Marks,
        all: &HashMap<LockName, Marks>,
    ) -> Result<()> {
        if self.broken {
            let why = "a write failed, and what is on the disk is unknown; open it again";
            return Err(FenceError::damaged(self.path.display().to_string(), why));
        }
        let line = line(name, marks);
        let written = self.file.write_all(line.as_bytes());
        if let Err(cause) = written {
            // Not even half a line may stay before the next.
            let undone = self.file.set_len(self.good);
            let undone = undone.and_then(|()| self.file.seek(SeekFrom::Start(self.good)));
            self.broken = undone.is_err();
            return Err(failed(&self.path, "write", cause));
        }
        if let Err(cause) = self.file.sync_data() {
            // The system may have thrown the pages away, and says so only once.
            self.broken = true;
            return Err(failed(&self.path, "sync", cause));
        }
        self.good += line.len() as u64;
        self.lines += 1;
        if self.lines > 2 * all.len() + SPARE_LINES {
            self.rewrite(name, marks, all);
        }
        Ok(())
    }

    /// A fresh file with one line for each name takes the place of this one. If it cannot be made, this one stays.
    fn rewrite(&mut self, name: &LockName, marks: Marks, all: &HashMap<LockName, Marks>) {
        let fresh = with_suffix(&self.path, ".new");
        let make = || {
            let mut file = File::create(&fresh)?;
            let mut text = HEADER.to_owned();
            for (other, marks) in all.iter().filter(|(other, _)| *other != name) {
                text += &line(other, *marks);
            }
            text += &line(name, marks);
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&fresh, &self.path)?;
            Ok::<_, std::io::Error>((file, text.len() as u64))
        };
        match make() {
            Ok((file, good)) => {
                (self.file, self.good) = (file, good);
                self.lines = all.len().max(1);
                // Without it a crash may bring the old file back, and what is appended from now on would be missing.
                self.broken = sync_directory(&self.path).is_err();
            }
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "the marks cannot be rewritten; they are appended to");
                self.lines = 0;
            }
        }
    }
}

fn failed(path: &Path, action: &'static str, cause: std::io::Error) -> FenceError {
    FenceError::Write {
        resource: path.display().to_string(),
        action,
        cause: cause.into(),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(suffix);
    beside.into()
}

fn sync_directory(path: &Path) -> std::io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// `<checksum> <marks> <percent-encoded name>` and a newline.
fn line(name: &LockName, marks: Marks) -> String {
    let name = utf8_percent_encode(name.as_str(), NON_ALPHANUMERIC);
    let text = format!("{marks} {name}");
    format!("{:016x} {text}\n", checksum(text.as_bytes()))
}

fn parse(line: &[u8]) -> Option<(LockName, Marks)> {
    let (sum, text) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    if sum.len() != 16 || u64::from_str_radix(sum, 16).ok()? != checksum(text.as_bytes()) {
        return None;
    }
    let (marks, name) = text.split_once(' ')?;
    let name = percent_decode_str(name).decode_utf8().ok()?;
    Some((LockName::new(&name).ok()?, marks.parse().ok()?))
}

/// FNV-1a: tells half a line from a whole one.
fn checksum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}
