//! One PostgreSQL server, and a replica that streams from it.
//!
//! The programs are found where Debian puts them. PostgreSQL refuses to run as root: started by root, it runs as the
//! user `postgres`.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::certificates::{HERE, make_certificates_for, make_client_certificate};
use crate::clock_shim::ClockShim;
use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::port::{Port, is_open};
use crate::process::{Process, Streams};

/// How long a server may take to answer after its start. It takes 40 ms on an idle machine, and longer to recover.
const START: Duration = Duration::from_secs(30);

/// What a [`Postgres`] is to be; made by [`Postgres::builder`].
#[derive(Debug, Default)]
#[must_use = "nothing is started before `start`"]
pub struct PostgresBuilder {
    settings: Vec<(String, String)>,
    clock: Option<Arc<ClockShim>>,
    password: Option<String>,
    tls: Option<String>,
    rule: Option<String>,
}

impl PostgresBuilder {
    /// Any setting of `postgresql.conf`.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// It goes by this clock instead of the machine's.
    pub fn clock(mut self, clock: &Arc<ClockShim>) -> Self {
        self.clock = Some(Arc::clone(clock));
        self
    }

    /// The password that whoever connects by TCP must give. Without one nobody is asked.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Offers TLS, with a certificate for `localhost` and 127.0.0.1 of an authority of its own ([`Postgres::ca`]). Needs the
    /// command `openssl`.
    pub fn tls(self) -> Self {
        self.tls_for(HERE)
    }

    /// The same with other names in the certificate, such as `DNS:db.example`.
    pub fn tls_for(mut self, names: &str) -> Self {
        self.tls = Some(names.to_owned());
        self
    }

    /// The line of `pg_hba.conf` that says who may connect by TCP, such as `hostssl all all 127.0.0.1/32 trust`.
    pub fn rule(mut self, line: &str) -> Self {
        self.rule = Some(line.to_owned());
        self
    }

    /// Starts it, and waits until it answers. There is the role `lock`, which may create things in the database `lock`.
    ///
    /// # Errors
    /// If PostgreSQL is not installed, or does not come up; then with the end of its log.
    pub fn start(mut self) -> Result<Postgres> {
        let programs = Programs::find()?;
        let dir = Dir::new("postgres")?;
        programs.give(dir.path())?;
        if let Some(names) = &self.tls {
            make_certificates_for(&dir, names)?;
            make_client_certificate(&dir, "lock")?;
            programs.give(&dir.path().join("server.key"))?;
            self = self.config("ssl", "on");
            for (setting, file) in [
                ("ca", "ca.crt"),
                ("cert", "server.crt"),
                ("key", "server.key"),
            ] {
                self = self.config(&format!("ssl_{setting}_file"), &dir.join(file));
            }
        }
        let template = programs.template()?;
        let data = dir.join("data");
        programs.run("cp", &["-a", "--reflink=auto", &template, &data])?;
        let how = if self.password.is_some() {
            "scram-sha-256"
        } else {
            "trust"
        };
        let rule = self.rule.clone();
        let rule = rule.unwrap_or_else(|| format!("host all all 127.0.0.1/32 {how}"));
        let rules = format!(
            "local all all trust\nlocal replication all trust\n{rule}\nhost replication all 127.0.0.1/32 trust\n"
        );
        write(&format!("{data}/pg_hba.conf"), &rules)?;
        let postgres = Postgres::launch(programs, dir, data, self)?;
        postgres.await_answer()?;
        let password = postgres.password.clone().unwrap_or_default();
        postgres.psql(
            "postgres",
            &format!("CREATE ROLE lock LOGIN PASSWORD '{password}'"),
        )?;
        postgres.create_database("lock")?;
        Ok(postgres)
    }
}

/// A running PostgreSQL server; killed, with its directory removed, when dropped.
#[derive(Debug)]
pub struct Postgres {
    programs: Programs,
    process: Process,
    port: Port,
    data: String,
    password: Option<String>,
    clock: Option<Arc<ClockShim>>,
    // Last, so that the server is gone before its directory is.
    dir: Dir,
}

impl Postgres {
    /// Starts a server that asks nobody for a password.
    ///
    /// # Errors
    /// As [`PostgresBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// A server with more to it.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    fn launch(programs: Programs, dir: Dir, data: String, asked: PostgresBuilder) -> Result<Self> {
        let port = Port::free()?;
        let mut lines = vec![
            format!("port = {}", port.number()),
            "listen_addresses = '127.0.0.1'".to_owned(),
            format!("unix_socket_directories = '{}'", dir.path().display()),
            "max_connections = 300".to_owned(),
            "shared_buffers = 16MB".to_owned(),
            // A killed server loses nothing by it, and a machine that loses power loses its tests as well.
            "fsync = off".to_owned(),
            "full_page_writes = off".to_owned(),
        ];
        // What was asked for comes last, and so wins.
        lines.extend(
            asked
                .settings
                .iter()
                .map(|(key, value)| format!("{key} = '{value}'")),
        );
        write(
            &format!("{data}/postgresql.auto.conf"),
            &(lines.join("\n") + "\n"),
        )?;
        let process = programs.launch(&dir, &data, asked.clock.as_deref(), &[])?;
        Ok(Self {
            programs,
            process,
            port,
            data,
            password: asked.password,
            clock: asked.clock,
            dir,
        })
    }

    /// The store's URL: the role `lock` in the database `lock`, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.port(), "lock")
    }

    /// The same by way of another port, such as that of a [`Proxy`](crate::Proxy), or in another database.
    #[must_use]
    pub fn url_at(&self, port: u16, database: &str) -> String {
        match &self.password {
            Some(password) => format!("postgres://lock:{password}@127.0.0.1:{port}/{database}"),
            None => format!("postgres://lock@127.0.0.1:{port}/{database}"),
        }
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The file with the certificate of the authority behind the server's own, if it [offers TLS](PostgresBuilder::tls).
    #[must_use]
    pub fn ca(&self) -> String {
        self.dir.join("ca.crt")
    }

    /// The files with a certificate of that authority for the role `lock`, and its key.
    #[must_use]
    pub fn certificate(&self) -> (String, String) {
        (self.dir.join("client.crt"), self.dir.join("client.key"))
    }

    /// Makes a database that belongs to the role `lock`.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn create_database(&self, name: &str) -> Result<()> {
        let sql = format!("CREATE DATABASE {name} OWNER lock STRATEGY file_copy");
        self.psql("postgres", &sql).map(drop)
    }

    /// Runs SQL as the superuser in a database; the answer's rows a line each, columns with `|` between them.
    ///
    /// # Errors
    /// If the server does not answer, or answers with an error.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        let port = self.port().to_string();
        let host = self.dir.path().to_string_lossy();
        let run = Command::new(self.programs.bin.join("psql"))
            .args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "postgres"])
            .args(["-h", &host, "-p", &port, "-d", database, "-c", sql])
            .env("PGCONNECT_TIMEOUT", "5")
            .output();
        succeeded("psql", run)
    }

    /// SIGSTOP for every process of the server: connections stay open and nothing answers.
    ///
    /// # Errors
    /// If it is not running.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()?;
        signal(&self.children(), Signal::STOP);
        Ok(())
    }

    /// SIGCONT: it works off what has come in meanwhile.
    ///
    /// # Errors
    /// If it is not running.
    pub fn resume(&self) -> Result<()> {
        signal(&self.children(), Signal::CONT);
        self.process.resume()
    }

    /// SIGKILL for every process of the server, and waits until it is gone. The port stays reserved.
    pub fn kill9(&self) {
        // A stopped parent neither starts children nor reaps them, so that their pids are theirs until they are killed.
        let mut children = Vec::new();
        if self.process.pause().is_ok() {
            children = self.children();
            signal(&children, Signal::KILL);
        }
        self.process.kill9();
        // The next server refuses to start as long as one of them has the shared memory.
        let begin = Instant::now();
        while children.iter().any(|pid| is_alive(*pid)) && begin.elapsed() < START {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts it again on the same port as it was, killing it first if it runs.
    ///
    /// # Errors
    /// As [`PostgresBuilder::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill9();
        self.process = self.launch_again(&[])?;
        self.await_answer()
    }

    /// Starts it again on the same port with the role and the database, and nothing else that it had.
    ///
    /// # Errors
    /// As [`PostgresBuilder::start`].
    pub fn restart_empty(&mut self) -> Result<()> {
        self.kill9();
        // By the socket alone, so that nobody else comes before it is empty.
        self.process = self.launch_again(&["-c", "listen_addresses="])?;
        self.await_answer()?;
        self.psql("postgres", "DROP DATABASE lock WITH (FORCE)")?;
        self.create_database("lock")?;
        self.restart()
    }

    fn launch_again(&self, more: &[&str]) -> Result<Process> {
        let clock = self.clock.as_deref();
        self.programs.launch(&self.dir, &self.data, clock, more)
    }

    /// Starts a replica of this server that streams from it, and waits until it does.
    ///
    /// # Errors
    /// As [`PostgresBuilder::start`].
    pub fn replica(&self) -> Result<Self> {
        let programs = Programs::find()?;
        let dir = Dir::new("postgres")?;
        programs.give(dir.path())?;
        let data = dir.join("data");
        let port = self.port().to_string();
        let host = self.dir.path().to_string_lossy().into_owned();
        let backup = programs.bin.join("pg_basebackup");
        let args = ["-h", &host, "-p", &port, "-U", "postgres", "-D", &data];
        let args: Vec<&str> = args
            .into_iter()
            .chain(["-X", "stream", "-c", "fast"])
            .collect();
        programs.run(&backup.to_string_lossy(), &args)?;
        write(&format!("{data}/standby.signal"), "")?;
        let source = format!("host=127.0.0.1 port={port} user=postgres");
        let builder = Self::builder()
            .config("primary_conninfo", &source)
            .config("wal_retrieve_retry_interval", "100ms");
        let builder = PostgresBuilder {
            password: self.password.clone(),
            ..builder
        };
        let replica = Self::launch(programs, dir, data, builder)?;
        replica.await_answer()?;
        let begin = Instant::now();
        while self.psql("postgres", "SELECT state FROM pg_stat_replication")? != "streaming" {
            if begin.elapsed() > START {
                return Err(Failure::new(format!(
                    "the replica does not stream; its log ends:\n{}",
                    replica.log()
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(replica)
    }

    /// Makes a replica a server of its own that can be written to.
    ///
    /// # Errors
    /// If it is none, or cannot.
    pub fn promote(&self) -> Result<()> {
        match self.psql("postgres", "SELECT pg_promote()")?.as_str() {
            "t" => Ok(()),
            other => Err(Failure::new(format!("pg_promote() says {other:?}"))),
        }
    }

    /// Starts a PgBouncer before this server, with this `pool_mode`, for its database `lock`.
    ///
    /// # Errors
    /// If it is not installed, or does not come up.
    pub fn pooler(&self, mode: &str) -> Result<Pooler> {
        let program = crate::process::program("pgbouncer", "pgbouncer")?;
        let dir = Dir::new("pgbouncer")?;
        self.programs.give(dir.path())?;
        let port = Port::free()?;
        let config = dir.join("pgbouncer.ini");
        let lines = [
            "[databases]".to_owned(),
            format!("lock = host=127.0.0.1 port={}", self.port()),
            "[pgbouncer]".to_owned(),
            format!("listen_port = {}", port.number()),
            "listen_addr = 127.0.0.1\nunix_socket_dir =\nauth_type = any".to_owned(),
            format!("pool_mode = {mode}"),
        ];
        // Whatever user a client names, the server gets this one: `any` forgets it.
        let lines = lines.join("\n").replace("host=", "user=lock host=");
        write(&config, &lines)?;
        let mut command = self.programs.command(&program.to_string_lossy());
        command.arg(&config).current_dir(dir.path());
        let streams = Streams {
            stdin: Stdio::null(),
            stdout: Stdio::null(),
            stderr: Stdio::null(),
        };
        let process = Process::spawn(&command, streams)?;
        let begin = Instant::now();
        while std::net::TcpStream::connect(port.address()).is_err() {
            if process.ended().is_some() || begin.elapsed() > START {
                return Err(Failure::new("pgbouncer does not come up"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Pooler {
            _process: process,
            port,
            _dir: dir,
        })
    }

    /// The end of the server's log.
    #[must_use]
    pub fn log(&self) -> String {
        let text = fs::read(self.dir.path().join("log")).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(2000)..];
        String::from_utf8_lossy(tail).into_owned()
    }

    fn children(&self) -> Vec<i32> {
        let pid = self.process.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let pids = children.split_whitespace();
        pids.filter_map(|pid| pid.parse().ok()).collect()
    }

    fn await_answer(&self) -> Result<()> {
        let begin = Instant::now();
        loop {
            let ask = || self.psql("postgres", "SHOW data_directory");
            let listens = is_open(&self.dir.join(&format!(".s.PGSQL.{}", self.port())));
            let why = match listens.then(ask) {
                None => "nobody listens".to_owned(),
                Some(Ok(data)) if data == self.data => return Ok(()),
                Some(Ok(_)) => "another server answers on its port".to_owned(),
                Some(Err(error)) => error.to_string(),
            };
            let ended = self.process.ended().is_some();
            if ended || begin.elapsed() > START {
                return Err(Failure::new(format!(
                    "postgres does not come up on port {} ({why}); its log ends:\n{}",
                    self.port(),
                    self.log()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn signal(pids: &[i32], signal: Signal) {
    for pid in pids.iter().copied().filter_map(Pid::from_raw) {
        // It fails for one that has just ended.
        let _ = kill_process(pid, signal);
    }
}

/// Whether a process is there and has not ended. Who has ended and is not reaped yet has let go of everything.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// A running PgBouncer; killed when dropped.
#[derive(Debug)]
pub struct Pooler {
    _process: Process,
    port: Port,
    _dir: Dir,
}

impl Pooler {
    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }
}

/// Backends outlive a parent that is killed for a moment, and would keep the directory in use.
impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Where PostgreSQL's programs are, and as whom they run.
#[derive(Clone, Debug)]
struct Programs {
    bin: PathBuf,
    /// The user and group to run as, if this process is root's.
    user: Option<(u32, u32)>,
}

impl Programs {
    fn find() -> Result<Self> {
        const DEBIAN: &str = "/usr/lib/postgresql";
        let versions = fs::read_dir(DEBIAN).map_err(|_| not_installed())?;
        let version = |entry: std::io::Result<fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.parse::<u32>().ok()
        };
        let newest = versions
            .filter_map(version)
            .max()
            .ok_or_else(not_installed)?;
        let bin = Path::new(DEBIAN).join(newest.to_string()).join("bin");
        let user = if rustix::process::geteuid().is_root() {
            Some(ids("postgres")?)
        } else {
            None
        };
        Ok(Self { bin, user })
    }

    /// Lets the server's user write in a directory.
    fn give(&self, dir: &Path) -> Result<()> {
        if let Some((user, group)) = self.user {
            chown(dir, Some(user), Some(group))
                .map_err(Failure::to(format!("give {} away", dir.display())))?;
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let Some((user, group)) = self.user else {
            return Command::new(program);
        };
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={user}"))
            .arg(format!("--regid={group}"));
        // A change of user makes the kernel forget what it was told of the parent's death, so it is told again.
        command.args(["--clear-groups", "--pdeathsig", "KILL", "--", program]);
        command
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        succeeded(program, self.command(program).args(args).output())
    }

    /// An empty cluster, made once per machine and copied for each server.
    fn template(&self) -> Result<String> {
        let version = self.bin.components().rev().nth(1);
        let version = version.map_or_else(String::new, |v| {
            v.as_os_str().to_string_lossy().into_owned()
        });
        let user = self
            .user
            .map_or_else(|| rustix::process::geteuid().as_raw(), |(user, _)| user);
        let name = format!("fencelock-template-postgres-{version}-{user}");
        let template = std::env::temp_dir().join(name);
        let path = template.to_string_lossy().into_owned();
        if template.is_dir() {
            return Ok(path);
        }
        let dir = Dir::new("initdb")?;
        self.give(dir.path())?;
        let fresh = dir.join("data");
        let initdb = self.bin.join("initdb").to_string_lossy().into_owned();
        let mut args = vec!["-D", &fresh, "-A", "trust", "-U", "postgres"];
        args.extend(["-N", "--no-instructions", "-E", "UTF8", "--locale=C"]);
        self.run(&initdb, &args)?;
        // Whoever comes first wins; the others' are as good, and not needed.
        if let Err(error) = fs::rename(&fresh, &template)
            && !template.is_dir()
        {
            return Err(Failure::to(format!("keep {path}"))(error));
        }
        Ok(path)
    }

    fn launch(
        &self,
        dir: &Dir,
        data: &str,
        clock: Option<&ClockShim>,
        more: &[&str],
    ) -> Result<Process> {
        let open = File::options()
            .create(true)
            .append(true)
            .open(dir.join("log"));
        let log = open.map_err(Failure::to("open a log for postgres"))?;
        let errors = log
            .try_clone()
            .map_err(Failure::to("open a log for postgres"))?;
        let program = self.bin.join("postgres").to_string_lossy().into_owned();
        let mut command = self.command(&program);
        command
            .args(["-D", data])
            .args(more)
            .current_dir(dir.path());
        command.envs(clock.into_iter().flat_map(ClockShim::env));
        let streams = Streams {
            stdin: Stdio::null(),
            stdout: log.into(),
            stderr: errors.into(),
        };
        Process::spawn(&command, streams)
    }
}

fn not_installed() -> Failure {
    Failure::new(
        "postgres is not installed; install it with: apt-get install -y --no-install-recommends postgresql",
    )
}

/// A user's and its group's number.
fn ids(user: &str) -> Result<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").map_err(Failure::to("read /etc/passwd"))?;
    let line = passwd
        .lines()
        .find_map(|line| line.strip_prefix(user)?.strip_prefix(':'));
    let mut fields = line.into_iter().flat_map(|line| line.split(':')).skip(1);
    let mut number = || fields.next()?.parse().ok();
    let ids = number().zip(number());
    ids.ok_or_else(|| {
        Failure::new(format!(
            "there is no user {user}, whom PostgreSQL is to run as"
        ))
    })
}

/// Readable for the server's user, whoever writes it.
fn write(path: &str, text: &str) -> Result<()> {
    let mode = fs::Permissions::from_mode(0o644);
    let written = fs::write(path, text).and_then(|()| fs::set_permissions(path, mode));
    written.map_err(Failure::to(format!("write {path}")))
}

fn succeeded(program: &str, run: std::io::Result<std::process::Output>) -> Result<String> {
    let output = run.map_err(Failure::to(format!("run {program}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("{program} fails: {}", said.trim())));
    }
    let answer = String::from_utf8_lossy(&output.stdout);
    Ok(answer.trim_end().to_owned())
}
