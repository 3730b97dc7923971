//! A server, or one of its processes, is killed.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_comes_back_under_load() {
    for strategy in ["lease", "advisory"] {
        let mut server = Postgres::start().unwrap();
        let url = format!("{}?strategy={strategy}", server.url());
        shared::crashes::a_killed_server_comes_back_under_load(&url, || {
            server.kill9();
            server.restart().unwrap();
        })
        .await;
    }
}

/// When one of its processes is killed, the server continues at once. What had not reached the disk is lost, such as the values
/// of a sequence.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_increase_after_one_process_of_the_server_is_killed() {
    for strategy in ["lease", "advisory"] {
        let server = Postgres::builder()
            .config("wal_writer_delay", "10s")
            .start()
            .unwrap();
        let url = format!("{}?strategy={strategy}", server.url());
        let client = open(&url).await.unwrap();
        let mut last = Token(0);
        for _ in 0..2 {
            let start = server.psql("lock", "SELECT pg_postmaster_start_time()");
            let victim = raw(&server, "victim").await;
            let pid = victim.query_one("SELECT pg_backend_pid()", &[]).await;
            let pid: i32 = pid.unwrap().get(0);
            for _ in 0..100 {
                let guard = client.lock("a").await.unwrap();
                assert!(guard.token() > last, "{} after {last}", guard.token());
                last = guard.token();
                guard.release().await.unwrap();
            }
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
            until("the server has ended all connections", async || {
                victim.is_closed()
            })
            .await;
            // A client that has not seen those tokens.
            let mut next = None;
            until("it is back", async || {
                next = open(&url).await.ok();
                next.is_some()
            })
            .await;
            let guard = next.unwrap().lock("a").timeout(LIMIT).await.unwrap();
            let token = guard.token();
            assert!(token > last, "{strategy}: {token} after {last}");
            last = token;
            guard.release().await.unwrap();
            until("the first is connected again", async || {
                client.try_lock("b").await.is_ok()
            })
            .await;
            let again = server.psql("lock", "SELECT pg_postmaster_start_time()");
            assert_eq!(again.unwrap(), start.unwrap());
        }
    }
}
