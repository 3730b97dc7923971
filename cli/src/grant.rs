//! A grant as a file: what a process needs to continue a hold that another process took.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencelock::engine::{Claim, ClaimIds, HeldClaim};
use fencelock::{LockName, Mode, Token};
use fencelock_wire::ClaimKey;
use serde_json::{Map, Value};

use crate::exit::Failure;

/// No grant is that large.
const MOST_BYTES: u64 = 64 << 10;

/// The file that stands for standard input or output.
const STANDARD: &str = "-";

/// A hold that is detached from the process that took it.
pub(crate) struct Detached {
    pub(crate) held: HeldClaim,
    /// A secret: a process that has it may renew and release the hold.
    pub(crate) key: ClaimKey,
    /// The only place where it can be renewed and released, if there is one.
    pub(crate) home: Option<String>,
}

impl Detached {
    /// Reads a grant from a file, or from standard input if it is `-`. No failure quotes the file, since it contains a key.
    pub(crate) fn read(file: &Path) -> Result<Self, Failure> {
        let name = file.display();
        let text = if file == Path::new(STANDARD) {
            text(io::stdin().lock())
        } else {
            File::open(file).and_then(text)
        };
        let text = text.map_err(|error| Failure::usage(format!("grant {name}: {error}")))?;
        parse(&text).map_err(|why| {
            Failure::usage(format!(
                "grant {name}: {why}; it must be as `fencelock take` wrote it"
            ))
        })
    }
}

fn text(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

fn parse(text: &str) -> Result<Detached, String> {
    // The parser's error gives the position and does not quote the text.
    let value: Value = serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
    let Value::Object(members) = value else {
        return Err("no JSON object".to_owned());
    };
    let name = LockName::new(word(&members, "name")?)
        .map_err(|_| "its name cannot be the name of a lock".to_owned())?;
    let claim = word(&members, "claim")?
        .parse()
        .map_err(|_| "its claim is not a claim id".to_owned())?;
    let key: ClaimKey = word(&members, "key")?
        .parse()
        .map_err(|error| format!("{error}"))?;
    if !key.speaks_for(&claim) {
        return Err("its key is not the key of its claim".to_owned());
    }
    let mode = match word(&members, "mode")? {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        _ => return Err("its mode is neither exclusive nor shared".to_owned()),
    };
    let owner = word(&members, "owner")?;
    if owner.is_empty() || owner.chars().any(char::is_control) {
        return Err("its owner is not one line of text".to_owned());
    }
    let ttl = millis(&members, "ttl_ms")?;
    if ttl.is_zero() {
        return Err("its \"ttl_ms\" is 0".to_owned());
    }
    let mut claim = Claim::new(claim, owner, name)
        .mode(mode)
        .ttl(ttl)
        .lock_delay(millis(&members, "lock_delay_ms")?)
        .wait(false)
        .record(true);
    if let Some(label) = members.get("label").and_then(Value::as_str) {
        claim = claim.label(label);
    }
    let token = Token(number(&members, "token")?);
    if !(Token(1)..Token::END).contains(&token) {
        return Err("its token is none".to_owned());
    }
    let held = HeldClaim::new(claim, token);
    let home = members.get("home").and_then(Value::as_str);
    let home = home.map(str::to_owned);
    Ok(Detached { held, key, home })
}

fn word<'a>(members: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    let member = members.get(name).and_then(Value::as_str);
    member.ok_or_else(|| format!("it has no member {name:?} with a text"))
}

fn number(members: &Map<String, Value>, name: &str) -> Result<u64, String> {
    let member = members.get(name).and_then(Value::as_u64);
    member.ok_or_else(|| format!("it has no member {name:?} with a number"))
}

fn millis(members: &Map<String, Value>, name: &str) -> Result<Duration, String> {
    number(members, name).map(Duration::from_millis)
}

/// A new file beside the place of the grant file; [`write`](Self::write) moves it there. If it is dropped before that, it is
/// removed. Only the user can read it.
pub(crate) struct GrantFile {
    file: File,
    beside: PathBuf,
    place: PathBuf,
}

impl GrantFile {
    /// Creates the file before the lock is taken, so that a failure is known in time. `None` for standard output.
    pub(crate) fn create(place: &Path) -> Result<Option<Self>, Failure> {
        if place == Path::new(STANDARD) {
            return Ok(None);
        }
        let failed = |error| Failure::usage(format!("grant {}: {error}", place.display()));
        let Some(name) = place.file_name() else {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        };
        // The new file replaces the old one, and would so replace a device, a pipe or a link.
        if fs::symlink_metadata(place).is_ok_and(|there| !there.is_file()) {
            let why =
                "it exists and is not a regular file; name a new file, or - for standard output";
            return Err(failed(io::Error::other(why)));
        }
        let mut beside = name.to_owned();
        // In a container a process often has the id of an earlier one, whose file may be left.
        let drawn =
            ClaimIds::new().map_err(|error| Failure::internal("drawing a file name", error))?;
        beside.push(format!(".{}.tmp", drawn.next()));
        let beside = place.with_file_name(beside);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)
            .map_err(failed)?;
        let place = place.to_owned();
        Ok(Some(Self {
            file,
            beside,
            place,
        }))
    }

    /// Writes the grant, and puts the file in its place.
    pub(crate) fn write(mut self, grant: &str) -> Result<(), Failure> {
        let written = self
            .file
            .write_all(format!("{grant}\n").as_bytes())
            .and_then(|()| self.file.sync_all())
            .and_then(|()| fs::rename(&self.beside, &self.place));
        written
            .map_err(|error| Failure::internal(&format!("grant {}", self.place.display()), error))
    }
}

impl Drop for GrantFile {
    fn drop(&mut self) {
        // After the renaming, this file does not exist.
        let _ = fs::remove_file(&self.beside);
    }
}

#[cfg(test)]
mod tests {
    use fencelock::engine::ClaimIds;

    use super::*;

    #[test]
    fn nothing_of_a_broken_grant_is_repeated() {
        let key = ClaimKey::draw().unwrap();
        let other = ClaimKey::draw().unwrap();
        let claim = ClaimIds::with(key.claim_ids()).next();
        let good = format!(
            r#"{{"name":"a","claim":"{claim}","token":7,"key":"{}","ttl_ms":1000,"lock_delay_ms":0,"mode":"shared","owner":"me"}}"#,
            key.secret()
        );
        let read = parse(&good).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((read.held.token, read.held.claim.id), (Token(7), claim));
        assert_eq!(read.held.claim.mode, Mode::Shared);
        let secret = key.secret();
        for (bad, why) in [
            (good.replace(",\"mode\"", "\"mode\""), "no JSON"),
            (good.replace("\"key\"", "\"kee\""), "key"),
            (good.replace(secret, &secret[1..]), "43"),
            (good.replace(secret, other.secret()), "key"),
            (good.replace(":7", ":\"7\""), "token"),
            (good.replace(":7", ":0"), "token"),
            (good.replace(":7", ":9007199254740992"), "token"),
            (good.replace(":1000", ":0"), "ttl_ms"),
            (good.replace("\"me\"", "\"m\\ne\""), "owner"),
            (good.replace("\"a\"", "\"\""), "name"),
            (format!("\"{secret}\""), "object"),
            (good[..good.len() / 2].to_owned(), "no JSON"),
        ] {
            let said = parse(&bad).err().unwrap_or_default();
            assert!(said.contains(why), "{bad}: {said}");
            assert!(!said.contains(&secret[1..]), "{said}");
        }
    }
}
