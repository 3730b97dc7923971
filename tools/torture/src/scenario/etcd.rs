//! Recipes for etcd with `etcdctl lock`.

use std::process::Command;
use std::time::Duration;

use fencelock::Release;
use fencelock_testbed::{Etcd, Failure, Flow, Proxy, Result, Worker};

use super::story::{Scenario, Side, Sides, beside, let_go, open, take_for};

pub(super) static SCENARIOS: &[Scenario] = &[
    scenario!(
        "etcd-prefix",
        "etcd: a holder of /a/b blocks /a",
        etcd_prefix
    ),
    scenario!(
        "etcd-session",
        "etcd: a session that ends during a pause, and a command that continues",
        etcd_session
    ),
];

/// A lease of etcd lasts at least a second.
const TTL: Duration = Duration::from_secs(2);

/// `etcdctl lock`, as people use it in scripts.
fn etcdctl(etcd: &Etcd, words: &[&str]) -> Result<Worker> {
    let mut command = Command::new("etcdctl");
    command
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints=127.0.0.1:{}", etcd.port(0)))
        .arg("lock")
        .args(words);
    Worker::spawn(&command)
}

/// Its next line, if there is one in time.
async fn line(worker: &mut Worker, within: Duration) -> Option<String> {
    tokio::time::timeout(within, worker.line())
        .await
        .ok()
        .flatten()
}

async fn etcd_prefix() -> Result<Sides> {
    let etcd = Etcd::start()?;
    let mut naive = Side::begin();
    let mut first = etcdctl(&etcd, &["/a/b"])?;
    let key = line(&mut first, Duration::from_secs(10)).await;
    let key = key.ok_or_else(|| Failure::new("etcdctl gets no lock"))?;
    naive.note("A", format!("etcdctl lock /a/b -> {key}"));
    let mut second = etcdctl(&etcd, &["/a"])?;
    let got = line(&mut second, Duration::from_secs(1)).await;
    naive.note(
        "B",
        match &got {
            Some(key) => format!("etcdctl lock /a -> {key}"),
            None => "etcdctl lock /a -> no lock for more than a second".to_owned(),
        },
    );
    let naive = naive.end(
        got.is_some(),
        "the key of /a/b is below /a/, so it is in the queue of /a",
    );
    drop((first, second));

    let mut ours = Side::begin();
    let (one, two) = (open(&etcd.url()).await?, open(&etcd.url()).await?);
    let failed = |error: fencelock::Error| Failure::new(error.to_string());
    let inner = one.try_lock("/a/b").await.map_err(failed)?;
    ours.note("A", format!("has /a/b, token {}", inner.token()));
    let outer = two.try_lock("/a").await;
    ours.note(
        "B",
        if outer.is_ok() {
            "has /a at once"
        } else {
            "does not get /a"
        },
    );
    let good = outer.is_ok() && inner.is_valid();
    let released = let_go(inner, &mut ours, "A").await?;
    let ours = ours.end(
        good && released == Release::Released,
        "names are escaped: no lock is below another",
    );
    Ok([naive, ours])
}

async fn etcd_session() -> Result<Sides> {
    let etcd = Etcd::start()?;
    let mut naive = Side::begin();
    let job = "echo begins; sleep 6; echo writes";
    let ttl = format!("--ttl={}", TTL.as_secs());
    let mut first = etcdctl(&etcd, &[&ttl, "job", "--", "sh", "-c", job])?;
    let begins = line(&mut first, Duration::from_secs(10)).await;
    naive.note(
        "A",
        format!(
            "etcdctl lock {ttl} job -- sh -c '{job}' -> {}",
            begins.unwrap_or_default()
        ),
    );
    first.process().pause()?;
    naive.note(
        "A",
        "etcdctl is stopped (SIGSTOP): its session is not kept alive",
    );
    let mut second = etcdctl(&etcd, &[&ttl, "job", "--", "echo", "begins"])?;
    let other = line(&mut second, Duration::from_secs(20)).await;
    naive.note(
        "B",
        format!(
            "etcdctl lock {ttl} job -> {}",
            other.as_deref().unwrap_or("nothing")
        ),
    );
    first.process().resume()?;
    naive.note("A", "etcdctl continues (SIGCONT)");
    let writes = line(&mut first, Duration::from_secs(10)).await;
    naive.note(
        "A",
        writes.clone().unwrap_or_else(|| "was ended".to_owned()),
    );
    let naive = naive.end(
        other.is_none() || writes.is_none(),
        "B had the lock, but A's command did not learn of the loss and wrote",
    );
    drop((first, second));

    let mut ours = Side::begin();
    let proxy = Proxy::start(etcd.port(0))?;
    let (one, two) = (
        open(&etcd.url_at(&[proxy.port()])).await?,
        open(&etcd.url()).await?,
    );
    let first = take_for(&one, &mut ours, "A", TTL).await?;
    proxy.both(Flow::Hold);
    ours.note("A", "no message passes between it and etcd any more");
    let early = beside(&two, &mut ours, "B").await;
    let lost = tokio::select! {
        biased;
        second = take_for(&two, &mut ours, "B", TTL) => {
            drop(second?);
            false
        }
        _ = first.lost() => true,
    };
    if lost {
        ours.note("A", "learns that it has lost the lock");
    }
    let second = take_for(&two, &mut ours, "B", TTL).await?;
    let released = let_go(second, &mut ours, "B").await?;
    let ours = ours.end(
        lost && !early && released == Release::Released,
        "A knew before B was granted the lock (`fencelock run` has ended its command by then)",
    );
    Ok([naive, ours])
}
