//! Versioned rows in SQLite.

use fencelock_versioned::{
    Attempt, Dialect, Retry, Version, Versioned, is_sqlite_conflict, retry_blocking,
};
use rusqlite::{Connection, OptionalExtension};

use crate::bank::{Bank, all_tests, move_one};

#[path = "../../examples/versioned.rs"]
mod example;

#[test]
fn the_example_runs() {
    example::main().unwrap();
}

impl Bank for Connection {
    type Error = rusqlite::Error;
    const DIALECT: Dialect = Dialect::Sqlite;

    async fn run(&mut self, sql: &str) -> Result<u64, Self::Error> {
        self.execute(sql, ()).map(|count| count as u64)
    }

    async fn row(&mut self, sql: &str) -> Result<Option<(i64, i64)>, Self::Error> {
        self.query_row(sql, (), |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
    }

    fn is_conflict(error: &Self::Error) -> bool {
        is_sqlite_conflict(error)
    }
}

fn open(dir: &fencelock_testbed::Dir) -> Connection {
    let connection = Connection::open(dir.join("bank")).unwrap();
    connection
        .pragma_update(None, "journal_mode", "WAL")
        .unwrap();
    connection
}

#[tokio::test]
async fn versions_show_every_change() {
    let dir = fencelock_testbed::Dir::new("versioned").unwrap();
    all_tests(&mut open(&dir), &mut open(&dir)).await;
    move_one(&mut open(&dir), 1, 2).await;
}

#[test]
fn contended_rows_are_written_after_retries() {
    let dir = fencelock_testbed::Dir::new("versioned").unwrap();
    let admin = open(&dir);
    let counter = Versioned::new("counter").unwrap();
    let make = format!(
        "CREATE TABLE counter (id INTEGER PRIMARY KEY, n INTEGER, {})",
        counter.column()
    );
    admin.execute_batch(&make).unwrap();
    admin
        .execute("INSERT INTO counter (id, n) VALUES (1, 0)", ())
        .unwrap();
    let often = Retry::default().max_attempts(1000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let connection = open(&dir);
                for _ in 0..25 {
                    let added = retry_blocking(often, || {
                        let read = |row: &rusqlite::Row<'_>| {
                            Ok((Version(row.get(0)?), row.get::<_, i64>(1)?))
                        };
                        let (seen, n) =
                            connection.query_row(&counter.select("n", "id = 1"), (), read)?;
                        let update = counter.update("n = ?1", "id = 1", seen);
                        match connection.execute(&update, [n + 1]) {
                            Err(error) if is_sqlite_conflict(&error) => Ok(Attempt::Changed),
                            changed => Ok(Attempt::of_rows(changed? as u64, ())),
                        }
                    });
                    added
                        .map_err(|error: fencelock_versioned::NotWritten<rusqlite::Error>| {
                            error.to_string()
                        })
                        .unwrap();
                }
            });
        }
    });
    let n: i64 = admin
        .query_row("SELECT n FROM counter", (), |row| row.get(0))
        .unwrap();
    assert_eq!(n, 100);
}
