//! The thin clients and the library as workers of `fencelock torture`, on the same locks. Replicas are killed, stopped,
//! and cut off from their store; connections are cut; workers are killed and stopped.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{installed, node_dir};
use crate::service::fencelock;

/// How long faults are injected. `FENCELOCK_TORTURE_TIME=5m` makes longer runs; `FENCELOCK_TORTURE_SEED` repeats the
/// faults of an earlier run.
const TIME: &str = "8s";

#[test]
fn all_clients_keep_their_promises_under_torture() {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let dir = node_dir();
    std::fs::copy(clients.join("torture.mjs"), dir.path().join("torture.mjs")).expect("copied");
    let typescript = format!("node {}", dir.join("torture.mjs"));
    let python = installed().join("python/bin/python");
    let python = format!(
        "{} {}",
        python.display(),
        clients.join("torture.py").display()
    );
    let variable =
        |name: &str, usual: &str| std::env::var(name).unwrap_or_else(|_| usual.to_owned());
    let mut torture = Command::new(fencelock());
    torture
        .args(["torture", "--start", "http-redis", "--json"])
        .args(["--with", &typescript, "--with", &python])
        .args(["--workers", "6", "--tasks", "3", "--names", "6"])
        .args(["--time", &variable("FENCELOCK_TORTURE_TIME", TIME)])
        .args(["--seed", &variable("FENCELOCK_TORTURE_SEED", "1")])
        .stderr(Stdio::inherit());
    let ran = torture.output().expect("it runs");
    let output: Value = serde_json::from_slice(&ran.stdout).expect("a verdict");
    if let Ok(file) = std::env::var("FENCELOCK_TORTURE_HISTORY") {
        std::fs::write(file, &ran.stdout).expect("written");
    }
    let (verdict, history) = (&output["verdict"], &output["history"]);
    assert!(ran.status.success(), "{}, {}", verdict, history["troubles"]);
    let attempts = history["attempts"].as_array().expect("attempts");
    for (turn, client) in ["the library", "TypeScript", "Python"].iter().enumerate() {
        let granted = attempts.iter().filter(|attempt| {
            attempt["worker"]
                .as_u64()
                .is_some_and(|worker| worker % 3 == turn as u64)
                && attempt["token"].is_u64()
        });
        let granted = granted.count();
        println!("{client}: {granted} grants");
        assert!(granted >= 20, "{client} held only {granted} times");
    }
    let faults = verdict["faults"].as_u64().expect("a number");
    assert!(faults >= 10, "only {faults} faults");
}
