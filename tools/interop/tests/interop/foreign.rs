//! A client process in any language, controlled by lines.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Longer than everything here takes, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The lock library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This library, in a process of its own.
    Fencelock(On),
    Rslock,
    RedisPy,
    RedlockPy,
    NodeRedlock4,
    NodeRedlock5,
    Etcdctl,
    Kazoo,
    Curator,
}

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Redis,
    Etcd,
    ZooKeeper,
}

impl Kind {
    /// The kind of server that it locks on.
    pub(crate) fn on(self) -> On {
        match self {
            Self::Fencelock(on) => on,
            Self::Etcdctl => On::Etcd,
            Self::Kazoo | Self::Curator => On::ZooKeeper,
            _ => On::Redis,
        }
    }
}

/// Debian's jars, and the classes that tools/interop/setup.sh has compiled.
const CLASS_PATH: &str = "java:/usr/share/java/curator-recipes.jar:/usr/share/java/curator-framework.jar:\
     /usr/share/java/curator-client.jar:/usr/share/java/zookeeper.jar:/usr/share/java/guava.jar:/usr/share/java/slf4j-nop.jar";

/// A client process; killed when dropped.
pub(crate) struct Foreign {
    kind: Kind,
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Foreign {
    pub(crate) async fn start(kind: Kind, port: u16, name: &str) -> Self {
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
        let installed = installed();
        let mut command = match kind {
            Kind::Fencelock(_) | Kind::Rslock | Kind::Etcdctl => {
                Command::new(env!("CARGO_BIN_EXE_interop-client"))
            }
            Kind::RedisPy | Kind::RedlockPy | Kind::Kazoo => {
                Command::new(installed.join("venv/bin/python"))
            }
            Kind::NodeRedlock4 | Kind::NodeRedlock5 => Command::new("node"),
            Kind::Curator => Command::new("java"),
        };
        match kind {
            Kind::RedisPy => command.arg(clients.join("redis_py.py")),
            Kind::RedlockPy => command.arg(clients.join("redlock_py.py")),
            Kind::NodeRedlock4 | Kind::NodeRedlock5 => command.arg(clients.join("redlock.mjs")),
            Kind::Kazoo => command.arg(clients.join("kazoo_lock.py")),
            Kind::Curator => command.args(["-Xmx64m", "-cp", CLASS_PATH, "Curator"]),
            Kind::Fencelock(_) | Kind::Rslock | Kind::Etcdctl => &mut command,
        };
        command.args(["127.0.0.1", &port.to_string(), name]);
        match kind {
            Kind::Fencelock(On::Redis) => command.arg("redis"),
            Kind::Fencelock(On::Etcd) => command.arg("etcd"),
            Kind::Fencelock(On::ZooKeeper) => command.arg("zookeeper"),
            Kind::Rslock => command.arg("rslock"),
            Kind::Etcdctl => command.arg("etcdctl"),
            Kind::NodeRedlock5 => command.arg("5"),
            _ => &mut command,
        };
        let mut child = command
            .current_dir(&installed)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{kind:?}: {error}; install it with tools/interop/setup.sh")
            });
        let stdin = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut this = Self {
            kind,
            child,
            stdin,
            lines,
        };
        assert_eq!(this.line("start").await, "ready");
        this
    }

    /// Kills it: SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("killed");
    }

    /// Sends a command without a wait for its answer.
    pub(crate) async fn tell(&mut self, command: &str) {
        let line = format!("{command}\n");
        self.stdin
            .write_all(line.as_bytes())
            .await
            .expect("it takes commands");
    }

    /// The answer to a command.
    pub(crate) async fn answer(&mut self) -> String {
        self.line("answer").await
    }

    /// Sends a command, and waits for its answer.
    pub(crate) async fn ask(&mut self, command: &str) -> String {
        self.tell(command).await;
        self.line(command).await
    }

    /// The holds of a `loop`, after its end: begin and end in nanoseconds of the monotonic clock.
    pub(crate) async fn holds(&mut self) -> Vec<(u64, u64)> {
        let mut holds = Vec::new();
        loop {
            let line = self.line("loop").await;
            if line == "done" {
                return holds;
            }
            let (entered, left) = line.split_once(' ').expect("two numbers");
            holds.push((
                entered.parse().expect("a number"),
                left.parse().expect("a number"),
            ));
        }
    }

    async fn line(&mut self, what: &str) -> String {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        match line {
            Ok(Ok(Some(line))) => line,
            Ok(_) => panic!("{:?} ended at {what:?}; its error is on stderr", self.kind),
            Err(_) => panic!("{:?} does not answer {what:?}", self.kind),
        }
    }
}

/// Where tools/interop/setup.sh puts the foreign clients.
fn installed() -> PathBuf {
    // target/<profile>/interop-client
    let binary = Path::new(env!("CARGO_BIN_EXE_interop-client"));
    let target = binary
        .ancestors()
        .nth(2)
        .expect("it is in the target directory");
    let installed = target.join("interop");
    assert!(
        installed.is_dir(),
        "the foreign clients are not installed: run tools/interop/setup.sh"
    );
    installed
}
