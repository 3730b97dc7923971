//! The examples tell the story to its end, on real servers.

use std::path::Path;
use std::process::Command;

use fencelock_testbed::Dir;

/// Runs an example as its user would, with where its ledger is.
fn tells_the_story(name: &str, place: &str) {
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
    let mut example = Command::new(program);
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
    tells_the_story("files", dir.path().to_str().unwrap());
    let entry = std::fs::read_to_string(dir.join("ledger")).unwrap();
    assert_eq!(entry, "by the successor");
}

#[test]
fn replicas() {
    let dir = Dir::new("ledger").unwrap();
    tells_the_story("replicas", dir.path().to_str().unwrap());
    let entry = std::fs::read_to_string(dir.join("a/ledger")).unwrap();
    assert!(entry.ends_with("by the successor"), "{entry}");
}

#[cfg(feature = "http")]
#[test]
fn axum_service() {
    tells_the_story("axum_service", "");
}

#[cfg(feature = "sqlite")]
#[test]
fn sqlite_row() {
    let dir = Dir::new("ledger").unwrap();
    let path = dir.join("app.db");
    tells_the_story("sqlite_row", &path);
    let app = rusqlite::Connection::open(path).unwrap();
    let entry = app.query_row("SELECT entry FROM ledger", [], |row| {
        row.get::<_, String>(0)
    });
    assert_eq!(entry.unwrap(), "by the successor");
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_row() {
    let server = fencelock_testbed::Postgres::start().unwrap();
    tells_the_story("postgres_row", &server.url());
}

#[cfg(feature = "mysql")]
#[test]
fn mysql_transaction() {
    let server = fencelock_testbed::MariaDb::start().unwrap();
    tells_the_story("mysql_transaction", &server.url());
}

#[cfg(feature = "redis")]
#[test]
fn redis_script() {
    let server = fencelock_testbed::Redis::start().unwrap();
    tells_the_story("redis_script", &server.url());
    let entry: String = server.command(&["GET", "{ledger}:entry"]).unwrap();
    assert_eq!(entry, "by the successor");
    let writes: u64 = server.command(&["GET", "{ledger}:writes"]).unwrap();
    assert_eq!(writes, 1);
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_transaction() {
    let server = fencelock_testbed::Etcd::start().unwrap();
    tells_the_story("etcd_transaction", &format!("127.0.0.1:{}", server.port(0)));
}

#[cfg(feature = "zookeeper")]
#[test]
fn zookeeper_multi() {
    let server = fencelock_testbed::ZooKeeper::start().unwrap();
    tells_the_story("zookeeper_multi", &format!("127.0.0.1:{}", server.port()));
}
