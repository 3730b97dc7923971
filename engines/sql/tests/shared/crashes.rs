//! A server that is killed.

use std::collections::HashMap;
use std::time::Duration;

use fencelock_core::{Client, Token};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::{open, soon, token_of};

/// A grant: the name, its token, and whether the holder still believed in it.
type Told = (&'static str, Token, bool);

fn works(client: Client, name: &'static str, tell: UnboundedSender<Told>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let Ok(guard) = client.lock(name).ttl(Duration::from_secs(2)).await else {
                continue;
            };
            // While one task holds, no other one reports.
            let _ = tell.send((name, guard.token(), guard.is_valid()));
            let _ = guard.release().await;
        }
    })
}

/// Twice, under load. Every token is above all earlier ones. `restart` kills the server and starts it again.
pub(crate) async fn a_killed_server_comes_back_under_load(url: &str, mut restart: impl FnMut()) {
    let (tell, mut told) = unbounded_channel();
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let client = open(url).await.unwrap();
        for name in ["a", "b", "c"] {
            tasks.push(works(client.clone(), name, tell.clone()));
        }
    }
    // The server frees a connection-bound lock before the holder knows it.
    let holders_know_first = url.contains("strategy=lease");
    let (mut last, mut highest) = (HashMap::new(), Token(0));
    for round in 0..3 {
        if round > 0 {
            restart();
            let token = token_of(&open(url).await.unwrap(), "b").await;
            assert!(token > highest, "{url}: {token} after {highest}");
        }
        for _ in 0..60 {
            let (name, token, valid) = soon("a grant", told.recv()).await.unwrap();
            let before = last.insert(name, token);
            highest = token.max(highest);
            assert!(
                !(valid && holders_know_first) || before < Some(token),
                "{url} {name}: {token} after {before:?}"
            );
        }
    }
    for task in tasks {
        task.abort();
    }
    let token = token_of(&open(url).await.unwrap(), "a").await;
    assert!(token > highest, "{url}: {token} after {highest}");
}
