//! The lock service: replicas of `fencelock serve` on one server.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fencelock::Client;
use fencelock_testbed::{Port, Process, Redis, Streams};

/// Longer than everything here takes, even on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One replica; killed when dropped.
pub(crate) struct Replica {
    port: Port,
    store: String,
    options: Vec<String>,
    process: Process,
}

/// Two replicas, and their server.
pub(crate) struct Service {
    pub(crate) replicas: Vec<Replica>,
    pub(crate) redis: Redis,
}

/// The command, next to this package's own program.
pub(crate) fn fencelock() -> PathBuf {
    let fencelock = PathBuf::from(env!("CARGO_BIN_EXE_interop-client")).with_file_name("fencelock");
    assert!(
        fencelock.is_file(),
        "{} is not there; build it with: cargo build -p fencelock-cli --features all",
        fencelock.display()
    );
    fencelock
}

impl Replica {
    pub(crate) fn start(store: String) -> Self {
        Self::start_with(store, &[])
    }

    /// With more options.
    pub(crate) fn start_with(store: String, options: &[&str]) -> Self {
        let port = Port::free().expect("a port");
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let process = serve(&store, port.number(), &options);
        let this = Self {
            port,
            store,
            options,
            process,
        };
        this.await_answer();
        this
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Starts it again on the same port, as a new replica.
    pub(crate) fn restart(&mut self) {
        self.restart_on(self.store.clone());
    }

    /// Starts it again on the same port, as a new replica on this store.
    pub(crate) fn restart_on(&mut self, store: String) {
        self.store = store;
        self.process.kill9();
        self.process = serve(&self.store, self.port(), &self.options);
        self.await_answer();
    }

    fn await_answer(&self) {
        let begun = Instant::now();
        // The command does not announce that it listens, so poll.
        while TcpStream::connect(self.port.address()).is_err() {
            assert!(
                self.process.ended().is_none(),
                "fencelock serve ended; its error is on stderr"
            );
            assert!(
                begun.elapsed() < PATIENCE,
                "fencelock serve does not listen"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The URL of this server. The usual timeout of an answer is short for a machine that stands still for a moment.
pub(crate) fn patient(redis: &Redis) -> String {
    format!("{}?response-timeout=5s", redis.url())
}

fn serve(store: &str, port: u16, options: &[String]) -> Process {
    let store = match store.starts_with("redis:") && !store.contains('?') {
        true => format!("{store}?response-timeout=5s"),
        false => store.to_owned(),
    };
    let mut command = Command::new(fencelock());
    command
        .args([
            "serve",
            "--purpose",
            "efficiency",
            "--store",
            &store,
            "--listen",
        ])
        .arg(format!("127.0.0.1:{port}"))
        .args(options);
    let streams = Streams {
        stdin: Stdio::null(),
        stdout: Stdio::null(),
        stderr: Stdio::inherit(),
    };
    Process::spawn(&command, streams).expect("fencelock serve")
}

impl Service {
    pub(crate) fn start() -> Self {
        let redis = Redis::start().expect("redis-server");
        let replicas = (0..2).map(|_| Replica::start(redis.url())).collect();
        Self { replicas, redis }
    }

    /// What the clients connect to.
    pub(crate) fn urls(&self) -> String {
        let ports = self.replicas.iter().map(Replica::port);
        urls(ports)
    }

    /// A client of the library on the same locks, without the service.
    pub(crate) async fn library(&self) -> Client {
        fencelock::connect(patient(&self.redis))
            .await
            .expect("connects")
    }
}

/// Ports of this machine as URLs.
pub(crate) fn urls(ports: impl IntoIterator<Item = u16>) -> String {
    let urls: Vec<String> = ports
        .into_iter()
        .map(|port| format!("http://127.0.0.1:{port}"))
        .collect();
    urls.join(",")
}

/// Waits until this number of claims wait for the lock.
pub(crate) async fn await_waiters(client: &Client, name: &str, count: usize) {
    let begun = Instant::now();
    loop {
        let view = client.look(name).await.expect("a view");
        if view.waiters.len() == count {
            return;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "{} wait for {name}, not {count}: {view:?}",
            view.waiters.len()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The lock is free, and no claim waits for it.
pub(crate) async fn assert_nothing_left(client: &Client, name: &str) {
    let view = client.look(name).await.expect("a view");
    assert!(
        view.holders.is_empty() && view.waiters.is_empty(),
        "{view:?}"
    );
}
