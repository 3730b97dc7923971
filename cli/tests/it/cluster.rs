//! The command on a Redis Cluster.

use fencelock_testbed::{Port, Redis, RedisCluster};

use crate::exit_codes::{Described, Server, all};
use crate::fixture::Fixture;

#[test]
fn every_code() {
    let cluster = RedisCluster::start(3, 0, 60_000, None).unwrap();
    let free_port = Port::free().unwrap();
    let nodes = cluster.nodes();
    // Load the scripts on each lock's node. A silent node cannot report that it misses them.
    for name in ["a", "b", "c"] {
        let ran = Fixture::on(cluster.url()).run(&["run", name, "--", "true"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    all(&Described {
        url: format!("{}?response-timeout=2s", cluster.url()),
        bad: ("redis+cluster://127.0.0.1:1/0".to_owned(), "database"),
        server: Some(Server {
            dead: format!(
                "redis+cluster://127.0.0.1:{}?connect-timeout=500ms",
                free_port.number()
            ),
            wrong_password: cluster.url_with("secret"),
            silence: &|| nodes.iter().try_for_each(Redis::pause).unwrap(),
            speak: &|| nodes.iter().try_for_each(Redis::resume).unwrap(),
            kill: &|| nodes.iter().for_each(Redis::kill9),
        }),
    });
}
