//! The examples run to their end, on real servers.

use std::path::Path;
use std::process::Command;

use fencelock_testbed::Dir;

/// The command that runs an example as its user would.
fn example(name: &str) -> Command {
    let here = std::env::current_exe().unwrap();
    let built = here.parent().and_then(Path::parent).unwrap();
    let program = built.join("examples").join(name);
    let hint =
        "`cargo test` without a choice of targets builds it, and so does `cargo build --examples`";
    assert!(
        program.exists(),
        "{} is not built; {hint}",
        program.display()
    );
    Command::new(program)
}

/// Runs an example with the location of its ledger.
fn runs_the_story(name: &str, place: &str) {
    let mut example = example(name);
    if !place.is_empty() {
        example.arg(place);
    }
    let told = example.output().unwrap();
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success(), "{told:?}");
    let token = |before: &str, after: &str| -> u64 {
        let rest = text.split(before).nth(1).unwrap();
        rest.split(after).next().unwrap().parse().unwrap()
    };
    let sleeper = token("The sleeper has token ", ".");
    let successor = token("The successor has token ", ",");
    assert!(sleeper < successor);
    let refusal = format!("token {sleeper} of lock ledger is stale: token {successor} has been");
    assert!(text.contains(&refusal), "{text}");
}

#[test]
fn files() {
    let dir = Dir::new("ledger").unwrap();
    runs_the_story("files", dir.path().to_str().unwrap());
    let entry = std::fs::read_to_string(dir.join("ledger")).unwrap();
    assert_eq!(entry, "by the successor");
}

#[test]
fn replicas() {
    let dir = Dir::new("ledger").unwrap();
    runs_the_story("replicas", dir.path().to_str().unwrap());
    let entry = std::fs::read_to_string(dir.join("a/ledger")).unwrap();
    assert!(entry.ends_with("by the successor"), "{entry}");
}

#[cfg(feature = "http")]
#[test]
fn axum_service() {
    runs_the_story("axum_service", "");
}

#[cfg(feature = "sqlite")]
#[test]
fn sqlite_row() {
    let dir = Dir::new("ledger").unwrap();
    let path = dir.join("app.db");
    runs_the_story("sqlite_row", &path);
    let app = rusqlite::Connection::open(path).unwrap();
    let entry = app.query_row("SELECT entry FROM ledger", [], |row| {
        row.get::<_, String>(0)
    });
    assert_eq!(entry.unwrap(), "by the successor");
}

/// At whatever step the process is killed, the repeated order is carried out exactly once, with the same answer.
#[cfg(feature = "sqlite")]
#[test]
fn order_and_stock() {
    use std::os::unix::process::ExitStatusExt;
    let dir = Dir::new("shop").unwrap();
    let path = dir.join("shop.db");
    let order = |id: &str, kill_at: &str| {
        let mut example = example("order_and_stock");
        example.args([&path, id, "3"]).env("KILL_AT", kill_at);
        let ended = example.output().unwrap();
        (ended.status, String::from_utf8(ended.stdout).unwrap())
    };
    let answer = |(status, text): (std::process::ExitStatus, String), id: &str| {
        assert!(status.success(), "{id}: {status}, {text}");
        let answer = text.lines().find(|line| line.starts_with(id)).unwrap();
        answer.to_owned()
    };
    let (status, text) = order("order-0", "");
    let steps: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("step: "))
        .collect();
    assert!(status.success() && steps.len() >= 9, "{status}, {text}");
    let shop = rusqlite::Connection::open(&path).unwrap();
    for (step, done) in steps.iter().zip(1..) {
        let id = format!("order-{}", done);
        let (killed, text) = order(&id, step);
        assert_eq!(killed.signal(), Some(9), "{step}: {text}");
        let first = answer(order(&id, ""), &id);
        assert_eq!(answer(order(&id, ""), &id), first, "{step}");
        let left: i64 = shop
            .query_row("SELECT left_over FROM stock", [], |row| row.get(0))
            .unwrap();
        assert_eq!(left, 97 - 3 * done, "{step}");
        assert_eq!(
            first,
            format!("{id} has 3 apples; {left} are left"),
            "{step}"
        );
        let count = "SELECT count(*) FROM orders WHERE id = ?1";
        let orders: u32 = shop.query_row(count, [&id], |row| row.get(0)).unwrap();
        assert_eq!(orders, 1, "{step}");
    }
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_row() {
    let server = fencelock_testbed::Postgres::start().unwrap();
    runs_the_story("postgres_row", &server.url());
}

#[cfg(feature = "mysql")]
#[test]
fn mysql_transaction() {
    let server = fencelock_testbed::MariaDb::start().unwrap();
    runs_the_story("mysql_transaction", &server.url());
}

#[cfg(feature = "redis")]
#[test]
fn redis_script() {
    let server = fencelock_testbed::Redis::start().unwrap();
    runs_the_story("redis_script", &server.url());
    let entry: String = server.command(&["GET", "{ledger}:entry"]).unwrap();
    assert_eq!(entry, "by the successor");
    let writes: u64 = server.command(&["GET", "{ledger}:writes"]).unwrap();
    assert_eq!(writes, 1);
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_transaction() {
    let server = fencelock_testbed::Etcd::start().unwrap();
    runs_the_story("etcd_transaction", &format!("127.0.0.1:{}", server.port(0)));
}

#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper_multi() {
    let server = fencelock_testbed::ZooKeeper::start().unwrap();
    runs_the_story("zookeeper_multi", &format!("127.0.0.1:{}", server.port()));
}
