//! A real Prometheus, with our alert rules, scrapes a replica.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fencelock_testbed::{Dir, Port, Process, Redis, Streams};

use crate::service::{PATIENCE, Replica};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../server/deploy")
}

#[test]
fn the_alert_rules_are_valid_and_fire_as_their_tests_say() {
    for words in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts.test.yml"],
    ] {
        let ran = Command::new("promtool")
            .args(words)
            .current_dir(deploy())
            .output();
        let ran = ran.expect("promtool");
        let said = String::from_utf8_lossy(&ran.stdout).into_owned()
            + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{words:?}: {said}");
    }
}

/// An answer of the API of Prometheus.
fn ask(port: u16, path: &str) -> String {
    let url = format!("http://127.0.0.1:{port}/api/v1/{path}");
    let ran = Command::new("curl")
        .args(["-s", &url])
        .output()
        .expect("curl");
    String::from_utf8(ran.stdout).expect("UTF-8")
}

/// Asks again until the answer has this text.
fn ask_until(port: u16, path: &str, text: &str) -> String {
    let begun = Instant::now();
    loop {
        let answer = ask(port, path);
        if answer.contains(text) {
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "{path}: no {text} in {answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_real_prometheus_scrapes_a_replica() {
    let redis = Redis::start().expect("redis-server");
    let replica = Replica::start(redis.url());
    let dir = Dir::new("prometheus").expect("a directory");
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
         rule_files: [\"{}\"]\n\
         scrape_configs:\n\
         - job_name: fencelock\n  static_configs: [{{ targets: [\"127.0.0.1:{}\"] }}]\n",
        deploy().join("alerts.yml").display(),
        replica.port()
    );
    let file = dir.join("prometheus.yml");
    std::fs::write(&file, config).expect("written");
    let port = Port::free().expect("a port");
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={file}"))
        .arg(format!("--storage.tsdb.path={}", dir.join("data")))
        .arg(format!("--web.listen-address={}", port.address()))
        .arg("--log.level=warn");
    let streams = Streams {
        stdin: Stdio::null(),
        stdout: Stdio::null(),
        stderr: Stdio::inherit(),
    };
    let _prometheus = Process::spawn(&command, streams).expect("prometheus");

    let port = port.number();
    let claims = format!("http://127.0.0.1:{}/v1/claims", replica.port());
    let taken = Command::new("curl")
        .args([
            "-sf",
            "-o",
            "/dev/null",
            "-H",
            "Content-Type: application/json",
        ])
        .args(["-d", r#"{"name":"nightly"}"#, &claims])
        .status();
    assert!(taken.expect("curl").success());
    let grants = ask_until(port, "query?query=fencelock_served_grants_total", "at_once");
    assert!(grants.contains(r#""lock":"other""#), "{grants}");
    ask_until(port, "query?query=up", r#","1"]"#);
    let targets = ask(port, "targets");
    assert!(targets.contains(r#""lastError":"","#), "{targets}");
    let rules = ask_until(port, "rules", "FencelockHoldsLost");
    assert!(!rules.contains(r#""health":"err""#), "{rules}");
}
