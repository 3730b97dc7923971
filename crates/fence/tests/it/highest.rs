//! [`Highest`] in memory and in a file.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencelock_core::{LockName, Mode};
use fencelock_fence::{FenceError, Highest, Marks};
use fencelock_testbed::Dir;
use proptest::prelude::*;

use crate::{by, exclusive, grants, model, says_who_won, shared};

/// A step of a test of a fence in a file.
#[derive(Clone, Debug)]
enum Step {
    Mark(fencelock_core::Sequencer),
    /// The process crashes. This number of bytes of its last write has reached the disk.
    Crash(Vec<u8>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let line = b"0123456789abcdef fm1:99:99:".to_vec();
    let torn = (0..=line.len()).prop_map(move |end| line[..end].to_vec());
    let step = prop_oneof![
        6 => grants().prop_map(Step::Mark),
        1 => torn.prop_map(Step::Crash),
        1 => Just(Step::Crash(b"half of a line\n".to_vec())),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn the_rule_holds_over_crashes(steps in steps()) {
        let dir = Dir::new("marks").unwrap();
        let path = dir.join("marks");
        let mut fence = Highest::open(&path).unwrap();
        let in_memory = Highest::in_memory();
        let mut passed = Vec::new();
        for step in steps {
            match step {
                Step::Mark(next) => {
                    let expected = model(&passed, &next);
                    for fence in [&fence, &in_memory] {
                        let found = fence.mark(&next);
                        let won = |error: FenceError| error.stale().unwrap().won.get();
                        prop_assert_eq!(found.map_err(won), expected);
                    }
                    if expected.is_ok() {
                        passed.push(next);
                    }
                }
                Step::Crash(torn) => {
                    // Only synced lines are certain to be there.
                    drop(fence);
                    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
                    file.write_all(&torn).unwrap();
                    fence = Highest::open(&path).unwrap();
                }
            }
        }
    }

    #[test]
    fn only_marks_parse_as_marks(
        exclusive in 0..1u64 << 53, more in 0..1000u64, claim in any::<[u8; 16]>(), text in ".{0,60}"
    ) {
        let claim = Some(fencelock_core::ClaimId::from_bytes(claim));
        let mut marks = Marks::default();
        (marks.exclusive, marks.top, marks.claim) = (exclusive, exclusive + more, claim);
        prop_assert_eq!(marks.to_string().parse(), Ok(marks));
        prop_assert!(text.parse::<Marks>().is_err());
    }
}

#[test]
fn a_stale_write_does_not_run() {
    let fence = Highest::in_memory();
    let mut written = Vec::new();
    fence.write(&exclusive(33), || written.push(33)).unwrap();
    // The same claim passes again; another claim with its token does not.
    fence.write(&exclusive(33), || written.push(33)).unwrap();
    let forged = fence.write(&by(Mode::Exclusive, 33, 1), || written.push(0));
    assert!(forged.unwrap_err().stale().is_some());
    fence.write(&exclusive(34), || written.push(34)).unwrap();
    let late = fence.write(&exclusive(33), || written.push(0));
    says_who_won(late.unwrap_err().stale());
    assert_eq!(written, [33, 33, 34]);
    let name = exclusive(1).name;
    assert_eq!(fence.marks(&name).exclusive, 34);
    let other = LockName::new("other").unwrap();
    assert_eq!(fence.marks(&other), Marks::default());
}

#[test]
fn readers_pass_together_and_keep_earlier_writers_out() {
    let fence = Highest::in_memory();
    fence.mark(&exclusive(10)).unwrap();
    for token in [13, 12, 11, 13] {
        fence.mark(&shared(token)).unwrap();
    }
    assert!(
        fence.mark(&exclusive(12)).is_err(),
        "a reader came after it"
    );
    fence.mark(&exclusive(14)).unwrap();
    assert!(fence.mark(&shared(13)).is_err(), "a writer came after it");
    fence.mark(&shared(15)).unwrap();
}

#[tokio::test]
async fn a_later_holder_waits_for_the_write_of_an_earlier_one() {
    let fence = Highest::in_memory();
    let (one, two) = (fence.enter(&shared(1)).await.unwrap(), shared(2));
    let two = fence.enter(&two).await.unwrap();
    let writer = {
        let fence = fence.clone();
        tokio::spawn(async move { fence.enter(&exclusive(3)).await })
    };
    drop(one);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(
        !writer.is_finished(),
        "a writer while a reader still writes"
    );
    drop(two);
    let pass = writer.await.unwrap().unwrap();
    // It is refused only when the later write has ended. Until then it might have been first.
    let late = tokio::spawn({
        let fence = fence.clone();
        async move { fence.enter(&exclusive(2)).await.map(drop) }
    });
    drop(pass);
    assert!(late.await.unwrap().is_err());
}

#[test]
fn threads_write_one_at_a_time() {
    let (fence, inside) = (Highest::in_memory(), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (1..=8u64)
        .map(|token| {
            let (fence, inside) = (fence.clone(), Arc::clone(&inside));
            std::thread::spawn(move || {
                for _ in 0..200 {
                    let alone = || {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    };
                    if fence.write(&exclusive(token), alone).is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(fence.mark(&exclusive(7)).is_err());
}

#[test]
fn a_file_belongs_to_one_process_at_a_time_and_remembers() {
    let dir = Dir::new("marks").unwrap();
    let path = dir.join("marks");
    let fence = Highest::open(&path).unwrap();
    fence.mark(&exclusive(34)).unwrap();
    assert!(matches!(
        Highest::try_open(&path),
        Err(FenceError::InUse { .. })
    ));
    drop(fence);
    let fence = Highest::try_open(&path).unwrap();
    says_who_won(fence.mark(&exclusive(33)).unwrap_err().stale());
    fence.mark(&exclusive(34)).unwrap();
}

#[test]
fn a_file_that_was_written_often_is_rewritten_with_every_mark() {
    let dir = Dir::new("marks").unwrap();
    let path = dir.join("marks");
    let fence = Highest::open(&path).unwrap();
    let mut other = exclusive(5);
    other.name = LockName::new("other").unwrap();
    fence.mark(&other).unwrap();
    for token in 1..=5000 {
        fence.mark(&exclusive(token)).unwrap();
    }
    assert!(
        fs::metadata(&path).unwrap().len() < 200_000,
        "it only grows"
    );
    drop(fence);
    let fence = Highest::open(&path).unwrap();
    assert!(fence.mark(&exclusive(4999)).is_err());
    fence.mark(&exclusive(5000)).unwrap();
    assert_eq!(fence.marks(&other.name).top, 5);
}

#[test]
fn damage_is_reported_and_no_holder_passes() {
    let dir = Dir::new("marks").unwrap();
    let path = dir.join("marks");
    let fence = Highest::open(&path).unwrap();
    fence.mark(&exclusive(33)).unwrap();
    fence.mark(&exclusive(34)).unwrap();
    drop(fence);
    let mut text = fs::read(&path).unwrap();
    let at = text.iter().position(|byte| *byte == b'3').unwrap();
    text[at] = b'4';
    fs::write(&path, &text).unwrap();
    let error = Highest::open(&path).unwrap_err().to_string();
    assert!(error.contains("line 2 is damaged"), "{error}");
    fs::write(&path, "something else entirely\n").unwrap();
    assert!(matches!(
        Highest::open(&path),
        Err(FenceError::Damaged { .. })
    ));
    // A path that is not a regular file is refused, too.
    let endless = dir.join("endless");
    std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
    let error = Highest::open(&endless).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
}

/// A line that can be read may not be on the disk yet: the last process may have crashed between write and sync.
#[cfg(unix)]
#[test]
fn opening_rewrites_the_file_with_its_permissions() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let dir = Dir::new("marks").unwrap();
    let path = dir.join("marks");
    Highest::open(&path).unwrap().mark(&exclusive(34)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    // Kept open, so that no other file gets its inode number.
    let before = fs::File::open(&path).unwrap();
    let fence = Highest::open(&path).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_ne!(before.metadata().unwrap().ino(), after.ino());
    assert_eq!(after.mode() & 0o777, 0o640);
    says_who_won(fence.mark(&exclusive(33)).unwrap_err().stale());
}

#[cfg(unix)]
#[test]
fn a_file_with_two_names_is_one_fence() {
    let dir = Dir::new("marks").unwrap();
    let (path, link) = (dir.join("marks"), dir.join("link"));
    let fence = Highest::open(&path).unwrap();
    fence.mark(&exclusive(34)).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(
        Highest::try_open(&link),
        Err(FenceError::InUse { .. })
    ));
    drop(fence);
    let fence = Highest::open(&link).unwrap();
    says_who_won(fence.mark(&exclusive(33)).unwrap_err().stale());
    fence.mark(&exclusive(35)).unwrap();
    drop(fence);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let fence = Highest::open(&path).unwrap();
    assert!(fence.mark(&exclusive(34)).is_err());
}

/// A process marks one token after the other, opens the file again now and then, and is killed. Every mark that it has
/// reported is in the file.
#[test]
fn a_killed_process_leaves_every_reported_mark() {
    const PATH: &str = "MARKS_OF_ONE_THAT_IS_KILLED";
    if let Some(path) = std::env::var_os(PATH) {
        let mut next = 1;
        loop {
            let fence = Highest::open(&path).unwrap();
            next = next.max(fence.marks(&exclusive(1).name).top + 1);
            for _ in 0..5 {
                fence.mark(&exclusive(next)).unwrap();
                println!("{next}");
                next += 1;
            }
        }
    }
    let dir = Dir::new("marks").unwrap();
    let path = dir.join("marks");
    let mut told = 0;
    for round in 0..20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("highest::a_killed_process_leaves_every_reported_mark")
            .env(PATH, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let tokens = lines.filter_map(|line| line.unwrap().parse::<u64>().ok());
        // Killed after a varying number of marks, at any moment. Then its whole output is read.
        for (at, token) in tokens.enumerate() {
            told = token;
            if at == round {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let fence = Highest::open(&path).unwrap();
        let top = fence.marks(&exclusive(1).name).top;
        assert!(top == told || top == told + 1, "{top} after {told}");
        assert!(fence.mark(&exclusive(told - 1)).is_err());
    }
}

/// Runs in another process whose files may not grow beyond a kilobyte. No holder passes with a mark that is not on the disk.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_lets_no_new_holder_pass() {
    const PATH: &str = "MARKS_ON_A_FULL_DISK";
    let open = |path: &Path| (Highest::open(path).unwrap(), path.to_owned());
    if let Some(path) = std::env::var_os(PATH) {
        let (fence, path) = open(path.as_ref());
        let mut last = 0;
        let error = loop {
            match fence.mark(&exclusive(last + 1)) {
                Ok(()) => last += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, FenceError::Write { .. }), "{error}");
        assert!(last > 3);
        // Holders that have passed before still pass.
        fence.mark(&exclusive(last)).unwrap();
        assert!(
            fence
                .mark(&exclusive(last - 1))
                .unwrap_err()
                .stale()
                .is_some()
        );
        assert!(fs::read(&path).unwrap().ends_with(b"\n"), "half a line");
        println!("the last is {last}.");
        return;
    }
    let dir = Dir::new("marks").unwrap();
    let path = dir.join("marks");
    // Without the signal that would end the process.
    let child = Command::new("bash")
        .args(["-c", r#"trap "" XFSZ; ulimit -f 1; exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("highest::a_full_disk_lets_no_new_holder_pass")
        .env(PATH, &path)
        .output()
        .unwrap();
    let told = String::from_utf8(child.stdout).unwrap();
    assert!(child.status.success(), "{told}");
    let last = told.split("the last is ").nth(1).unwrap();
    let last: u64 = last.split('.').next().unwrap().parse().unwrap();
    let (fence, _) = open(path.as_ref());
    assert_eq!(fence.marks(&exclusive(1).name).top, last);
    fence.mark(&exclusive(last + 1)).unwrap();
}

#[test]
fn a_file_of_another_version_is_refused() {
    let dir = Dir::new("marks").unwrap();
    let path = dir.join("marks");
    fs::write(&path, "fencelock marks 2\nsomething new\n").unwrap();
    let error = Highest::open(&path).unwrap_err().to_string();
    assert!(error.contains("another version"), "{error}");
    let kept = fs::read_to_string(&path).unwrap();
    assert!(kept.contains("something new"));
}

/// In an async service the disk must not block other tasks.
#[tokio::test]
async fn async_code_enters_a_fence_in_a_file() {
    let dir = Dir::new("marks").unwrap();
    let fence = Highest::open(dir.join("marks")).unwrap();
    drop(fence.enter(&exclusive(33)).await.unwrap());
    drop(fence.enter(&exclusive(34)).await.unwrap());
    says_who_won(fence.enter(&exclusive(33)).await.unwrap_err().stale());
}

/// When one of the two files was deleted, another process can open the fence. Then only the later process has the fence.
#[cfg(unix)]
#[test]
fn a_deleted_file_lets_no_holder_pass() {
    let dir = Dir::new("marks").unwrap();
    let path = dir.join("marks");
    let early = Highest::open(&path).unwrap();
    early.mark(&exclusive(33)).unwrap();
    fs::remove_file(dir.join("marks.lock")).unwrap();
    let late = Highest::try_open(&path).unwrap();
    late.mark(&exclusive(35)).unwrap();
    // Neither a new holder passes nor one that has passed before.
    for token in [34, 33] {
        let error = early.mark(&exclusive(token)).unwrap_err();
        assert!(matches!(error, FenceError::Damaged { .. }), "{error:?}");
    }
    assert!(late.mark(&exclusive(34)).unwrap_err().stale().is_some());
    late.mark(&exclusive(36)).unwrap();

    fs::rename(&path, dir.join("elsewhere")).unwrap();
    let error = late.mark(&exclusive(37)).unwrap_err().to_string();
    assert!(error.contains("deleted or replaced"), "{error}");
    drop(late);
    fs::rename(dir.join("elsewhere"), &path).unwrap();
    let fence = Highest::open(&path).unwrap();
    assert!(fence.mark(&exclusive(35)).unwrap_err().stale().is_some());
}

/// A process that waits for a lock file gets the new one if the lock file is replaced meanwhile.
#[cfg(target_os = "linux")]
#[test]
fn a_process_that_waits_for_a_replaced_lock_file_gets_the_new_one() {
    let dir = Dir::new("marks").unwrap();
    let (path, lock) = (dir.join("marks"), dir.join("marks.lock"));
    let first = Highest::open(&path).unwrap();
    let waiter = {
        let path = path.clone();
        std::thread::spawn(move || Highest::open(path).unwrap())
    };
    let lock_has_two = || {
        let open = fs::read_dir("/proc/self/fd").unwrap();
        let names = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        names.filter(|name| *name == lock).count() == 2
    };
    while !lock_has_two() {
        std::thread::yield_now();
    }
    fs::remove_file(&lock).unwrap();
    let second = Highest::open(&path).unwrap();
    drop(first);
    second.mark(&exclusive(34)).unwrap();
    drop(second);
    let third = waiter.join().unwrap();
    says_who_won(third.mark(&exclusive(33)).unwrap_err().stale());
}
