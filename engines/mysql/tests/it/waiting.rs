//! Waiters use a few connections, and poll more and more rarely if they are not woken.

use super::*;

/// They also poll rarely.
#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_waiters_use_a_few_connections() {
    let server = MariaDb::start().unwrap();
    let few = format!("{}?max-connections=3", server.url());
    let (one, two) = (open(&few).await.unwrap(), open(&few).await.unwrap());
    let mut held = Vec::new();
    let mut waiters = Vec::new();
    for i in 0..64 {
        let name = format!("job {i}");
        held.push(one.lock(&name).ttl(Duration::from_secs(600)).await.unwrap());
        let two = two.clone();
        waiters.push(tokio::spawn(async move { two.lock(&name).await }));
    }
    until("all wait", || {
        number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_waiters") == 64
    })
    .await;
    sleep(Duration::from_secs(2)).await;
    let (questions, begun) = (status(&server, "Questions"), Instant::now());
    sleep(Duration::from_secs(4)).await;
    let asked = status(&server, "Questions") - questions;
    let rate = asked as f64 / begun.elapsed().as_secs_f64() / 64.0;
    println!("{rate:.1} statements per second and waiter");
    assert!(rate < 5.0, "{rate} statements per second and waiter");
    let used = connections(&server);
    // The waiting client has two more connections, for waking it.
    assert!(used <= 2 * 3 + 2, "{used}");
    for (guard, waiter) in held.into_iter().zip(waiters) {
        guard.release().await.unwrap();
        let next = soon("the waiter", waiter).await.unwrap().unwrap();
        next.release().await.unwrap();
    }
}

/// The longer a waiter waits, the more rarely it polls: first every few milliseconds. This waiter has no ear.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_polls_more_and_more_rarely() {
    let server = MariaDb::start().unwrap();
    let few =
        "CREATE USER 'few'@'%' WITH MAX_USER_CONNECTIONS 1; GRANT ALL ON `lock`.* TO 'few'@'%'";
    server.sql(few).unwrap();
    let url = format!("mysql://few@127.0.0.1:{}/lock", server.port());
    let (one, two) = (client(&server).await, open(&url).await.unwrap());
    let held = one.lock("a").ttl(Duration::from_secs(600)).await.unwrap();
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.lock("a").await }
    });
    until("it waits", || {
        number(&server, "SELECT COUNT(*) FROM `lock`.fencelock_waiters") == 1
    })
    .await;
    let mut rates = Vec::new();
    while rates.iter().all(|rate| *rate >= 5.0) {
        assert!(rates.len() < 5, "{rates:?} statements per second");
        let (before, begun) = (status(&server, "Questions"), Instant::now());
        sleep(Duration::from_secs(2)).await;
        let (after, length) = (status(&server, "Questions"), begun.elapsed());
        // The query for that number counts, too.
        let own = status(&server, "Questions") - after;
        rates.push((after - before - own) as f64 / length.as_secs_f64());
    }
    held.release().await.unwrap();
    let next = soon("the waiter", waiting).await.unwrap().unwrap();
    next.release().await.unwrap();
}
