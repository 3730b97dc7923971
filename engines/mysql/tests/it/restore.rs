//! A dump that is restored into the running server.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use fencelock_testbed::{Flow, Proxy};

use super::*;

fn run(program: &str, server: &MariaDb, input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(["--no-defaults", "--skip-ssl"])
        .args(["--protocol=tcp", "--host=127.0.0.1"])
        .args([&format!("--port={}", server.port()), "--user=lock", "lock"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program}");
    output.stdout
}

async fn above(client: &Client, last: &mut Token, what: &str) {
    let token = token_of(client, "a").await;
    assert!(token > *last, "{what}: {token} after {last}");
    *last = token;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_go_on_above_when_a_dump_is_restored() {
    for strategy in ["lease", "for-update", "get-lock"] {
        let server = MariaDb::start().unwrap();
        let url = format!("{}?strategy={strategy}", server.url());
        let mut last = Token(0);
        let before = open(&url).await.unwrap();
        above(&before, &mut last, strategy).await;
        let old = run("mariadb-dump", &server, b"");
        // Those who come now count anew.
        before.close().await.unwrap();
        until("its connections are gone", || connections(&server) == 0).await;
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        above(&one, &mut last, strategy).await;
        above(&two, &mut last, strategy).await;
        let dump = run("mariadb-dump", &server, b"");
        // Nothing is promised of a dump that is younger than a tenth of a second.
        sleep(Duration::from_millis(100)).await;
        for dump in [&dump, &old] {
            for _ in 0..40 {
                above(&one, &mut last, strategy).await;
            }
            run("mariadb", &server, dump);
            // First the one that has seen none of the tokens since; then the one that has; then a new one.
            above(&two, &mut last, "a connection of before").await;
            above(&one, &mut last, "the last holder's connection").await;
            above(&two, &mut last, "a connection of before").await;
            run("mariadb", &server, dump);
            let new = open(&url).await.unwrap();
            above(&new, &mut last, "a new connection").await;
            above(&two, &mut last, "a connection of before").await;
            above(&one, &mut last, "a connection of before").await;
        }
    }
}

/// The server gave up the wait for a row, and its client is stopped before it hears of that.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_stopped_after_an_error_is_in_nobodys_way_for_long() {
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
    // The row that it has locked stands for the draws of this lock.
    let begun = Instant::now();
    let next = timeout(LIMIT, async {
        loop {
            match other.lock("m").await {
                Ok(guard) => return guard,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    });
    next.await.expect("in vain").release().await.unwrap();
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
    let engine = fencelock_mysql::connect(StoreUrl::parse(&server.url()).unwrap());
    let engine: Arc<dyn fencelock_core::Engine> = engine.await.unwrap();
    late::late_requests_do_no_harm(engine).await;
}
