//! How a ZooKeeper server is set up: its options, its configuration, its process.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::certificates::make_certificates;
use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::process::{Process, Streams, program};

const CLASS: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
/// Includes two jars that TLS needs and that Debian's jar does not name.
const CLASS_PATH: &str = "/etc/zookeeper/conf:/usr/share/java/zookeeper.jar:\
     /usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar";

/// The setup of a [`ZooKeeper`](crate::ZooKeeper) or an [`Ensemble`](crate::Ensemble); see
/// [`ZooKeeper::builder`](crate::ZooKeeper::builder).
#[derive(Clone, Debug)]
#[must_use = "nothing is started before `start`"]
pub struct ZooKeeperBuilder {
    pub(super) tick: Duration,
    pub(super) sessions: (Duration, Duration),
    pub(super) flags: Vec<String>,
    pub(super) tls: bool,
    pub(super) sync_limit: u32,
}

impl ZooKeeperBuilder {
    /// Also listens with TLS on another port, with a certificate for `localhost` and 127.0.0.1 of its own authority. Only
    /// for one server, not for an ensemble. Needs the command `openssl`.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// The shortest and the longest session timeout that it grants.
    pub fn sessions(mut self, shortest: Duration, longest: Duration) -> Self {
        self.sessions = (shortest, longest);
        self
    }

    /// For how many ticks of 200 ms a follower may be behind its leader; 5 unless given. On a busy disk a follower is behind
    /// for seconds. With a low limit the servers then elect a leader anew.
    pub fn sync_limit(mut self, ticks: u32) -> Self {
        self.sync_limit = ticks;
        self
    }

    /// Another option of the Java program, such as `-Dzookeeper.forceSync=yes`.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// The configuration file.
    pub(super) fn config(&self, port: u16, dir: &Dir) -> String {
        let millis = |of: Duration| of.as_millis();
        format!(
            "tickTime={}\ninitLimit=20\nsyncLimit={}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
             minSessionTimeout={}\nmaxSessionTimeout={}\nmaxClientCnxns=0\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\n",
            millis(self.tick),
            self.sync_limit,
            dir.join("data"),
            millis(self.sessions.0),
            millis(self.sessions.1),
        )
    }
}

/// The configuration of a server that listens with TLS.
pub(super) fn secure_config(port: u16, dir: &Dir) -> Result<String> {
    make_certificates(dir)?;
    let read = |file: &str| fs::read_to_string(dir.join(file)).map_err(Failure::to("read a key"));
    let both = read("server.key")? + &read("server.crt")?;
    write(&dir.join("server.pem"), &both)?;
    // The server recognises PEM by this file extension.
    write(&dir.join("ca.pem"), &read("ca.crt")?)?;
    Ok(format!(
        "secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n\
         serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.location={}\nssl.trustStore.location={}\nssl.clientAuth=none\n",
        dir.join("server.pem"),
        dir.join("ca.pem"),
    ))
}

/// Writes a file.
pub(super) fn write(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Failure::to(format!("write {path}")))
}

/// Starts the server's process.
pub(super) fn run(builder: &ZooKeeperBuilder, dir: &Dir) -> Result<Process> {
    let java = program("java", "default-jre-headless")?;
    if !Path::new("/usr/share/java/zookeeper.jar").exists() {
        return Err(Failure::new(
            "zookeeper is not installed; install it with: apt-get install -y --no-install-recommends zookeeper",
        ));
    }
    let open = File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"));
    let log = open.map_err(Failure::to("open a log for zookeeper"))?;
    let errors = log
        .try_clone()
        .map_err(Failure::to("open a log for zookeeper"))?;
    let mut command = Command::new(java);
    command
        .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        .args([
            "-Dzookeeper.root.logger=INFO,CONSOLE",
            "-Dzookeeper.preAllocSize=1024",
        ])
        // The server looks for empty containers every second instead of every minute. Without fsync a killed server
        // loses nothing. The tests do not survive a power loss anyway.
        .args([
            "-Dznode.container.checkIntervalMs=1000",
            "-Dzookeeper.forceSync=no",
        ])
        .args(&builder.flags)
        .args(["-cp", CLASS_PATH, CLASS, &dir.join("zoo.cfg")])
        .current_dir(dir.path());
    Process::spawn(
        &command,
        Streams {
            stdin: Stdio::null(),
            stdout: log.into(),
            stderr: errors.into(),
        },
    )
}
