//! Which nodes are watched, according to the server.

use std::collections::BTreeMap;

use fencelock_testbed::ZooKeeper;

use crate::{connect, packets, soon, until, wait_in_queue};

/// Every session that has claimed something watches the token base until the session ends.
const TOKEN_BASE: &str = "/%base";

/// How the path of a release notice begins.
const NOTICE: &str = "/%released-";

/// How many sessions watch each path of a lock.
fn watches(server: &ZooKeeper) -> BTreeMap<String, usize> {
    let mut watches = BTreeMap::new();
    let mut path = String::new();
    for line in server.word("wchp").unwrap().lines() {
        if line.starts_with('/') {
            path = line.to_owned();
        } else if !line.trim().is_empty() {
            *watches.entry(path.clone()).or_default() += 1;
        }
    }
    watches.remove(TOKEN_BASE);
    watches
}

/// The same for the nodes of the claims, and for all other paths: those of release notices.
fn claims_and_others(server: &ZooKeeper) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    let is_claim = |path: &String| path.starts_with("/contended/_c_");
    watches(server)
        .into_iter()
        .partition(|(path, _)| is_claim(path))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_watches_itself_and_its_predecessor() {
    let server = ZooKeeper::start().unwrap();
    let client = connect(&server.url()).await;
    let guard = client.lock("contended").await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..=5 {
        waiters.push(wait_in_queue(&connect(&server.url()).await, "contended", false, place).await);
    }
    let nodes = server.children("/contended").unwrap();
    assert_eq!(nodes.len(), 6);
    until(
        "each is watched by the next and by itself, but the holder is not by itself",
        async || {
            let (claims, others) = claims_and_others(&server);
            let noticed = others.keys().all(|path| path.starts_with(NOTICE));
            let notices: Vec<_> = others.into_values().collect();
            let mut waited: Vec<_> = claims.into_values().collect();
            waited.sort_unstable();
            noticed && notices == [1; 5] && waited == [1, 1, 2, 2, 2, 2]
        },
    )
    .await;
    guard.release().await.unwrap();
    for waiter in waiters {
        soon("a turn", waiter)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    until("nothing is watched any more", async || {
        watches(&server).is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_watch_the_last_writer_ahead() {
    let server = ZooKeeper::start().unwrap();
    let client = connect(&server.url()).await;
    let guard = client.lock("contended").await.unwrap();
    let writer = wait_in_queue(&connect(&server.url()).await, "contended", false, 1).await;
    let mut readers = Vec::new();
    for place in 2..=4 {
        readers.push(wait_in_queue(&connect(&server.url()).await, "contended", true, place).await);
    }
    until(
        "the holder is watched by one, the writer by three and by itself",
        async || {
            let (claims, _) = claims_and_others(&server);
            let mut waited: Vec<_> = claims.into_values().collect();
            waited.sort_unstable();
            waited == [1, 4]
        },
    )
    .await;
    guard.release().await.unwrap();
    let writer = soon("the writer's turn", writer).await.unwrap();
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    writer.release().await.unwrap();
    for reader in readers {
        drop(soon("the readers' turn", reader).await.unwrap());
    }
}

/// How many packets the server receives per hand-off, in a queue of `clients` clients.
async fn packets_per_hand_off(clients: usize) -> f64 {
    let server = ZooKeeper::start().unwrap();
    // A long window, so that there are few heartbeats.
    let url = format!("{}?claim-window=60s", server.url());
    let holder = connect(&url).await;
    let guard = holder.lock("contended").await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..=clients {
        waiters.push(wait_in_queue(&connect(&url).await, "contended", false, place).await);
    }
    until("all watch", async || {
        claims_and_others(&server).1.len() == clients
    })
    .await;
    let before = packets(&server);
    guard.release().await.unwrap();
    for waiter in waiters {
        let guard = soon("a turn", waiter).await.unwrap();
        guard.release().await.unwrap();
    }
    (packets(&server) - before) as f64 / clients as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_per_hand_off_do_not_grow_with_the_queue() {
    let (of_16, of_128) = (
        packets_per_hand_off(16).await,
        packets_per_hand_off(128).await,
    );
    assert!(of_16 < 8.0 && of_128 < 8.0, "{of_16} and {of_128}");
    assert!(of_128 < of_16 + 2.0, "{of_16} and {of_128}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_node_was_deleted_takes_no_turn() {
    let server = ZooKeeper::start().unwrap();
    let client = connect(&server.url()).await;
    let first = client.lock("contended").await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..=3 {
        waiters.push(wait_in_queue(&connect(&server.url()).await, "contended", false, place).await);
    }
    let [second, third, fourth] = <[_; 3]>::try_from(waiters).unwrap();
    first.release().await.unwrap();
    // It has waited, so its release gives a notice.
    let second = soon("a turn", second).await.unwrap();
    let line = in_order(&server);
    server.delete(&format!("/contended/{}", line[1])).unwrap();
    until("it has a new place, at the end", async || {
        let now = in_order(&server);
        now.len() == 3 && now[1] == line[2]
    })
    .await;
    second.release().await.unwrap();
    let fourth = soon("a turn", fourth).await.unwrap();
    assert!(!third.is_finished());
    fourth.release().await.unwrap();
    drop(soon("a turn", third).await.unwrap());
}

/// The nodes of the claims, oldest first.
fn in_order(server: &ZooKeeper) -> Vec<String> {
    let mut line = server.children("/contended").unwrap();
    line.sort_by(|a, b| a[a.len() - 10..].cmp(&b[b.len() - 10..]));
    line
}
