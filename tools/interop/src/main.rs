//! A client of the interoperability tests in Rust: this library, the crate `rslock`, or `etcdctl lock`, which this
//! program runs.
//!
//! Its arguments are HOST PORT NAME and a client. `redis`, `etcd` and `zookeeper` are this library on such a server;
//! the others are `rslock` and `etcdctl`. It reads one command per line on stdin, and answers on stdout:
//!
//! ```text
//! take TTL_MS             held | busy
//! wait TTL_MS             held
//! release                 released | not-mine
//! loop SECONDS TTL_MS     one line `IN OUT` for each hold, nanoseconds of the monotonic clock; then `done`
//! ```

mod etcdctl;
mod failure;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use etcdctl::Etcdctl;
use failure::Failure;
use fencelock::{Client, Error, Guard, Release};
use rslock::{LockError, LockManager};
use rustix::time::{ClockId, clock_gettime};

enum Lock {
    Fencelock {
        client: Client,
        held: Option<Guard>,
    },
    Rslock {
        once: LockManager,
        patient: LockManager,
        redis: redis::aio::MultiplexedConnection,
        held: Option<rslock::Lock>,
    },
    Etcdctl(Etcdctl),
}

impl Lock {
    async fn open(kind: &str, address: String) -> Result<Self, Failure> {
        match kind {
            "redis" | "etcd" | "zookeeper" => {
                let options = if kind == "etcd" {
                    "?layout=concurrency"
                } else {
                    ""
                };
                let url = format!("{kind}://{address}{options}");
                let client = fencelock::connect(&url).await?;
                Ok(Self::Fencelock { client, held: None })
            }
            "etcdctl" => Ok(Self::Etcdctl(Etcdctl::new(address))),
            "rslock" => {
                let client = redis::Client::open(format!("redis://{address}"))?;
                let manager = |count| {
                    let mut manager = LockManager::from_clients(vec![client.clone()]);
                    manager.set_retry(count, Duration::from_millis(5));
                    manager
                };
                Ok(Self::Rslock {
                    once: manager(1),
                    patient: manager(u32::MAX),
                    redis: client.get_multiplexed_async_connection().await?,
                    held: None,
                })
            }
            other => Err(format!("there is no client {other:?}").into()),
        }
    }

    async fn take(&mut self, name: &str, ttl: Duration, wait: bool) -> Result<bool, Failure> {
        match self {
            Self::Fencelock { client, held } => {
                let request = if wait {
                    client.lock(name)
                } else {
                    client.try_lock(name)
                };
                match request.ttl(ttl).await {
                    Ok(guard) => *held = Some(guard),
                    Err(Error::Held { .. }) => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
            }
            Self::Rslock {
                once,
                patient,
                held,
                ..
            } => {
                let manager = if wait { patient } else { once };
                match manager.lock(name, ttl).await {
                    Ok(lock) => *held = Some(lock),
                    Err(LockError::Unavailable) => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
            }
            Self::Etcdctl(etcdctl) => return etcdctl.take(name, ttl, wait).await,
        }
        Ok(true)
    }

    async fn release(&mut self, name: &str) -> Result<bool, Failure> {
        let nothing = || Failure::from("a release without a hold");
        match self {
            Self::Fencelock { held, .. } => {
                let guard = held.take().ok_or_else(nothing)?;
                Ok(guard.release().await? == Release::Released)
            }
            Self::Rslock { redis, held, .. } => {
                // Its release does not report a result.
                let lock = held.take().ok_or_else(nothing)?;
                let value: Option<Vec<u8>> = redis::cmd("GET").arg(name).query_async(redis).await?;
                let ours = value.as_deref() == Some(&lock.val);
                lock.release().await;
                Ok(ours)
            }
            Self::Etcdctl(etcdctl) => etcdctl.release().await,
        }
    }

    async fn repeat(&mut self, name: &str, period: Duration, ttl: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut holds = Vec::new();
        while begun.elapsed() < period {
            self.take(name, ttl, true).await?;
            let entered = monotonic();
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2000))).await;
            holds.push((entered, monotonic()));
            self.release(name).await?;
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..10_000))).await;
        }
        for (entered, left) in holds {
            println!("{entered} {left}");
        }
        Ok(())
    }
}

/// The monotonic clock, which Python and Node.js can read, too.
fn monotonic() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

async fn serve(args: &[String]) -> Result<(), Failure> {
    let [host, port, name, kind] = args else {
        return Err("needs HOST PORT NAME and the name of a client".into());
    };
    let mut lock = Lock::open(kind, format!("{host}:{port}")).await?;
    println!("ready");
    loop {
        // On its own thread, so that renewals continue.
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).map(|_| line)
        });
        let line = line.await??;
        let words: Vec<&str> = line.split_whitespace().collect();
        let millis = |text: &str| text.parse().map(Duration::from_millis);
        match words[..] {
            [] => return Ok(()),
            ["take", ttl] => {
                let held = lock.take(name, millis(ttl)?, false).await?;
                println!("{}", if held { "held" } else { "busy" });
            }
            ["wait", ttl] => {
                lock.take(name, millis(ttl)?, true).await?;
                println!("held");
            }
            ["release"] => {
                let released = lock.release(name).await?;
                println!("{}", if released { "released" } else { "not-mine" });
            }
            ["loop", seconds, ttl] => {
                let period = Duration::from_secs_f64(seconds.parse()?);
                lock.repeat(name, period, millis(ttl)?).await?;
                println!("done");
            }
            _ => return Err(format!("unknown command {line:?}").into()),
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let served = runtime
        .map_err(Failure::from)
        .and_then(|runtime| runtime.block_on(serve(&args)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("interop-client {}: {error}", args.join(" "));
            ExitCode::FAILURE
        }
    }
}
