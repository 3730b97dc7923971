//! Opening a store with Sentinels: separate users, the documented rights, and TLS. Fail-overs are in `failover`.

use std::time::Instant;

use fencelock_core::Error;
use fencelock_core::engine::Withdrawn;
use fencelock_testbed::{Redis, RedisSentinel};

use crate::support::{Store, ms, open};

/// The rights that the documentation of the crate lists; `wait` for `replicas`.
const LEAST: &str = "resetchannels -@all ~* &fencelock:* +hello +client|id +client|kill +info +config|get +subscribe \
                     +publish +eval +evalsha +time +get +getrange +set +del +exists +incrby +pttl +pexpire +pexpireat \
                     +zadd +zrem +zpopmin +zrange +zrangebyscore +zscore +zcard +zrank +hset +hget +hdel +hmget +hgetall \
                     +scan +wait";
/// The rights of a user of the Sentinels.
const ASKS: &str = "-@all +hello +sentinel|get-master-addr-by-name +sentinel|master";

fn set_user(servers: &[Redis], name: &str, rights: &str) {
    for server in servers {
        let mut words = vec!["ACL", "SETUSER", name, "reset", "on", ">secret"];
        words.extend(rights.split_whitespace());
        server.command::<()>(&words).unwrap();
    }
}

async fn hands_over(one: &Store, two: &Store) {
    let (first, second) = (one.claim("a"), two.claim("a"));
    one.held(&first).await;
    let place = two.waits(&second).await;
    assert_eq!(one.release(&first).await, Withdrawn::Released);
    two.granted(&second, &place).await;
    assert_eq!(two.release(&second).await, Withdrawn::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_of_the_servers_and_of_the_sentinels() {
    let group = RedisSentinel::start().unwrap();
    set_user(group.servers(), "least", LEAST);
    set_user(group.sentinels(), "asks", ASKS);
    let file = group.servers()[0].dir().join("secret");
    std::fs::write(&file, "secret").unwrap();
    let url = |password: &str| {
        let hosts = group.url();
        let hosts = hosts.split('?').next().unwrap_or_default();
        let hosts = hosts.replace(":testbed@", &format!("least:{password}@"));
        let file = file.display();
        format!("{hosts}?sentinel-user=asks&sentinel-password-file={file}")
    };
    let (one, two) = (open(&url("secret")).await, open(&url("secret")).await);
    hands_over(&one, &two).await;
    let waits = open(&format!("{}&replicas=2", url("secret"))).await;
    let claim = waits.claim("a");
    waits.held(&claim).await;
    assert_eq!(waits.release(&claim).await, Withdrawn::Released);
    for server in group.servers().iter().chain(group.sentinels()) {
        let log: Vec<redis::Value> = server.command(&["ACL", "LOG"]).unwrap();
        assert!(log.is_empty(), "{log:?}");
    }
    let wrong = fencelock_core::StoreUrl::parse(&url("wr0ng")).unwrap();
    let error = fencelock_redis::Redis::connect(wrong).await.map(|_| ());
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("wr0ng"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_sentinel_of_three_stops_nothing() {
    let group = RedisSentinel::start().unwrap();
    let options = "promotion-delay=1s&response-timeout=2s";
    let store = open(&format!("{}&{options}", group.url())).await;
    let claim = store.claim("before");
    let token = store.lock(&claim).await.tokens.first;
    group.sentinels()[1].pause().unwrap();
    // Longer than an answer of the Sentinels is valid.
    let begin = Instant::now();
    let mut turns = 0;
    while begin.elapsed() < ms(4000) || turns <= 100 {
        assert!(begin.elapsed() < ms(30_000), "{turns} turns");
        store.kept(&claim, token).await;
        let next = store.claim("next");
        store.held(&next).await;
        assert_eq!(store.release(&next).await, Withdrawn::Released);
        turns += 1;
    }
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_to_sentinels_and_servers() {
    let group = RedisSentinel::builder().tls().start().unwrap();
    let all = || group.servers().iter().chain(group.sentinels());
    // Each server has its own authority. One file may contain several authorities.
    let bundle = group.servers()[0].dir().join("all.crt");
    let authorities: Vec<String> = all()
        .map(|server| std::fs::read_to_string(server.ca()).unwrap())
        .collect();
    std::fs::write(&bundle, authorities.concat()).unwrap();
    // The Sentinels return the ports without TLS.
    let at_tls = |server: &Redis| format!("localhost:{}", server.tls_port().unwrap());
    let map = group.servers().iter();
    let map = map.map(|server| format!("127.0.0.1:{}={}", server.port(), at_tls(server)));
    let map: Vec<String> = map.collect();
    let hosts: Vec<String> = group.sentinels().iter().map(at_tls).collect();
    let url = format!(
        "rediss+sentinel://:testbed@{}/main?sentinel-password-file={}&address-map={}",
        hosts.join(","),
        group.password_file(),
        map.join(",")
    );
    let trusting = format!("{url}&tls-ca={}", bundle.display());
    let (one, two) = (open(&trusting).await, open(&trusting).await);
    hands_over(&one, &two).await;
    let distrusting = fencelock_core::StoreUrl::parse(&url).unwrap();
    let error = fencelock_redis::Redis::connect(distrusting).await;
    let error = error.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}
