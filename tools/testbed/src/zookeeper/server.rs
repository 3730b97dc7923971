//! The life of a ZooKeeper server: start, stop, kill, restart.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::builder::{ZooKeeperBuilder, run, secure_config, write};
use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::port::Port;
use crate::process::{Process, signals};

/// How long a server may take to answer after its start. It takes 0.7 s on an idle machine.
pub(super) const START: Duration = Duration::from_secs(60);

impl ZooKeeperBuilder {
    /// Starts one server, and waits until it answers.
    ///
    /// # Errors
    /// If Java or ZooKeeper is not installed, or it does not start; then with the end of its log.
    pub fn start(self) -> Result<ZooKeeper> {
        let server = self.launch(None, "")?;
        server.await_answer()?;
        Ok(server)
    }

    /// Starts one server as a member of an ensemble, with this number and more lines in its configuration.
    pub(super) fn launch(self, number: Option<usize>, more: &str) -> Result<ZooKeeper> {
        let dir = Dir::new("zookeeper")?;
        let port = Port::free()?;
        let mut config = self.config(port.number(), &dir) + more;
        let secure = self.tls.then(Port::free).transpose()?;
        if let Some(secure) = &secure {
            config += &secure_config(secure.number(), &dir)?;
        }
        write(&dir.join("zoo.cfg"), &config)?;
        let data = dir.join("data");
        fs::create_dir(&data).map_err(Failure::to(format!("make {data}")))?;
        if let Some(number) = number {
            write(&format!("{data}/myid"), &number.to_string())?;
        }
        let process = run(&self, &dir)?;
        Ok(ZooKeeper {
            builder: self,
            process,
            port,
            secure,
            dir,
        })
    }
}

fn copy_files(from: &str, to: &str) -> Result<()> {
    let copy = || {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            fs::copy(entry.path(), Path::new(to).join(entry.file_name()))?;
        }
        Ok::<_, std::io::Error>(())
    };
    copy().map_err(Failure::to(format!("copy {from} to {to}")))
}

/// A running ZooKeeper server; killed, with its directory removed, when dropped.
#[derive(Debug)]
pub struct ZooKeeper {
    builder: ZooKeeperBuilder,
    process: Process,
    port: Port,
    secure: Option<Port>,
    // Last, so that the server has ended before its directory is removed.
    dir: Dir,
}

impl ZooKeeper {
    /// Starts a server that takes sessions from one second to an hour.
    ///
    /// # Errors
    /// As [`ZooKeeperBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// A server with options.
    pub fn builder() -> ZooKeeperBuilder {
        ZooKeeperBuilder {
            tick: Duration::from_millis(200),
            sessions: (Duration::from_secs(1), Duration::from_secs(3600)),
            flags: Vec::new(),
            tls: false,
            sync_limit: 5,
        }
    }

    /// The store's URL without a chroot.
    #[must_use]
    pub fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}", self.port())
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The port for clients with TLS, if [TLS is on](ZooKeeperBuilder::tls).
    #[must_use]
    pub fn secure_port(&self) -> Option<u16> {
        self.secure.as_ref().map(Port::number)
    }

    /// The file with the certificate of the authority that signed the server's certificate.
    #[must_use]
    pub fn ca(&self) -> String {
        self.dir.join("ca.crt")
    }

    /// The process id; a restart changes it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    signals!();

    /// Starts it again with its data. A running server is killed first.
    ///
    /// # Errors
    /// As [`ZooKeeperBuilder::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.relaunch()?;
        self.await_answer()
    }

    /// Starts it again on the same port without its data.
    ///
    /// # Errors
    /// As [`ZooKeeperBuilder::start`].
    pub fn restart_empty(&mut self) -> Result<()> {
        self.forget()?;
        self.restart()
    }

    /// Copies its data, for [`ZooKeeper::restart_as_saved`].
    ///
    /// # Errors
    /// If the files cannot be copied.
    pub fn save(&self) -> Result<()> {
        copy_files(&self.dir.join("data/version-2"), &self.dir.join("saved"))
    }

    /// Starts it again with the saved data. Everything that it acknowledged since then is undone.
    ///
    /// # Errors
    /// If nothing was saved, and as [`ZooKeeperBuilder::start`].
    pub fn restart_as_saved(&mut self) -> Result<()> {
        let data = self.forget()?;
        copy_files(&self.dir.join("saved"), &data)?;
        self.restart()
    }

    /// The same for a member of an ensemble. The member then never receives the first transactions that followed, since
    /// it has other, harmless ones with the same numbers. Only for a member that is more than ten transactions behind
    /// the leader.
    ///
    /// # Errors
    /// As [`ZooKeeper::restart_as_saved`].
    pub fn restart_astray(&mut self) -> Result<()> {
        let path = self.dir.join("zoo.cfg");
        let config = fs::read_to_string(&path).map_err(Failure::to(format!("read {path}")))?;
        let alone = config.lines().filter(|line| !line.starts_with("server."));
        write(&path, &alone.collect::<Vec<_>>().join("\n"))?;
        self.restart_as_saved()?;
        // A new session is a transaction.
        self.children("/")?;
        write(&path, &config)?;
        self.restart()
    }

    /// Kills it and removes its data. Returns the directory of the data.
    fn forget(&self) -> Result<String> {
        self.kill9();
        let data = self.dir.join("data/version-2");
        fs::remove_dir_all(&data).map_err(Failure::to(format!("remove {data}")))?;
        Ok(data)
    }

    fn relaunch(&mut self) -> Result<()> {
        self.kill9();
        self.process = run(&self.builder, &self.dir)?;
        Ok(())
    }

    /// The end of the server's log.
    #[must_use]
    pub fn log(&self) -> String {
        const TAIL: usize = 3000;
        match fs::read(self.dir.join("log")) {
            Ok(text) => {
                String::from_utf8_lossy(&text[text.len().saturating_sub(TAIL)..]).into_owned()
            }
            Err(error) => format!("(no log: {error})"),
        }
    }

    /// `leader`, `follower` or `standalone`; `None` while it does not serve.
    #[must_use]
    pub fn mode(&self) -> Option<String> {
        let answer = self.word("srvr").ok()?;
        let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
        mode.map(str::to_owned)
    }

    pub(super) fn await_answer(&self) -> Result<()> {
        let begin = Instant::now();
        while self.mode().is_none() {
            if self.process.ended().is_some() || begin.elapsed() > START {
                return Err(Failure::new(format!(
                    "zookeeper does not come up on port {}; its log ends:\n{}",
                    self.port(),
                    self.log()
                )));
            }
            // The server does not announce that it is ready, so poll.
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}
