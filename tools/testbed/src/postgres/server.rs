//! The life of a PostgreSQL server: start, stop, kill, restart, replicas.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::builder::PostgresBuilder;
use super::programs::{Programs, succeeded, write};
use crate::certificates::{make_certificates_for, make_client_certificate};
use crate::clock_shim::ClockShim;
use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::port::{Port, is_open};
use crate::process::Process;

/// How long a server may take to answer after its start. It takes 40 ms on an idle machine, and longer to recover.
pub(super) const START: Duration = Duration::from_secs(30);

impl PostgresBuilder {
    /// Starts it, and waits until it answers. The role `lock` owns the database `lock`.
    ///
    /// # Errors
    /// If PostgreSQL is not installed, or does not start; then with the end of its log.
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
    pub(super) programs: Programs,
    process: Process,
    port: Port,
    data: String,
    password: Option<String>,
    clock: Option<Arc<ClockShim>>,
    // Last, so that the server has ended before its directory is removed.
    dir: Dir,
}

impl Postgres {
    /// Starts a server without passwords.
    ///
    /// # Errors
    /// As [`PostgresBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// A server with options.
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
            // A killed server loses nothing by this. The tests do not survive a power loss anyway.
            "fsync = off".to_owned(),
            "full_page_writes = off".to_owned(),
        ];
        // The last value of a setting counts.
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

    /// The same through another port, such as that of a [`Proxy`](crate::Proxy), or in another database.
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

    /// The file with the certificate of the authority that signed the server's, if the server [offers
    /// TLS](PostgresBuilder::tls).
    #[must_use]
    pub fn ca(&self) -> String {
        self.dir.join("ca.crt")
    }

    /// The files with a certificate of that authority for the role `lock`, and its key.
    #[must_use]
    pub fn certificate(&self) -> (String, String) {
        (self.dir.join("client.crt"), self.dir.join("client.key"))
    }

    /// Creates a database that the role `lock` owns.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn create_database(&self, name: &str) -> Result<()> {
        let sql = format!("CREATE DATABASE {name} OWNER lock STRATEGY file_copy");
        self.psql("postgres", &sql).map(drop)
    }

    /// Runs SQL as the superuser in a database. Returns one line per row, with `|` between columns.
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

    /// SIGSTOP for every process of the server: connections stay open, and requests get no answer.
    ///
    /// # Errors
    /// If it is not running.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()?;
        signal(&self.children(), Signal::STOP);
        Ok(())
    }

    /// SIGCONT: it answers the requests that have arrived in the meantime.
    ///
    /// # Errors
    /// If it is not running.
    pub fn resume(&self) -> Result<()> {
        signal(&self.children(), Signal::CONT);
        self.process.resume()
    }

    /// SIGKILL for every process of the server, and waits until all have ended. The port stays reserved.
    pub fn kill9(&self) {
        // A stopped parent neither starts nor reaps children, so no pid is used again before it is killed.
        let mut children = Vec::new();
        if self.process.pause().is_ok() {
            children = self.children();
            signal(&children, Signal::KILL);
        }
        self.process.kill9();
        // A new server refuses to start while one of these processes has the shared memory.
        let begin = Instant::now();
        while children.iter().any(|pid| is_alive(*pid)) && begin.elapsed() < START {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts it again on the same port with its data. A running server is killed first.
    ///
    /// # Errors
    /// As [`PostgresBuilder::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill9();
        self.process = self.launch_again(&[])?;
        self.await_answer()
    }

    /// Starts it again on the same port with the role and the empty database.
    ///
    /// # Errors
    /// As [`PostgresBuilder::start`].
    pub fn restart_empty(&mut self) -> Result<()> {
        self.kill9();
        // The server listens on the Unix socket alone, so that no client connects before the database is empty.
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

    /// Promotes a replica to a primary.
    ///
    /// # Errors
    /// If it is not a replica, or cannot be promoted.
    pub fn promote(&self) -> Result<()> {
        match self.psql("postgres", "SELECT pg_promote()")?.as_str() {
            "t" => Ok(()),
            other => Err(Failure::new(format!("pg_promote() says {other:?}"))),
        }
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
                None => "no process listens".to_owned(),
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
        // Fails if the process has just ended.
        let _ = kill_process(pid, signal);
    }
}

/// Whether a process runs. A process that has ended but is not reaped has released its resources.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// Backends outlive a killed parent for a moment. They would keep the directory in use.
impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill9();
    }
}
