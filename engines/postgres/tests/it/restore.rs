//! A dump that is restored into the running server.

use std::io::Write;
use std::process::{Command, Stdio};

use fencelock_core::engine::Evict;

use super::*;

fn run(program: &str, server: &Postgres, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(["-h", "127.0.0.1", "-p", &server.port().to_string()])
        .args(["-U", "postgres", "-d", "lock"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program}");
    output.stdout
}

/// Takes the lock, and tells that its token is above all of before.
async fn above(client: &Client, last: &mut Token, what: &str) {
    let guard = timeout(LIMIT, client.lock("a"))
        .await
        .unwrap_or_else(|_| panic!("{what}: in vain"));
    let guard = guard.unwrap();
    let token = guard.token();
    assert!(token > *last, "{what}: {token} after {last}");
    *last = token;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_go_on_above_when_a_dump_is_restored() {
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
            let dumped = run("pg_dump", &server, dump, b"");
            for _ in 0..40 {
                above(&one, &mut last, strategy).await;
            }
            run(restorer, &server, restore, &dumped);
            // First the one that has seen none of the tokens since; then the one that has; then a new one.
            above(&two, &mut last, "a connection of before").await;
            above(&one, &mut last, "the last holder's connection").await;
            above(&two, &mut last, "a connection of before").await;
            run(restorer, &server, restore, &dumped);
            let new = open(&url).await.unwrap();
            above(&new, &mut last, "a new connection").await;
            above(&two, &mut last, "a connection of before").await;
        }
    }
}

/// The functions of an older version are made anew by the first client of this one.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_schema_is_stepped_up() {
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
        let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencelock'";
        server.psql("lock", count).unwrap() == "0"
    })
    .await;
    // Somebody who may not make functions says what is to be run.
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

/// The server has no room for news. Nobody is told, and the lock is free nonetheless. The queue is 8 GB and cannot be made
/// smaller before PostgreSQL 17, so the server's two functions are shadowed by some that answer as they do when it is full.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_of_news_keeps_no_lock() {
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
    // Nor does it keep anybody from taking a lock away.
    assert!(one.evict("a", next.token(), Evict::Release).await.unwrap());
    let last = timeout(LIMIT, one.lock("a")).await.unwrap().unwrap();
    assert!(last.token() > next.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn late_requests_do_no_harm() {
    let server = Postgres::start().unwrap();
    let engine = fencelock_postgres::connect(StoreUrl::parse(&server.url()).unwrap());
    late::late_requests_do_no_harm(engine.await.unwrap()).await;
}
