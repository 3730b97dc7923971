//! The database's clock is wrong, or jumps.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_database_whose_clock_is_off_by_an_hour_keeps_leases() {
    let servers = [true, false].map(|forward| {
        let clock = ClockShim::new().unwrap();
        let hour = Duration::from_secs(3600);
        match forward {
            true => clock.forward(hour).unwrap(),
            false => clock.back(hour).unwrap(),
        }
        let server = MariaDb::builder().clock(&clock).start().unwrap();
        (server, clock)
    });
    tokio::join!(keeps_leases(&servers[0].0), keeps_leases(&servers[1].0));
}

async fn keeps_leases(server: &MariaDb) {
    let (one, two) = (client(server).await, client(server).await);
    let ttl = Duration::from_secs(3);
    let guard = soon("the lock", one.lock("a").ttl(ttl)).await.unwrap();
    // More than the ttl.
    for _ in 0..4 {
        soon("a renewal", guard.prolonged()).await;
        assert!(matches!(two.try_lock("a").await, Err(Error::Held { .. })));
    }
    let view = two.look("a").await.unwrap();
    let left = view.holders[0].ttl_left.unwrap();
    assert!(left <= ttl && left > Duration::ZERO, "{left:?}");
    drop(guard);
    shared::a_vanished_holder_expires(&server.url(), &two, "b", ttl).await;
}

/// Exclusion may break, but the order of tokens must not: neither when the clock jumps forward nor when it is set back.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_increase_even_if_the_clock_jumps() {
    let clock = ClockShim::new().unwrap();
    let mut server = MariaDb::builder().clock(&clock).start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let guard = take(&one, "a").await;
    clock.forward(Duration::from_secs(3600)).unwrap();
    let mut last = guard.token();
    let mut above = |token: Token| {
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    above(token_of(&two, "a").await);
    above(token_of(&client(&server).await, "a").await);
    clock.back(Duration::from_secs(7200)).unwrap();
    above(token_of(&two, "a").await);
    above(token_of(&client(&server).await, "a").await);
    server.kill9();
    server.restart().unwrap();
    above(token_of(&two, "a").await);
    above(token_of(&client(&server).await, "a").await);
}
