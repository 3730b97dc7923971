//! The database's clock is wrong, or jumps.

use super::*;

/// A clock that is an hour ahead changes nothing. If it is set forward during a hold, the lease expires for the
/// database, and the next holder has a higher token.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_of_the_database_changes_nothing() {
    let clock = ClockShim::new().unwrap();
    let hour = Duration::from_secs(3600);
    clock.forward(hour).unwrap();
    let server = Postgres::builder().clock(&clock).start().unwrap();
    let (one, two) = (
        open(&server.url()).await.unwrap(),
        open(&server.url()).await.unwrap(),
    );
    let guard = one.lock("a").ttl(Duration::from_secs(3)).await.unwrap();
    for _ in 0..4 {
        timeout(LIMIT, guard.prolonged()).await.unwrap();
        assert!(matches!(two.try_lock("a").await, Err(Error::Held { .. })));
    }
    clock.forward(hour).unwrap();
    let next = two.lock("a").timeout(LIMIT).await.unwrap();
    assert!(next.token() > guard.token());
    let last = next.token();
    next.release().await.unwrap();
    clock.back(2 * hour).unwrap();
    let again = two.lock("a").timeout(LIMIT).await.unwrap();
    assert!(again.token() > last);
}

/// The leases end by themselves: they are neither renewed nor released.
#[tokio::test(flavor = "multi_thread")]
async fn leases_end_in_time_whatever_the_databases_clock_shows() {
    let servers = [true, false].map(|forward| {
        let clock = ClockShim::new().unwrap();
        let hour = Duration::from_secs(3600);
        match forward {
            true => clock.forward(hour).unwrap(),
            false => clock.back(hour).unwrap(),
        }
        let server = Postgres::builder().clock(&clock).start().unwrap();
        (server, clock)
    });
    let ends = async |server: &Postgres| {
        let client = open(&server.url()).await.unwrap();
        let ttl = Duration::from_secs(3);
        shared::a_vanished_holder_expires(&server.url(), &client, "a", ttl).await;
    };
    tokio::join!(ends(&servers[0].0), ends(&servers[1].0));
}

/// Connection-bound locks do not depend on a clock, except in the second after a request.
#[tokio::test(flavor = "multi_thread")]
async fn the_databases_clock_does_not_end_connection_bound_locks() {
    let clock = ClockShim::new().unwrap();
    let hour = Duration::from_secs(3600);
    let server = Postgres::builder().clock(&clock).start().unwrap();
    let url = format!("{}?strategy=advisory", server.url());
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let guard = one.lock("a").ttl(Duration::from_secs(6)).await.unwrap();
    // A request leaves an alarm of a second in the server's process. When it goes off, the server also looks at the idle time
    // of the connection, and takes the jump of its clock for idle time.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    clock.forward(hour).unwrap();
    for _ in 0..2 {
        timeout(LIMIT, guard.prolonged()).await.unwrap();
        assert!(matches!(two.try_lock("a").await, Err(Error::Held { .. })));
    }
    clock.back(2 * hour).unwrap();
    let last = guard.token();
    guard.release().await.unwrap();
    let next = two.lock("a").timeout(LIMIT).await.unwrap();
    assert!(next.token() > last, "{} after {last}", next.token());
}
