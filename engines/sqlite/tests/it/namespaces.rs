//! The file in other namespaces: other mounts, another boot id, another clock, no permission to write, a full disk.
//! Each test runs itself again in another process.

use std::process::{Command, Output, Stdio};

use fencelock_core::engine::Leave;
use fencelock_core::{Engine, Error, StoreUrl};
use fencelock_sqlite::Sqlite;
use rustix::process::geteuid;

use super::*;

/// The environment variable with the file for the process in other namespaces.
const FILE: &str = "FENCELOCK_TEST_FILE";
const DONE: &str = "it is done.";

/// The file, in the process of [`elsewhere`]; `None` in the process of the test.
fn file() -> Option<PathBuf> {
    std::env::var_os(FILE).map(PathBuf::from)
}

/// Runs the test again in a mount namespace (and others by the options of `unshare`). These lines of sh run before it; `$0` is
/// the file. That process runs the code under `if let Some(path) = file()`.
fn elsewhere(test: &str, unshare: &[&str], file: &Path, sh: &str) -> Output {
    let mut command = Command::new("unshare");
    command.arg("--mount").args(unshare);
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let sh = format!(r#"set -e; {sh}; exec "$@""#);
    command.args(["sh", "-c", &sh]).arg(file);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "--test-threads=1"]);
    command.arg(format!("namespaces::{test}")).env(FILE, file);
    command.stdin(Stdio::null()).output().unwrap()
}

fn assert_done(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(DONE), "{text}{errors}");
}

async fn inspect(path: &Path) -> Result<Sqlite, Error> {
    let mut url = StoreUrl::parse(&format!("sqlite:{}", path.display())).unwrap();
    url.inspect_only = true;
    Sqlite::open(url).await
}

const OTHER_BOOT_ID: &str = r#"tr a-f b-fa </proc/sys/kernel/random/boot_id >"$0.id"; mount --bind "$0.id" /proc/sys/kernel/random/boot_id"#;

/// A container that shares the directory of the file, and has its own boot id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_boot_id_on_the_same_kernel_changes_nothing() {
    const TEST: &str = "another_boot_id_on_the_same_kernel_changes_nothing";
    if let Some(path) = file() {
        let engine = Sqlite::at(&path).await.unwrap();
        busy(&engine, &attempt(claim("job"))).await;
        held(&engine, &attempt(claim("of the container"))).await;
        engine.close().await.unwrap();
        println!("{DONE}");
        return;
    }
    let directory = Directory::new();
    let engine = directory.open().await;
    let holder = claim("job");
    let grant = held(&engine, &holder).await;
    let boot = || -> String {
        let sql = "SELECT boot FROM store";
        directory
            .raw()
            .query_row(sql, [], |row| row.get(0))
            .unwrap()
    };
    let before = boot();
    for round in 0..2 {
        assert_done(&elsewhere(TEST, &[], &directory.file(), OTHER_BOOT_ID));
        // Nothing has changed here, even for an engine that opens the file now.
        assert_eq!(boot(), before);
        let other = directory.open().await;
        busy(&other, &attempt(claim("job"))).await;
        busy(&other, &attempt(claim("of the container"))).await;
        let token = grant.tokens.first;
        let renewal = engine.renew(&[held_claim(&holder, token)]).await.remove(0);
        assert!(
            matches!(renewal, fencelock_core::engine::Renewal::Kept { .. }),
            "{renewal:?}"
        );
        directory
            .raw()
            .execute("DELETE FROM holders WHERE name = 'of the container'", [])
            .unwrap();
        held(&engine, &claim(&format!("after {round}"))).await;
    }
}

/// A container creates the file. Processes of the machine itself use it later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_of_a_container_is_used_by_its_machine() {
    const TEST: &str = "the_file_of_a_container_is_used_by_its_machine";
    if let Some(path) = file() {
        let engine = Sqlite::at(&path).await.unwrap();
        held(&engine, &attempt(claim("job"))).await;
        engine.close().await.unwrap();
        println!("{DONE}");
        return;
    }
    let directory = Directory::new();
    assert_done(&elsewhere(TEST, &[], &directory.file(), OTHER_BOOT_ID));
    let engine = directory.open().await;
    busy(&engine, &attempt(claim("job"))).await;
    held(&engine, &claim("other")).await;
    engine.close().await.unwrap();
    // When the machine restarts, its clock starts again. A row without the kernel's boot id was then written later than
    // now.
    let raw = directory.raw();
    let sql = "UPDATE store SET boot = 'a'";
    raw.execute(sql, []).unwrap();
    let later = (now() + Duration::from_secs(3600)).as_nanos() as i64;
    raw.execute("UPDATE holders SET run = 'a' WHERE run IS NOT NULL", [])
        .unwrap();
    busy(&*directory.open().await, &attempt(claim("job"))).await;
    raw.execute("UPDATE store SET boot = 'a'", []).unwrap();
    raw.execute("UPDATE holders SET written = ?1", [later])
        .unwrap();
    directory.open().await;
    assert_eq!(rows(&directory), 0);
}

#[tokio::test]
async fn a_time_namespace_is_refused() {
    if let Some(path) = file() {
        let error = Sqlite::at(&path).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains("time namespace"), "{error}");
        println!("{DONE}");
        return;
    }
    let directory = Directory::new();
    let clock = ["--time", "--boottime", "1000", "--fork"];
    let test = "a_time_namespace_is_refused";
    assert_done(&elsewhere(test, &clock, &directory.file(), "true"));
}

/// SQLite derives the names of the files next to it from its path, so processes that use different paths do not see
/// each other.
#[tokio::test]
async fn a_file_that_is_mounted_by_itself_is_refused() {
    if let Some(path) = file() {
        let mounted = path.with_file_name("mounted here.db");
        for path in [&mounted, &path.with_file_name("link")] {
            let error = Sqlite::at(path).await.unwrap_err();
            assert!(matches!(error, Error::Config { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("mount the directory"), "{text}");
            let looked = inspect(path).await.unwrap_err().to_string();
            assert!(looked.contains("mount the directory"), "{looked}");
        }
        // It works if the directory is mounted instead.
        let engine = Sqlite::at(path.with_file_name("sub").join("locks.db")).await;
        busy(&engine.unwrap(), &attempt(claim("job"))).await;
        println!("{DONE}");
        return;
    }
    let directory = Directory::new();
    let engine = directory.open().await;
    held(&engine, &claim("job")).await;
    std::fs::write(directory.0.join("mounted here.db"), "").unwrap();
    std::os::unix::fs::symlink("mounted here.db", directory.0.join("link")).unwrap();
    std::fs::create_dir(directory.0.join("sub")).unwrap();
    let sh = r#"cd "${0%/*}"; mount --bind . sub; mount --bind locks.db "mounted here.db""#;
    let test = "a_file_that_is_mounted_by_itself_is_refused";
    assert_done(&elsewhere(test, &[], &directory.file(), sh));
}

#[tokio::test]
async fn a_full_disk_is_reported() {
    if let Some(path) = file() {
        let engine = Sqlite::at(&path).await.unwrap();
        let holder = claim("job");
        held(&engine, &holder).await;
        let filler = path.with_file_name("filler");
        let mut file = std::fs::File::create(&filler).unwrap();
        while std::io::Write::write(&mut file, &[0; 4096]).is_ok_and(|written| written > 0) {}
        drop(file);
        let mut failed = Vec::new();
        for count in 0..200 {
            // Some claims fit into the rest of a page.
            let claim = claim(&format!("job {count} {}", "long ".repeat(80)));
            if let Err(error) = engine.place(&claim).await {
                failed.push(error);
            }
        }
        let error = failed.first().expect("a grant without space on the disk");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("disk is full") && text.contains("free some space"),
            "{text}"
        );
        // Reading needs no space.
        let view = inspect(&path).await.unwrap();
        let view = view.inspect().look(&name("job")).await.unwrap();
        assert_eq!(view.holders.len(), 1);
        std::fs::remove_file(filler).unwrap();
        engine.withdraw(&holder, Leave::Release).await.unwrap();
        held(&engine, &claim("job")).await;
        println!("{DONE}");
        return;
    }
    let directory = Directory::new();
    let sh = r#"mount -t tmpfs -o size=300k tmpfs "${0%/*}""#;
    assert_done(&elsewhere(
        "a_full_disk_is_reported",
        &[],
        &directory.file(),
        sh,
    ));
}

/// The content of the directory: names, lengths, and times of change.
fn traces(directory: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(directory).unwrap();
    let trace = |entry: std::fs::DirEntry| {
        let found = entry.metadata().unwrap();
        let changed = (found.mtime(), found.mtime_nsec());
        format!("{:?} {} {changed:?}", entry.file_name(), found.len())
    };
    let mut traces: Vec<_> = entries.map(|entry| trace(entry.unwrap())).collect();
    traces.sort();
    traces
}

/// Tried while others use the file, while no process does, and after a crash; also where writing is impossible.
#[tokio::test]
async fn inspecting_leaves_no_trace_and_needs_no_permission_to_write() {
    if let Some(path) = file() {
        let directory = path.parent().unwrap();
        let before = traces(directory);
        let engine = inspect(&path).await.unwrap();
        let view = engine.inspect().look(&name("job")).await.unwrap();
        assert_eq!(view.holders.len(), 1);
        assert_eq!(view.waiters[0].label.as_deref(), Some("patient"));
        let listed = engine.inspect().list("", None, 10).await.unwrap();
        assert_eq!(listed.items.len(), 1);
        assert!(engine.place(&claim("job")).await.is_err());
        engine.close().await.unwrap();
        assert_eq!(traces(directory), before);
        println!("{DONE}");
        return;
    }
    let test = "inspecting_leaves_no_trace_and_needs_no_permission_to_write";
    let directory = Directory::new();
    let sh = r#"mount --bind "${0%/*}" "${0%/*}"; mount -o remount,bind,ro "${0%/*}""#;
    let engine = directory.open().await;
    held(&engine, &claim("job")).await;
    let waiter = claim("job").label("patient").ttl(Duration::from_secs(3600));
    waiting(&engine, &waiter).await;
    let sql = "UPDATE waiters SET expiry = expiry + 1000000000000";
    directory.raw().execute(sql, []).unwrap();
    assert_done(&elsewhere(test, &[], &directory.file(), sh));
    // The files after a crash.
    let crashed = Directory::new();
    for end in ["", "-wal", "-shm"] {
        let from = format!("{}{end}", directory.file().display());
        let to = format!("{}{end}", crashed.file().display());
        std::fs::copy(from, to).unwrap();
    }
    assert_done(&elsewhere(test, &[], &crashed.file(), sh));
    // Even where writing is possible, nothing is written.
    for directory in [&directory, &crashed] {
        assert_done(&elsewhere(test, &[], &directory.file(), "true"));
    }
    engine.close().await.unwrap();
    drop(engine);
    assert!(!directory.0.join("locks.db-shm").exists());
    for sh in [sh, "true"] {
        assert_done(&elsewhere(test, &[], &directory.file(), sh));
    }
    // A log that cannot be read without a write.
    std::fs::remove_file(crashed.0.join("locks.db-shm")).unwrap();
    let mut url = StoreUrl::parse(&format!(
        "sqlite:{}?connect-timeout=50ms",
        crashed.file().display()
    ))
    .unwrap();
    url.inspect_only = true;
    let error = Sqlite::open(url).await.unwrap_err();
    assert!(error.to_string().contains("not closed properly"), "{error}");
}

#[tokio::test]
async fn inspecting_creates_nothing() {
    let directory = Directory::new();
    let engine = inspect(&directory.file()).await.unwrap();
    let view = engine.inspect().look(&name("job")).await.unwrap();
    assert!(view.holders.is_empty());
    assert!(
        engine
            .inspect()
            .list("", None, 10)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    assert!(traces(&directory.0).is_empty());
    // Another engine creates the file.
    let other = directory.open().await;
    held(&other, &claim("job")).await;
    let view = engine.inspect().look(&name("job")).await.unwrap();
    assert_eq!(view.holders.len(), 1);
    // An empty file that an administrator has created.
    let made = directory.0.join("made.db");
    std::fs::write(&made, "").unwrap();
    let engine = inspect(&made).await.unwrap();
    assert!(
        engine
            .inspect()
            .list("", None, 10)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    assert_eq!(std::fs::metadata(&made).unwrap().len(), 0);
    let error = inspect(&directory.0.join("missing/locks.db"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}

/// Rows of an earlier boot, and a file that an earlier version created.
#[tokio::test]
async fn inspecting_shows_only_this_boot_even_in_an_old_file() {
    let directory = Directory::new();
    let engine = directory.open().await;
    held(&engine, &claim("job")).await;
    waiting(&engine, &claim("job")).await;
    engine.close().await.unwrap();
    let raw = directory.raw();
    raw.execute_batch(
        "ALTER TABLE holders DROP COLUMN run; ALTER TABLE holders DROP COLUMN written;
         ALTER TABLE waiters DROP COLUMN label",
    )
    .unwrap();
    let look = async || {
        let engine = inspect(&directory.file()).await.unwrap();
        let view = engine.inspect().look(&name("job")).await.unwrap();
        (view.holders.len(), view.waiters.len())
    };
    assert_eq!(look().await, (1, 1));
    raw.execute("UPDATE store SET boot = 'another'", [])
        .unwrap();
    assert_eq!(look().await.0, 0);
}
