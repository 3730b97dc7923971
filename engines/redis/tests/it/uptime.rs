//! How long a server has run, by clocks that cannot be set. `restart-delay` depends on it.

use std::time::Duration;

use fencelock_core::engine::Standing;
use fencelock_core::{Clock, Engine};
use fencelock_testbed::{ClockShim, Redis as Server};

use crate::support::{ms, open_with};

/// The server's clock is corrected right after its start, so that it reports an uptime of an hour.
#[tokio::test]
async fn a_clock_that_is_set_after_the_start_shortens_no_delay() {
    let shim = ClockShim::new().unwrap();
    let started = Clock::Boot.now();
    let server = Server::builder().clock(&shim).start().unwrap();
    let delay = Duration::from_secs(4);
    let before = open_with(&server, "restart-delay=4s").await;
    shim.forward(Duration::from_secs(3600)).unwrap();
    // The client connects again, and reads the long uptime.
    let _: i64 = server
        .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
        .unwrap();
    let after = open_with(&server, "restart-delay=4s").await;
    for (store, name) in [(&after, "a"), (&before, "b")] {
        let grant = store.lock(&store.plain(name)).await;
        let waited = grant.counted_from.since(started);
        assert!(waited >= delay, "{name}: {waited:?}");
    }
    // A later client need not wait again, except for the time before the first client's note.
    let late = open_with(&server, "restart-delay=4s").await;
    let asked = Clock::Boot.now();
    let grant = late.lock(&late.plain("c")).await;
    let waited = grant.counted_from.since(asked);
    assert!(waited < delay * 3 / 4, "{waited:?}");
}

/// No client has seen the server before, but the server has used more processor time than the delay.
#[tokio::test]
async fn used_processor_time_counts_as_uptime() {
    let server = Server::start().unwrap();
    let used = || {
        let info: String = server.command(&["INFO", "cpu"]).unwrap();
        let of = |name: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim_start_matches(':').parse().unwrap()
        };
        of("used_cpu_sys_main_thread") + of("used_cpu_user_main_thread")
    };
    while used() < 1.1 {
        let work = "local sum = 0 for i = 1, 10000000 do sum = sum + i end return 1";
        let _: i64 = server.command(&["EVAL", work, "0"]).unwrap();
        tokio::time::sleep(ms(1)).await;
    }
    let store = open_with(&server, "restart-delay=1s").await;
    let placed = store.engine.place(&store.plain("a")).await;
    assert!(matches!(placed, Ok(Standing::Held(_))), "{placed:?}");
}
