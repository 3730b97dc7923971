//! URLs that lead to another kind of server: the error says what is there and what to do.

use std::time::{Duration, Instant};

use fencelock_testbed::{Etcd, MariaDb, Postgres, Redis, ZooKeeper};

use crate::fixture::Fixture;
use crate::service::Service;

/// All schemes of stores at addresses, and what an error says of the server that they need.
const SCHEMES: [(&str, &str); 9] = [
    ("redis", "a Redis server"),
    ("rediss", "a Redis server"),
    ("mysql", "a MySQL or MariaDB server"),
    ("postgres", "a PostgreSQL server"),
    ("zookeeper", "a ZooKeeper server"),
    ("etcd", "an etcd server"),
    ("etcds", "an etcd server"),
    ("fencelock+http", "fencelock's lock service"),
    ("fencelock+https", "fencelock's lock service"),
];

/// The port of a server, the scheme for it, and the scheme with the other choice of TLS.
type At = (u16, &'static str, Option<&'static str>);

#[test]
fn every_scheme_at_every_other_server() {
    let redis = Redis::builder().password("hunter2").tls().start().unwrap();
    let (maria, postgres) = (MariaDb::start().unwrap(), Postgres::start().unwrap());
    let zookeeper = ZooKeeper::start().unwrap();
    let (etcd, etcds) = (Etcd::start().unwrap(), Etcd::builder().tls());
    let etcds = etcds.start().unwrap();
    let fixture = Fixture::new();
    let service = Service::start(&fixture, &[]);
    let (_, port) = service.address().rsplit_once(':').unwrap();
    let servers: [At; 8] = [
        (redis.port(), "redis", Some("rediss")),
        (redis.tls_port().unwrap(), "rediss", Some("redis")),
        (maria.port(), "mysql", None),
        (postgres.port(), "postgres", None),
        (zookeeper.port(), "zookeeper", None),
        (etcd.port(0), "etcd", Some("etcds")),
        (etcds.port(0), "etcds", Some("etcd")),
        (
            port.parse().unwrap(),
            "fencelock+http",
            Some("fencelock+https"),
        ),
    ];
    // Each of them mostly waits for answers of the others.
    std::thread::scope(|scope| {
        for at in servers {
            scope.spawn(move || {
                for (scheme, wants) in SCHEMES {
                    // The kind of a server behind TLS cannot be detected.
                    if scheme != at.1 && !(encrypts(scheme) && encrypts(at.1)) {
                        leads_astray(scheme, wants, at);
                    }
                }
            });
        }
    });
}

fn encrypts(scheme: &str) -> bool {
    ["rediss", "etcds", "fencelock+https"].contains(&scheme)
}

fn leads_astray(scheme: &str, wants: &str, (port, right, other): At) {
    let url = match scheme {
        "mysql" | "postgres" => format!("{scheme}://me:hunter2@127.0.0.1:{port}/a?tls=off"),
        _ => format!("{scheme}://127.0.0.1:{port}"),
    };
    let fixture = Fixture::on(url);
    let begun = Instant::now();
    let ran = fixture.run(&["show", "a"]);
    let (said, took) = (&ran.err, begun.elapsed());
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (78, ""),
        "{scheme} at {right}: {ran:?}"
    );
    assert!(
        said.contains(&format!("127.0.0.1:{port}")),
        "{scheme} at {right}: {said}"
    );
    assert!(!said.contains("hunter2"), "{said}");
    assert!(
        took < Duration::from_secs(20),
        "{scheme} at {right}: {took:?}"
    );
    let there = SCHEMES
        .iter()
        .find(|(scheme, _)| *scheme == right)
        .unwrap()
        .1;
    let expected = match (other == Some(scheme), encrypts(right)) {
        (true, true) => format!("speaks TLS, and {scheme}:// does not: write {right}://"),
        (true, false) => format!("does not speak TLS, and {scheme}:// does: write {right}://"),
        (false, true) => "speaks TLS".to_owned(),
        (false, false) => {
            format!("seems to be {there}, and {scheme}:// wants {wants}: write {right}:// if")
        }
    };
    assert!(
        said.contains(&expected),
        "{scheme} at {right}: {expected}: {said}"
    );
}
