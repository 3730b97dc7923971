//! Other processes that cause problems: one floods the wake-up socket, one is stopped in the middle of a transaction.

use std::io::{BufRead, BufReader, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;

use fencelock_core::engine::{Leave, Renewal};
use fencelock_core::{ClaimId, Error, StoreUrl};
use rustix::process::{Pid, Signal, kill_process};

use super::*;

const FILE: &str = "FENCELOCK_HARM_FILE";

/// Runs this test again in another process, which gets the file in its environment. The process ends when its input
/// ends.
fn beside(test: &str, file: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .arg(format!("harm::{test}"))
        .env(FILE, file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads the output of the process up to this line.
fn read_until(lines: &mut impl BufRead, wanted: &str) {
    let mut output = String::new();
    while !output.ends_with(wanted) {
        let read = lines.read_line(&mut output).unwrap();
        assert!(read > 0, "it ended before {wanted:?}: {output}");
    }
}

/// Resident memory in kB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Renews its holds and waits for a lock until its input ends.
async fn be_flooded(path: &Path) {
    let engine = Arc::new(Sqlite::at(path).await.unwrap());
    let mut holds = Vec::new();
    for count in 0..20 {
        let claim = lasting(5000, claim(&format!("held {count}")));
        let token = held(&engine, &claim).await.tokens.first;
        holds.push(held_claim(&claim, token));
    }
    let turn = claim("turn");
    waiting(&engine, &turn).await;
    let waiter = Arc::clone(&engine);
    tokio::spawn(async move {
        acquire(&waiter, &turn).await;
        println!("my turn");
    });
    println!("begun");
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    while !ended.is_finished() {
        for renewal in engine.renew(&holds).await {
            assert!(matches!(renewal, Renewal::Kept { .. }), "{renewal:?}");
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    println!("nothing lost");
}

/// Sends wake-ups for unknown claims and for those in the file.
fn flood(address: &[u8], claims: &[Vec<u8>], stop: &AtomicBool) {
    let name = ClaimId::from_bytes(address[8..].try_into().unwrap());
    let to = SocketAddr::from_abstract_name(format!("fencelock-{name:?}")).unwrap();
    let socket = UnixDatagram::unbound().unwrap();
    let mut count = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        let mut unknown = [7; 16];
        unknown[..8].copy_from_slice(&count.to_be_bytes());
        let known = &claims[count as usize % claims.len()];
        for (kind, claim) in [
            (b'l', &unknown[..]),
            (b'a', &unknown),
            (b't', &unknown),
            (b'l', known),
            (b't', known),
        ] {
            let message = [&[kind], claim, b"held 1"].concat();
            // The process has ended.
            if socket.send_to_addr(&message, &to).is_err() {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flooded_wake_up_socket_loses_no_hold_and_takes_no_memory() {
    if let Some(path) = std::env::var_os(FILE) {
        return be_flooded(Path::new(&path)).await;
    }
    let directory = Directory::new();
    let engine = directory.open().await;
    let holder = claim("turn");
    held(&engine, &holder).await;
    let test = "a_flooded_wake_up_socket_loses_no_hold_and_takes_no_memory";
    let mut child = beside(test, &directory.file());
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    read_until(&mut lines, "begun\n");
    let before = resident(child.id());
    let raw = directory.raw();
    let sql = "SELECT bell FROM waiters";
    let address: Vec<u8> = raw.query_row(sql, [], |row| row.get(0)).unwrap();
    let mut claims = raw
        .prepare(
            "SELECT claim FROM holders WHERE name LIKE 'held%' UNION SELECT claim FROM waiters",
        )
        .unwrap();
    let claims = claims.query_map([], |row| row.get(0)).unwrap();
    let claims: Vec<Vec<u8>> = claims.map(Result::unwrap).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let floods: Vec<_> = (0..2)
        .map(|_| {
            let (address, claims, stop) = (address.clone(), claims.clone(), Arc::clone(&stop));
            std::thread::spawn(move || flood(&address, &claims, &stop))
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(7)).await;
    // A hand-off to the process during the flood.
    let released_at = now();
    engine.withdraw(&holder, Leave::Release).await.unwrap();
    read_until(&mut lines, "my turn\n");
    let waited = now().since(released_at);
    let grown = resident(child.id()).saturating_sub(before);
    drop(child.stdin.take());
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    stop.store(true, Ordering::Relaxed);
    for flood in floods {
        flood.join().unwrap();
    }
    child.wait().unwrap();
    assert!(rest.contains("nothing lost"), "{rest}");
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    assert!(grown < 16 * 1024, "grown by {grown} kB");
}

/// Other processes wait for the response timeout, and then the error names the stopped process.
#[tokio::test]
async fn a_process_that_is_stopped_in_a_transaction_is_named() {
    if let Some(path) = std::env::var_os(FILE) {
        let raw = raw(Path::new(&path));
        raw.execute_batch("BEGIN IMMEDIATE").unwrap();
        println!("begun");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let directory = Directory::new();
    let path = directory.file().display().to_string();
    let url = StoreUrl::parse(&format!("sqlite:{path}?response-timeout=300ms")).unwrap();
    let engine = Sqlite::open(url).await.unwrap();
    let test = "a_process_that_is_stopped_in_a_transaction_is_named";
    let mut child = beside(test, &directory.file());
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    read_until(&mut lines, "begun\n");
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).unwrap();
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.contains(") T ")
    };
    while !is_stopped() {
        tokio::task::yield_now().await;
    }
    let start = now();
    let error = engine.place(&claim("job")).await.unwrap_err();
    let waited = now().since(start);
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    let text = error.to_string();
    let named = format!("process {} (", child.id());
    assert!(
        text.contains(&named) && text.contains("is stopped"),
        "{text}"
    );
    kill_process(pid, Signal::CONT).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    held(&engine, &claim("job")).await;
}
