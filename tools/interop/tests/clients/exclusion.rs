//! Programs in all languages and `fencelock run` compete for one lock, while replicas are killed.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::Command;

use crate::program::{Hold, Language, Program};
use crate::service::{Service, assert_nothing_left, fencelock, patient};

/// Long enough that each of the many waiters has its turns while replicas are killed, on a busy machine, too.
const SECONDS: u64 = 12;

/// Takes and releases with two requests each, at any replica that answers.
const CURL: &str = r#"
clock() { python3 -c 'import time; print(time.monotonic_ns())'; }
ask() { curl -sS -m 3 -H 'Content-Type: application/json' "$@" 2>/dev/null; }
end=$((SECONDS + $1)); shift
while ((SECONDS < end)); do
    for url in "$@"; do
        sent=$(clock)
        grant=$(ask -f -d '{"name":"all","ttl_ms":3000,"wait_ms":1500}' "$url/v1/claims") || continue
        entered=$(clock)
        left=$(clock)
        claim=$(jq -r .claim <<<"$grant") key=$(jq -r .key <<<"$grant")
        # It believes for the lease, less one percent, because clocks drift. It renews nothing, and the machine may be slow.
        valid=$((sent + $(jq .lease_ms_since_sent <<<"$grant") * 990000))
        ((left < valid)) && echo "$entered $left $(jq .token <<<"$grant")"
        for url in "$url" "$@"; do
            ask -f -H "Fencelock-Key: $key" -d '{"name":"all"}' "$url/v1/claims/$claim/release" >/dev/null && break
        done
    done
done
"#;

/// A job of `fencelock run`.
const JOB: &str = "import os, time
entered = time.monotonic_ns()
time.sleep(0.004)
print(entered, time.monotonic_ns(), os.environ['FENCELOCK_TOKEN'])";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_languages_exclude_each_other_while_replicas_are_killed() {
    let mut service = Service::start();
    let library = service.library().await;
    let languages = [
        Language::TypeScript,
        Language::TypeScript,
        Language::Asyncio,
        Language::Asyncio,
        Language::Threads,
        Language::Threads,
    ];
    let mut programs = Vec::new();
    for language in languages {
        programs.push(Program::start(language, &service.urls(), "all").await);
    }
    for program in &programs {
        program.tell(&format!("loop {SECONDS} 3000"));
    }
    let jobs = tokio::spawn(jobs(patient(&service.redis)));
    let script = tokio::spawn(script(service.urls()));
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let mut killed = 0;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(700)).await;
        tokio::task::block_in_place(|| service.replicas[killed % 2].restart());
        killed += 1;
    }
    assert!(killed >= 4, "replicas were killed only {killed} times");
    let mut all = Vec::new();
    for (number, program) in programs.iter_mut().enumerate() {
        all.push((languages[number].name(), program.holds().await));
    }
    all.push(("fencelock run", jobs.await.expect("it ends")));
    all.push(("curl", script.await.expect("it ends")));
    check(&all);
    for program in &mut programs {
        assert_eq!(program.ask("close").await, "closed");
    }
    // A hold whose answer the script lost ends with its lease.
    let guard = library.lock("all").await.expect("granted");
    guard.release().await.expect("released");
    assert_nothing_left(&library, "all").await;
}

/// No two holds overlap, tokens grow, and every program had the lock.
fn check(all: &[(&str, Vec<Hold>)]) {
    for (who, holds) in all {
        // Not more: on a busy machine a program may stand still for most of the time.
        assert!(!holds.is_empty(), "{who} never held");
    }
    let mut holds: Vec<(Hold, &str, usize)> = Vec::new();
    for (number, (who, of_one)) in all.iter().enumerate() {
        holds.extend(of_one.iter().map(|&hold| (hold, *who, number)));
    }
    holds.sort_unstable();
    for pair in holds.windows(2) {
        let (before, after) = (&pair[0].0, &pair[1].0);
        assert!(after.entered >= before.left, "two held at once: {pair:?}");
        assert!(after.token > before.token, "a token did not grow: {pair:?}");
    }
    let changes = holds.windows(2).filter(|pair| pair[0].2 != pair[1].2);
    let changes = changes.count();
    assert!(changes >= 20, "the lock changed hands only {changes} times");
}

async fn jobs(store: String) -> Vec<Hold> {
    let mut holds = Vec::new();
    let end = Instant::now() + Duration::from_secs(SECONDS);
    while Instant::now() < end {
        let mut command = Command::new(fencelock());
        command
            .args(["run", "--store", &store, "--ttl", "3s", "all", "--"])
            .args(["python3", "-c", JOB])
            .env_remove("FENCELOCK_OWNER")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        holds.extend(lines(command).await);
    }
    holds
}

async fn script(urls: String) -> Vec<Hold> {
    let mut command = Command::new("bash");
    command
        .args(["-uc", CURL, "curl", &SECONDS.to_string()])
        .args(urls.split(','))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    lines(command).await
}

async fn lines(mut command: Command) -> Vec<Hold> {
    let ran = command.output().await.expect("it runs");
    assert!(ran.status.success(), "{ran:?}");
    let out = String::from_utf8(ran.stdout).expect("text");
    out.lines().map(Hold::parse).collect()
}
