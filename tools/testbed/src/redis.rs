//! One redis-server.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::certificates::make_certificates;
use crate::clock_shim::ClockShim;
use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::port::Port;
use crate::process::{Process, Streams, program, signals};

/// How long a server may take to answer after its start. It takes 10 ms on an idle machine.
const START: Duration = Duration::from_secs(20);

/// The setup of a [`Redis`]; see [`Redis::builder`].
#[derive(Debug, Default)]
#[must_use = "nothing is started before `start`"]
pub struct RedisBuilder {
    lines: Vec<String>,
    memory: bool,
    socket: bool,
    tls: bool,
    password: Option<String>,
    clock: Option<Arc<ClockShim>>,
    sentinel: bool,
    cluster: bool,
}

impl RedisBuilder {
    /// The server is a Sentinel.
    pub(crate) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// The server keeps an append-only file, so that its data survives a restart; `fsync` is `always`, `everysec` or `no`.
    pub fn append_only(mut self, fsync: &str) -> Self {
        self.memory = true;
        self.config("appendonly", "yes")
            .config("appendfsync", fsync)
    }

    /// The server is a node of a cluster. The [port](Redis::bus_port) of its bus is a free port, too.
    pub fn cluster(mut self) -> Self {
        self.cluster = true;
        self.config("cluster-enabled", "yes")
    }

    /// Any line of `redis.conf`.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.lines.push(format!("{key} {value}"));
        self
    }

    /// The password of the default user.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.config("requirepass", password)
    }

    /// Another user with a password and rights such as `~* &* +@all`.
    pub fn user(self, name: &str, password: &str, rights: &str) -> Self {
        self.config("user", &format!("{name} on >{password} {rights}"))
    }

    /// Also listens on a Unix socket.
    pub fn unix_socket(mut self) -> Self {
        self.socket = true;
        self
    }

    /// Also listens with TLS on another port, with a certificate for `localhost` and 127.0.0.1 of its own authority
    /// ([`Redis::ca`]). Needs the command `openssl`.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// The server uses this clock instead of the machine's.
    pub fn clock(mut self, clock: &Arc<ClockShim>) -> Self {
        self.clock = Some(Arc::clone(clock));
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// If redis-server is not installed, or does not start; then with the end of its log.
    pub fn start(self) -> Result<Redis> {
        let server = program("redis-server", "redis-server")?;
        let dir = Dir::new("redis")?;
        let port = Port::free()?;
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {}", port.number()),
            format!("dir {}", dir.path().display()),
            "save \"\"".to_owned(),
        ];
        if self.socket {
            lines.push(format!("unixsocket {}", dir.join(SOCKET)));
            lines.push("unixsocketperm 700".to_owned());
        }
        let bus_port = self.cluster.then(Port::free).transpose()?;
        if let Some(bus_port) = &bus_port {
            lines.push(format!("cluster-port {}", bus_port.number()));
        }
        let tls_port = self.tls.then(Port::free).transpose()?;
        if let Some(tls_port) = &tls_port {
            make_certificates(&dir)?;
            lines.push(format!("tls-port {}", tls_port.number()));
            lines.push(format!("tls-cert-file {}", dir.join("server.crt")));
            lines.push(format!("tls-key-file {}", dir.join("server.key")));
            lines.push(format!("tls-ca-cert-file {}", dir.join("ca.crt")));
            lines.push("tls-auth-clients no".to_owned());
        }
        // The last value of a setting counts.
        lines.extend(self.lines);
        let config = dir.join("redis.conf");
        let written = fs::write(&config, lines.join("\n"));
        written.map_err(Failure::to(format!("write {config}")))?;
        let process = launch(&server, &dir, self.clock.as_deref(), self.sentinel)?;
        let redis = Redis {
            server,
            process,
            port,
            bus_port,
            tls_port,
            password: self.password,
            remembers: self.memory,
            clock: self.clock,
            sentinel: self.sentinel,
            dir,
        };
        redis.await_answer()?;
        Ok(redis)
    }
}

const SOCKET: &str = "redis.sock";

/// A running redis-server; killed, with its directory removed, when dropped.
#[derive(Debug)]
pub struct Redis {
    server: PathBuf,
    process: Process,
    port: Port,
    bus_port: Option<Port>,
    tls_port: Option<Port>,
    password: Option<String>,
    remembers: bool,
    clock: Option<Arc<ClockShim>>,
    sentinel: bool,
    // Last, so that the server has ended before its directory is removed.
    dir: Dir,
}

impl Redis {
    /// Starts a server that keeps everything in memory.
    ///
    /// # Errors
    /// As [`RedisBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// A server with options.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// The store's URL, with the default user's password if it has one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.port())
    }

    /// The same store's URL through another port, such as that of a [`Proxy`](crate::Proxy).
    #[must_use]
    pub fn url_at(&self, port: u16) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{port}"),
            None => format!("redis://127.0.0.1:{port}"),
        }
    }

    /// The port without TLS.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The port of the cluster's bus, if it is a [node of one](RedisBuilder::cluster).
    #[must_use]
    pub fn bus_port(&self) -> Option<u16> {
        self.bus_port.as_ref().map(Port::number)
    }

    /// The port with TLS, if [TLS is on](RedisBuilder::tls).
    #[must_use]
    pub fn tls_port(&self) -> Option<u16> {
        self.tls_port.as_ref().map(Port::number)
    }

    /// The file with the certificate of the authority that signed the server's certificate.
    #[must_use]
    pub fn ca(&self) -> String {
        self.dir.join("ca.crt")
    }

    /// The path of the [Unix socket](RedisBuilder::unix_socket).
    #[must_use]
    pub fn socket(&self) -> String {
        self.dir.join(SOCKET)
    }

    /// Its working directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process id; a restart changes it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    signals!();

    /// Starts it again on the same port. A running server is killed first. Its data survives with an [append-only
    /// file](RedisBuilder::append_only).
    ///
    /// # Errors
    /// As [`RedisBuilder::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill9();
        self.process = launch(
            &self.server,
            &self.dir,
            self.clock.as_deref(),
            self.sentinel,
        )?;
        self.await_answer()
    }

    /// Starts it again on the same port without its data.
    ///
    /// # Errors
    /// As [`RedisBuilder::start`].
    pub fn restart_empty(&mut self) -> Result<()> {
        self.kill9();
        if self.remembers {
            let files = self.dir.join("appendonlydir");
            fs::remove_dir_all(&files).map_err(Failure::to(format!("remove {files}")))?;
        }
        self.restart()
    }

    /// Copies its data files, for [`Redis::restart_as_saved`].
    ///
    /// # Errors
    /// If it is not append-only, or the files cannot be copied.
    pub fn save(&self) -> Result<()> {
        let (files, saved) = (self.dir.join("appendonlydir"), self.dir.join("saved"));
        copy_all(&files, &saved).map_err(Failure::to(format!("copy {files}")))
    }

    /// Starts it again on the same port with the saved files. Everything that it acknowledged since then is undone.
    ///
    /// # Errors
    /// If nothing was saved, and as [`RedisBuilder::start`].
    pub fn restart_as_saved(&mut self) -> Result<()> {
        self.kill9();
        let (files, saved) = (self.dir.join("appendonlydir"), self.dir.join("saved"));
        copy_all(&saved, &files).map_err(Failure::to(format!("copy {saved}")))?;
        self.restart()
    }

    /// Simulates a power loss: kills it, and removes the last `bytes` of its append-only file.
    ///
    /// # Errors
    /// If it is not append-only.
    pub fn lose_power(&self, bytes: u64) -> Result<()> {
        self.kill9();
        let dir = self.dir.path().join("appendonlydir");
        let files = fs::read_dir(&dir).map_err(Failure::to(format!("read {}", dir.display())))?;
        let mut files = files.filter_map(|file| Some(file.ok()?.path()));
        let tail = files.find(|path| path.to_string_lossy().ends_with(".incr.aof"));
        let tail = tail.ok_or_else(|| Failure::new("there is no append-only file"))?;
        let cut = || {
            let file = File::options().write(true).open(&tail)?;
            file.set_len(file.metadata()?.len().saturating_sub(bytes))
        };
        cut().map_err(Failure::to(format!("cut the end off {}", tail.display())))
    }

    /// Runs one command as the default user on a connection of its own.
    ///
    /// # Errors
    /// If the server does not answer, or answers with an error.
    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T> {
        let what = || format!("run {words:?} on {}", self.port.address());
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let mut connection = self.connect().map_err(Failure::to(what()))?;
        command.query(&mut connection).map_err(Failure::to(what()))
    }

    /// A blocking connection of the default user.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn connect(&self) -> redis::RedisResult<redis::Connection> {
        let client = redis::Client::open(self.url())?;
        let connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(connection)
    }

    /// The end of the server's log.
    #[must_use]
    pub fn log(&self) -> String {
        log(&self.dir)
    }

    fn await_answer(&self) -> Result<()> {
        let begin = Instant::now();
        loop {
            // A PING alone is not enough, since another server on this port would also answer it.
            let info = self.command::<String>(&["INFO"]);
            let ours = format!("process_id:{}\r", self.pid());
            let why = match info {
                Ok(info)
                    if info.contains(&ours)
                        && (self.sentinel || info.contains("\nloading:0\r")) =>
                {
                    return Ok(());
                }
                // Before the server has read its append-only file, it answers PING and refuses everything else.
                Ok(info) if info.contains(&ours) => "it is still loading".to_owned(),
                Ok(_) => "another server answers on its port".to_owned(),
                Err(error) => error.to_string(),
            };
            let ended = self.process.ended().is_some();
            if ended || begin.elapsed() > START {
                return Err(Failure::new(format!(
                    "redis-server does not come up on port {} ({why}); its log ends:\n{}",
                    self.port(),
                    self.log()
                )));
            }
            // The server does not announce that it is ready, so poll.
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn launch(server: &Path, dir: &Dir, clock: Option<&ClockShim>, sentinel: bool) -> Result<Process> {
    let (log, errors) = open_log(dir, "redis-server")?;
    let mut command = Command::new(server);
    command.arg(dir.join("redis.conf")).current_dir(dir.path());
    if sentinel {
        command.arg("--sentinel");
    }
    command.envs(clock.into_iter().flat_map(ClockShim::env));
    Process::spawn(
        &command,
        Streams {
            stdin: Stdio::null(),
            stdout: log.into(),
            stderr: errors.into(),
        },
    )
}

/// Opens the log of a server, once for standard output and once for standard error.
pub(crate) fn open_log(dir: &Dir, server: &str) -> Result<(File, File)> {
    let open = || {
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.join("log"))?;
        Ok::<_, std::io::Error>((log.try_clone()?, log))
    };
    open().map_err(Failure::to(format!("open a log for {server}")))
}

pub(crate) fn log(dir: &Dir) -> String {
    const TAIL: u64 = 2000;
    let read = || {
        let mut file = File::open(dir.join("log"))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&text).into_owned())
    };
    read().unwrap_or_else(|error| format!("(no log: {error})"))
}

/// Makes a directory with these files and no others.
fn copy_all(from: &str, to: &str) -> std::io::Result<()> {
    if Path::new(to).exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), Path::new(to).join(entry.file_name()))?;
    }
    Ok(())
}
