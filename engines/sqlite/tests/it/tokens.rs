//! Tokens are drawn from the clock or from the counter, and always increase.

use std::time::{SystemTime, UNIX_EPOCH};

use fencelock_core::engine::Leave;
use tokio::task::JoinSet;

use super::*;

/// Draws a token like earlier versions, which only know the counter.
fn draw_as_before(raw: &rusqlite::Connection) -> u64 {
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let stored: i64 = stored(raw, "token");
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let next = (stored + 1).max(i64::try_from(wall.as_micros()).unwrap());
    raw.execute("UPDATE store SET token = ?1", [next]).unwrap();
    raw.execute_batch("COMMIT").unwrap();
    next.unsigned_abs()
}

fn stored(raw: &rusqlite::Connection, column: &str) -> i64 {
    let sql = format!("SELECT {column} FROM store");
    raw.query_row(&sql, [], |row| row.get(0)).unwrap()
}

/// Takes and releases a lock. Returns its token.
async fn token(engine: &Sqlite) -> u64 {
    let claim = claim("job");
    let token = held(engine, &claim).await.tokens.first.get();
    engine.withdraw(&claim, Leave::Release).await.unwrap();
    token
}

#[tokio::test]
async fn an_earlier_version_may_share_the_file() {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let raw = directory.raw();
    let mut last = 0;
    let mut expect = |token: u64| {
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    // They draw in turn, in a changing order. Each continues from what the others have drawn.
    for round in 0..500 {
        for _ in 0..round % 7 {
            expect(token(&a).await);
            expect(token(&b).await);
        }
        expect(draw_as_before(&raw));
    }
}

#[tokio::test]
async fn a_file_of_an_earlier_version_gets_an_origin_and_a_horizon() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let first = token(&engine).await;
    engine.close().await.unwrap();
    let raw = directory.raw();
    for column in ["horizon", "origin", "origin_boot"] {
        let sql = format!("ALTER TABLE store DROP COLUMN {column}");
        raw.execute_batch(&sql).unwrap();
    }
    let before = draw_as_before(&raw);
    assert!(before > first);
    let engine = directory.open().await;
    assert!(token(&engine).await > before);
    assert_eq!(stored(&raw, "horizon"), stored(&raw, "token"));
}

/// In this boot only an earlier version, which does not know the origin, has opened the file.
#[tokio::test]
async fn the_origin_of_another_boot_is_not_used() {
    let directory = Directory::new();
    let engine = directory.open().await;
    token(&engine).await;
    engine.close().await.unwrap();
    let raw = directory.raw();
    // The clock of this boot shows an earlier time than that of the other.
    let sql = "UPDATE store SET origin = origin - 1000000000, origin_boot = 'another'";
    raw.execute(sql, []).unwrap();
    let horizon = stored(&raw, "token");
    let engine = directory.open().await;
    assert!(token(&engine).await > horizon.unsigned_abs());
}

#[tokio::test]
async fn grants_in_one_transaction_have_tokens_of_their_own() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let raw = directory.raw();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    // No claim can be written at once, so the worker does several together.
    let mut places = JoinSet::new();
    for n in 0..40 {
        let engine = Arc::clone(&engine);
        places.spawn(async move {
            let claim = claim(&format!("job/{n}"));
            held(&engine, &claim).await.tokens.first.get()
        });
    }
    // Each task sends its request before this one continues.
    tokio::task::yield_now().await;
    raw.execute_batch("COMMIT").unwrap();
    let mut firsts = places.join_all().await;
    firsts.sort_unstable();
    firsts.dedup();
    assert_eq!(firsts.len(), 40);
    let after = token(&engine).await;
    assert!(firsts.iter().all(|first| *first < after));
}

#[tokio::test]
async fn most_draws_by_the_clock_write_no_token() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let raw = directory.raw();
    token(&engine).await;
    let (begun, first) = (now(), stored(&raw, "token"));
    let (mut last, mut moves) = (first, 0);
    for _ in 0..1000 {
        token(&engine).await;
        let token = stored(&raw, "token");
        moves += u128::from(token != last);
        last = token;
    }
    let took = now().since(begun).as_millis();
    assert!(moves <= took / 10 + 1, "{moves} in {took} ms");
}
