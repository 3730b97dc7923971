//! A dump that is restored into the running server.

use std::process::Command;

use fencelock_testbed::{Flow, Proxy};

use super::shared::late;
use super::shared::restore::{above, run, tokens_increase_after_a_restore};
use super::*;

fn run_client(program: &str, server: &MariaDb, input: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program);
    command
        .args(["--no-defaults", "--skip-ssl"])
        .args(["--protocol=tcp", "--host=127.0.0.1"])
        .args([&format!("--port={}", server.port()), "--user=lock", "lock"]);
    run(&mut command, input)
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_increase_after_a_dump_is_restored() {
    for strategy in ["lease", "for-update", "get-lock"] {
        let server = MariaDb::start().unwrap();
        let url = format!("{}?strategy={strategy}", server.url());
        let mut last = Token(0);
        let before = open(&url).await.unwrap();
        above(&before, &mut last, strategy).await;
        let old = run_client("mariadb-dump", &server, b"");
        // All connections have ended, so the next clients of get-lock begin a new section.
        before.close().await.unwrap();
        until("its connections are gone", || connections(&server) == 0).await;
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        above(&one, &mut last, strategy).await;
        above(&two, &mut last, strategy).await;
        let new = run_client("mariadb-dump", &server, b"");
        // There is no promise for a dump that is younger than a tenth of a second.
        sleep(Duration::from_millis(100)).await;
        for dump in [&new, &old] {
            let restore = || drop(run_client("mariadb", &server, dump));
            tokens_increase_after_a_restore(&url, (&one, &two), &mut last, restore).await;
        }
    }
}

/// The server gives up a wait for a row, and the client is stopped before it gets the error.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_stopped_after_an_error_blocks_others_only_briefly() {
    let server = MariaDb::start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let other = client(&server).await;
    let stopped = open(&server.url_at(proxy.port(), "lock")).await.unwrap();
    let held = take(&other, "m").await;
    let mut blocker = bare(&server).await;
    blocker.query_drop("START TRANSACTION").await.unwrap();
    let block = "SELECT 1 FROM fencelock_locks WHERE name = 'm' FOR UPDATE";
    blocker.query_drop(block).await.unwrap();
    let before = number(&server, TIMEOUTS);
    let reader = tokio::spawn(stopped.lock("m").shared().into_future());
    until("it waits for the row", || {
        status(&server, "Innodb_row_lock_current_waits") == 1
    })
    .await;
    proxy.both(Flow::Hold);
    until("the server gave up", || number(&server, TIMEOUTS) > before).await;
    blocker.query_drop("ROLLBACK").await.unwrap();
    held.release().await.unwrap();
    // The stopped client keeps the lock's row for draws locked.
    let begun = Instant::now();
    let next = timeout(LIMIT, async {
        loop {
            match other.lock("m").await {
                Ok(guard) => return guard,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    });
    next.await
        .expect("the lock is not granted")
        .release()
        .await
        .unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(12),
        "{:?}",
        begun.elapsed()
    );
    reader.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn late_requests_do_no_harm() {
    let server = MariaDb::start().unwrap();
    late::late_requests_do_no_harm(&server.url()).await;
    late::a_late_renewal_does_not_bring_back_an_earlier_token(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_lock_that_was_read_long_ago_is_not_made() {
    let server = MariaDb::start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let (url, through) = (server.url(), server.url_at(proxy.port(), "lock"));
    let done = late::a_change_of_a_lock_that_was_read_long_ago_is_not_made(&url, &through, &proxy);
    shared::soon("the changes", done).await;
}
