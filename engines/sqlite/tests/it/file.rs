//! The file: created, deleted, damaged, locked, or of another program.

use std::time::Duration;

use fencelock_core::engine::Leave;
use fencelock_core::{Engine, Error, StoreUrl};
use fencelock_sqlite::Sqlite;

use super::*;

async fn open(text: &str) -> Result<Sqlite, Error> {
    Sqlite::open(StoreUrl::parse(text).unwrap()).await
}

/// The configuration error when this file is opened.
async fn refusal(path: &Path) -> String {
    let error = Sqlite::at(path).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    text
}

#[tokio::test]
async fn tokens_increase_over_openings() {
    let directory = Directory::new();
    let mut last = None;
    for _ in 0..3 {
        let engine = directory.open().await;
        let claim = claim("job");
        let token = held(&engine, &claim).await.tokens.first;
        assert!(Some(token) > last);
        assert!(token.get() < 1 << 53);
        last = Some(token);
        engine.withdraw(&claim, Leave::Release).await.unwrap();
        engine.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_deleted_file_is_created_again_and_tokens_still_increase() {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let before = held(&a, &claim("job")).await.tokens.first;
    for end in ["", "-wal", "-shm"] {
        let path = format!("{}{end}", directory.file().display());
        std::fs::remove_file(path).unwrap();
    }
    let claimed = claim("job");
    let after = held(&b, &claimed).await.tokens.first;
    assert!(after > before);
    // Soon both use the new file.
    while a.inspect().look(&claimed.name).await.unwrap().holders[0].claim != Some(claimed.id) {
        tokio::task::yield_now().await;
    }
    busy(&a, &attempt(claim("job"))).await;
}

/// How many times this process has the file open.
#[cfg(target_os = "linux")]
fn times_open(path: &Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    names.filter(|name| name == path).count()
}

/// A backup is put back when a running process has just created the file.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_replaced_while_it_is_opened_is_not_used() {
    for existed in [false, true] {
        let directory = Directory::new();
        let backup = directory.0.join("backup.db");
        let other = Sqlite::at(&backup).await.unwrap();
        held(&other, &claim("job")).await;
        other.close().await.unwrap();
        // The engine must write to the file to open it, so it waits until the file is replaced.
        if existed {
            directory.open().await.close().await.unwrap();
        }
        let first = directory.raw();
        if existed {
            let sql = "UPDATE store SET boot = 'another'";
            first.execute(sql, []).unwrap();
        }
        first.execute_batch("BEGIN EXCLUSIVE").unwrap();
        let path = directory.file();
        let before = times_open(&path);
        let opening = tokio::spawn(async move { Sqlite::at(path).await });
        while times_open(&directory.file()) == before {
            tokio::task::yield_now().await;
        }
        for end in ["-wal", "-shm"] {
            let path = format!("{}{end}", directory.file().display());
            assert_eq!(std::fs::remove_file(path).is_ok(), existed);
        }
        std::fs::rename(&backup, directory.file()).unwrap();
        first.execute_batch("COMMIT").unwrap();
        let engine = opening.await.unwrap().unwrap();
        busy(&engine, &attempt(claim("job"))).await;
    }
}

#[tokio::test]
async fn rows_of_another_boot_are_invalid() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let before = held(&engine, &claim("job")).await.tokens.first;
    waiting(&engine, &claim("job")).await;
    let sql = "UPDATE store SET boot = 'another', token = token + 5";
    directory.raw().execute(sql, []).unwrap();
    let sql = "UPDATE holders SET run = 'another'";
    directory.raw().execute(sql, []).unwrap();
    // A waiter with the clock of another boot.
    let later = (now() + Duration::from_secs(3600)).as_nanos() as i64;
    let sql = "UPDATE waiters SET expiry = ?1";
    directory.raw().execute(sql, [later]).unwrap();
    let error = engine.place(&claim("other")).await.unwrap_err();
    assert!(error.to_string().contains("another machine"), "{error}");
    engine.close().await.unwrap();

    let engine = directory.open().await;
    assert_eq!(rows(&directory), 0);
    let after = held(&engine, &claim("job")).await.tokens.first;
    assert!(after.get() > before.get() + 5);
}

#[tokio::test]
async fn expired_rows_of_unused_locks_are_deleted() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let brief = lasting(50, claim("never used again"));
    let grant = held(&engine, &brief).await;
    engine.close().await.unwrap();
    Clock::Boot
        .sleep_until(grant.counted_from + Duration::from_millis(60))
        .await;
    let engine = directory.open().await;
    engine.inspect().look(&name("job")).await.unwrap();
    engine.close().await.unwrap();
    assert_eq!(rows(&directory), 0);
}

#[tokio::test]
async fn a_newer_format_is_refused_and_not_changed() {
    let directory = Directory::new();
    directory.open().await.close().await.unwrap();
    let raw = directory.raw();
    raw.execute_batch(
        "PRAGMA user_version = 2; INSERT INTO waiters VALUES ('a', 1, x'00', 'x', 1, 'o', NULL, NULL)",
    )
    .unwrap();
    let text = refusal(&directory.file()).await;
    assert!(
        text.contains("format is 2") && text.contains("newer fencelock"),
        "{text}"
    );
    assert_eq!(rows(&directory), 1);
}

#[tokio::test]
async fn a_file_of_another_program_is_refused_and_not_changed() {
    let directory = Directory::new();
    let theirs = directory.raw();
    theirs
        .execute_batch("CREATE TABLE customers (name TEXT)")
        .unwrap();
    drop(theirs);
    let bytes = std::fs::read(directory.file()).unwrap();
    let text = refusal(&directory.file()).await;
    assert!(text.contains("another program"), "{text}");
    assert_eq!(std::fs::read(directory.file()).unwrap(), bytes);

    let note = directory.0.join("note.txt");
    std::fs::write(&note, "dear diary, ".repeat(200)).unwrap();
    let text = refusal(&note).await;
    assert!(text.contains("not an SQLite database"), "{text}");
    assert_eq!(
        std::fs::read_to_string(&note).unwrap(),
        "dear diary, ".repeat(200)
    );
}

#[tokio::test]
async fn a_damaged_file_is_reported() {
    let directory = Directory::new();
    let engine = directory.open().await;
    held(&engine, &claim("job")).await;
    engine.close().await.unwrap();
    let mut bytes = std::fs::read(directory.file()).unwrap();
    let page = 1024;
    assert!(bytes.len() >= 4 * page);
    bytes[page..].fill(0xff);
    std::fs::write(directory.file(), bytes).unwrap();
    let text = refusal(&directory.file()).await;
    assert!(
        text.contains("damaged") && text.contains("delete it"),
        "{text}"
    );
}

#[tokio::test]
async fn an_impossible_path_is_explained() {
    let directory = Directory::new();
    let text = refusal(&directory.0.join("missing/locks.db")).await;
    assert!(text.contains("does not exist"), "{text}");
    let text = refusal(&directory.0).await;
    assert!(text.contains("is a directory"), "{text}");
    let url = format!("sqlite:{}", directory.0.display());
    let mut url = StoreUrl::parse(&url).unwrap();
    url.inspect_only = true;
    let text = Sqlite::open(url).await.unwrap_err().to_string();
    assert!(text.contains("is a directory"), "{text}");
    std::fs::write(directory.0.join("plain"), "").unwrap();
    refusal(&directory.0.join("plain/locks.db")).await;
}

/// SQLite derives the names of the files next to it from its path, so processes that use different names do not see
/// each other.
#[tokio::test]
async fn a_file_with_two_names_is_refused() {
    let directory = Directory::new();
    let engine = directory.open().await;
    held(&engine, &claim("job")).await;
    let linked = directory.0.join("linked.db");
    std::fs::hard_link(directory.file(), &linked).unwrap();
    for path in [&linked, &directory.file()] {
        let text = refusal(path).await;
        assert!(text.contains("2 names"), "{text}");
    }
    // An engine that already has the file open continues.
    held(&engine, &claim("other")).await;
    std::fs::remove_file(linked).unwrap();
    let link = directory.0.join("link.db");
    std::os::unix::fs::symlink(directory.file(), &link).unwrap();
    busy(&Sqlite::at(link).await.unwrap(), &attempt(claim("job"))).await;
}

/// A file that an earlier version created.
#[tokio::test]
async fn a_file_without_the_later_columns_gets_them_and_keeps_its_holds() {
    let directory = Directory::new();
    let engine = directory.open().await;
    held(&engine, &claim("job")).await;
    engine.close().await.unwrap();
    let raw = directory.raw();
    raw.execute_batch(
        "ALTER TABLE holders DROP COLUMN run; ALTER TABLE holders DROP COLUMN written;
         ALTER TABLE waiters DROP COLUMN label; ALTER TABLE store DROP COLUMN horizon;
         ALTER TABLE store DROP COLUMN origin; ALTER TABLE store DROP COLUMN origin_boot",
    )
    .unwrap();
    let engine = directory.open().await;
    busy(&engine, &attempt(claim("job"))).await;
    let labelled = claim("job").label("nightly");
    waiting(&engine, &labelled).await;
    let view = engine.inspect().look(&name("job")).await.unwrap();
    assert_eq!(view.waiters[0].label.as_deref(), Some("nightly"));
    held(&engine, &claim("other")).await;
    // After another boot none of them holds.
    raw.execute("UPDATE store SET boot = 'another'", [])
        .unwrap();
    raw.execute(
        "UPDATE holders SET run = 'another' WHERE run IS NOT NULL",
        [],
    )
    .unwrap();
    let engine = directory.open().await;
    held(&engine, &attempt(claim("other"))).await;
}

#[tokio::test]
async fn urls_are_checked() {
    let directory = Directory::new();
    let path = directory.file().display().to_string();
    let engine = open(&format!(
        "sqlite:{path}?response-timeout=1s&connect-timeout=1s"
    ))
    .await;
    assert_eq!(engine.unwrap().to_string(), format!("sqlite:{path}"));
    for (url, says) in [
        (
            format!("sqlite:{path}?respnse-timeout=1s"),
            "respnse-timeout",
        ),
        (format!("sqlite:{path}?response-timeout=soon"), "soon"),
        (format!("sqlite://{path}"), "one slash"),
        ("sqlite://ann:secret@host/db".to_owned(), "no host"),
    ] {
        let error = open(&url).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(says) && !text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn a_file_that_stays_locked_is_waited_for_and_then_reported() {
    let directory = Directory::new();
    directory.open().await.close().await.unwrap();
    let path = directory.file().display().to_string();
    let engine = open(&format!("sqlite:{path}?response-timeout=300ms"))
        .await
        .unwrap();
    let other = directory.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (start, claim) = (now(), claim("job"));
    let error = engine.place(&claim).await.unwrap_err();
    let waited = now().since(start);
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("taking lock job") && text.contains(&path),
        "{text}"
    );
    let bounds = Duration::from_millis(300)..Duration::from_secs(4);
    assert!(bounds.contains(&waited), "{waited:?}");
    // Reading needs no lock on the file.
    assert!(
        engine
            .inspect()
            .look(&claim.name)
            .await
            .unwrap()
            .holders
            .is_empty()
    );
    other.execute_batch("COMMIT").unwrap();
    held(&engine, &claim).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_fails_does_not_fail_others_in_its_transaction() {
    let directory = Directory::new();
    let engine = directory.open().await;
    held(&engine, &claim("broken")).await;
    let raw = directory.raw();
    raw.execute("UPDATE holders SET mode = '?'", []).unwrap();
    // All are queued while the file is locked, so one transaction does them all.
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let place = |text: &'static str| {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move { engine.place(&claim(text)).await })
    };
    let placed = ["first", "a", "broken", "b"].map(place);
    tokio::time::sleep(Duration::from_millis(200)).await;
    raw.execute_batch("COMMIT").unwrap();
    for (at, placed) in placed.into_iter().enumerate() {
        let placed = placed.await.unwrap();
        assert_eq!(placed.is_err(), at == 2, "{at}: {placed:?}");
    }
}

#[tokio::test]
async fn many_engines_open_a_new_file_at_once() {
    let directory = Directory::new();
    let open = || {
        let path = directory.file();
        tokio::spawn(async move { Sqlite::at(path).await.map(drop) })
    };
    let opened: Vec<_> = (0..20).map(|_| open()).collect();
    for opened in opened {
        opened.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_closed_engine_refuses_calls() {
    let directory = Directory::new();
    let engine = directory.open().await;
    engine.close().await.unwrap();
    let error = engine.place(&claim("job")).await.unwrap_err();
    assert!(matches!(error, Error::Closed), "{error:?}");
    let mut events = engine.events().unwrap();
    assert!(events.next().await.is_none());
    assert!(engine.events().is_err(), "events have one listener");
    engine.close().await.unwrap();
}

/// The worker waits for the connect timeout, and `close` waits for the response timeout.
#[tokio::test]
async fn closing_ends_after_the_response_timeout() {
    let directory = Directory::new();
    let path = directory.file().display().to_string();
    let url = format!("sqlite:{path}?response-timeout=100ms&connect-timeout=60s");
    let engine = open(&url).await.unwrap();
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{path}{end}")).unwrap();
    }
    let other = directory.raw();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let error = engine.place(&claim("job")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let closed = tokio::time::timeout(Duration::from_secs(20), engine.close()).await;
    let error = closed.unwrap().unwrap_err().to_string();
    assert!(error.contains("closing the file"), "{error}");
    other.execute_batch("COMMIT").unwrap();
}

/// Runs in another process, which has no file descriptors left.
#[tokio::test]
async fn closing_needs_no_file_descriptor() {
    const PATH: &str = "FILE_OF_ONE_WITHOUT_DESCRIPTORS";
    if let Some(path) = std::env::var_os(PATH) {
        let engine = Sqlite::at(path).await.unwrap();
        held(&engine, &claim("job")).await;
        let mut files = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            files.push(file);
        }
        let start = now();
        let closed = tokio::time::timeout(Duration::from_secs(20), engine.close()).await;
        closed.unwrap().unwrap();
        // `close` did not wait for a timeout.
        assert!(now().since(start) < Duration::from_secs(4));
        drop(files);
        println!("it is closed.");
        return;
    }
    let directory = Directory::new();
    let child = std::process::Command::new("bash")
        .args(["-c", r#"ulimit -n 64; exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "file::closing_needs_no_file_descriptor",
        ])
        .env(PATH, directory.file())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(text.contains("it is closed."), "{text}");
}
