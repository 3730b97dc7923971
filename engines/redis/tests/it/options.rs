//! Typed options and clients of the driver: their locks are those of the URL, and every option takes effect.

use fencelock_core::engine::Standing;
use fencelock_core::{ConfigPart, Engine, Error, LockName};
use fencelock_redis::{Options, Redis, redlock};
use fencelock_testbed::{Redis as Server, RedisCluster, RedisSentinel};

use crate::redlock::nodes::{Nodes, age, open as open_redlock, url};
use crate::support::{Store, ms, open, wrong_in};

/// A lock that is taken with `options` is held for a client of the URL.
async fn locks_for(options: Options, url: &str) -> Store {
    let (one, two) = (
        Store::new(Redis::connect(options).await.unwrap()),
        open(url).await,
    );
    let claim = one.claim("a");
    let token = one.held(&claim).await.tokens.first;
    let name = LockName::new("a").unwrap();
    assert_eq!(two.look(&name).await.token(), Some(token), "{url}");
    one
}

fn client(text: &str) -> redis::Client {
    redis::Client::open(text).unwrap()
}

async fn refused(options: Options) -> Error {
    Redis::connect(options).await.map(|_| ()).unwrap_err()
}

fn host(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn options_and_url_lock_the_same() {
    let server = Server::builder()
        .user("me", "a/b@c", "~* &* +@all")
        .start()
        .unwrap();
    let options = Options::new(host(&server)).user("me").password("a/b@c");
    let url = format!("redis://me:a%2Fb%40c@{}/3", host(&server));
    let store = locks_for(options.clone().database(3).claim_window(ms(1500)), &url).await;
    assert_eq!(store.engine.promises().claim_window, ms(1500));
    let error = refused(options.password("wr0ng")).await;
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
}

#[tokio::test]
async fn credentials_of_the_drivers_client_are_used() {
    let server = Server::builder()
        .password("secret")
        .unix_socket()
        .start()
        .unwrap();
    let url = server.url();
    let own = client(&format!("{url}/2"));
    assert!(!format!("{:?}", Options::from_client(own.clone())).contains("secret"));
    locks_for(Options::from_client(own.clone()), &format!("{url}/2")).await;
    let socket = Options::unix(server.socket()).password("secret");
    locks_for(socket, &url).await;
    let error = refused(Options::from_client(client(&format!(
        "redis://{}",
        host(&server)
    ))))
    .await;
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    // An option that the client already sets is refused.
    for (options, word) in [
        (Options::from_client(own.clone()).user("me"), "user"),
        (Options::from_client(own.clone()).password("x"), "password"),
        (Options::from_client(own.clone()).tls(), "tls"),
        (Options::from_client(own).database(1), "database"),
    ] {
        let error = refused(options).await;
        wrong_in(&error, ConfigPart::Url);
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_by_options_and_by_clients_of_the_driver() {
    let group = RedisSentinel::start().unwrap();
    let url = group.url();
    let password = std::fs::read_to_string(group.password_file()).unwrap();
    let password = password.trim_end();
    let sentinels = || group.sentinels().iter().map(host);
    let options = Options::sentinel(sentinels(), "main")
        .password("testbed")
        .sentinel_password(password)
        .replicas(1);
    let store = locks_for(options, &url).await;
    drop(store.engine.close().await);
    let own = sentinels().map(|host| client(&format!("redis://:{password}@{host}")));
    let like = client("redis://:testbed@nowhere");
    let options = Options::sentinel_from_clients(own.collect(), "main", like);
    let store = Store::new(Redis::connect(options).await.unwrap());
    store.held(&store.claim("b")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_by_options_and_by_clients_of_the_driver() {
    let cluster = RedisCluster::start(3, 0, 60_000, None).unwrap();
    let nodes = || cluster.nodes().iter().take(2).map(host);
    let url = cluster.url();
    let password = url.rsplit_once('@').unwrap().0.rsplit_once(':').unwrap().1;
    let store = locks_for(Options::cluster(nodes()).password(password), &url).await;
    drop(store.engine.close().await);
    let own = nodes().map(|host| client(&format!("redis://:{password}@{host}")));
    let options = Options::cluster_from_clients(own.collect());
    let store = Store::new(Redis::connect(options).await.unwrap());
    store.held(&store.claim("b")).await;
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_by_options_and_by_a_client_of_the_driver() {
    let server = Server::builder().tls().start().unwrap();
    let host = format!("localhost:{}", server.tls_port().unwrap());
    let url = format!("rediss://{host}?tls-ca={}", server.ca());
    locks_for(Options::new(&host).tls().tls_ca(server.ca()), &url).await;
    let certificates = redis::TlsCertificates {
        client_tls: None,
        root_cert: Some(std::fs::read(server.ca()).unwrap()),
    };
    let own = redis::Client::build_with_tls(format!("rediss://{host}"), certificates).unwrap();
    let store = Store::new(Redis::connect(Options::from_client(own)).await.unwrap());
    store.held(&store.claim("b")).await;
}

#[tokio::test]
async fn redlock_by_options_and_by_clients_of_the_driver() {
    let nodes = Nodes::start_fresh(|| Server::builder().password("secret"));
    nodes.servers.iter().for_each(age);
    let hosts = || nodes.servers.iter().map(host);
    let options = redlock::Options::new(hosts())
        .password("secret")
        .max_ttl(ms(1000))
        .node_timeout(ms(100));
    let one = Store::new(redlock::Redlock::connect(options).await.unwrap());
    let own = hosts().map(|host| client(&format!("redis://:secret@{host}")));
    let own = redlock::Options::from_clients(own.collect());
    let own = own.max_ttl(ms(1000)).node_timeout(ms(100));
    let two = Store::new(redlock::Redlock::connect(own).await.unwrap());
    let by_url = url(nodes.servers.iter().map(Server::port), "");
    let by_url = open_redlock(&by_url.replace("://", "://:secret@"))
        .await
        .unwrap();
    let claim = one.claim("a");
    one.held(&claim).await;
    for other in [&two, &by_url] {
        let standing = other.engine.place(&other.claim("a")).await.unwrap();
        assert!(!matches!(standing, Standing::Held(_)), "{standing:?}");
        let view = other.look(&claim.name).await;
        assert_eq!(view.holders.len(), 1);
    }
}
