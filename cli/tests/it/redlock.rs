//! The command on Redlock: a majority of independent Redis servers.

use fencelock_testbed::{Port, Redis, Redlock};

use crate::exit_codes::{Described, Server, all};
use crate::fixture::Fixture;

#[test]
fn every_code() {
    let group = Redlock::start_each(5, |_| Redis::builder().password("right")).unwrap();
    let free_ports: Vec<Port> = (0..3).map(|_| Port::free().unwrap()).collect();
    let dead = |i: usize| format!("127.0.0.1:{}", free_ports[i].number());
    let each = |harm: fn(&Redis)| group.nodes().iter().for_each(harm);
    // While other tests run on the machine, a node may need more than 50 ms to answer.
    let url = format!("{}?node-timeout=250ms", group.url());
    all(&Described {
        url: url.clone(),
        bad: ("redlock://127.0.0.1:1,127.0.0.1:2".to_owned(), "three"),
        server: Some(Server {
            dead: format!(
                "redlock://{},{},{}?connect-timeout=500ms",
                dead(0),
                dead(1),
                dead(2)
            ),
            wrong_password: url.replace("right", "secret"),
            silence: &|| each(|node| node.pause().unwrap()),
            speak: &|| each(|node| node.resume().unwrap()),
            kill: &|| each(Redis::kill9),
        }),
    });
}

/// Two of five nodes may be dead, but not three. New nodes do not vote yet. Each error names the nodes.
#[test]
fn too_few_nodes_are_named() {
    let group = Redlock::start(5).unwrap();
    let fixture = Fixture::on(format!("{}?node-timeout=250ms", group.url()));
    let port = |i: usize| group.nodes()[i].port().to_string();
    group.nodes()[0].kill9();
    group.nodes()[3].kill9();
    let ran = fixture.run(&["run", "-n", "a", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{}", ran.err);
    let report = fixture.run(&["doctor", "--purpose", "efficiency"]);
    assert_eq!(report.code, 1, "{report:?}");
    for (node, dead) in [true, false, false, true, false].into_iter().enumerate() {
        let silent = format!("{} does not vote", port(node));
        assert_eq!(report.out.contains(&silent), dead, "{report:?}");
    }
    assert!(report.out.contains("share 1 machines"), "{report:?}");
    group.nodes()[4].kill9();
    let ran = fixture.run(&["run", "-n", "a", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (69, ""), "{}", ran.err);
    for dead in [0, 3, 4] {
        assert!(ran.err.contains(&port(dead)), "{}", ran.err);
    }

    let fresh: Vec<Redis> = (0..3).map(|_| Redis::start().unwrap()).collect();
    let hosts = fresh
        .iter()
        .map(|node| format!("127.0.0.1:{}", node.port()));
    let url = format!("redlock://{}", hosts.collect::<Vec<_>>().join(","));
    let ran = Fixture::on(url).run(&["run", "-n", "a", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (69, ""), "{}", ran.err);
    assert!(ran.err.contains("it votes in"), "{}", ran.err);
}
