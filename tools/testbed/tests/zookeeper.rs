//! Real ZooKeeper servers, started, killed, cut off.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use fencelock_testbed::ZooKeeper;

#[test]
fn a_server_remembers_until_it_is_emptied() {
    let mut server = ZooKeeper::start().unwrap();
    assert_eq!(server.mode().as_deref(), Some("standalone"));
    server.make_root("/a", None).unwrap();
    server.make_root("/a/b", Some("ann:secret")).unwrap();
    server.kill9();
    assert!(server.word("ruok").is_err());
    server.restart().unwrap();
    assert_eq!(server.children("/a").unwrap(), ["b"]);
    assert_eq!(server.count_below("/a", Some("ann:secret")).unwrap(), 1);
    server.erase_below("/a", Some("ann:secret")).unwrap();
    assert_eq!(server.count_below("/a", Some("ann:secret")).unwrap(), 0);
    server.restart_empty().unwrap();
    assert_eq!(server.children("/").unwrap(), ["zookeeper"]);
    assert_eq!(server.count_below("/a", Some("ann:secret")).unwrap(), 0);
}

#[test]
fn an_isolated_leader_gives_way_and_comes_back() {
    let ensemble = ZooKeeper::builder().ensemble().unwrap();
    let first = ensemble.leader().unwrap();
    ensemble.isolate(first).unwrap();
    let next = ensemble.leader_but(Some(first)).unwrap();
    ensemble.server(next).make_root("/since", None).unwrap();
    ensemble.join(first).unwrap();
    let begin = Instant::now();
    while ensemble.server(first).mode().as_deref() != Some("follower") {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(
        ensemble
            .server(first)
            .children("/")
            .unwrap()
            .contains(&"since".to_owned())
    );
}
