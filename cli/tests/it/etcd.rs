//! The command on etcd.

use fencelock_testbed::{Etcd, Port};

use crate::exit_codes::{Described, Server, all};
#[cfg(feature = "tls")]
use crate::fixture::Fixture;

#[test]
fn every_code() {
    let etcd = Etcd::builder().user("ann", "right").start().unwrap();
    let free_port = Port::free().unwrap();
    all(&Described {
        url: etcd.url(),
        bad: ("etcd://127.0.0.1:1/x".to_owned(), "path"),
        server: Some(Server {
            dead: format!(
                "etcd://ann:right@127.0.0.1:{}?connect-timeout=500ms",
                free_port.number()
            ),
            wrong_password: format!("etcd://ann:secret@127.0.0.1:{}", etcd.port(0)),
            silence: &|| etcd.pause(0).unwrap(),
            speak: &|| etcd.resume(0).unwrap(),
            kill: &|| etcd.kill9(0),
        }),
    });
}

/// The URL has `etcd`, but the server speaks TLS.
#[cfg(feature = "tls")]
#[test]
fn a_plain_client_reports_that_the_port_speaks_tls() {
    let etcd = Etcd::builder().tls().start().unwrap();
    let fixture = Fixture::on(format!("etcd://127.0.0.1:{}", etcd.port(0)));
    let ran = fixture.run(&["run", "a", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (78, ""), "{}", ran.err);
    assert!(ran.err.contains("etcds://"), "{}", ran.err);
    let fixture = Fixture::on(etcd.url());
    let ran = fixture.run(&["run", "a", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{}", ran.err);
}
