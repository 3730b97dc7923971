//! The dashboard in a real browser (Chromium), with a real service and real holders.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fencelock_testbed::{Dir, Redis, Worker};

use crate::program::installed;
use crate::service::{PATIENCE, Replica, fencelock, patient};

/// A hold must be on the page this soon after its grant. The page is read again every two seconds.
const SOON: Duration = Duration::from_secs(6);

/// The exit code of a command whose lock was lost.
const LOST: i32 = 75;

/// A service that knows its users by tokens: `ops` may do everything, `reader` may only look.
struct Service {
    redis: Redis,
    replica: Replica,
    boss: String,
    reader: String,
    _dir: Dir,
}

impl Service {
    fn start() -> Self {
        let dir = Dir::new("dashboard").expect("a directory");
        let (boss, boss_lines) = principal("ops", r#""take", "look", "evict""#);
        let (reader, reader_lines) = principal("reader", r#""look""#);
        let file = dir.join("fencelock.toml");
        std::fs::write(&file, format!("{boss_lines}\n{reader_lines}")).expect("written");
        let redis = Redis::start().expect("redis-server");
        // The page that tells of a lost store must come before its reader gives up.
        let store = format!("{}?response-timeout=2s", redis.url());
        let replica = Replica::start_with(store, &["--config", &file]);
        Self {
            redis,
            replica,
            boss,
            reader,
            _dir: dir,
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.replica.port())
    }

    /// Holders of two locks, and two waiters for one of them.
    fn some_claims(&self) -> Vec<Claim> {
        let claim = |name: &str, owner: &str, label: &str| {
            let body = format!(
                r#"{{"name":"{name}","owner":"{owner}","label":"{label}","wait_ms":20000}}"#
            );
            let mut curl = Command::new("curl");
            curl.args([
                "-s",
                "-o",
                "/dev/null",
                "-H",
                "Content-Type: application/json",
            ])
            .args(["-H", &format!("Authorization: Bearer {}", self.boss)])
            .args(["-d", &body, &format!("{}/v1/claims", self.url())]);
            curl
        };
        for (name, owner, label) in [
            ("orders/4711", "worker-7@web1", "ship the parcel"),
            ("reports/daily", "worker-2@web2", "sums of yesterday"),
        ] {
            let taken = claim(name, owner, label).status().expect("curl");
            assert!(taken.success());
        }
        ["worker-3@web2", "worker-1@web1"]
            .into_iter()
            .map(|owner| claim("orders/4711", owner, "ship the parcel"))
            .map(|mut curl| Claim(curl.spawn().expect("curl")))
            .collect()
    }

    /// A command that runs under a lock of the same store, until the lock is lost.
    async fn run(&self, name: &str) -> Worker {
        let mut command = Command::new(fencelock());
        command
            .args([
                "run",
                "--purpose",
                "efficiency",
                "--label",
                "every night",
                name,
                "--",
            ])
            .args(["sh", "-c", "echo started; exec sleep 60"])
            .env("FENCELOCK_STORE", patient(&self.redis))
            .env_remove("FENCELOCK_OWNER");
        let mut worker = Worker::spawn(&command).expect("fencelock run");
        assert_eq!(worker.line().await.as_deref(), Some("started"));
        worker
    }
}

/// A waiting request; killed when dropped.
struct Claim(std::process::Child);

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A new token, and its lines for the configuration.
fn principal(name: &str, rights: &str) -> (String, String) {
    let drawn = Command::new(fencelock())
        .args(["serve", "token", name])
        .output()
        .expect("it runs");
    let text = String::from_utf8(drawn.stdout).expect("UTF-8");
    let (token, lines) = text.split_once('\n').expect("lines");
    (token.to_owned(), lines.replace(r#""take", "look""#, rights))
}

/// A user at a browser, which ends when dropped.
struct Browser {
    worker: Worker,
    _dir: Dir,
}

impl Browser {
    async fn start(service: &Service, token: &str, theme: &str) -> Self {
        let dir = Dir::new("browser").expect("a directory");
        let modules = installed().with_file_name("node_modules");
        std::os::unix::fs::symlink(modules, dir.join("node_modules")).expect("a link");
        let program = dir.join("dashboard.mjs");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/dashboard.mjs");
        std::fs::copy(source, &program).expect("copied");
        let mut command = Command::new("node");
        command
            .arg(&program)
            .args([&service.url(), &dir.join("profile"), token, theme])
            .arg(pictures(&dir));
        let mut worker = Worker::spawn(&command).expect("node");
        assert_eq!(worker.line().await.as_deref(), Some("ready"));
        Self { worker, _dir: dir }
    }

    async fn does(&mut self, order: &str) {
        self.worker.send(order).expect("it takes orders");
        let said = self.worker.line().await;
        assert_eq!(said.as_deref(), Some("ok"), "{order}");
    }
}

/// Where pictures for the documentation go: into the tree, if the environment asks for that.
fn pictures(dir: &Dir) -> PathBuf {
    let asked = std::env::var_os("FENCELOCK_PICTURES");
    asked.map_or_else(|| dir.path().to_owned(), PathBuf::from)
}

#[tokio::test]
async fn a_hold_appears_soon_and_an_eviction_in_the_page_ends_its_command() {
    let service = Service::start();
    let mut browser = Browser::start(&service, &service.boss, "light").await;
    browser.does("sees No lock that you may look at").await;
    let _some = service.some_claims();
    browser.does("sees worker-2@web2").await;
    browser.does("picture dashboard-light.png").await;
    let mut run = service.run("cron/nightly").await;
    let granted = Instant::now();
    browser.does("sees cron/nightly").await;
    assert!(granted.elapsed() < SOON, "{:?}", granted.elapsed());
    browser.does("follow cron/nightly").await;
    browser.does("sees every night").await;
    browser.does("follow Evict").await;
    browser
        .does("sees The store takes the lock away at once")
        .await;
    browser.does("press Evict the holder").await;
    browser.does("sees was taken from that holder").await;
    let ended = tokio::time::timeout(PATIENCE, run.line()).await;
    assert_eq!(ended.expect("it ends"), None);
    let ended = run.process().wait_for(PATIENCE).expect("it ends");
    assert_eq!(ended.0.code(), Some(LOST));
    browser.does("open /dashboard/hour").await;
    browser.does("sees evict").await;
    browser.does("end").await;
}

#[tokio::test]
async fn a_keyboard_is_enough_to_search_and_to_ask_for_a_lock() {
    let service = Service::start();
    let mut browser = Browser::start(&service, &service.boss, "light").await;
    let _some = service.some_claims();
    let mut run = service.run("cron/nightly").await;
    browser.does("sees worker-2@web2").await;
    browser.does("tab Names that begin with").await;
    browser.does("type cron/").await;
    browser.does("enter").await;
    browser.does("sees cron/nightly").await;
    browser.does("misses worker-2@web2").await;
    browser.does("tab cron/nightly").await;
    browser.does("keeps cron/nightly").await;
    browser.does("enter").await;
    browser.does("sees every night").await;
    browser.does("tab Ask for it").await;
    browser.does("enter").await;
    browser.does("sees decides whether to release it").await;
    browser.does("tab Ask for it").await;
    browser.does("enter").await;
    browser.does("sees The holder was asked for the lock").await;
    // It ends its command, and gives the lock back.
    let ended = tokio::time::timeout(PATIENCE, run.line()).await;
    assert_eq!(ended.expect("it ends"), None);
    let ended = run.process().wait_for(PATIENCE).expect("it ends");
    assert_ne!(ended.0.code(), Some(LOST));
    browser.does("sees Nobody holds it").await;
    browser.does("end").await;
}

#[tokio::test]
async fn a_lost_store_shows_as_such_until_it_is_back() {
    let service = Service::start();
    let mut browser = Browser::start(&service, &service.boss, "dark").await;
    let _some = service.some_claims();
    let _run = service.run("cron/nightly").await;
    browser
        .does("open /dashboard/lock?name=orders%2F4711")
        .await;
    browser.does("sees 2 waiting").await;
    browser.does("picture dashboard-dark.png").await;
    browser.does("open /dashboard").await;
    browser.does("sees cron/nightly").await;
    service.redis.pause().expect("paused");
    browser.does("sees The store does not answer").await;
    service.redis.resume().expect("resumed");
    browser.does("sees cron/nightly").await;
    browser.does("end").await;
}

#[tokio::test]
async fn a_replica_that_is_gone_shows_as_such() {
    let mut service = Service::start();
    let mut browser = Browser::start(&service, &service.boss, "light").await;
    let _run = service.run("cron/nightly").await;
    browser.does("sees cron/nightly").await;
    service.replica.process().kill9();
    browser.does("gone").await;
    service.replica.restart();
    browser.does("back").await;
    browser.does("end").await;
}

#[tokio::test]
async fn a_reader_sees_no_button() {
    let service = Service::start();
    let mut browser = Browser::start(&service, &service.reader, "light").await;
    let _run = service.run("cron/nightly").await;
    browser.does("sees cron/nightly").await;
    browser.does("follow cron/nightly").await;
    browser.does("sees every night").await;
    browser.does("misses /dashboard/evict").await;
    browser.does("end").await;
}
