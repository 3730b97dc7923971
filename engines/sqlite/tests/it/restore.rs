//! An old copy of the file is put back, and tokens keep increasing.

use fencelock_core::Client;
use fencelock_fence::Highest;

use super::*;

/// Takes the lock and writes through the fence.
async fn write(client: &Client, fence: &Highest) -> Token {
    let guard = client.lock("job").await.unwrap();
    let sequencer = guard.sequencer().await.unwrap();
    fence.mark(&sequencer).unwrap();
    guard.release().await.unwrap();
    sequencer.token
}

async fn client(directory: &Directory) -> Client {
    Client::new(directory.open().await).unwrap()
}

fn move_back(directory: &Directory, copy: &Path) {
    for end in ["-wal", "-shm"] {
        // These files are missing if no process has the file open.
        let _ = std::fs::remove_file(format!("{}{end}", directory.file().display()));
    }
    std::fs::rename(copy, directory.file()).unwrap();
}

/// Restores through SQLite, so that an engine that has the file open does not notice.
fn copy_back(directory: &Directory, copy: &Path) {
    let raw = directory.raw();
    raw.execute("ATTACH ?1 AS old", [copy.to_str().unwrap()])
        .unwrap();
    raw.execute_batch(
        "BEGIN IMMEDIATE; DELETE FROM main.holders; DELETE FROM main.waiters; DELETE FROM main.store;
         INSERT INTO main.store SELECT * FROM old.store; INSERT INTO main.holders SELECT * FROM old.holders;
         INSERT INTO main.waiters SELECT * FROM old.waiters; COMMIT",
    )
    .unwrap();
}

#[tokio::test]
async fn tokens_keep_increasing_when_an_old_copy_is_put_back() {
    type PutBack = fn(&Directory, &Path);
    let ways: [(PutBack, bool); 4] = [
        (move_back, false),
        (move_back, true),
        (copy_back, false),
        (copy_back, true),
    ];
    for (put_back, while_open) in ways {
        let (directory, fence) = (Directory::new(), Highest::in_memory());
        let before = client(&directory).await;
        write(&before, &fence).await;
        let copy = directory.0.join("copy.db");
        let into = directory.raw();
        into.execute("VACUUM INTO ?1", [copy.to_str().unwrap()])
            .unwrap();
        drop(into);
        let mut last = write(&before, &fence).await;
        for _ in 0..50 {
            last = write(&before, &fence).await;
        }
        if !while_open {
            before.close().await.unwrap();
        }
        put_back(&directory, &copy);
        let after = client(&directory).await;
        let next = write(&after, &fence).await;
        assert!(next > last, "{next} after {last}");
        if while_open {
            let own = write(&before, &fence).await;
            assert!(own > next, "{own} after {next}");
        }
    }
}

/// An engine draws no token below one that it has seen, even if the wall clock is slow.
#[tokio::test]
async fn no_token_is_below_one_that_was_seen() {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let raw = directory.raw();
    let ahead = 1_i64 << 52;
    raw.execute("UPDATE store SET token = ?1", [ahead]).unwrap();
    let seen = held(&a, &claim("one")).await.tokens.first;
    assert_eq!(seen.get(), ahead.unsigned_abs() + 1);
    raw.execute("UPDATE store SET token = 5", []).unwrap();
    assert!(held(&a, &claim("two")).await.tokens.first > seen);
    // The other engines continue from the token in the file.
    assert!(held(&b, &claim("three")).await.tokens.first > seen);
}
