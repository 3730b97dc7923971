//! The tokens of `get-lock`, which are made of the numbers of UUID_SHORT().

use std::time::Duration;

use fencelock_core::{Client, Token};
use fencelock_testbed::{ClockShim, MariaDb};
use mysql_async::prelude::Queryable;

use crate::{bare, connections, number, open, soon, take, token_of, until, waiting};

async fn client(server: &MariaDb) -> Client {
    open(&format!("{}?strategy=get-lock", server.url()))
        .await
        .unwrap()
}

fn counter(server: &MariaDb, column: &str) -> u64 {
    let sql = format!("SELECT {column} FROM `lock`.fencelock_counter");
    number(server, &sql)
}

/// Another client uses up `count` numbers.
fn burn(server: &MariaDb, count: u64) {
    server
        .sql(&format!("DO BENCHMARK({count}, UUID_SHORT())"))
        .unwrap();
}

struct Highest(Token);

impl Highest {
    #[track_caller]
    fn above(&mut self, token: Token) {
        assert!(token > self.0, "{token} after {}", self.0);
        self.0 = token;
    }
}

/// A waiter draws its token after the grant, so it is above the tokens that were drawn meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_drawn_after_the_lock_is_acquired() {
    let server = MariaDb::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let guard = take(&one, "a").await;
    let next = tokio::spawn(async move { token_of(&two, "a").await });
    until("it waits", || waiting(&server, "get-lock") == 1).await;
    let mut drawn = Highest(guard.token());
    for _ in 0..20 {
        drawn.above(token_of(&one, "b").await);
    }
    guard.release().await.unwrap();
    drawn.above(soon("the waiter", next).await.unwrap());
}

/// The reservation is used up: by the grants themselves, and at once by another client.
#[tokio::test(flavor = "multi_thread")]
async fn the_reservation_is_raised_before_a_grant_beyond_it() {
    let mut server = MariaDb::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let mut admin = bare(&server).await;
    let end = "SELECT base + (upto - origin) FROM fencelock_counter";
    let mut highest = Highest(Token(0));
    let origin = counter(&server, "origin");
    for burnt in [0, 10, 1_000, 1_000_000, 0] {
        burn(&server, burnt);
        for _ in 0..40 {
            for client in [&one, &two] {
                highest.above(token_of(client, "a").await);
                let end: u64 = admin.query_first(end).await.unwrap().unwrap();
                assert!(highest.0 < Token(16 * end), "{} of {end}", highest.0);
            }
        }
    }
    assert_eq!(counter(&server, "origin"), origin, "the section is in use");
    let base = counter(&server, "base");
    server.kill9();
    server.restart().unwrap();
    highest.above(token_of(&one, "a").await);
    // A server that restarts in the same second would begin with the same number.
    assert!(counter(&server, "base") > base, "a new section");
}

/// One of two clients is connected while the server restarts. The other one connects later.
#[tokio::test(flavor = "multi_thread")]
async fn clients_from_before_and_after_a_restart_agree() {
    let mut server = MariaDb::start().unwrap();
    let before = client(&server).await;
    let mut highest = Highest(Token(0));
    for _ in 0..3 {
        highest.above(token_of(&before, "a").await);
        server.kill9();
        server.restart().unwrap();
        let after = client(&server).await;
        for _ in 0..20 {
            highest.above(token_of(&after, "a").await);
            highest.above(token_of(&before, "a").await);
        }
    }
}

/// The clock that seeds the server's numbers is set back, so far that the new numbers look like the old ones.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_are_counted_again_make_no_old_tokens() {
    let clock = ClockShim::new().unwrap();
    let mut server = MariaDb::builder().clock(&clock).start().unwrap();
    let mut highest = Highest(Token(0));
    let one = client(&server).await;
    for _ in 0..100 {
        highest.above(token_of(&one, "a").await);
    }
    clock.back(Duration::from_secs(3600)).unwrap();
    server.kill9();
    server.restart().unwrap();
    for _ in 0..100 {
        highest.above(token_of(&one, "a").await);
    }
    one.close().await.unwrap();
    // The next run begins a moment earlier, and another client uses up the numbers in between.
    let (origin, upto) = (counter(&server, "origin"), counter(&server, "upto"));
    let begun = loop {
        clock.back(Duration::from_secs(3)).unwrap();
        server.kill9();
        server.restart().unwrap();
        let begun = number(&server, "SELECT UUID_SHORT()");
        if begun < origin {
            break begun;
        }
    };
    burn(&server, origin - begun);
    let now = number(&server, "SELECT UUID_SHORT()");
    assert!((origin..upto).contains(&now), "{now} of {origin} to {upto}");
    highest.above(token_of(&client(&server).await, "a").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_id_of_the_server_changes_no_numbers() {
    let server = MariaDb::start().unwrap();
    let one = client(&server).await;
    let mut highest = Highest(token_of(&one, "a").await);
    for id in [200, 3, 255] {
        server.sql(&format!("SET GLOBAL server_id = {id}")).unwrap();
        highest.above(token_of(&one, "a").await);
        highest.above(token_of(&client(&server).await, "a").await);
        highest.above(token_of(&one, "a").await);
    }
}

/// No client draws from the old section any more, and its row has lost the last reservations.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_increase_at_a_store_that_lost_reservations() {
    let server = MariaDb::start().unwrap();
    let one = client(&server).await;
    let mut highest = Highest(token_of(&one, "a").await);
    let row = "origin, base, upto";
    let old = server
        .sql(&format!("SELECT {row} FROM `lock`.fencelock_counter"))
        .unwrap();
    for _ in 0..1000 {
        highest.above(token_of(&one, "a").await);
    }
    one.close().await.unwrap();
    until("its connections are gone", || connections(&server) == 0).await;
    let old = old.replace('\t', ", ");
    server
        .sql(&format!(
            "REPLACE INTO `lock`.fencelock_counter (id, {row}) VALUES (1, {old})"
        ))
        .unwrap();
    highest.above(token_of(&client(&server).await, "a").await);
    // Tokens are also above the ids of AUTO_INCREMENT, even if these are ahead of the time.
    let ahead = highest.0.get() / 16 + 1_000_000_000;
    server
        .sql(&format!(
            "ALTER TABLE `lock`.fencelock_tokens AUTO_INCREMENT = {ahead}; DELETE FROM `lock`.fencelock_counter"
        ))
        .unwrap();
    until("its connections are gone", || connections(&server) == 0).await;
    let token = token_of(&client(&server).await, "a").await;
    highest.above(token);
    assert!(token >= Token(16 * ahead), "{token}");
}

/// A connection that a proxy leads to another server grants nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_leaves_a_section_that_was_replaced() {
    let server = MariaDb::start().unwrap();
    let one = client(&server).await;
    let mut highest = Highest(token_of(&one, "a").await);
    let mut admin = bare(&server).await;
    admin
        .query_drop("UPDATE fencelock_counter SET base = base + 1000000, origin = origin + 1")
        .await
        .unwrap();
    for _ in 0..40 {
        highest.above(token_of(&one, "a").await);
    }
    assert!(highest.0 > Token(16 * counter(&server, "base")));
}
