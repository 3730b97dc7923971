//! Another process that locks. It reads requests as lines of JSON from its standard input, and answers on its standard
//! output. Its only argument is the store's URL. It ends with its input.
//!
//! With the arguments `--replica URL PORT` it is a replica of the lock service instead. It prints a line when it serves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock::{Client, Clock, Error, Guard};
use fencelock_server::{Config, Server, Service};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

struct Worker {
    client: Client,
    guards: Mutex<HashMap<u64, Arc<Guard>>>,
}

type Answer = Result<Value, String>;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, url, port] = &arguments[..]
        && flag == "--replica"
    {
        return replica(url, port.parse().expect("a port")).await;
    }
    let url = arguments.first().expect("the store's URL");
    let client = fencelock::connect(url).await.expect("the store opens");
    let guards = Mutex::default();
    let worker = Arc::new(Worker { client, guards });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        let request: Value = serde_json::from_str(&line).unwrap();
        let worker = Arc::clone(&worker);
        tokio::spawn(async move {
            let id = request["id"].clone();
            let answer = match worker.answer(&request).await {
                Ok(ok) => json!({"id": id, "ok": ok}),
                Err(error) => json!({"id": id, "error": error}),
            };
            // Whole lines, even if several tasks answer at once.
            writeln!(std::io::stdout().lock(), "{answer}").unwrap();
        });
    }
}

/// Serves a store until this process is killed or its input ends.
async fn replica(url: &str, port: u16) {
    let engine = fencelock::open_engine(url).await.expect("the store opens");
    let service = Service::new(engine, Config::trusting()).expect("the store can be served");
    let server = Server::start(([127, 0, 0, 1], port).into(), service).await;
    let server = server.expect("the port is free");
    println!("{}", server.address());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await.unwrap().is_some() {}
}

impl Worker {
    async fn answer(&self, request: &Value) -> Answer {
        match request["do"].as_str().unwrap() {
            "hello" => Ok(json!({})),
            "lock" => self.lock(request).await,
            "release" => self.release(request).await,
            "see" => self.see(request),
            "lost" => self.lost(request).await,
            "rounds" => self.rounds(request).await,
            other => panic!("no such request: {other}"),
        }
    }

    async fn lock(&self, request: &Value) -> Answer {
        let millis = |key: &str| Duration::from_millis(request[key].as_u64().unwrap());
        let acquire = self
            .client
            .lock(request["name"].as_str().unwrap())
            .ttl(millis("ttl_ms"));
        let lock_delay = millis("lock_delay_ms");
        let acquire = if lock_delay.is_zero() {
            acquire
        } else {
            acquire.lock_delay(lock_delay)
        };
        let owner = match request["owner"].as_str() {
            Some(text) => self.client.join(text).map_err(|error| error.to_string())?,
            None => self.client.owner(),
        };
        let guard = acquire
            .owner(&owner)
            .await
            .map_err(|error| error.to_string())?;
        let answer = json!({
            "guard": guard.token().get(),
            "token": guard.token().get(),
            "owner": owner.as_str(),
            "joined": guard.joined(),
        });
        self.guards
            .lock()
            .unwrap()
            .insert(guard.token().get(), Arc::new(guard));
        Ok(answer)
    }

    fn guard(&self, request: &Value) -> Arc<Guard> {
        let guards = self.guards.lock().unwrap();
        Arc::clone(&guards[&request["guard"].as_u64().unwrap()])
    }

    async fn release(&self, request: &Value) -> Answer {
        let guard = self
            .guards
            .lock()
            .unwrap()
            .remove(&request["guard"].as_u64().unwrap());
        let guard = Arc::into_inner(guard.unwrap()).expect("nothing else uses the guard");
        let release = guard.release().await.map_err(|error| error.to_string())?;
        Ok(json!(format!("{release:?}")))
    }

    /// What the process believes. Sends no request to the store.
    fn see(&self, request: &Value) -> Answer {
        let guard = self.guard(request);
        Ok(json!({"valid": guard.is_valid(), "now": Clock::Boot.now().as_nanos()}))
    }

    async fn lost(&self, request: &Value) -> Answer {
        let reason = self.guard(request).lost().await;
        Ok(json!({"reason": reason.to_string(), "now": Clock::Boot.now().as_nanos()}))
    }

    /// Locks and releases `count` times. Answers with a list of (token, from, to). An unconfirmed release is no error: it
    /// continues in the background.
    async fn rounds(&self, request: &Value) -> Answer {
        let name = request["name"].as_str().unwrap();
        let millis = |key: &str| Duration::from_millis(request[key].as_u64().unwrap());
        let (ttl, pause) = (millis("ttl_ms"), millis("pause_ms"));
        let mut stays = Vec::new();
        for _ in 0..request["rounds"].as_u64().unwrap() {
            let guard = self.client.lock(name).ttl(ttl).await;
            let guard = guard.map_err(|error| error.to_string())?;
            let from = Clock::Boot.now().as_nanos();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = guard.lost() => {}
            }
            let to = Clock::Boot.now().min(guard.valid_until()).as_nanos();
            stays.push(json!([guard.token().get(), from, to]));
            match guard.release().await {
                Ok(_) | Err(Error::Unavailable { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(Value::Array(stays))
    }
}
