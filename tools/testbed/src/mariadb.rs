//! One MariaDB server, and replicas of it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::certificates::{HERE, make_certificates_for, make_client_certificate};
use crate::clock_shim::ClockShim;
use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::port::{Port, is_open};
use crate::process::{Process, Streams, program, signals};

/// How long a server may take to answer after its start. It takes 200 ms on an idle machine, and longer to recover.
const START: Duration = Duration::from_secs(30);

const PACKAGE: &str = "mariadb-server";

/// A small log, so that the template is copied quickly. A server that runs has the usual size of 96 MiB: the load of a benchmark
/// fills 8 MiB in a second, and then all requests may stop for a minute, until pages are written.
const TEMPLATE_LOG: &str = "--innodb-log-file-size=8M";

/// The setup of a [`MariaDb`]; see [`MariaDb::builder`].
#[derive(Debug, Default)]
#[must_use = "nothing is started before `start`"]
pub struct MariaDbBuilder {
    flags: Vec<String>,
    clock: Option<Arc<ClockShim>>,
    password: Option<String>,
    tls: Option<String>,
}

impl MariaDbBuilder {
    /// Any option of `mariadbd`, without its dashes.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(format!("--{flag}"));
        self
    }

    /// The server uses this clock instead of the machine's.
    pub fn clock(mut self, clock: &Arc<ClockShim>) -> Self {
        self.clock = Some(Arc::clone(clock));
        self
    }

    /// The password of the user `lock`. There is none by default.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Offers TLS, with a certificate for `localhost` and 127.0.0.1 of its own authority ([`MariaDb::ca`]). Needs the
    /// command `openssl`.
    pub fn tls(self) -> Self {
        self.tls_for(HERE)
    }

    /// The same with other names in the certificate, such as `DNS:db.example`.
    pub fn tls_for(mut self, names: &str) -> Self {
        self.tls = Some(names.to_owned());
        self
    }

    /// The server writes a binary log, so that it can have a [replica](MariaDb::replica).
    pub fn replicated(self) -> Self {
        self.flag("log-bin=binlog").flag("server-id=1")
    }

    /// Starts it, and waits until it answers. The user `lock` has all rights in the database `lock`.
    ///
    /// # Errors
    /// If MariaDB is not installed, or does not start; then with the end of its log.
    pub fn start(self) -> Result<MariaDb> {
        let server = self.launch()?;
        let password = server.asked.password.clone().unwrap_or_default();
        server.sql(&format!(
            "CREATE DATABASE `lock`; CREATE USER 'lock'@'%' IDENTIFIED BY '{password}'; \
             GRANT ALL ON `lock`.* TO 'lock'@'%'"
        ))?;
        Ok(server)
    }

    fn launch(mut self) -> Result<MariaDb> {
        let template = template()?;
        let dir = Dir::new("mariadb")?;
        if let Some(names) = &self.tls {
            make_certificates_for(&dir, names)?;
            make_client_certificate(&dir, "lock")?;
            for (option, file) in [
                ("ca", "ca.crt"),
                ("cert", "server.crt"),
                ("key", "server.key"),
            ] {
                self.flags
                    .push(format!("--ssl-{option}={}", dir.join(file)));
            }
        }
        let data = dir.join("data");
        run(Command::new("cp").args(["-a", "--reflink=auto", &template, &data]))?;
        let port = Port::free()?;
        let process = launch(&dir, &port, &self)?;
        let server = MariaDb {
            process,
            port,
            asked: self,
            dir,
        };
        server.await_answer()?;
        Ok(server)
    }
}

/// A running MariaDB server; killed, with its directory removed, when dropped.
#[derive(Debug)]
pub struct MariaDb {
    process: Process,
    port: Port,
    asked: MariaDbBuilder,
    // Last, so that the server has ended before its directory is removed.
    dir: Dir,
}

impl MariaDb {
    /// Starts a server whose user has no password.
    ///
    /// # Errors
    /// As [`MariaDbBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// A server with options.
    pub fn builder() -> MariaDbBuilder {
        MariaDbBuilder::default()
    }

    /// The store's URL: the user `lock` in the database `lock`, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.port(), "lock")
    }

    /// The same through another port, such as that of a [`Proxy`](crate::Proxy), or in another database.
    #[must_use]
    pub fn url_at(&self, port: u16, database: &str) -> String {
        match &self.asked.password {
            Some(password) => format!("mysql://lock:{password}@127.0.0.1:{port}/{database}"),
            None => format!("mysql://lock@127.0.0.1:{port}/{database}"),
        }
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The file with the certificate of the authority that signed the server's, if the server [offers
    /// TLS](MariaDbBuilder::tls).
    #[must_use]
    pub fn ca(&self) -> String {
        self.dir.join("ca.crt")
    }

    /// The files with a certificate of that authority for the user `lock`, and its key.
    #[must_use]
    pub fn certificate(&self) -> (String, String) {
        (self.dir.join("client.crt"), self.dir.join("client.key"))
    }

    /// Runs SQL as the administrator. Returns one line per row, with tabs between columns.
    ///
    /// # Errors
    /// If the server does not answer, or answers with an error.
    pub fn sql(&self, sql: &str) -> Result<String> {
        let client = program("mariadb", "mariadb-client")?;
        let socket = self.dir.join("socket");
        run(Command::new(client)
            // A Unix socket needs no TLS, even if the server requires TLS. From 11.4 on the client requires TLS by default.
            .args(["--no-defaults", "--skip-ssl"])
            .args(["--batch", "--skip-column-names"])
            .args(["--connect-timeout=5", "--user=root", "--socket", &socket])
            .args(["--init-command=SET NAMES utf8mb4", "--execute", sql]))
    }

    signals!();

    /// Starts it again on the same port with its data. A running server is killed first.
    ///
    /// # Errors
    /// As [`MariaDbBuilder::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill9();
        self.process = launch(&self.dir, &self.port, &self.asked)?;
        self.await_answer()
    }

    /// Starts it again on the same port with the user and the empty database.
    ///
    /// # Errors
    /// As [`MariaDbBuilder::start`].
    pub fn restart_empty(&mut self) -> Result<()> {
        // The server runs these statements before it answers, so that no client finds the database missing.
        let empty = "DROP DATABASE `lock`;\nCREATE DATABASE `lock`;\n";
        let file = self.dir.join("empty.sql");
        fs::write(&file, empty).map_err(Failure::to("write a file for mariadbd"))?;
        let flag = format!("--init-file={file}");
        self.asked.flags.push(flag);
        let restarted = self.restart();
        self.asked.flags.pop();
        restarted
    }

    /// Starts a read-only replica of this server, which must be [replicated](MariaDbBuilder::replicated), and waits until
    /// it has caught up.
    ///
    /// # Errors
    /// As [`MariaDbBuilder::start`].
    pub fn replica(&self) -> Result<Self> {
        let replica = MariaDbBuilder {
            password: self.asked.password.clone(),
            ..MariaDbBuilder::default()
        };
        let replica = replica.flag("server-id=2").flag("log-bin=binlog");
        let replica = replica.flag("read-only=1").launch()?;
        self.sql(
            "CREATE USER IF NOT EXISTS 'replica'@'%'; GRANT REPLICATION SLAVE ON *.* TO 'replica'@'%'",
        )?;
        let port = self.port();
        replica.sql(&format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'replica', \
             MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1; START SLAVE"
        ))?;
        replica.follow(self)?;
        Ok(replica)
    }

    /// Waits until this replica has caught up with its primary.
    ///
    /// # Errors
    /// If it does not catch up in time.
    pub fn follow(&self, primary: &Self) -> Result<()> {
        let at = primary.sql("SELECT @@gtid_binlog_pos")?;
        let limit = START.as_secs();
        match self
            .sql(&format!("SELECT MASTER_GTID_WAIT('{at}', {limit})"))?
            .as_str()
        {
            "0" => Ok(()),
            _ => Err(Failure::new(format!(
                "the replica does not follow: {}\n{}",
                self.sql("SHOW SLAVE STATUS")?,
                self.log()
            ))),
        }
    }

    /// Stops the replication on a replica, which stays read-only.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn cut_off(&self) -> Result<()> {
        self.sql("STOP SLAVE").map(drop)
    }

    /// Promotes a replica to a primary.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn promote(&self) -> Result<()> {
        self.sql("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0")
            .map(drop)
    }

    /// Makes the server read-only.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn demote(&self) -> Result<()> {
        self.sql("SET GLOBAL read_only = 1").map(drop)
    }

    /// The end of the server's log.
    #[must_use]
    pub fn log(&self) -> String {
        let text = fs::read(self.dir.path().join("log")).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(2000)..];
        String::from_utf8_lossy(tail).into_owned()
    }

    fn await_answer(&self) -> Result<()> {
        let begin = Instant::now();
        loop {
            let listens = is_open(&self.dir.join("socket"));
            let why = match listens.then(|| self.sql("SELECT @@port")) {
                None => "no process listens".to_owned(),
                Some(Ok(port)) if port == self.port().to_string() => return Ok(()),
                Some(Ok(_)) => "another server answers on its socket".to_owned(),
                Some(Err(error)) => error.to_string(),
            };
            let ended = self.process.ended().is_some();
            if ended || begin.elapsed() > START {
                return Err(Failure::new(format!(
                    "mariadbd does not come up on port {} ({why}); its log ends:\n{}",
                    self.port(),
                    self.log()
                )));
            }
            // The server does not announce that it is ready, so poll.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// An empty data directory, made once per machine and copied for each server.
fn template() -> Result<String> {
    let version = run(Command::new(program("mariadbd", PACKAGE)?).arg("--version"))?;
    let version: String = version
        .split_whitespace()
        .nth(2)
        .unwrap_or_default()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '.')
        .collect();
    let user = rustix::process::geteuid().as_raw();
    let name = format!("fencelock-template-mariadb-{version}-{user}");
    let template = std::env::temp_dir().join(name);
    let path = template.to_string_lossy().into_owned();
    if template.is_dir() {
        return Ok(path);
    }
    let dir = Dir::new("mariadb-install")?;
    let fresh = dir.join("data");
    let mut install = Command::new(program("mariadb-install-db", PACKAGE)?);
    install.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]);
    install.args(["--auth-root-authentication-method=normal", TEMPLATE_LOG]);
    install.arg(format!("--datadir={fresh}")).args(as_root());
    // A starting server deletes files that it takes for old temporary tables.
    install.env("TMPDIR", dir.path());
    run(&mut install)?;
    // Another process may have been first. Its template is the same.
    if let Err(error) = fs::rename(&fresh, &template)
        && !template.is_dir()
    {
        return Err(Failure::to(format!("keep {path}"))(error));
    }
    Ok(path)
}

/// MariaDB runs as root only with an explicit option.
fn as_root() -> Option<&'static str> {
    rustix::process::geteuid()
        .is_root()
        .then_some("--user=root")
}

fn launch(dir: &Dir, port: &Port, asked: &MariaDbBuilder) -> Result<Process> {
    let server: PathBuf = program("mariadbd", PACKAGE)?;
    let open = File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"));
    let log = open.map_err(Failure::to("open a log for mariadbd"))?;
    let errors = log
        .try_clone()
        .map_err(Failure::to("open a log for mariadbd"))?;
    let mut command = Command::new(server);
    command
        .arg("--no-defaults")
        .args(as_root())
        .arg(format!("--datadir={}", dir.join("data")))
        .arg(format!("--socket={}", dir.join("socket")))
        .arg(format!("--pid-file={}", dir.join("pid")))
        // In a shared directory each starting server would delete the files of the others.
        .arg(format!("--tmpdir={}", dir.path().display()))
        .arg(format!("--port={}", port.number()))
        .args(["--bind-address=127.0.0.1", "--skip-name-resolve"])
        .arg("--innodb-log-file-size=96M")
        .args(["--innodb-buffer-pool-size=32M", "--performance-schema=OFF"])
        .args(["--max-connections=1000", "--character-set-server=utf8mb4"])
        // From 11.4 on the server makes a key of 4096 bits at each start by default, which takes seconds.
        .arg("--skip-ssl")
        // A killed server loses nothing by this. The tests do not survive a power loss anyway.
        .arg("--innodb-flush-log-at-trx-commit=2")
        // The last value of a setting counts.
        .args(&asked.flags)
        .current_dir(dir.path())
        .envs(asked.clock.iter().flat_map(|clock| clock.env()));
    let streams = Streams {
        stdin: Stdio::null(),
        stdout: log.into(),
        stderr: errors.into(),
    };
    Process::spawn(&command, streams)
}

fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(Failure::to(format!("run {program}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("{program} fails: {}", said.trim())));
    }
    let answer = String::from_utf8_lossy(&output.stdout);
    Ok(answer.trim_end().to_owned())
}
