//! The tables: created, emptied, and without a right; and the limits by the settings of the server.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_an_administrator_dropped_are_created_anew() {
    let server = MariaDb::start().unwrap();
    let client = client(&server).await;
    let first = token_of(&client, "a").await;
    for emptied in [
        "TRUNCATE `lock`.fencelock_draws",
        "DROP TABLE `lock`.fencelock_draws",
    ] {
        server.sql(emptied).unwrap();
        assert!(token_of(&client, "a").await > first);
        let rows = "SELECT COUNT(*) FROM `lock`.fencelock_draws";
        assert_eq!(number(&server, rows), 1000, "{emptied}");
    }
}

/// There is one counter afterwards, whichever client was first.
#[tokio::test(flavor = "multi_thread")]
async fn many_clients_create_the_tables_at_once() {
    for strategy in ["lease", "get-lock", "for-update"] {
        let server = MariaDb::start().unwrap();
        let url = format!("{}?strategy={strategy}", server.url());
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move { token_of(&open(&url).await.unwrap(), "a").await })
            })
            .collect();
        let mut tokens = std::collections::BTreeSet::new();
        for task in tasks {
            let token = soon("a client", task).await.unwrap();
            assert!(tokens.insert(token), "{strategy}: {token} twice");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_a_clear_error() {
    let server = MariaDb::start().unwrap();
    server
        .sql(
            "CREATE USER 'poor'@'%' IDENTIFIED BY 'poor-secret'; CREATE DATABASE theirs; \
              GRANT SELECT, INSERT, UPDATE, DELETE ON theirs.* TO 'poor'@'%'",
        )
        .unwrap();
    let url = format!(
        "mysql://poor:poor-secret@127.0.0.1:{}/theirs",
        server.port()
    );
    let error = open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("CREATE") && !text.contains("secret"),
        "{text}"
    );
    let schema = fencelock_mysql::schema("fencelock");
    server.sql(&format!("USE theirs; {schema}")).unwrap();
    token_of(&open(&url).await.unwrap(), "a").await;
    // The tables of a later version are not changed.
    server
        .sql("UPDATE theirs.fencelock_store SET format = 3")
        .unwrap();
    let error = open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("another version"), "{error}");
    let nowhere = format!("mysql://lock@127.0.0.1:{}/nowhere", server.port());
    let error = open(&nowhere).await.unwrap_err();
    assert!(
        matches!(error, Error::Config { .. } | Error::Refused { .. }),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_name_what_the_server_may_lose() {
    let server = MariaDb::builder()
        .flag("innodb-flush-log-at-trx-commit=0")
        .replicated()
        .flag("sync-binlog=0")
        .start()
        .unwrap();
    let promises = client(&server).await.promises().clone();
    let said = format!("{:?}", promises.limits);
    assert!(said.contains("innodb_flush_log_at_trx_commit"), "{said}");
    assert!(said.contains("sync_binlog"), "{said}");
    assert_eq!(promises.durability, Durability::Volatile);
    let late = MariaDb::builder()
        .flag("innodb-flush-log-at-trx-commit=2")
        .start()
        .unwrap();
    let promises = client(&late).await.promises().clone();
    let said = format!("{:?}", promises.limits);
    let forgets = "a server that lost power may have forgotten the grants of its last second \
                   (innodb_flush_log_at_trx_commit is 2)";
    assert!(said.contains(forgets), "{said}");
    assert_eq!(promises.durability, Durability::Process);
    let safe = MariaDb::builder()
        .flag("innodb-flush-log-at-trx-commit=1")
        .start()
        .unwrap();
    let promises = client(&safe).await.promises().clone();
    assert_eq!(promises.limits, []);
    assert_eq!(promises.durability, Durability::Durable);
}
