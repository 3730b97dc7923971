//! Tests of everything that the testbed does with a redis-server.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use fencelock_testbed::{ClockShim, Redis};

#[test]
fn starts_answers_and_is_gone_with_its_directory() {
    let redis = Redis::start().unwrap();
    let pong: String = redis.command(&["PING"]).unwrap();
    assert_eq!(pong, "PONG");
    let (pid, dir) = (redis.pid(), PathBuf::from(redis.dir()));
    assert!(PathBuf::from(format!("/proc/{pid}")).exists() && dir.exists());
    drop(redis);
    assert!(!PathBuf::from(format!("/proc/{pid}")).exists());
    assert!(!dir.exists());
}

#[test]
fn many_at_once_have_ports_of_their_own() {
    let servers = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| Redis::start().unwrap()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    // The threads that started the servers have ended, but the servers still run.
    let mut ports: Vec<u16> = servers.iter().map(Redis::port).collect();
    for (i, redis) in servers.iter().enumerate() {
        redis
            .command::<()>(&["SET", "who", &i.to_string()])
            .unwrap();
    }
    for (i, redis) in servers.iter().enumerate() {
        assert_eq!(redis.command::<usize>(&["GET", "who"]).unwrap(), i);
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 8);
}

#[test]
fn remembers_after_kill_9_only_if_told_to() {
    for memory in [false, true] {
        let builder = Redis::builder();
        let builder = if memory {
            builder.append_only("always")
        } else {
            builder
        };
        let mut redis = builder.start().unwrap();
        redis.command::<()>(&["SET", "k", "v"]).unwrap();
        let before = redis.pid();
        redis.kill9();
        assert!(redis.command::<String>(&["PING"]).is_err());
        redis.restart().unwrap();
        assert_ne!(redis.pid(), before);
        let found: Option<String> = redis.command(&["GET", "k"]).unwrap();
        assert_eq!(found.is_some(), memory);
        redis.restart_empty().unwrap();
        assert_eq!(redis.command::<u64>(&["DBSIZE"]).unwrap(), 0);
    }
}

#[test]
fn a_loss_of_power_takes_the_last_writes() {
    let mut redis = Redis::builder().append_only("always").start().unwrap();
    redis.command::<()>(&["SET", "first", "v"]).unwrap();
    redis.command::<()>(&["SET", "second", "v"]).unwrap();
    redis.lose_power(10).unwrap();
    redis.restart().unwrap();
    assert_eq!(redis.command::<u64>(&["EXISTS", "first"]).unwrap(), 1);
    assert_eq!(redis.command::<u64>(&["EXISTS", "second"]).unwrap(), 0);
}

#[test]
fn a_paused_server_answers_after_it_is_resumed() {
    let redis = Redis::start().unwrap();
    let mut connection = redis.connect().unwrap();
    connection
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    redis.pause().unwrap();
    let set = redis::cmd("SET").arg("k").arg("v").exec(&mut connection);
    assert!(set.unwrap_err().is_timeout());
    redis.resume().unwrap();
    let mut connection = redis.connect().unwrap();
    let found: Option<String> = redis::cmd("GET").arg("k").query(&mut connection).unwrap();
    assert_eq!(found.as_deref(), Some("v"));
}

#[test]
fn passwords_users_and_sockets() {
    let redis = Redis::builder()
        .password("s3cret")
        .user("app", "pw", "~app:* +get +ping")
        .config("maxmemory-policy", "allkeys-lru")
        .unix_socket()
        .start()
        .unwrap();
    assert!(redis.url().contains("s3cret"));
    assert_eq!(redis.command::<String>(&["PING"]).unwrap(), "PONG");
    let ask = |url: &str, words: &[&str]| {
        let mut connection = redis::Client::open(url)?.get_connection()?;
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query::<Option<String>>(&mut connection)
    };
    let port = redis.port();
    assert!(ask(&format!("redis://127.0.0.1:{port}"), &["PING"]).is_err());
    let app = format!("redis://app:pw@127.0.0.1:{port}");
    assert_eq!(ask(&app, &["GET", "app:1"]).unwrap(), None);
    assert!(
        ask(&app, &["GET", "other"])
            .unwrap_err()
            .to_string()
            .contains("key")
    );
    let socket = format!("redis+unix://{}?pass=s3cret", redis.socket());
    assert_eq!(ask(&socket, &["PING"]).unwrap().as_deref(), Some("PONG"));
}

#[test]
fn tls_has_a_certificate_that_its_authority_signed() {
    let redis = Redis::builder().tls().start().unwrap();
    let address = format!("127.0.0.1:{}", redis.tls_port().unwrap());
    let output = std::process::Command::new("openssl")
        .args(["s_client", "-connect", &address, "-CAfile", &redis.ca()])
        .args(["-verify_return_error", "-verify_ip", "127.0.0.1"])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("Verify return code: 0 (ok)"), "{said}");
}

#[test]
fn goes_by_a_clock_that_is_set_forward_and_back() {
    let clock = ClockShim::new().unwrap();
    let mut redis = Redis::builder().clock(&clock).start().unwrap();
    let hour = Duration::from_secs(3600);
    let time = |redis: &Redis| -> u64 { redis.command::<(u64, u64)>(&["TIME"]).unwrap().0 };
    let here = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let ahead = |redis: &Redis| time(redis) as i64 - here().unwrap().as_secs() as i64;
    assert!(ahead(&redis).abs() <= 60, "{}", ahead(&redis));
    redis
        .command::<()>(&["SET", "lock", "me", "PX", "60000"])
        .unwrap();
    clock.forward(hour).unwrap();
    assert!((ahead(&redis) - 3600).abs() <= 60, "{}", ahead(&redis));
    assert!(!redis.command::<bool>(&["EXISTS", "lock"]).unwrap());
    // The offset survives a restart of the server.
    redis.restart_empty().unwrap();
    assert!((ahead(&redis) - 3600).abs() <= 60, "{}", ahead(&redis));
    redis
        .command::<()>(&["SET", "lock", "me", "PX", "1000"])
        .unwrap();
    clock.back(2 * hour).unwrap();
    assert!((ahead(&redis) + 3600).abs() <= 60, "{}", ahead(&redis));
    let left: u64 = redis.command(&["PTTL", "lock"]).unwrap();
    assert!(left > 7_000_000, "{left}");
}

#[test]
fn sentinels_fail_over() {
    let mut group = fencelock_testbed::RedisSentinel::start().unwrap();
    assert_eq!(group.master().unwrap(), 0);
    group.servers()[0]
        .command::<()>(&["SET", "k", "v"])
        .unwrap();
    group.servers()[0].kill9();
    let master = group.await_failover(0).unwrap();
    assert_ne!(master, 0);
    group.rejoin(0).unwrap();
    group.await_ready().unwrap();
}

#[test]
fn a_cluster_fails_over_and_moves_slots() {
    let cluster = fencelock_testbed::RedisCluster::start(3, 1, 1000, None).unwrap();
    assert_eq!(cluster.owner(1, 0).unwrap(), 0);
    // The slot of `foo`.
    let slot = 12_182;
    let from = cluster.owner(0, slot).unwrap();
    cluster.nodes()[from]
        .command::<()>(&["SET", "foo", "v"])
        .unwrap();
    cluster.begin_move(slot, from, 0).unwrap();
    cluster.move_keys(slot, from, 0).unwrap();
    cluster.end_move(slot, from, 0).unwrap();
    let value: String = cluster.nodes()[0].command(&["GET", "foo"]).unwrap();
    assert_eq!(value, "v");
    cluster.nodes()[1].kill9();
    assert_eq!(cluster.await_failover(2, 8192, 1).unwrap(), 4);
}
