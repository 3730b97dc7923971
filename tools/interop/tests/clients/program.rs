//! A program with one of our thin clients, controlled by lines (`tools/interop/clients/service.mjs` describes them).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fencelock_testbed::{ClockShim, Dir, Worker};

use crate::service::PATIENCE;

/// The client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    TypeScript,
    Asyncio,
    Threads,
}

impl Language {
    /// A command that prints the wall clock, in seconds, as programs in this language see it.
    pub(crate) fn wall_clock(self) -> Command {
        let mut command = match self {
            Self::TypeScript => Command::new("node"),
            Self::Asyncio | Self::Threads => python(),
        };
        match self {
            Self::TypeScript => command.args(["-p", "Math.floor(Date.now() / 1000)"]),
            _ => command.args(["-c", "import time; print(int(time.time()))"]),
        };
        command
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TypeScript => "TypeScript",
            Self::Asyncio => "asyncio",
            Self::Threads => "threads",
        }
    }
}

/// A running program; killed when dropped.
pub(crate) struct Program {
    language: Language,
    worker: Worker,
    _dir: Option<Dir>,
}

/// One hold of a `loop`, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hold {
    pub(crate) entered: u64,
    pub(crate) left: u64,
    pub(crate) token: u64,
}

impl Hold {
    /// From a line `IN OUT TOKEN`.
    pub(crate) fn parse(line: &str) -> Self {
        let numbers: Vec<u64> = line
            .split(' ')
            .map(|word| {
                word.parse()
                    .unwrap_or_else(|_| panic!("no number in {line:?}"))
            })
            .collect();
        let &[entered, left, token] = &numbers[..] else {
            panic!("not three numbers: {line:?}");
        };
        Self {
            entered,
            left,
            token,
        }
    }
}

/// Where tools/interop/setup.sh has installed our clients from their packages.
pub(crate) fn installed() -> PathBuf {
    // target/<profile>/interop-client
    let binary = Path::new(env!("CARGO_BIN_EXE_interop-client"));
    let target = binary
        .ancestors()
        .nth(2)
        .expect("it is in the target directory");
    let installed = target.join("interop/service");
    assert!(
        installed.is_dir(),
        "the clients are not installed: run tools/interop/setup.sh"
    );
    installed
}

/// A directory in which Node finds the package.
pub(crate) fn node_dir() -> Dir {
    let dir = Dir::new("node").expect("a directory");
    std::os::unix::fs::symlink(
        installed().join("typescript/node_modules"),
        dir.path().join("node_modules"),
    )
    .expect("a link");
    dir
}

/// Python with the package installed.
pub(crate) fn python() -> Command {
    let mut command = Command::new(installed().join("python/bin/python"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Runs one of the programs in `clients` to its end, in a directory of [`node_dir`].
pub(crate) fn run(dir: &Dir, program: &str, arguments: &[&str]) {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    std::fs::copy(clients.join(program), dir.path().join(program)).expect("copied");
    let mut command = match program.ends_with(".py") {
        true => python(),
        false => Command::new("node"),
    };
    let command = command.arg(program).args(arguments).current_dir(dir.path());
    let ran = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{program} {arguments:?}: {said}");
}

/// The program in this language, and the directory that it needs.
fn command(language: Language) -> (Command, Option<Dir>) {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    match language {
        Language::TypeScript => {
            let dir = node_dir();
            let program = dir.join("service.mjs");
            std::fs::copy(clients.join("service.mjs"), &program).expect("copied");
            let mut command = Command::new("node");
            command.arg(program);
            (command, Some(dir))
        }
        Language::Asyncio | Language::Threads => {
            let mut command = python();
            command.arg(clients.join(match language {
                Language::Asyncio => "service_asyncio.py",
                _ => "service_threads.py",
            }));
            (command, None)
        }
    }
}

impl Program {
    pub(crate) async fn start(language: Language, urls: &str, name: &str) -> Self {
        Self::start_with(language, urls, name, "url").await
    }

    /// With a wall clock of its own.
    pub(crate) async fn start_at(
        language: Language,
        urls: &str,
        name: &str,
        clock: &ClockShim,
    ) -> Self {
        let (mut command, dir) = command(language);
        command.envs(clock.env());
        Self::begin(language, command, dir, [urls, name, "url"]).await
    }

    /// With this value of the option with which a program says that all replicas have the same store.
    pub(crate) async fn start_with(
        language: Language,
        urls: &str,
        name: &str,
        same_store: &str,
    ) -> Self {
        let (command, dir) = command(language);
        Self::begin(language, command, dir, [urls, name, same_store]).await
    }

    async fn begin(
        language: Language,
        mut command: Command,
        dir: Option<Dir>,
        arguments: [&str; 3],
    ) -> Self {
        command.args(arguments);
        let worker = Worker::spawn(&command).expect("a program");
        let mut this = Self {
            language,
            worker,
            _dir: dir,
        };
        assert_eq!(this.line("start").await, "ready");
        this
    }

    /// Sends a command without a wait for its answer.
    pub(crate) fn tell(&self, command: &str) {
        self.worker.send(command).expect("it takes commands");
    }

    /// Sends a command, and waits for its answer.
    pub(crate) async fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.line(command).await
    }

    /// Takes the lock, and returns its token.
    pub(crate) async fn held(&mut self, command: &str) -> u64 {
        self.tell(command);
        self.granted().await
    }

    /// The token of a lock that was requested before.
    pub(crate) async fn granted(&mut self) -> u64 {
        let line = self.line("a grant").await;
        let token = line
            .strip_prefix("held ")
            .and_then(|token| token.parse().ok());
        token.unwrap_or_else(|| panic!("{:?} prints {line:?} instead of a grant", self.language))
    }

    /// When the program learned of the loss, in nanoseconds of the monotonic clock.
    pub(crate) async fn lost(&mut self) -> u64 {
        let line = self.line("a loss").await;
        let at = line.strip_prefix("lost ").and_then(|at| at.parse().ok());
        at.unwrap_or_else(|| panic!("{:?} prints {line:?} instead of a loss", self.language))
    }

    /// The holds of a `loop`, after its end.
    pub(crate) async fn holds(&mut self) -> Vec<Hold> {
        let mut holds = Vec::new();
        loop {
            let line = self.line("loop").await;
            if line == "done" {
                return holds;
            }
            holds.push(Hold::parse(&line));
        }
    }

    /// It prints nothing for this long.
    pub(crate) async fn assert_silent(&mut self, time: Duration) {
        let line = tokio::time::timeout(time, self.worker.line()).await;
        assert!(line.is_err(), "{:?} says {line:?}", self.language);
    }

    pub(crate) async fn line(&mut self, what: &str) -> String {
        match tokio::time::timeout(PATIENCE, self.worker.line()).await {
            Ok(Some(line)) => line,
            Ok(None) => panic!(
                "{:?} ended at {what:?}; its error is on stderr",
                self.language
            ),
            Err(_) => panic!("{:?} does not answer {what:?}", self.language),
        }
    }
}
