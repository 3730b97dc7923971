//! A dump that is restored into the running server, an older schema, and other leftovers of earlier times.

use std::process::Command;

use fencelock_core::engine::Evict;
use fencelock_testbed::Proxy;

use super::shared::late;
use super::shared::restore::{above, run, tokens_increase_after_a_restore};
use super::*;

fn run_client(program: &str, server: &Postgres, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program);
    command
        .args(["-h", "127.0.0.1", "-p", &server.port().to_string()])
        .args(["-U", "postgres", "-d", "lock"])
        .args(args);
    run(&mut command, input)
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_increase_after_a_dump_is_restored() {
    let dumps: [(&[&str], &str, &[&str]); 2] = [
        (
            &["--clean", "--if-exists"],
            "psql",
            &["-Xq", "-v", "ON_ERROR_STOP=1", "--single-transaction"],
        ),
        (
            &["--format=custom"],
            "pg_restore",
            &["--clean", "--if-exists", "--single-transaction"],
        ),
    ];
    for strategy in ["lease", "advisory"] {
        for (dump, restorer, restore) in dumps {
            let server = Postgres::start().unwrap();
            let url = format!("{}?strategy={strategy}", server.url());
            let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
            let mut last = Token(0);
            above(&one, &mut last, strategy).await;
            above(&two, &mut last, strategy).await;
            let dumped = run_client("pg_dump", &server, dump, b"");
            let restore = || drop(run_client(restorer, &server, restore, &dumped));
            tokens_increase_after_a_restore(&url, (&one, &two), &mut last, restore).await;
        }
    }
}

/// The first client of this version replaces the functions of an older one.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_schema_is_upgraded() {
    let server = Postgres::start().unwrap();
    drop(open(&server.url()).await.unwrap());
    let older = "DROP FUNCTION fencelock_revision; \
        CREATE OR REPLACE FUNCTION fencelock_draw() RETURNS bigint LANGUAGE sql AS $$ SELECT 1::bigint $$";
    server.psql("lock", older).unwrap();
    let client = open(&server.url()).await.unwrap();
    let guard = client.lock("a").await.unwrap();
    assert!(guard.token() > Token(1_000_000), "{}", guard.token());
    guard.release().await.unwrap();
    client.close().await.unwrap();
    drop(client);
    until("its connections are gone", async || {
        let count =
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencelock-%'";
        server.psql("lock", count).unwrap() == "0"
    })
    .await;
    // The error for a user who may not create functions names the script.
    server
        .psql("lock", "DROP FUNCTION fencelock_revision")
        .unwrap();
    let poor = "CREATE ROLE poor LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON fencelock_store, \
        fencelock_bound, fencelock_locks, fencelock_holders, fencelock_waiters TO poor; \
        GRANT USAGE, SELECT, UPDATE ON fencelock_tokens TO poor";
    server.psql("lock", poor).unwrap();
    let url = format!("postgres://poor@127.0.0.1:{}/lock", server.port());
    let error = open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("fencelock schema postgres"), "{text}");
}

/// The server's queue of notifications is full. No client is notified, and the lock becomes free nevertheless. The queue has 8
/// GB and cannot be made smaller before PostgreSQL 17. So the test shadows the server's two functions with others that act as
/// if it were full.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_of_notifications_does_not_keep_a_lock_held() {
    let server = Postgres::start().unwrap();
    drop(open(&server.url()).await.unwrap());
    let full = "\
        CREATE FUNCTION pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN \
        RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$; \
        CREATE FUNCTION pg_notification_queue_usage() RETURNS double precision LANGUAGE sql AS 'SELECT 1::double precision'; \
        ALTER ROLE lock SET search_path = public, pg_catalog";
    server.psql("lock", full).unwrap();
    let (one, two) = (
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
    );
    let guard = one.lock("a").await.unwrap();
    let waiter = tokio::spawn(two.lock("a").into_future());
    until("one waits", async || {
        one.look("a").await.unwrap().waiters.len() == 1
    })
    .await;
    let token = guard.token();
    guard.release().await.unwrap();
    let next = timeout(LIMIT, waiter).await.unwrap().unwrap().unwrap();
    assert!(next.token() > token);
    // An eviction also works.
    assert!(one.evict("a", next.token(), Evict::Release).await.unwrap());
    let last = timeout(LIMIT, one.lock("a")).await.unwrap().unwrap();
    assert!(last.token() > next.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn late_requests_do_no_harm() {
    let server = Postgres::start().unwrap();
    late::late_requests_do_no_harm(&server.url()).await;
    late::a_late_renewal_does_not_bring_back_an_earlier_token(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_lock_that_was_read_long_ago_is_not_made() {
    let server = Postgres::start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let (url, through) = (server.url(), server.url_at(proxy.port(), "lock"));
    let done = late::a_change_of_a_lock_that_was_read_long_ago_is_not_made(&url, &through, &proxy);
    shared::soon("the changes", done).await;
}
