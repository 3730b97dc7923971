//! The rule of admission, as the functions of the schema repeat it, compared with the core's function.

use fencelock_core::support::admission::{admits, small_inputs};
use fencelock_sql::lease::mode_text;
use tokio_postgres::SimpleQueryMessage;

use super::*;

/// Runs one transaction that is rolled back. Returns whether the last SELECT is true.
async fn decides(client: &tokio_postgres::Client, statements: &[String]) -> bool {
    let sql = format!("BEGIN; {}; ROLLBACK", statements.join("; "));
    let answer = client.simple_query(&sql).await.unwrap();
    let rows = answer.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(|value| value == "t"),
        _ => None,
    });
    rows.unwrap()
}

fn gate() -> String {
    "INSERT INTO fencelock_locks (name, version) VALUES ('a', 1)".into()
}

/// A live holder with this claim.
fn holder(claim: usize, mode: Mode) -> String {
    let mode = mode_text(mode);
    format!(
        "INSERT INTO fencelock_holders (name, first, count, token, claim, mode, expiry, lock_delay, since, state, owner, bell) \
         VALUES ('a', {claim}, 1, {claim}, '\\x{claim:02x}', '{mode}', fencelock_now() + 60000000, 0, 0, 'held', 'me', 'bell')"
    )
}

/// A live waiter with this claim, with this ticket.
fn waiter(claim: usize, mode: Mode) -> String {
    let mode = mode_text(mode);
    format!(
        "INSERT INTO fencelock_waiters (name, ticket, claim, mode, expiry, owner, bell, tokens, reach) \
         VALUES ('a', {claim}, '\\x{claim:02x}', '{mode}', fencelock_now() + 60000000, 'me', 'bell', 1, 2000000)"
    )
}

const NEW: usize = 0x77;
const RELEASED: usize = 0x78;

#[tokio::test(flavor = "multi_thread")]
async fn a_releaser_grants_by_the_rule_of_admission() {
    let server = Postgres::start().unwrap();
    drop(open(&server.url()).await.unwrap());
    let client = raw(&server, "admin").await;
    for (mode, holders) in small_inputs() {
        let mut statements = vec![gate(), holder(RELEASED, Mode::Exclusive), waiter(NEW, mode)];
        statements.extend(holders.iter().enumerate().map(|(i, mode)| holder(i, *mode)));
        statements.push(format!(
            "SELECT fencelock_let_go('a', 0, '\\x{RELEASED:02x}')"
        ));
        statements.push(format!(
            "SELECT EXISTS (SELECT 1 FROM fencelock_holders WHERE claim = '\\x{NEW:02x}')"
        ));
        let granted = decides(&client, &statements).await;
        let expected = admits(mode, holders.iter().copied());
        assert_eq!(granted, expected, "{mode:?} beside {holders:?}");
    }
}

/// The next waiters are granted the lock together, as far as the rule allows.
#[tokio::test(flavor = "multi_thread")]
async fn a_releaser_grants_to_several_waiters_by_the_rule_of_admission() {
    let server = Postgres::start().unwrap();
    drop(open(&server.url()).await.unwrap());
    let client = raw(&server, "admin").await;
    for (last, waiters) in small_inputs() {
        let queue: Vec<Mode> = waiters.iter().copied().chain([last]).collect();
        let mut granted: Vec<Mode> = Vec::new();
        for mode in &queue {
            if !admits(*mode, granted.iter().copied()) {
                break;
            }
            granted.push(*mode);
        }
        let mut statements = vec![gate(), holder(RELEASED, Mode::Exclusive)];
        statements.extend(queue.iter().enumerate().map(|(i, mode)| waiter(i, *mode)));
        statements.push(format!(
            "SELECT fencelock_let_go('a', 0, '\\x{RELEASED:02x}')"
        ));
        statements.push(format!(
            "SELECT count(*) = {} FROM fencelock_holders",
            granted.len()
        ));
        assert!(
            decides(&client, &statements).await,
            "{queue:?}: {granted:?}"
        );
    }
}

/// The fast path into the queue is only for claims that the rule refuses. It need not recognize all of them.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_claim_that_has_to_wait_is_queued_at_once() {
    let server = Postgres::start().unwrap();
    drop(open(&server.url()).await.unwrap());
    let client = raw(&server, "admin").await;
    for (mode, others) in small_inputs() {
        for row in [holder, waiter] {
            let mut statements = vec![gate()];
            statements.extend(others.iter().enumerate().map(|(i, mode)| row(i, *mode)));
            let how = mode_text(mode);
            statements.push(format!(
                "SELECT version_ IS NOT NULL FROM fencelock_queue('a', '\\x{NEW:02x}', '{how}', 1, 2000000, 6000000, 'me', \
                 NULL, 'bell')"
            ));
            let queued = decides(&client, &statements).await;
            let admitted = admits(mode, others.iter().copied());
            let is_certain = mode == Mode::Exclusive || others.contains(&Mode::Exclusive);
            assert!(!(queued && admitted), "{mode:?} beside {others:?}");
            assert!(
                queued || admitted || !is_certain,
                "{mode:?} beside {others:?}"
            );
        }
    }
}
