//! One ZooKeeper server, and an ensemble of three whose links can be cut.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::certificates::make_certificates;
use crate::dir::Dir;
use crate::failure::{Failure, Result};
use crate::port::Port;
use crate::process::{Process, Streams, program};
use crate::proxy::Proxy;

/// How long a server may take to answer after its start. It takes 0.7 s on an idle machine.
const START: Duration = Duration::from_secs(60);

const CLASS: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
/// With two jars that TLS needs and that Debian's jar does not name.
const CLASS_PATH: &str = "/etc/zookeeper/conf:/usr/share/java/zookeeper.jar:\
     /usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar";

/// What a [`ZooKeeper`] or an [`Ensemble`] is to be; made by [`ZooKeeper::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is started before `start`"]
pub struct ZooKeeperBuilder {
    tick: Duration,
    sessions: (Duration, Duration),
    flags: Vec<String>,
    tls: bool,
}

impl ZooKeeperBuilder {
    /// Listens with TLS, too, on another port, with a certificate for `localhost` and 127.0.0.1 of an authority of its
    /// own. One server, not an ensemble. Needs the command `openssl`.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// The shortest and the longest session that it grants.
    pub fn sessions(mut self, shortest: Duration, longest: Duration) -> Self {
        self.sessions = (shortest, longest);
        self
    }

    /// Another option of the Java program, such as `-Dzookeeper.forceSync=yes`.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// Starts one server, and waits until it answers.
    ///
    /// # Errors
    /// If Java or ZooKeeper is not installed, or it does not come up; then with the end of its log.
    pub fn start(self) -> Result<ZooKeeper> {
        let server = self.launch(None, "")?;
        server.await_answer()?;
        Ok(server)
    }

    /// Starts three servers, and waits until they have a leader.
    ///
    /// # Errors
    /// As [`ZooKeeperBuilder::start`].
    pub fn ensemble(self) -> Result<Ensemble> {
        Ensemble::start(self)
    }

    fn config(&self, port: u16, dir: &Dir) -> String {
        let millis = |of: Duration| of.as_millis();
        format!(
            "tickTime={}\ninitLimit=20\nsyncLimit=5\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
             minSessionTimeout={}\nmaxSessionTimeout={}\nmaxClientCnxns=0\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\n",
            millis(self.tick),
            dir.join("data"),
            millis(self.sessions.0),
            millis(self.sessions.1),
        )
    }

    /// Starts one server, as number so many of an ensemble, with these lines more in its configuration.
    fn launch(self, number: Option<usize>, more: &str) -> Result<ZooKeeper> {
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

/// What a server needs to listen with TLS.
fn secure_config(port: u16, dir: &Dir) -> Result<String> {
    make_certificates(dir)?;
    let read = |file: &str| fs::read_to_string(dir.join(file)).map_err(Failure::to("read a key"));
    let both = read("server.key")? + &read("server.crt")?;
    write(&dir.join("server.pem"), &both)?;
    // It takes PEM by this ending only.
    write(&dir.join("ca.pem"), &read("ca.crt")?)?;
    Ok(format!(
        "secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n\
         serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.location={}\nssl.trustStore.location={}\nssl.clientAuth=none\n",
        dir.join("server.pem"),
        dir.join("ca.pem"),
    ))
}

/// A running ZooKeeper server; killed, with its directory removed, when dropped.
#[derive(Debug)]
pub struct ZooKeeper {
    builder: ZooKeeperBuilder,
    process: Process,
    port: Port,
    secure: Option<Port>,
    // Last, so that the server is gone before its directory is.
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

    /// A server with more to it.
    pub fn builder() -> ZooKeeperBuilder {
        ZooKeeperBuilder {
            tick: Duration::from_millis(200),
            sessions: (Duration::from_secs(1), Duration::from_secs(3600)),
            flags: Vec::new(),
            tls: false,
        }
    }

    /// The store's URL without a chroot.
    #[must_use]
    pub fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}", self.port())
    }

    /// Where clients connect.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Where clients connect with TLS, if it was asked for.
    #[must_use]
    pub fn secure_port(&self) -> Option<u16> {
        self.secure.as_ref().map(Port::number)
    }

    /// The file with the certificate of the authority behind the server's own.
    #[must_use]
    pub fn ca(&self) -> String {
        self.dir.join("ca.crt")
    }

    /// The process id; a restart changes it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// SIGSTOP: connections stay open and nothing answers.
    ///
    /// # Errors
    /// If it is not running.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// SIGCONT: it works off what has come in meanwhile.
    ///
    /// # Errors
    /// If it is not running.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// SIGKILL, and waits until it is gone. The port stays reserved.
    pub fn kill9(&self) {
        self.process.kill9();
    }

    /// Starts it again as it was, with all that it knew, killing it first if it runs.
    ///
    /// # Errors
    /// As [`ZooKeeperBuilder::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.relaunch()?;
        self.await_answer()
    }

    /// Starts it again on the same port without anything that it knew.
    ///
    /// # Errors
    /// As [`ZooKeeperBuilder::start`].
    pub fn restart_empty(&mut self) -> Result<()> {
        self.forget()?;
        self.restart()
    }

    /// Copies all that it knows now, for [`ZooKeeper::restart_as_saved`].
    ///
    /// # Errors
    /// If the files cannot be copied.
    pub fn save(&self) -> Result<()> {
        copy_files(&self.dir.join("data/version-2"), &self.dir.join("saved"))
    }

    /// Starts it again with what it knew when that was saved: whatever it acknowledged since is undone.
    ///
    /// # Errors
    /// If nothing was saved, and as [`ZooKeeperBuilder::start`].
    pub fn restart_as_saved(&mut self) -> Result<()> {
        let data = self.forget()?;
        copy_files(&self.dir.join("saved"), &data)?;
        self.restart()
    }

    /// The same for a member of an ensemble, which then never learns the first transactions that came next: it has
    /// others, of no consequence, under their numbers. Only one that is behind the leader by more than ten.
    ///
    /// # Errors
    /// As [`ZooKeeper::restart_as_saved`].
    pub fn restart_astray(&mut self) -> Result<()> {
        let path = self.dir.join("zoo.cfg");
        let config = fs::read_to_string(&path).map_err(Failure::to(format!("read {path}")))?;
        let alone = config.lines().filter(|line| !line.starts_with("server."));
        write(&path, &alone.collect::<Vec<_>>().join("\n"))?;
        self.restart_as_saved()?;
        // A session is a transaction.
        self.children("/")?;
        write(&path, &config)?;
        self.restart()
    }

    /// Kills it and removes all that it knew, from the directory returned.
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

    /// What it answers to a word of four letters, such as `srvr` or `wchs`.
    ///
    /// # Errors
    /// If it does not answer within two seconds.
    pub fn word(&self, word: &str) -> Result<String> {
        let ask = || {
            let address = SocketAddr::from(([127, 0, 0, 1], self.port()));
            let limit = Duration::from_secs(2);
            let mut stream = TcpStream::connect_timeout(&address, limit)?;
            stream.set_read_timeout(Some(limit))?;
            stream.write_all(word.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok::<_, std::io::Error>(answer)
        };
        ask().map_err(Failure::to(format!(
            "ask the server on port {} for {word}",
            self.port()
        )))
    }

    /// Makes a node that stays; with `auth` (`user:password`) only for that user.
    ///
    /// # Errors
    /// If the server does not answer, or there is such a node.
    pub fn make_root(&self, path: &str, auth: Option<&str>) -> Result<()> {
        let path = path.to_owned();
        let owned = auth.is_some();
        self.administer(auth, async move |client| {
            let acls = match owned {
                true => Acls::creator_all(),
                false => Acls::anyone_all(),
            };
            let options = CreateMode::Persistent.with_acls(acls);
            client.create(&path, b"", &options).await.map(drop)
        })
    }

    /// How many nodes are below `path`; none if there is no such node.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn count_below(&self, path: &str, auth: Option<&str>) -> Result<u64> {
        let path = path.to_owned();
        self.administer(auth, async move |client| {
            match client.count_descendants_number(&path).await {
                Ok(count) => Ok(count as u64),
                Err(Error::NoNode) => Ok(0),
                Err(error) => Err(error),
            }
        })
    }

    /// The names of the nodes right below `path`, in order.
    ///
    /// # Errors
    /// If the server does not answer, or there is no such node.
    pub fn children(&self, path: &str) -> Result<Vec<String>> {
        let path = path.to_owned();
        self.administer(None, async move |client| {
            let mut children = client.list_children(&path).await?;
            children.sort_unstable();
            Ok(children)
        })
    }

    /// Deletes all that is two levels or less below `path`, as an administrator might.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn erase_below(&self, path: &str, auth: Option<&str>) -> Result<()> {
        let path = path.to_owned();
        self.administer(auth, async move |client| {
            for name in client.list_children(&path).await? {
                let name = format!("{path}/{name}");
                let children = match client.list_children(&name).await {
                    // The server has cleared it away meanwhile, as it does with containers that are empty.
                    Err(Error::NoNode) => continue,
                    listed => listed?,
                };
                for child in children {
                    drop(client.delete(&format!("{name}/{child}"), None).await);
                }
                drop(client.delete(&name, None).await);
            }
            Ok(())
        })
    }

    /// Does something as a client of its own.
    fn administer<T: Send + 'static>(
        &self,
        auth: Option<&str>,
        work: impl AsyncFnOnce(&Client) -> std::result::Result<T, Error> + Send + 'static,
    ) -> Result<T> {
        let failed = format!("administer the server on port {}", self.port());
        let address = format!("127.0.0.1:{}", self.port());
        let auth = auth.map(str::to_owned);
        let working = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            let work = async {
                let mut connector =
                    Client::connector().with_session_timeout(Duration::from_secs(10));
                if let Some(auth) = auth {
                    connector = connector.with_auth("digest", auth.as_bytes());
                }
                let client = connector.connect(&address).await?;
                work(&client).await
            };
            let worked = runtime.block_on(async { tokio::time::timeout(START, work).await });
            let worked = worked.map_err(|error| error.to_string())?;
            worked.map_err(|error: Error| error.to_string())
        };
        // On a thread of its own: the caller's may belong to a runtime, which must not be blocked on within.
        let thread = std::thread::Builder::new().name("zookeeper administrator".into());
        let thread = thread.spawn(working).map_err(Failure::to(&failed))?;
        let worked = thread.join();
        let worked = worked.map_err(|_| Failure::new(format!("cannot {failed}: it panicked")))?;
        worked.map_err(Failure::to(&failed))
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

    /// `leader`, `follower` or `standalone`; nothing while it does not serve.
    #[must_use]
    pub fn mode(&self) -> Option<String> {
        let answer = self.word("srvr").ok()?;
        let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
        mode.map(str::to_owned)
    }

    fn await_answer(&self) -> Result<()> {
        let begin = Instant::now();
        while self.mode().is_none() {
            if self.process.ended().is_some() || begin.elapsed() > START {
                return Err(Failure::new(format!(
                    "zookeeper does not come up on port {}; its log ends:\n{}",
                    self.port(),
                    self.log()
                )));
            }
            // Nothing tells when a server serves: ask again.
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// Three servers, each of which reaches each of the others through proxies of its own.
#[derive(Debug)]
pub struct Ensemble {
    servers: Vec<ZooKeeper>,
    links: Vec<Link>,
    /// Those of the servers for each other.
    _ports: Vec<[Port; 2]>,
}

/// The ways from one server to another.
#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    proxies: [Proxy; 2],
}

impl Ensemble {
    fn start(builder: ZooKeeperBuilder) -> Result<Self> {
        let mut ports = Vec::new();
        for _ in 0..3 {
            ports.push([Port::free()?, Port::free()?]);
        }
        let mut links = Vec::new();
        let mut servers = Vec::new();
        for from in 0..3 {
            let mut lines = String::new();
            for (to, [quorum, election]) in ports.iter().enumerate() {
                let (quorum, election) = if to == from {
                    (quorum.number(), election.number())
                } else {
                    let proxies = [
                        Proxy::start(quorum.number())?,
                        Proxy::start(election.number())?,
                    ];
                    let numbers = (proxies[0].port(), proxies[1].port());
                    links.push(Link { from, to, proxies });
                    numbers
                };
                lines += &format!("server.{}=127.0.0.1:{quorum}:{election}\n", to + 1);
            }
            servers.push(builder.clone().launch(Some(from + 1), &lines)?);
        }
        let ensemble = Self {
            servers,
            links,
            _ports: ports,
        };
        for server in &ensemble.servers {
            server.await_answer()?;
        }
        Ok(ensemble)
    }

    /// The store's URL with all three servers, without a chroot.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self
            .servers
            .iter()
            .map(|server| format!("127.0.0.1:{}", server.port()))
            .collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    /// One of the three.
    #[must_use]
    pub fn server(&self, at: usize) -> &ZooKeeper {
        &self.servers[at]
    }

    /// One of the three, to be started again.
    pub fn server_mut(&mut self, at: usize) -> &mut ZooKeeper {
        &mut self.servers[at]
    }

    /// Which one leads; waits until one does.
    ///
    /// # Errors
    /// If none does for long.
    pub fn leader(&self) -> Result<usize> {
        self.leader_but(None)
    }

    /// Which one leads that is not `but`; waits until one does.
    ///
    /// # Errors
    /// If none does for long.
    pub fn leader_but(&self, but: Option<usize>) -> Result<usize> {
        let begin = Instant::now();
        loop {
            let leads = |at: &usize| {
                Some(*at) != but && self.servers[*at].mode().as_deref() == Some("leader")
            };
            if let Some(leader) = (0..self.servers.len()).find(leads) {
                return Ok(leader);
            }
            if begin.elapsed() > START {
                return Err(Failure::new("three zookeeper servers have no leader"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Cuts one server off from the other two; clients still reach it.
    ///
    /// # Errors
    /// If a port cannot be switched.
    pub fn isolate(&self, server: usize) -> Result<()> {
        for proxy in self.links_of(server) {
            proxy.refuse(true)?;
            proxy.reset();
        }
        Ok(())
    }

    /// Ends the isolation of a server.
    ///
    /// # Errors
    /// If a port cannot be switched.
    pub fn join(&self, server: usize) -> Result<()> {
        self.links_of(server)
            .try_for_each(|proxy| proxy.refuse(false))
    }

    fn links_of(&self, server: usize) -> impl Iterator<Item = &Proxy> {
        let concerned = move |link: &&Link| link.from == server || link.to == server;
        self.links
            .iter()
            .filter(concerned)
            .flat_map(|link| &link.proxies)
    }

    /// SIGKILL for one of them.
    pub fn kill9(&self, server: usize) {
        self.servers[server].kill9();
    }

    /// Starts one of them again, and waits until it serves.
    ///
    /// # Errors
    /// As [`ZooKeeperBuilder::start`].
    pub fn restart(&mut self, server: usize) -> Result<()> {
        self.servers[server].restart()
    }
}

fn write(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Failure::to(format!("write {path}")))
}

fn run(builder: &ZooKeeperBuilder, dir: &Dir) -> Result<Process> {
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
        // Empty containers are looked for every second instead of every minute. A killed server loses nothing without
        // fsync, and a machine that loses power loses its tests as well.
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
