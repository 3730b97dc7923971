//! Recipes for a database.

use fencelock::Release;
use fencelock::versioned::{Dialect, Version, Versioned};
use fencelock_testbed::{Failure, MariaDb, Result};

use super::redis::after_a_crash;
use super::story::{LOCK, PAST, Scenario, Side, Sides, let_go, open};

pub(super) static SCENARIOS: &[Scenario] = &[
    scenario!(
        "row-never-deleted",
        "a row as the lock, and a crash before it is deleted",
        row_never_deleted
    ),
    scenario!(
        "for-update-no-index",
        "SELECT ... FOR UPDATE by a column without an index",
        for_update_no_index
    ),
    scenario!(
        "aba",
        "a state that came back is mistaken for one that never changed",
        aba
    ),
];

/// Runs a statement of the recipe, and records it with its answer, which may be an error.
fn say(db: &MariaDb, side: &mut Side, who: &'static str, sql: &str) -> Option<String> {
    let answer = db.sql(&format!("USE shop; {sql}"));
    let shown = match &answer {
        Ok(rows) => rows.trim().replace('\n', "; ").replace('\t', " "),
        Err(error) => last_line(error),
    };
    side.note(who, format!("{sql} -> {shown}"));
    answer.ok()
}

fn last_line(error: &Failure) -> String {
    let text = error.to_string();
    text.lines().last().unwrap_or_default().to_owned()
}

fn start(schema: &str) -> Result<MariaDb> {
    let db = MariaDb::start()?;
    db.sql(&format!("CREATE DATABASE shop; USE shop; {schema}"))?;
    Ok(db)
}

async fn row_never_deleted() -> Result<Sides> {
    let db = start("CREATE TABLE locks (name VARCHAR(64) PRIMARY KEY, owner VARCHAR(64))")?;
    let mut naive = Side::begin();
    let insert = |who| format!("INSERT INTO locks VALUES ('{LOCK}', '{who}')");
    say(&db, &mut naive, "A", &insert("A"));
    naive.note("A", "is killed before its DELETE");
    std::thread::sleep(PAST);
    let second = say(&db, &mut naive, "B", &insert("B"));
    let naive = naive.end(
        second.is_some(),
        "the row never expires: no client will ever get the lock again",
    );

    let mut ours = Side::begin();
    let good = after_a_crash(&db.url(), &mut ours).await?;
    let ours = ours.end(
        good,
        "the row has an expiry by the database's clock; B got the lock after it",
    );
    Ok([naive, ours])
}

async fn for_update_no_index() -> Result<Sides> {
    let db = start(
        "CREATE TABLE locks (id INT PRIMARY KEY, name VARCHAR(64)); INSERT INTO locks VALUES (1, 'a'), (2, 'b')",
    )?;
    let mut naive = Side::begin();
    let lock = |name: &str| format!("SELECT id FROM locks WHERE name = '{name}' FOR UPDATE");
    let holds = format!("USE shop; BEGIN; {}; SELECT SLEEP(2)", lock("a"));
    let nowait = format!("{} NOWAIT", lock("b"));
    naive.note("A", format!("BEGIN; {}; and works for 2 s", lock("a")));
    let refused = std::thread::scope(|scope| {
        let works = scope.spawn(|| db.sql(&holds));
        // B starts after A has its row.
        loop {
            match db.sql(&format!("USE shop; {nowait}")) {
                Err(error) => return Some(last_line(&error)),
                Ok(_) if works.is_finished() => return None,
                Ok(_) => {}
            }
        }
    });
    let blocked = refused.is_some();
    naive.note(
        "B",
        format!("{nowait} -> {}", refused.unwrap_or_else(|| "2".to_owned())),
    );
    let naive = naive.end(
        !blocked,
        "the client that wants `b` waits for the client that has `a`",
    );

    let mut ours = Side::begin();
    let (one, two) = (open(&db.url()).await?, open(&db.url()).await?);
    let failed = |error: fencelock::Error| Failure::new(error.to_string());
    let a = one.try_lock("a").await.map_err(failed)?;
    ours.note("A", format!("has `a`, token {}", a.token()));
    let b = two.try_lock("b").await;
    ours.note(
        "B",
        if b.is_ok() {
            "has `b` at once"
        } else {
            "does not get `b`"
        },
    );
    let good = b.is_ok() && a.is_valid();
    let a = let_go(a, &mut ours, "A").await?;
    let ours = ours.end(
        good && a == Release::Released,
        "each lock has its own row, found by its key, and no transaction stays open",
    );
    Ok([naive, ours])
}

async fn aba() -> Result<Sides> {
    let orders = Versioned::new("orders").map_err(|error| Failure::new(error.to_string()))?;
    let column = orders.column();
    let db = start(&format!(
        "CREATE TABLE orders (id INT PRIMARY KEY, state VARCHAR(16), {column}); \
         INSERT INTO orders (id, state) VALUES (1, 'open'), (2, 'open')"
    ))?;
    let mut naive = Side::begin();
    let set = |to: &str, from: &str| {
        format!(
            "UPDATE orders SET state = '{to}' WHERE id = 1 AND state = '{from}'; SELECT ROW_COUNT()"
        )
    };
    say(
        &db,
        &mut naive,
        "A",
        "SELECT state FROM orders WHERE id = 1",
    );
    naive.note("A", "decides to ship it, and stalls");
    say(&db, &mut naive, "B", &set("paid", "open"));
    say(&db, &mut naive, "C", &set("open", "paid"));
    naive.note("C", "has returned the money: the order is open again");
    let late = say(&db, &mut naive, "A", &set("shipped", "open"));
    let naive = naive.end(
        late.is_none_or(|rows| rows.trim() != "1"),
        "A has acted on an old state: the new one only looks the same",
    );

    let mut ours = Side::begin();
    for trigger in orders.triggers(Dialect::Mysql) {
        db.sql(&format!("USE shop; {trigger}"))?;
    }
    let read = |side: &mut Side, who| {
        let row = say(&db, side, who, &orders.select("state", "id = 2"))?;
        row.split_whitespace().next()?.parse().ok().map(Version)
    };
    let set = |to: &str, seen: Version| {
        let update = orders.update(&format!("state = '{to}'"), "id = 2", seen);
        format!("{update}; SELECT ROW_COUNT()")
    };
    let unread = || Failure::new("a row has no version");
    let seen = read(&mut ours, "A").ok_or_else(unread)?;
    ours.note("A", "decides to ship it, and stalls");
    let paid = set("paid", read(&mut ours, "B").ok_or_else(unread)?);
    say(&db, &mut ours, "B", &paid);
    // C does not know versions. The triggers of the table increase them for it.
    say(
        &db,
        &mut ours,
        "C",
        "UPDATE orders SET state = 'open' WHERE id = 2",
    );
    ours.note("C", "has returned the money: the order is open again");
    let late = say(&db, &mut ours, "A", &set("shipped", seen));
    let again = read(&mut ours, "A").ok_or_else(unread)?;
    ours.note("A", "reads again, and decides again");
    let ours = ours.end(
        late.is_some_and(|rows| rows.trim() == "0") && again > seen,
        "a version never comes back: the row is not the one that A read",
    );
    Ok([naive, ours])
}
