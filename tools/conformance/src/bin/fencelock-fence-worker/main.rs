//! A process that locks and writes to a fenced resource. It reads commands as lines from its standard input, and answers with
//! lines of JSON. Its arguments: the store of the locks, the kind of the resource, and its location.
//!
//! * `setup`: creates what the resource needs, such as tables; `names A B C`: sets the names;
//! * `lock MILLIS`: acquires all the locks with that ttl, and answers with their tokens;
//! * `write TEXT`: writes under all names with its grants, even if these have ended; answers for each name with `"ok"`,
//!   or with the token that won;
//! * `read`: answers with the last writes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod databases;
mod plain;
mod servers;

use std::time::Duration;

use async_trait::async_trait;
use fencelock::fence::FenceError;
use fencelock::{Guard, Sequencer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

/// A resource with a place for each lock.
#[async_trait]
trait Resource: Send + Sync {
    /// Prepares the resource.
    async fn set_up(&self) {}
    /// One fenced write.
    async fn write(&self, sequencer: &Sequencer, text: &str) -> Result<(), FenceError>;
    /// The last write.
    async fn read(&self, name: &str) -> String;
}

async fn open(kind: &str, at: &str) -> Box<dyn Resource> {
    match kind {
        "file" => Box::new(plain::InFile(at.into())),
        "quorum" => Box::new(plain::ThreeFiles::new(at)),
        "http" => Box::new(plain::Http(at.to_owned())),
        "sqlite" => Box::new(databases::Sqlite::open(at)),
        "postgres" => Box::new(databases::Postgres::open(at).await),
        "mysql" => Box::new(databases::Mysql::open(at).await),
        "redis" => Box::new(servers::Redis::open(at).await),
        "etcd" => Box::new(servers::Etcd::open(at).await),
        "zookeeper" => Box::new(servers::ZooKeeper::open(at).await),
        other => panic!("no such resource: {other}"),
    }
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("STORE KIND PLACE");
    let client = fencelock::connect(next()).await.expect("the store opens");
    let (kind, at) = (next(), next());
    let resource = open(&kind, &at).await;
    let mut names: Vec<String> = Vec::new();
    let mut held: Vec<(Guard, Sequencer)> = Vec::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match word {
            "setup" => {
                resource.set_up().await;
                json!("ready")
            }
            "names" => {
                names = rest.split(' ').map(str::to_owned).collect();
                json!(names.len())
            }
            "lock" => {
                held.clear();
                let ttl = Duration::from_millis(rest.parse().unwrap());
                for name in &names {
                    // No renewals: a process that is stopped in the middle of a change to the store's file would block
                    // the others.
                    let request = client.lock(name).ttl(ttl).renew(false);
                    let guard = request.recorded().await.unwrap();
                    let sequencer = Sequencer::new(
                        guard.name().clone(),
                        guard.mode(),
                        guard.token(),
                        guard.claim_id(),
                    );
                    held.push((guard, sequencer));
                }
                let tokens = held.iter().map(|(_, sequencer)| sequencer.token.get());
                json!(tokens.collect::<Vec<_>>())
            }
            "write" => {
                let mut answers = Vec::new();
                for (_, sequencer) in &held {
                    answers.push(told(resource.write(sequencer, rest).await));
                }
                Value::Array(answers)
            }
            "read" => {
                let mut texts = Vec::new();
                for name in &names {
                    texts.push(resource.read(name).await);
                }
                json!(texts)
            }
            other => panic!("no such request: {other}"),
        };
        println!("{answer}");
    }
}

fn told(written: Result<(), FenceError>) -> Value {
    match written {
        Ok(()) => json!("ok"),
        Err(error) => match error.stale() {
            // The message must contain the token, too.
            Some(stale) if error.to_string().contains(&format!("token {}", stale.won)) => {
                json!(stale.won.get())
            }
            _ => panic!("{error}"),
        },
    }
}
