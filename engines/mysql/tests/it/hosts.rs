//! Several hosts, opening to look only, and what is said of a store that cannot be opened.

use super::*;

const STRATEGIES: [&str; 3] = ["lease", "for-update", "get-lock"];

/// Two servers that both take writes would each grant the same lock.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_that_take_writes_are_refused() {
    let (one, two) = (MariaDb::start().unwrap(), MariaDb::start().unwrap());
    for strategy in STRATEGIES {
        let url = format!(
            "mysql://lock@127.0.0.1:{},127.0.0.1:{}/lock?strategy={strategy}",
            one.port(),
            two.port()
        );
        let error = open(&url).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("read_only"), "{text}");
        for port in [one.port(), two.port()] {
            assert!(text.contains(&port.to_string()), "{text}");
        }
    }
    assert_eq!(tables(&one), 0);
    // Two names of one server are one.
    let url = format!("mysql://lock@127.0.0.1:{0},localhost:{0}/lock", one.port());
    token_of(&open(&url).await.unwrap(), "a").await;
    // One that does not answer is not waited for.
    two.pause().unwrap();
    let url = format!(
        "mysql://lock@127.0.0.1:{},127.0.0.1:{}/lock",
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
    token_of(&client, "a").await;
    // Back again, it is noticed when the client connects anew.
    two.resume().unwrap();
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < LIMIT, "it is not noticed");
        one.sql("KILL USER 'lock'").unwrap();
        if let Err(Error::Config { .. }) = client.try_lock("b").await {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn tables(server: &MariaDb) -> u64 {
    let made = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'lock'";
    number(server, made)
}

async fn look_only(url: &str) -> fencelock_core::Result<Client> {
    let mut url = StoreUrl::parse(url)?;
    url.inspect_only = true;
    let engine = fencelock_mysql::connect(url).await?;
    Client::builder(engine).build()
}

/// Where no lock can be taken there is something to look at: nothing is made and nothing is written.
#[tokio::test(flavor = "multi_thread")]
async fn looking_needs_no_right_to_write() {
    let server = MariaDb::builder().replicated().start().unwrap();
    server
        .sql("CREATE USER 'stranger'@'%'; GRANT SELECT ON `lock`.* TO 'stranger'@'%'")
        .unwrap();
    for strategy in STRATEGIES {
        let url = format!("{}?strategy={strategy}", server.url());
        let client = look_only(&url).await.unwrap();
        assert!(client.look("a").await.unwrap().holders.is_empty());
        assert!(client.list("").await.unwrap().is_empty());
        // Whoever may make the tables does so with its first lock; that is nothing to be told.
        let said = format!("{:?}", client.diagnose().await.unwrap());
        assert!(!said.contains("fencelock schema"), "{said}");
        assert!(client.try_lock("a").await.is_err());
        client.close().await.unwrap();
        let port = server.port();
        let stranger = format!("mysql://stranger@127.0.0.1:{port}/lock?strategy={strategy}");
        let client = look_only(&stranger).await.unwrap();
        let said = format!("{:?}", client.diagnose().await.unwrap());
        assert!(said.contains("fencelock schema mysql"), "{said}");
        client.close().await.unwrap();
    }
    assert_eq!(tables(&server), 0);

    let held = take(&client(&server).await, "a").await;
    let replica = server.replica().unwrap();
    server
        .sql("CREATE USER 'reader'@'%'; GRANT SELECT ON `lock`.* TO 'reader'@'%'")
        .unwrap();
    replica.follow(&server).unwrap();
    for url in [
        format!("mysql://reader@127.0.0.1:{}/lock", server.port()),
        format!("mysql://reader@127.0.0.1:{}/lock", replica.port()),
    ] {
        let client = look_only(&url).await.unwrap();
        assert_eq!(client.look("a").await.unwrap().token(), Some(held.token()));
        assert_eq!(client.list("").await.unwrap().len(), 1);
        let said = format!("{:?}", client.diagnose().await.unwrap());
        assert!(
            said.contains("may not INSERT") || said.contains("takes no writes"),
            "{said}"
        );
        client.close().await.unwrap();
    }
    for strategy in ["for-update", "get-lock"] {
        let url = format!(
            "mysql://reader@127.0.0.1:{}/lock?strategy={strategy}",
            replica.port()
        );
        let client = look_only(&url).await.unwrap();
        assert!(client.look("a").await.unwrap().holders.is_empty());
        client.close().await.unwrap();
    }
    // A lock cannot be taken there.
    let url = format!("mysql://reader@127.0.0.1:{}/lock", replica.port());
    assert!(open(&url).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_come_in_is_told_what_to_do() {
    let server = MariaDb::builder().password("secret").start().unwrap();
    let at =
        |who: &str, database: &str| format!("mysql://{who}@127.0.0.1:{}/{database}", server.port());
    for url in [
        at("lock", "lock"),
        at("lock:wrong", "lock"),
        at("nobody:wrong", "lock"),
    ] {
        let error = open(&url).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{url}: {error:?}");
        let text = error.to_string();
        assert!(text.contains("check user and password"), "{text}");
        assert!(!text.contains("secret") && !text.contains('\n'), "{text}");
    }
    // Something else is there, which greets nobody, or says what no MySQL says.
    let redis = fencelock_testbed::Redis::start().unwrap();
    let url = format!("mysql://lock@127.0.0.1:{}/lock", redis.port());
    let text = open(&url).await.unwrap_err().to_string();
    assert!(text.contains("is it a MySQL or MariaDB server?"), "{text}");
}
