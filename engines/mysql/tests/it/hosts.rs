//! Several hosts, inspection, and stores that cannot be opened.

use super::shared::hosts::{
    a_silent_host_is_passed_over, a_user_is_refused, another_server_is_explained,
    inspection_creates_nothing, two_writers_are_refused,
};
use super::shared::inspect;
use super::*;

const STRATEGIES: [&str; 3] = ["lease", "for-update", "get-lock"];

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_that_take_writes_are_refused() {
    let (one, two) = (MariaDb::start().unwrap(), MariaDb::start().unwrap());
    let ports = [one.port(), two.port()];
    let both = |[one, two]: [u16; 2]| format!("mysql://lock@127.0.0.1:{one},127.0.0.1:{two}/lock");
    for strategy in STRATEGIES {
        let url = format!("{}?strategy={strategy}", both(ports));
        two_writers_are_refused(&url, ports, "read_only").await;
    }
    assert_eq!(tables(&one), 0);
    // Two names of one server count as one.
    let url = format!("mysql://lock@127.0.0.1:{0},localhost:{0}/lock", one.port());
    token_of(&open(&url).await.unwrap(), "a").await;
    two.pause().unwrap();
    let client = a_silent_host_is_passed_over(&both([two.port(), one.port()])).await;
    // When the host is back, the client notices it with its next connection.
    two.resume().unwrap();
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < LIMIT, "it is not noticed");
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

/// Inspection creates nothing and writes nothing, so it also works where no lock can be taken.
#[tokio::test(flavor = "multi_thread")]
async fn inspection_needs_no_right_to_write() {
    let server = MariaDb::builder().replicated().start().unwrap();
    server
        .sql("CREATE USER 'stranger'@'%'; GRANT SELECT ON `lock`.* TO 'stranger'@'%'")
        .unwrap();
    for strategy in STRATEGIES {
        let url = format!("{}?strategy={strategy}", server.url());
        let port = server.port();
        let stranger = format!("mysql://stranger@127.0.0.1:{port}/lock?strategy={strategy}");
        inspection_creates_nothing(&url, &stranger, "fencelock schema mysql").await;
    }
    assert_eq!(tables(&server), 0);

    let held = take(&client(&server).await, "a").await;
    let replica = server.replica().unwrap();
    server
        .sql("CREATE USER 'reader'@'%'; GRANT SELECT ON `lock`.* TO 'reader'@'%'")
        .unwrap();
    replica.follow(&server).unwrap();
    let at = |port: u16| format!("mysql://reader@127.0.0.1:{port}/lock");
    for url in [at(server.port()), at(replica.port())] {
        let client = inspect(&url).await.unwrap();
        assert_eq!(client.look("a").await.unwrap().token(), Some(held.token()));
        assert_eq!(client.list("").await.unwrap().len(), 1);
        let findings = format!("{:?}", client.diagnose().await.unwrap());
        assert!(
            findings.contains("may not INSERT") || findings.contains("takes no writes"),
            "{findings}"
        );
        client.close().await.unwrap();
    }
    for strategy in ["for-update", "get-lock"] {
        let url = format!("{}?strategy={strategy}", at(replica.port()));
        let client = inspect(&url).await.unwrap();
        assert!(client.look("a").await.unwrap().holders.is_empty());
        client.close().await.unwrap();
    }
    // A lock cannot be taken there.
    assert!(open(&at(replica.port())).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_at_open_names_the_remedy() {
    let server = MariaDb::builder().password("secret").start().unwrap();
    for user in ["lock", "lock:wrong", "nobody:wrong"] {
        let url = format!("mysql://{user}@127.0.0.1:{}/lock", server.port());
        a_user_is_refused(&url, "check user and password").await;
    }
    // Another kind of server, which waits for the client's first message.
    let redis = fencelock_testbed::Redis::start().unwrap();
    let url = format!("mysql://lock@127.0.0.1:{}/lock", redis.port());
    another_server_is_explained(&url, "is it a MySQL or MariaDB server?").await;
}
