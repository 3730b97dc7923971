//! Several hosts, opening to look only, and what is said of a store that cannot be opened.

use super::*;

/// Two servers that both take writes would each grant the same lock.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_that_take_writes_are_refused() {
    let (one, two) = (Postgres::start().unwrap(), Postgres::start().unwrap());
    for strategy in ["lease", "advisory"] {
        let url = format!(
            "postgres://lock@127.0.0.1:{},127.0.0.1:{}/lock?strategy={strategy}",
            one.port(),
            two.port()
        );
        let error = open(&url).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("take writes"), "{text}");
        for port in [one.port(), two.port()] {
            assert!(text.contains(&port.to_string()), "{text}");
        }
    }
    let made = "SELECT count(*) FROM pg_class WHERE relname LIKE 'fencelock%'";
    assert_eq!(one.psql("lock", made).unwrap(), "0");
    // Two names of one server are one.
    let url = format!(
        "postgres://lock@127.0.0.1:{0},localhost:{0}/lock",
        one.port()
    );
    drop(open(&url).await.unwrap().lock("a").await.unwrap());
    // One that does not answer is not waited for.
    two.pause().unwrap();
    let url = format!(
        "postgres://lock@127.0.0.1:{},127.0.0.1:{}/lock",
        two.port(),
        one.port()
    );
    let begun = Instant::now();
    let client = open(&url).await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    drop(client.lock("a").await.unwrap());
    // Back again, it is noticed when the client connects anew.
    two.resume().unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'fencelock'";
    until("it is noticed", async || {
        one.psql("lock", end).unwrap();
        matches!(client.try_lock("b").await, Err(Error::Config { .. }))
    })
    .await;
}

async fn look_only(url: &str) -> Result<Client, Error> {
    let mut url = StoreUrl::parse(url)?;
    url.inspect_only = true;
    let engine = fencelock_postgres::connect(url).await?;
    Client::builder(engine).build()
}

/// Where no lock can be taken there is something to look at: nothing is made and nothing is written.
#[tokio::test(flavor = "multi_thread")]
async fn looking_needs_no_right_to_write() {
    let server = Postgres::start().unwrap();
    server.psql("lock", "CREATE ROLE stranger LOGIN").unwrap();
    for strategy in ["lease", "advisory"] {
        let url = format!("{}?strategy={strategy}", server.url());
        let client = look_only(&url).await.unwrap();
        assert!(client.look("a").await.unwrap().holders.is_empty());
        assert!(client.list("").await.unwrap().is_empty());
        // Whoever may make the tables does so with its first lock; that is nothing to be told.
        let said = format!("{:?}", client.diagnose().await.unwrap());
        assert!(!said.contains("fencelock schema"), "{said}");
        assert!(client.try_lock("a").await.is_err());
        client.close().await.unwrap();
        let stranger = url.replacen("//lock@", "//stranger@", 1);
        let client = look_only(&stranger).await.unwrap();
        let said = format!("{:?}", client.diagnose().await.unwrap());
        assert!(said.contains("fencelock schema postgres"), "{said}");
        client.close().await.unwrap();
    }
    let made = "SELECT count(*) FROM pg_class WHERE relname LIKE 'fencelock%'";
    assert_eq!(server.psql("lock", made).unwrap(), "0");

    let replica = server.replica().unwrap();
    let held = open(&server.url()).await.unwrap().lock("a").await.unwrap();
    // A reader of the primary, and anybody at a replica.
    let reader = "CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader";
    server.psql("lock", reader).unwrap();
    for url in [
        format!("postgres://reader@127.0.0.1:{}/lock", server.port()),
        replica.url(),
    ] {
        let client = look_only(&url).await.unwrap();
        until("the hold is seen", async || {
            client.look("a").await.unwrap().token() == Some(held.token())
        })
        .await;
        assert_eq!(client.list("").await.unwrap().len(), 1);
        let said = format!("{:?}", client.diagnose().await.unwrap());
        assert!(
            said.contains("INSERT") || said.contains("recovery"),
            "{said}"
        );
        client.close().await.unwrap();
    }
    let client = look_only(&format!("{}?strategy=advisory", replica.url())).await;
    let client = client.unwrap();
    assert!(client.look("a").await.unwrap().holders.is_empty());
    client.close().await.unwrap();
    // A lock cannot be taken there.
    assert!(open(&replica.url()).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_come_in_is_told_what_to_do() {
    let server = Postgres::builder().password("secret").start().unwrap();
    let at = |who: &str, database: &str| {
        format!("postgres://{who}@127.0.0.1:{}/{database}", server.port())
    };
    for (url, word) in [
        (at("lock", "lock"), "password-file"),
        (at("lock:wrong", "lock"), "check user and password"),
        (at("nobody:wrong", "lock"), "check user and password"),
    ] {
        let error = open(&url).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{url}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(word) && !text.contains("secret"), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
    let error = open(&at("lock:secret", "nowhere")).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("create it"), "{error}");
    // Something else is there: one that waits for more, and one that speaks first.
    let redis = fencelock_testbed::Redis::start().unwrap();
    let url = format!("postgres://lock@127.0.0.1:{}/lock", redis.port());
    let text = open(&url).await.unwrap_err().to_string();
    assert!(text.contains("is it a PostgreSQL server?"), "{text}");
    let maria = fencelock_testbed::MariaDb::start().unwrap();
    let url = format!("postgres://lock@127.0.0.1:{}/lock", maria.port());
    let text = open(&url).await.unwrap_err().to_string();
    assert!(text.contains("is no PostgreSQL server"), "{text}");
}
