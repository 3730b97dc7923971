//! A store in a temporary directory, commands on it, and processes as the kernel shows them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fencelock_testbed::Dir;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A test that waits longer than this has failed. Everything here takes less than a tenth of this time.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// A store and a directory.
pub(crate) struct Fixture {
    dir: Dir,
    store: String,
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A command that runs; killed when dropped.
pub(crate) struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    err: Option<BufReader<ChildStderr>>,
    /// The part of its messages that was read.
    said: String,
}

impl Fixture {
    /// A fixture with a fresh SQLite file.
    pub(crate) fn new() -> Self {
        let dir = Dir::new("cli").unwrap();
        let store = format!("sqlite:{}", dir.join("locks.db"));
        Self { dir, store }
    }

    /// A fixture with another store.
    pub(crate) fn on(store: String) -> Self {
        let dir = Dir::new("cli").unwrap();
        Self { dir, store }
    }

    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    /// The path of a file in the directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name)
    }

    /// The content of a file in the directory; empty if there is none.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A `fencelock` on this store, in this directory, without the variables of a surrounding `fencelock`.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        // The tests may have started with ignored signals, as a shell starts background jobs.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", env!("CARGO_BIN_EXE_fencelock")])
            .args(words)
            .current_dir(self.dir.path())
            .env_remove("FENCELOCK_OWNER")
            .env("FENCELOCK_STORE", &self.store)
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The same, run through the program and arguments `start`.
    pub(crate) fn command_through(&self, start: &[&str], words: &[&str]) -> Command {
        let like = self.command(words);
        let mut command = Command::new(start[0]);
        command
            .args(&start[1..])
            .args(words)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in like.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Runs a `fencelock` to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        finish(self.command(words))
    }

    /// Starts a `fencelock`, with an open standard input.
    pub(crate) fn start(&self, words: &[&str]) -> Running {
        let mut command = self.command(words);
        command.stdin(Stdio::piped());
        Running::start(command)
    }

    /// The output of `show --json`.
    pub(crate) fn show(&self, name: &str) -> Value {
        let shown = self.run(&["show", "--json", name]);
        assert_eq!(shown.code, 0, "{shown:?}");
        serde_json::from_str(&shown.out).unwrap()
    }

    /// Waits until a claim holds.
    pub(crate) fn await_holder(&self, name: &str) {
        until(&format!("a claim holds {name}"), || {
            !self.show(name)["holders"].as_array().unwrap().is_empty()
        });
    }

    /// Waits until `count` claims are queued.
    pub(crate) fn await_waiters(&self, name: &str, count: usize) {
        until(&format!("{count} wait for {name}"), || {
            self.show(name)["waiters"].as_array().unwrap().len() == count
        });
    }
}

/// The URL of a server that may stand still for a moment: by default an answer takes half a second at most.
#[cfg(feature = "redis")]
pub(crate) fn patient(redis: &fencelock_testbed::Redis) -> String {
    format!("{}?response-timeout=5s", redis.url())
}

/// Runs a command to its end.
pub(crate) fn finish(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: code(output.status),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs the commands of a page with this `fencelock`, in this directory if there is one.
#[cfg(feature = "redis")]
pub(crate) fn run_block(script: &str, dir: Option<&std::path::Path>) -> Ran {
    let here = std::path::Path::new(env!("CARGO_BIN_EXE_fencelock"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", here.parent().unwrap().display());
    let mut command = Command::new("bash");
    if let Some(dir) = dir {
        command.current_dir(dir);
    }
    command
        .args(["-euo", "pipefail", "-c", script])
        .env_remove("FENCELOCK_OWNER")
        .env_remove("FENCELOCK_STORE")
        .env("SHELL", "/bin/sh")
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    finish(command)
}

fn code(status: std::process::ExitStatus) -> i32 {
    // Only tests end `fencelock` itself with a signal.
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| -status.signal().unwrap_or_default())
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let err = child.stderr.take().map(BufReader::new);
        Self {
            child,
            out,
            err,
            said: String::new(),
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The next line of its output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the output ends with {line:?}");
        line.trim_end().to_owned()
    }

    /// Waits until it prints this on standard error.
    pub(crate) fn says(&mut self, part: &str) {
        let err = self.err.as_mut().unwrap();
        while !self.said.contains(part) {
            let read = err.read_line(&mut self.said).unwrap();
            assert_ne!(read, 0, "it ends before {part:?}: {}", self.said);
        }
    }

    /// The next line of its output, as JSON.
    pub(crate) fn json(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    /// Writes to its standard input.
    pub(crate) fn type_in(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    /// Ends its standard input.
    pub(crate) fn end_input(&mut self) {
        self.child.stdin = None;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ran {
        self.end_input();
        let begun = Instant::now();
        let status = loop {
            // The standard library has no wait with a timeout.
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < TIMEOUT, "it does not end");
            std::thread::sleep(Duration::from_millis(2));
        };
        let mut out = String::new();
        self.out.read_to_string(&mut out).unwrap();
        let mut err = std::mem::take(&mut self.said);
        let stderr = self.err.as_mut().unwrap();
        stderr.read_to_string(&mut err).unwrap();
        let code = code(status);
        Ran { code, out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Polls until a condition is true.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < TIMEOUT, "timed out before {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process as the kernel shows it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
}

/// All processes except those that have ended but are not reaped.
pub(crate) fn processes() -> Vec<Process> {
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        let pid = stat.split(' ').next()?.parse().ok()?;
        // The program's name, in parentheses, may contain anything.
        let mut rest = stat.rsplit_once(") ")?.1.split(' ');
        Some(Process {
            pid,
            state: rest.next()?.chars().next()?,
            parent: rest.next()?.parse().ok()?,
            group: rest.next()?.parse().ok()?,
        })
    });
    all.filter(|process| !"ZX".contains(process.state))
        .collect()
}

/// Whether a process runs.
pub(crate) fn lives(pid: i32) -> bool {
    processes().iter().any(|process| process.pid == pid)
}

/// The running processes of a process group.
pub(crate) fn group(id: i32) -> Vec<i32> {
    let members = processes()
        .into_iter()
        .filter(|process| process.group == id);
    members.map(|process| process.pid).collect()
}

/// The only child of a process. The child of a `fencelock run` is its supervisor, whose child is the command.
pub(crate) fn only_child(of: i32) -> i32 {
    let children = processes()
        .into_iter()
        .filter(|process| process.parent == of);
    let children: Vec<i32> = children.map(|process| process.pid).collect();
    assert_eq!(children.len(), 1, "children of {of}: {children:?}");
    children[0]
}
