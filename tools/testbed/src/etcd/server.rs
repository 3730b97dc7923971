//! The life of an etcd: start, stop, kill, restart, snapshots.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::builder::EtcdBuilder;
use crate::certificates::make_certificates;
use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::http;
use crate::peers::Peers;
use crate::port::Port;
use crate::process::{Process, Streams, program};
use crate::redis::{log, open_log};

/// How long a server may take to answer after its start. It takes half a second on an idle machine.
const START: Duration = Duration::from_secs(30);

impl EtcdBuilder {
    /// Starts it, and waits until it has a leader.
    ///
    /// # Errors
    /// If etcd is not installed, or does not start; then with the end of its log.
    pub fn start(self) -> Result<Etcd> {
        let server = program("etcd", "etcd-server")?;
        let mut members = Vec::new();
        let peers = match self.members {
            1 => None,
            _ => Some(Peers::start(self.members)?),
        };
        for index in 0..self.members {
            let dir = Dir::new("etcd")?;
            if self.tls && index == 0 {
                make_certificates(&dir)?;
            }
            let peer = match &peers {
                Some(peers) => PeerPort::Behind(peers.listens_at(index), peers.known_as(index)),
                None => PeerPort::Own(Port::free()?),
            };
            members.push(Member {
                client: Port::free()?,
                metrics: Port::free()?,
                peer,
                process: Mutex::new(None),
                dir,
            });
        }
        let etcd = Etcd {
            server,
            tls: self.tls,
            fsync: self.fsync,
            client_certificates: self.client_certificates,
            user: self.user,
            rights: self.rights,
            peers,
            members,
            token: Mutex::new(None),
        };
        etcd.start_all()?;
        etcd.make_user()?;
        Ok(etcd)
    }
}

/// A running etcd of one member or several; killed, with its directories removed, when dropped.
///
/// Methods name a member by its index, which is 0 for a single server.
#[derive(Debug)]
pub struct Etcd {
    server: PathBuf,
    pub(super) tls: bool,
    fsync: bool,
    client_certificates: bool,
    pub(super) user: Option<(String, String)>,
    pub(super) rights: Vec<String>,
    peers: Option<Peers>,
    pub(super) members: Vec<Member>,
    /// The token of the user root.
    pub(super) token: Mutex<Option<String>>,
}

#[derive(Debug)]
pub(super) struct Member {
    client: Port,
    pub(super) metrics: Port,
    peer: PeerPort,
    process: Mutex<Option<Process>>,
    // Last, so that the server has ended before its directory is removed.
    dir: Dir,
}

#[derive(Debug)]
enum PeerPort {
    Own(Port),
    /// Where it listens, and the port at which the other members reach it.
    Behind(u16, u16),
}

impl PeerPort {
    fn listens(&self) -> u16 {
        match self {
            Self::Own(port) => port.number(),
            Self::Behind(listens, _) => *listens,
        }
    }

    fn known(&self) -> u16 {
        match self {
            Self::Own(port) => port.number(),
            Self::Behind(_, known) => *known,
        }
    }
}

impl Etcd {
    /// Starts one server.
    ///
    /// # Errors
    /// As [`EtcdBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// One server with options.
    pub fn builder() -> EtcdBuilder {
        Self::cluster(1)
    }

    /// A cluster.
    pub fn cluster(members: usize) -> EtcdBuilder {
        EtcdBuilder {
            members,
            tls: false,
            fsync: false,
            client_certificates: false,
            user: None,
            rights: Vec::new(),
        }
    }

    /// How many members it has.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The store's URL, with user and password if it has them, and the authority if it has TLS.
    #[must_use]
    pub fn url(&self) -> String {
        let ports: Vec<u16> = (0..self.size()).map(|index| self.port(index)).collect();
        self.url_at(&ports)
    }

    /// The same store's URL through other ports, such as those of [`Proxy`](crate::Proxy)s.
    #[must_use]
    pub fn url_at(&self, ports: &[u16]) -> String {
        let hosts: Vec<String> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let user = match &self.user {
            Some((name, password)) => format!("{name}:{password}@"),
            None => String::new(),
        };
        let hosts = hosts.join(",");
        match self.tls {
            true => format!("etcds://{user}{hosts}?tls-ca={}", self.ca()),
            false => format!("etcd://{user}{hosts}"),
        }
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].client.number()
    }

    /// The file with the certificate of the authority that signed the servers' certificates.
    #[must_use]
    pub fn ca(&self) -> String {
        self.members[0].dir.join("ca.crt")
    }

    /// The files with a certificate of that authority and its key. Clients may use them, too.
    #[must_use]
    pub fn certificate(&self) -> (String, String) {
        let dir = &self.members[0].dir;
        (dir.join("server.crt"), dir.join("server.key"))
    }

    /// SIGSTOP: connections stay open, and requests get no answer.
    ///
    /// # Errors
    /// If it is not running.
    pub fn pause(&self, member: usize) -> Result<()> {
        self.running(member, Process::pause)
    }

    /// SIGCONT: it answers the requests that have arrived in the meantime.
    ///
    /// # Errors
    /// If it is not running.
    pub fn resume(&self, member: usize) -> Result<()> {
        self.running(member, Process::resume)
    }

    /// SIGKILL, and waits until it has ended. The ports stay reserved.
    pub fn kill9(&self, member: usize) {
        *self.process(member) = None;
    }

    /// SIGKILL to all members.
    pub fn kill9_all(&self) {
        (0..self.size()).for_each(|member| self.kill9(member));
    }

    /// Kills all members, starts them again with their data, and waits until there is a leader.
    ///
    /// # Errors
    /// As [`EtcdBuilder::start`].
    pub fn restart(&self) -> Result<()> {
        self.kill9_all();
        self.start_all()
    }

    /// Starts one member again; it may have to wait for the others.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn launch(&self, member: usize) -> Result<()> {
        let started = self.command(member)?;
        *self.process(member) = Some(started);
        Ok(())
    }

    /// Starts all members again without their data, and creates the user again.
    ///
    /// # Errors
    /// As [`EtcdBuilder::start`].
    pub fn restart_empty(&self) -> Result<()> {
        self.kill9_all();
        for member in &self.members {
            let data = member.dir.join("data");
            std::fs::remove_dir_all(&data).map_err(Failure::to(format!("remove {data}")))?;
        }
        *self.token.lock().unwrap_or_else(|e| e.into_inner()) = None;
        self.start_all()?;
        self.make_user()
    }

    /// Saves a snapshot of one member, as an administrator might. Returns the file.
    ///
    /// # Errors
    /// If `etcdctl` is not installed, or fails. `etcdctl` fails if the cluster has TLS or a user.
    pub fn snapshot(&self, member: usize) -> Result<String> {
        let file = self.members[0].dir.join("snapshot.db");
        // `etcdctl` does not overwrite a snapshot.
        drop(std::fs::remove_file(&file));
        let endpoint = format!("http://127.0.0.1:{}", self.port(member));
        etcdctl(&["--endpoints", &endpoint, "snapshot", "save", &file])?;
        Ok(file)
    }

    /// Starts all members again from a snapshot. Everything that they acknowledged since then is undone.
    ///
    /// # Errors
    /// If `etcdctl` is not installed, or fails, and as [`EtcdBuilder::start`].
    pub fn restore_snapshot(&self, file: &str) -> Result<()> {
        self.kill9_all();
        let all = self.peers_by_name();
        for (index, member) in self.members.iter().enumerate() {
            let data = member.dir.join("data");
            std::fs::remove_dir_all(&data).map_err(Failure::to(format!("remove {data}")))?;
            let (name, peer) = (format!("m{index}"), member.peer.known());
            let peer = format!("http://127.0.0.1:{peer}");
            etcdctl(&[
                "snapshot",
                "restore",
                file,
                "--name",
                &name,
                "--data-dir",
                &data,
                "--initial-cluster",
                &all,
                "--initial-advertise-peer-urls",
                &peer,
            ])?;
        }
        self.start_all()
    }

    /// Cuts a member off from the others, both ways; its clients still reach it.
    ///
    /// # Errors
    /// If this is not a cluster.
    pub fn cut_off(&self, member: usize) -> Result<()> {
        self.peers()?.cut_off(member);
        Ok(())
    }

    /// Ends [`Etcd::cut_off`].
    ///
    /// # Errors
    /// If this is not a cluster.
    pub fn rejoin(&self, member: usize) -> Result<()> {
        self.peers()?.rejoin(member);
        Ok(())
    }

    fn peers(&self) -> Result<&Peers> {
        let none = || Failure::new("a single server has no others to be cut off from");
        self.peers.as_ref().ok_or_else(none)
    }

    pub(super) fn process(&self, member: usize) -> std::sync::MutexGuard<'_, Option<Process>> {
        let process = &self.members[member].process;
        process.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn running(&self, member: usize, signal: impl Fn(&Process) -> Result<()>) -> Result<()> {
        match &*self.process(member) {
            Some(process) => signal(process),
            None => Err(Failure::new(format!("member {member} does not run"))),
        }
    }

    fn start_all(&self) -> Result<()> {
        (0..self.size()).try_for_each(|member| self.launch(member))?;
        (0..self.size()).try_for_each(|member| self.await_healthy(member))
    }

    /// The value of `--initial-cluster`: where the members find each other.
    fn peers_by_name(&self) -> String {
        let all = self.members.iter().enumerate();
        let all = all.map(|(i, m)| format!("m{i}=http://127.0.0.1:{}", m.peer.known()));
        all.collect::<Vec<_>>().join(",")
    }

    fn command(&self, index: usize) -> Result<Process> {
        let member = &self.members[index];
        let client = match self.tls {
            true => format!("https://127.0.0.1:{}", member.client.number()),
            false => format!("http://127.0.0.1:{}", member.client.number()),
        };
        let mut command = Command::new(&self.server);
        command
            .args(["--name", &format!("m{index}")])
            .args(["--data-dir", &member.dir.join("data")])
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args([
                "--listen-peer-urls",
                &format!("http://127.0.0.1:{}", member.peer.listens()),
            ])
            .args([
                "--initial-advertise-peer-urls",
                &format!("http://127.0.0.1:{}", member.peer.known()),
            ])
            .args([
                "--listen-metrics-urls",
                &format!("http://127.0.0.1:{}", member.metrics.number()),
            ])
            .args(["--initial-cluster", &self.peers_by_name()])
            // The default. With less, a busy machine elects new leaders without any failure.
            .args(["--heartbeat-interval", "100", "--election-timeout", "1000"])
            // A cheap password hash.
            .args([
                "--bcrypt-cost",
                "4",
                "--logger",
                "zap",
                "--log-level",
                "warn",
            ])
            .current_dir(member.dir.path());
        if !self.fsync {
            command.arg("--unsafe-no-fsync");
        }
        if self.tls {
            let dir = &self.members[0].dir;
            command
                .args(["--cert-file", &dir.join("server.crt")])
                .args(["--key-file", &dir.join("server.key")]);
            if self.client_certificates {
                command
                    .arg("--client-cert-auth")
                    .args(["--trusted-ca-file", &dir.join("ca.crt")]);
            }
        }
        let (out, errors) = open_log(&member.dir, "etcd")?;
        let stdin = Stdio::null();
        let streams = Streams {
            stdin,
            stdout: out.into(),
            stderr: errors.into(),
        };
        Process::spawn(&command, streams)
    }

    fn await_healthy(&self, member: usize) -> Result<()> {
        let begin = Instant::now();
        loop {
            let port = self.members[member].metrics.number();
            let why = match http::get(port, "/health") {
                Ok(text) if text.contains("\"true\"") => return Ok(()),
                Ok(text) => text,
                Err(error) => error.to_string(),
            };
            let ended = self
                .process(member)
                .as_ref()
                .is_none_or(|p| p.ended().is_some());
            if ended || begin.elapsed() > START {
                let log = log(&self.members[member].dir);
                let client = self.port(member);
                return Err(Failure::new(format!(
                    "etcd does not come up on port {client} ({why}); its log ends:\n{log}"
                )));
            }
            // The server does not announce that it is ready, so poll.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Runs `etcdctl` to its end.
fn etcdctl(words: &[&str]) -> Result<()> {
    let program = program("etcdctl", "etcd-client")?;
    let output = Command::new(program)
        .env("ETCDCTL_API", "3")
        .args(words)
        .output()
        .map_err(Failure::to("run etcdctl"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Failure::new(format!("etcdctl {words:?} fails: {said}")))
        }
    }
}
