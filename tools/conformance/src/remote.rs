//! Another process that locks, controlled by lines of JSON. This is the controlling side.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fencelock_testbed::{Process, Worker};
use serde_json::{Value, json};

use crate::wait::soon;

/// A process of its own with one client. Killed when dropped.
#[derive(Debug)]
pub struct Remote {
    worker: Worker,
    asked: u64,
    answers: HashMap<u64, Value>,
}

/// A request for a [`Remote`].
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The name.
    pub name: &'a str,
    /// The lease.
    pub ttl: Duration,
    /// The lock-delay.
    pub lock_delay: Duration,
    /// The owner to join, as another process printed it.
    pub owner: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    /// A request with the client's defaults except the ttl.
    #[must_use]
    pub fn new(name: &'a str, ttl: Duration) -> Self {
        Self {
            name,
            ttl,
            lock_delay: Duration::ZERO,
            owner: None,
        }
    }
}

impl Remote {
    /// Starts the worker and has it open the store.
    pub async fn start(worker: &Path, url: &str) -> Self {
        let worker = Worker::spawn(Command::new(worker).arg(url)).unwrap();
        let mut remote = Self {
            worker,
            asked: 0,
            answers: HashMap::new(),
        };
        let hello = remote.ask(json!({"do": "hello"}));
        remote
            .answer("another process opens the store", hello)
            .await;
        remote
    }

    /// The process, to stop and kill it.
    #[must_use]
    pub fn process(&self) -> &Process {
        self.worker.process()
    }

    /// Requests a lock. The answer has `guard`, `token`, `owner`, `joined`.
    pub fn lock(&mut self, wanted: Wanted<'_>) -> u64 {
        self.ask(json!({
            "do": "lock",
            "name": wanted.name,
            "ttl_ms": wanted.ttl.as_millis() as u64,
            "lock_delay_ms": wanted.lock_delay.as_millis() as u64,
            "owner": wanted.owner,
        }))
    }

    /// Requests a lock, and waits for the grant.
    pub async fn take(&mut self, wanted: Wanted<'_>) -> Value {
        let asked = self.lock(wanted);
        self.answer("another process takes the lock", asked).await
    }

    /// Sends a request, and returns its number.
    pub fn ask(&mut self, mut request: Value) -> u64 {
        self.asked += 1;
        request["id"] = self.asked.into();
        self.worker.send(&request.to_string()).unwrap();
        self.asked
    }

    /// The answer to a request.
    pub async fn answer(&mut self, what: &str, asked: u64) -> Value {
        let mut answer = self.answer_or_error(what, asked).await;
        if let Some(error) = answer.get("error") {
            panic!("{what}: {error}");
        }
        answer["ok"].take()
    }

    /// The answer to a request, or `{"error": text}`.
    pub async fn answer_or_error(&mut self, what: &str, asked: u64) -> Value {
        loop {
            if let Some(answer) = self.answers.remove(&asked) {
                return answer;
            }
            let line = soon(what, self.worker.line()).await;
            let line = line.unwrap_or_else(|| panic!("{what}: the worker process ended"));
            let answer: Value = serde_json::from_str(&line).unwrap();
            self.answers.insert(answer["id"].as_u64().unwrap(), answer);
        }
    }
}
