//! The tests of versioned rows, the same for every database.

use std::fmt::Debug;
use std::time::Duration;

use fencelock_versioned::{Attempt, Dialect, Retry, Version, Versioned, retry};

/// A connection to one database.
pub(crate) trait Bank: Sized {
    type Error: Debug;
    const DIALECT: Dialect;

    /// Returns the number of changed rows.
    async fn run(&mut self, sql: &str) -> Result<u64, Self::Error>;

    /// The first row: a version and a balance.
    async fn row(&mut self, sql: &str) -> Result<Option<(i64, i64)>, Self::Error>;

    fn is_conflict(error: &Self::Error) -> bool;
}

fn accounts() -> Versioned {
    Versioned::new("accounts").unwrap()
}

async fn execute<B: Bank>(bank: &mut B, sql: &str) -> u64 {
    let done = bank.run(sql).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

async fn read<B: Bank>(bank: &mut B, id: u32) -> (Version, i64) {
    let select = accounts().select("balance", &format!("id = {id}"));
    let (version, balance) = bank.row(&select).await.unwrap().unwrap();
    (Version(version), balance)
}

async fn write<B: Bank>(bank: &mut B, id: u32, balance: i64, seen: Version) -> u64 {
    let update = accounts().update(&format!("balance = {balance}"), &format!("id = {id}"), seen);
    execute(bank, &update).await
}

async fn set_up<B: Bank>(bank: &mut B) {
    execute(
        bank,
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)",
    )
    .await;
    execute(bank, &accounts().add_column()).await;
    execute(
        bank,
        "INSERT INTO accounts (id, balance) VALUES (1, 100), (2, 100)",
    )
    .await;
}

/// All tests, on an empty database.
pub(crate) async fn all_tests<B: Bank>(one: &mut B, other: &mut B) {
    set_up(one).await;
    a_b_a(one, other).await;
    for triggers in [false, true] {
        if triggers {
            // Run them twice, because they may exist already.
            for trigger in [
                accounts().triggers(B::DIALECT),
                accounts().triggers(B::DIALECT),
            ]
            .concat()
            {
                execute(one, &trigger).await;
            }
        }
        bypassed(one, other, triggers).await;
        deleted_and_inserted(one, other, triggers).await;
    }
    several_rows(one, other).await;
}

/// The value was changed and changed back. The version shows it, the value does not.
async fn a_b_a<B: Bank>(one: &mut B, other: &mut B) {
    let (seen, value) = read(one, 1).await;
    for balance in [50, 100] {
        let (version, _) = read(other, 1).await;
        assert_eq!(write(other, 1, balance, version).await, 1);
    }
    assert_eq!(write(one, 1, 90, seen).await, 0);
    let naive = format!("UPDATE accounts SET balance = 90 WHERE id = 1 AND balance = {value}");
    assert_eq!(
        execute(one, &naive).await,
        1,
        "the value alone does not show it"
    );
    // A write after a new read succeeds.
    let (seen, _) = read(one, 1).await;
    assert_eq!(write(one, 1, 100, seen).await, 1);
    assert_eq!(read(other, 1).await.1, 100);
}

/// A writer that ignores the version. Only triggers notice this.
async fn bypassed<B: Bank>(one: &mut B, other: &mut B, triggers: bool) {
    let (seen, _) = read(one, 1).await;
    execute(other, "UPDATE accounts SET balance = 70 WHERE id = 1").await;
    assert_eq!(write(one, 1, 90, seen).await, u64::from(!triggers));
    assert_eq!(read(one, 1).await.1, if triggers { 70 } else { 90 });
}

/// A new row replaces the old one.
async fn deleted_and_inserted<B: Bank>(one: &mut B, other: &mut B, triggers: bool) {
    execute(one, "DELETE FROM accounts WHERE id = 1").await;
    execute(one, "INSERT INTO accounts (id, balance) VALUES (1, 100)").await;
    let (seen, _) = read(one, 1).await;
    let delete = accounts().delete("id = 1", seen);
    assert_eq!(execute(other, &delete).await, 1);
    assert_eq!(execute(other, &delete).await, 0);
    execute(other, "INSERT INTO accounts (id, balance) VALUES (1, 30)").await;
    assert_eq!(write(one, 1, 90, seen).await, u64::from(!triggers));
}

/// All rows are written, or none.
async fn several_rows<B: Bank>(one: &mut B, other: &mut B) {
    let ((first, _), (second, balance)) = (read(one, 1).await, read(one, 2).await);
    let before = read(other, 1).await;
    assert_eq!(write(other, 2, balance + 1, second).await, 1);
    execute(one, "BEGIN").await;
    assert_eq!(write(one, 1, -1, first).await, 1);
    assert_eq!(write(one, 2, -1, second).await, 0);
    execute(one, "ROLLBACK").await;
    assert_eq!(read(one, 1).await, before);
    assert_eq!(read(one, 2).await.1, balance + 1);
}

/// Moves 1 from one account to the other, with as many attempts as needed.
pub(crate) async fn move_one<B: Bank>(bank: &mut B, from: u32, to: u32) {
    let often = Retry::default()
        .max_attempts(1000)
        .max_pause(Duration::from_millis(20));
    let moved = retry(often, async || {
        let (left, had) = read(bank, from).await;
        let (right, has) = read(bank, to).await;
        let tried: Result<bool, B::Error> = async {
            bank.run("BEGIN").await?;
            for (id, balance, seen) in [(from, had - 1, left), (to, has + 1, right)] {
                let which = format!("id = {id}");
                let update = accounts().update(&format!("balance = {balance}"), &which, seen);
                if bank.run(&update).await? == 0 {
                    return Ok(false);
                }
            }
            bank.run("COMMIT").await?;
            Ok(true)
        }
        .await;
        match tried {
            Ok(true) => Ok(Attempt::Written(())),
            Ok(false) => bank.run("ROLLBACK").await.map(|_| Attempt::Changed),
            Err(error) if B::is_conflict(&error) => {
                bank.run("ROLLBACK").await.map(|_| Attempt::Changed)
            }
            Err(error) => Err(error),
        }
    });
    moved.await.unwrap();
}
