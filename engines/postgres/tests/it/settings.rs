//! Settings and poolers that weaken a lock.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn weak_settings_are_reported() {
    let server = Postgres::builder()
        .config("fsync", "off")
        .config("synchronous_commit", "off")
        .start()
        .unwrap();
    let client = open(&server.url()).await.unwrap();
    let limits = &client.promises().limits;
    assert!(
        limits.iter().any(|limit| limit.what.contains("fsync")),
        "{limits:?}"
    );
    // The value `off` is corrected and not reported.
    let note = "\
        CREATE TABLE noted (setting text); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        INSERT INTO noted VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$; \
        CREATE TRIGGER note BEFORE INSERT ON fencelock_holders FOR EACH ROW EXECUTE FUNCTION note()";
    raw(&server, "admin")
        .await
        .batch_execute(note)
        .await
        .unwrap();
    drop(client.lock("a").await.unwrap());
    assert_eq!(server.psql("lock", "TABLE noted").unwrap(), "on");
    // Settings that are too weak for the named standbys. Without named standbys they are not reported: there is no standby to
    // wait for.
    for commit in ["local", "remote_write"] {
        for names in ["nobody", ""] {
            let server = Postgres::builder()
                .config("fsync", "on")
                .config("full_page_writes", "on")
                .config("synchronous_commit", commit)
                .start()
                .unwrap();
            // The tables are created while there is no standby to wait for.
            drop(open(&server.url()).await.unwrap());
            for sql in [
                format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"),
                "SELECT pg_reload_conf()".into(),
            ] {
                server.psql("postgres", &sql).unwrap();
            }
            until("it has names", async || {
                server
                    .psql("lock", "SHOW synchronous_standby_names")
                    .unwrap()
                    == names
            })
            .await;
            let client = open(&server.url()).await.unwrap();
            let limits = &client.promises().limits;
            let weak = format!("synchronous_commit is {commit}");
            let told: Vec<_> = (limits.iter().map(|limit| &limit.what))
                .filter(|what| what.contains(&weak))
                .collect();
            assert_eq!(told.len(), usize::from(!names.is_empty()), "{limits:?}");
            assert_eq!(limits.len(), told.len(), "{limits:?}");
            let findings = client.diagnose().await.unwrap();
            let told = findings.iter().filter(|found| found.what.contains(&weak));
            assert_eq!(told.count(), limits.len(), "{findings:?}");
        }
    }
    let server = Postgres::builder()
        .config("fsync", "on")
        .config("full_page_writes", "on")
        .start()
        .unwrap();
    let client = open(&server.url()).await.unwrap();
    assert!(client.promises().limits.is_empty());
}

/// A PgBouncer that shares connections between transactions is refused. One that gives each session a connection is
/// accepted.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_shares_connections_is_refused() {
    let server = Postgres::start().unwrap();
    for (mode, refused) in [
        ("transaction", true),
        ("statement", true),
        ("session", false),
    ] {
        let pooler = server.pooler(mode).unwrap();
        for strategy in ["lease", "advisory"] {
            let url = format!(
                "postgres://lock@127.0.0.1:{}/lock?strategy={strategy}",
                pooler.port()
            );
            match open(&url).await {
                Err(Error::Config { why, .. }) if refused => {
                    assert!(why.contains("PgBouncer"), "{why}")
                }
                Ok(client) if !refused => drop(client.lock("a").await.unwrap()),
                other => panic!("{mode} {strategy}: {other:?}"),
            }
        }
    }
}

/// After the end of a client's connection to the PgBouncer, the server's process goes on for another client. That client's
/// connection is not taken for the one that was given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_a_pooler_gave_to_another_client_is_not_ended() {
    let server = Postgres::start().unwrap();
    let pooler = server.pooler("session").unwrap();
    let proxy = Proxy::start(pooler.port()).unwrap();
    let url = format!(
        "postgres://lock@127.0.0.1:{}/lock?strategy=advisory",
        proxy.port()
    );
    let client = open(&url).await.unwrap();
    let guard = client.lock("a").await.unwrap();
    let direct = raw(&server, "direct").await;
    let mut pid = 0;
    until("the hold is recorded", async || {
        let pids = direct
            .query("SELECT pid FROM fencelock_bound WHERE name = 'a'", &[])
            .await
            .unwrap();
        pid = pids.first().map_or(0, |row| row.get(0));
        pid != 0
    })
    .await;
    proxy.reset();
    let mut others = Vec::new();
    until("another client has the process", async || {
        let config = format!(
            "host=127.0.0.1 port={} user=lock dbname=lock",
            pooler.port()
        );
        let (other, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
        tokio::spawn(connection);
        let row = other
            .query_one("SELECT pg_backend_pid()", &[])
            .await
            .unwrap();
        others.push(other);
        row.get::<_, i32>(0) == pid
    })
    .await;
    timeout(LIMIT, guard.lost()).await.unwrap();
    let _ = guard.release().await;
    let alive = others
        .last()
        .unwrap()
        .query_one("SELECT pg_backend_pid()", &[]);
    assert_eq!(alive.await.unwrap().get::<_, i32>(0), pid);
}
