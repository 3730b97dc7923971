//! One etcd server, and clusters of them whose members can be cut off from each other.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

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

/// The user that may do everything, where there are users.
const ROOT: (&str, &str) = ("root", "root-of-the-testbed");

/// What an etcd is to be; made by [`Etcd::builder`] or [`Etcd::cluster`].
#[derive(Debug)]
#[must_use = "nothing is started before `start`"]
pub struct EtcdBuilder {
    members: usize,
    tls: bool,
    client_certificates: bool,
    user: Option<(String, String)>,
    rights: Vec<String>,
}

impl EtcdBuilder {
    /// Listens to clients with TLS, and with nothing else, with a certificate for `localhost` and 127.0.0.1 of an
    /// authority of its own ([`Etcd::ca`]). Needs the command `openssl`.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// With TLS, wants a certificate of the same authority from clients, too ([`Etcd::certificate`]).
    pub fn client_certificates(mut self) -> Self {
        self.client_certificates = true;
        self.tls()
    }

    /// Wants a user and a password. The user may read and write keys that begin with `fencelock/`.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self.rights.push("fencelock/".to_owned());
        self
    }

    /// The user may read and write keys with this beginning, too.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.rights.push(prefix.to_owned());
        self
    }

    /// Starts it, and waits until it has a leader.
    ///
    /// # Errors
    /// If etcd is not installed, or does not come up; then with the end of its log.
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
/// A member is named by its index. Where one is wanted and there is one only, that is 0.
#[derive(Debug)]
pub struct Etcd {
    server: PathBuf,
    tls: bool,
    client_certificates: bool,
    user: Option<(String, String)>,
    rights: Vec<String>,
    peers: Option<Peers>,
    members: Vec<Member>,
    /// Of the user root.
    token: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Member {
    client: Port,
    metrics: Port,
    peer: PeerPort,
    process: Mutex<Option<Process>>,
    // Last, so that the server is gone before its directory is.
    dir: Dir,
}

#[derive(Debug)]
enum PeerPort {
    Own(Port),
    /// Where it listens, and what the others take for that.
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

    /// One server with more to it.
    pub fn builder() -> EtcdBuilder {
        Self::cluster(1)
    }

    /// A cluster.
    pub fn cluster(members: usize) -> EtcdBuilder {
        EtcdBuilder {
            members,
            tls: false,
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

    /// The same store's URL by way of other ports, such as those of [`Proxy`](crate::Proxy)s.
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

    /// The file with the certificate of the authority behind the servers' own.
    #[must_use]
    pub fn ca(&self) -> String {
        self.members[0].dir.join("ca.crt")
    }

    /// The files with a certificate of that authority and its key, which clients may use, too.
    #[must_use]
    pub fn certificate(&self) -> (String, String) {
        let dir = &self.members[0].dir;
        (dir.join("server.crt"), dir.join("server.key"))
    }

    /// SIGSTOP: connections stay open and nothing answers.
    ///
    /// # Errors
    /// If it is not running.
    pub fn pause(&self, member: usize) -> Result<()> {
        self.running(member, Process::pause)
    }

    /// SIGCONT: it works off what has come in meanwhile.
    ///
    /// # Errors
    /// If it is not running.
    pub fn resume(&self, member: usize) -> Result<()> {
        self.running(member, Process::resume)
    }

    /// SIGKILL, and waits until it is gone. The ports stay reserved.
    pub fn kill9(&self, member: usize) {
        *self.process(member) = None;
    }

    /// SIGKILL to all members.
    pub fn kill9_all(&self) {
        (0..self.size()).for_each(|member| self.kill9(member));
    }

    /// Starts all members again, killing those that run, and waits until there is a leader. They remember what they had.
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

    /// Starts all members again without anything that they had; the user is made again.
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

    /// Saves a snapshot of what one member has, as an administrator might; the file.
    ///
    /// # Errors
    /// If `etcdctl` is not installed, or fails. It does so if the cluster wants TLS or a user.
    pub fn snapshot(&self, member: usize) -> Result<String> {
        let file = self.members[0].dir.join("snapshot.db");
        // It makes no new one over an old one.
        drop(std::fs::remove_file(&file));
        let endpoint = format!("http://127.0.0.1:{}", self.port(member));
        etcdctl(&["--endpoints", &endpoint, "snapshot", "save", &file])?;
        Ok(file)
    }

    /// Starts all members again with what a snapshot has: whatever was acknowledged since is undone.
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

    /// Deletes every key, as an administrator might.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn erase(&self) -> Result<()> {
        let all = json!({"key": base64(b"\0"), "range_end": base64(b"\0")});
        self.call("kv/deleterange", &all).map(drop)
    }

    /// The keys that begin with `prefix`, which is not empty.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn keys(&self, prefix: &str) -> Result<u64> {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let range = json!({
            "key": base64(prefix.as_bytes()), "range_end": base64(&end), "count_only": true,
        });
        let answer = self.call("kv/range", &range)?;
        // Zero is left out, and numbers of 64 bits come as text.
        let count = answer["count"].as_str().unwrap_or("0");
        count.parse().map_err(Failure::to("count keys"))
    }

    /// The keys that begin with `prefix`, in base64.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn encoded_keys(&self, prefix: &str) -> Result<Vec<String>> {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let range = json!({
            "key": base64(prefix.as_bytes()), "range_end": base64(&end), "keys_only": true,
        });
        let answer = self.call("kv/range", &range)?;
        let kvs = answer["kvs"].as_array().cloned().unwrap_or_default();
        let keys = kvs.iter().filter_map(|kv| kv["key"].as_str());
        Ok(keys.map(str::to_owned).collect())
    }

    /// Makes the cluster forget its history, as an administrator might.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn compact(&self) -> Result<()> {
        let answer = self.call("kv/range", &json!({ "key": base64(b"any") }))?;
        let revision = &answer["header"]["revision"];
        let compact = json!({ "revision": revision, "physical": true });
        self.call("kv/compaction", &compact).map(drop)
    }

    /// Ends a lease, as an administrator might.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn revoke(&self, lease: &str) -> Result<()> {
        self.call("lease/revoke", &json!({"ID": lease})).map(drop)
    }

    /// The leases there are.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub fn leases(&self) -> Result<Vec<String>> {
        let answer = self.call("lease/leases", &json!({}))?;
        let leases = answer["leases"].as_array().cloned().unwrap_or_default();
        let ids = leases.iter().filter_map(|lease| lease["ID"].as_str());
        Ok(ids.map(str::to_owned).collect())
    }

    /// The member that leads.
    ///
    /// # Errors
    /// If none does.
    pub fn leader(&self) -> Result<usize> {
        let leader = (0..self.size()).find(|member| self.leads(*member));
        leader.ok_or_else(|| Failure::new("no member of the cluster leads"))
    }

    /// Whether a member believes that it leads.
    #[must_use]
    pub fn leads(&self, member: usize) -> bool {
        let metrics = self.metrics(member).unwrap_or_default();
        metrics.contains("\netcd_server_is_leader 1\n")
    }

    /// A counter of a member's `/metrics`, summed over its labels that contain `label`.
    ///
    /// # Errors
    /// If the member does not answer.
    pub fn counter(&self, member: usize, name: &str, label: &str) -> Result<u64> {
        let metrics = self.metrics(member)?;
        let lines = metrics
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(label));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        Ok(values.sum::<f64>() as u64)
    }

    /// Cuts a member off from the others, both ways; its clients still reach it.
    ///
    /// # Errors
    /// If this is no cluster.
    pub fn cut_off(&self, member: usize) -> Result<()> {
        self.peers()?.cut_off(member);
        Ok(())
    }

    /// Ends that.
    ///
    /// # Errors
    /// If this is no cluster.
    pub fn rejoin(&self, member: usize) -> Result<()> {
        self.peers()?.rejoin(member);
        Ok(())
    }

    fn peers(&self) -> Result<&Peers> {
        let none = || Failure::new("a single server has no others to be cut off from");
        self.peers.as_ref().ok_or_else(none)
    }

    fn process(&self, member: usize) -> std::sync::MutexGuard<'_, Option<Process>> {
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

    /// Where the members find each other, as `--initial-cluster` wants it.
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
            // A leader that is gone is replaced in half a second or so.
            .args(["--heartbeat-interval", "50", "--election-timeout", "300"])
            // Passwords for tests need not withstand anything.
            .args([
                "--bcrypt-cost",
                "4",
                "--logger",
                "zap",
                "--log-level",
                "warn",
            ])
            .current_dir(member.dir.path());
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

    fn metrics(&self, member: usize) -> Result<String> {
        http::get(self.members[member].metrics.number(), "/metrics")
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
            // Nothing tells when a server is ready: ask again.
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn make_user(&self) -> Result<()> {
        let Some((name, password)) = &self.user else {
            return Ok(());
        };
        let (root, root_password) = ROOT;
        let call = |path: &str, body: Value| self.ctl_or_call(path, &body);
        call("auth/role/add", json!({"name": "locks"}))?;
        for prefix in &self.rights {
            let mut end = prefix.as_bytes().to_vec();
            if let Some(last) = end.last_mut() {
                *last += 1;
            }
            let right = json!({
                "permType": "READWRITE", "key": base64(prefix.as_bytes()), "range_end": base64(&end),
            });
            call("auth/role/grant", json!({"name": "locks", "perm": right}))?;
        }
        call(
            "auth/user/add",
            json!({"name": root, "password": root_password}),
        )?;
        call("auth/user/grant", json!({"user": root, "role": "root"}))?;
        call("auth/user/add", json!({"name": name, "password": password}))?;
        call("auth/user/grant", json!({"user": name, "role": "locks"}))?;
        call("auth/enable", json!({}))?;
        Ok(())
    }

    fn ctl_or_call(&self, path: &str, body: &Value) -> Result<Value> {
        if self.tls {
            return Err(Failure::new(
                "users with TLS are not made here; ask for one of the two",
            ));
        }
        http::post(self.live_port()?, &format!("/v3/{path}"), None, body)
    }

    /// The client port of a member that runs.
    fn live_port(&self) -> Result<u16> {
        let live = |member: &usize| {
            self.process(*member)
                .as_ref()
                .is_some_and(|p| p.ended().is_none())
        };
        let first = (0..self.size()).find(live);
        let first = first.ok_or_else(|| Failure::new("no member of the cluster runs"))?;
        Ok(self.port(first))
    }

    /// One request as the user root.
    fn call(&self, path: &str, body: &Value) -> Result<Value> {
        let port = self.live_port()?;
        let path = format!("/v3/{path}");
        if self.user.is_none() {
            return http::post(port, &path, None, body);
        }
        let mut token = self.token.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(token) = &*token
            && let Ok(answer) = http::post(port, &path, Some(token), body)
        {
            return Ok(answer);
        }
        let (name, password) = ROOT;
        let who = json!({"name": name, "password": password});
        let answer = http::post(port, "/v3/auth/authenticate", None, &who)?;
        let fresh = answer["token"].as_str().unwrap_or_default().to_owned();
        let answer = http::post(port, &path, Some(&fresh), body);
        *token = Some(fresh);
        answer
    }
}

/// As the server's JSON wants bytes.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut word = [0; 3];
        word[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            text.push(match digit <= chunk.len() {
                true => char::from(DIGITS[index as usize]),
                false => '=',
            });
        }
    }
    text
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
