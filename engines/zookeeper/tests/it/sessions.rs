//! Sessions that are shorter or longer than holds, and sessions that expire.

use std::time::Duration;

use fencelock_core::{Client, Clock, Error, Guard, Release};
use fencelock_testbed::{Flow, Proxy, ZooKeeper};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::{connect, renewed, soon, until, wait_in_queue};

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_moves_to_a_longer_session_and_keeps_its_place() {
    let server = ZooKeeper::start().unwrap();
    let url = format!("{}?claim-window=4s", server.url());
    let (one, two) = (connect(&url).await, connect(&url).await);
    let guard = one.lock("a").ttl(Duration::from_secs(20)).await.unwrap();
    let young = guard.remaining();
    assert!(young <= Duration::from_secs(3), "{young:?}");
    let waiter = wait_in_queue(&two, "a", false, 1).await;
    renewed(&guard).await;
    assert!(
        guard.remaining() > Duration::from_secs(15),
        "{:?}",
        guard.remaining()
    );
    let view = two.look("a").await.unwrap();
    assert_eq!(view.token(), Some(guard.token()));
    assert_eq!(view.holders[0].claim, Some(guard.claim_id()));
    sleep(Duration::from_millis(500)).await;
    assert!(!waiter.is_finished() && guard.is_valid());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    drop(soon("the waiter's turn", waiter).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ttl_beyond_the_servers_sessions_is_kept_up_by_renewals() {
    let server = ZooKeeper::builder()
        .sessions(Duration::from_secs(1), Duration::from_millis(4500))
        .start()
        .unwrap();
    let (one, two) = (connect(&server.url()).await, connect(&server.url()).await);
    let limits = one.promises().limits.clone();
    assert!(
        limits
            .iter()
            .any(|limit| limit.what.contains("3s") && limit.change.contains("maxSessionTimeout")),
        "{limits:?}"
    );
    let guard = one.lock("a").ttl(Duration::from_secs(60)).await.unwrap();
    let begun = Instant::now();
    let waiter = wait_in_queue(&two, "a", false, 1).await;
    while begun.elapsed() < Duration::from_secs(5) {
        renewed(&guard).await;
        assert!(guard.is_valid() && guard.remaining() <= Duration::from_secs(3));
    }
    assert!(!waiter.is_finished());
    // The hold is lost at the time of the promises, not after its ttl.
    server.pause().unwrap();
    let paused = Instant::now();
    soon("the loss", guard.lost()).await;
    assert!(
        paused.elapsed() < Duration::from_secs(15),
        "{:?}",
        paused.elapsed()
    );
    server.resume().unwrap();
    drop(guard);
    drop(soon("the waiter's turn", waiter).await.unwrap());
    let error = one
        .lock("b")
        .lock_delay(Duration::from_secs(3))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert!(error.to_string().contains("maxSessionTimeout"), "{error}");
}

/// As many holds as a client opens exact sessions for, each with a lock-delay of its own and so another session. Without
/// renewals they send nothing, and their nodes exist for the ttl and a little more than a second.
async fn sixteen_lengths(client: &Client, ttl: Duration, renew: bool) -> Vec<Guard> {
    let takes = (0..16).map(|n| {
        let acquire = client.lock(&format!("length-{n}"));
        let acquire = acquire.ttl(ttl).renew(renew);
        acquire
            .lock_delay(Duration::from_millis(1300 + 10 * n))
            .into_future()
    });
    let guards = join_all(takes).await.into_iter();
    guards.map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_longer_than_sixteen_others_is_renewed() {
    let server = ZooKeeper::start().unwrap();
    let client = connect(&format!("{}?claim-window=4s", server.url())).await;
    let _others = sixteen_lengths(&client, Duration::from_secs(2), false).await;
    let ttl = Duration::from_secs(4);
    let guard = client.lock("a").ttl(ttl).await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < ttl * 3 / 2 {
        renewed(&guard).await;
        assert!(guard.is_valid());
    }
    // A lock-delay needs a long session.
    let delay = Duration::from_secs(9);
    let long = client.lock("b").lock_delay(delay).await.unwrap();
    assert_eq!(long.release().await.unwrap(), Release::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_sessions_are_closed() {
    let server = ZooKeeper::start().unwrap();
    let client = connect(&format!("{}?claim-window=4s", server.url())).await;
    let mut others = sixteen_lengths(&client, Duration::from_secs(3), true).await;
    let used = others.pop().unwrap();
    for other in others {
        other.release().await.unwrap();
    }
    // None of those sessions is long enough for this hold.
    let ttl = Duration::from_secs(4);
    let guard = client.lock("a").ttl(ttl).await.unwrap();
    renewed(&guard).await;
    until("only the sessions in use are left", async || {
        let text = server.word("mntr").unwrap();
        let mut words = text.split_whitespace();
        words.find(|word| *word == "zk_num_alive_connections");
        // The waiting session, those of two holds, and the connection of this request.
        words.next().unwrap().parse::<usize>().unwrap() == 4
    })
    .await;
    renewed(&used).await;
    renewed(&guard).await;
    assert!(used.is_valid() && guard.is_valid());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_session_expires_in_the_queue_is_not_granted() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let near = connect(&server.url()).await;
    let far = connect(&format!(
        "zookeeper://127.0.0.1:{}?claim-window=1s",
        proxy.port()
    ))
    .await;
    for flow in [Flow::Hold, Flow::Lose] {
        let guard = near.lock("a").await.unwrap();
        let waiter = wait_in_queue(&far, "a", false, 1).await;
        proxy.both(flow);
        // The claim's node is deleted with its session.
        until("its place is gone", async || {
            near.look("a").await.unwrap().waiters.is_empty()
        })
        .await;
        guard.release().await.unwrap();
        let next = near.lock("a").await.unwrap();
        proxy.both(Flow::Pass);
        if flow == Flow::Lose {
            proxy.reset();
        }
        sleep(Duration::from_millis(1000)).await;
        assert!(
            !waiter.is_finished() && next.is_valid(),
            "granted from a place that was lost"
        );
        let token = next.token();
        next.release().await.unwrap();
        let late = soon("its turn after all", waiter).await.unwrap();
        assert!(late.token() > token);
        late.release().await.unwrap();
    }
}

/// A server that resumes processes the requests that arrived meanwhile and expires sessions, in any order.
#[tokio::test(flavor = "multi_thread")]
async fn no_claim_is_granted_by_a_node_that_expired_while_the_server_hung() {
    let server = ZooKeeper::start().unwrap();
    let url = format!("{}?claim-window=1s", server.url());
    let (one, two, near) = (
        connect(&url).await,
        connect(&url).await,
        connect(&server.url()).await,
    );
    let ttl = Duration::from_millis(700);
    let guard = one.lock("a").ttl(ttl).await.unwrap();
    let waiter = wait_in_queue(&two, "a", false, 1).await;
    server.pause().unwrap();
    soon("the loss", guard.lost()).await;
    sleep(Duration::from_millis(1500)).await;
    server.resume().unwrap();
    let next = soon("the waiter's turn", waiter).await.unwrap();
    assert!(next.token() > guard.token());
    let view = near.look("a").await.unwrap();
    assert_eq!(view.holders.len(), 1, "{view:?}");
    assert_eq!(view.holders[0].claim, Some(next.claim_id()));
    assert_eq!(view.token(), Some(next.token()));
    next.release().await.unwrap();
}

/// The claim waited in a session that is too short for its lock-delay, and left that session before it held.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_delay_covers_a_holder_that_had_to_wait() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let url = format!("zookeeper://127.0.0.1:{}?claim-window=1s", proxy.port());
    let (far, near) = (connect(&url).await, connect(&server.url()).await);
    let delay = Duration::from_secs(4);
    let before = near.lock("a").await.unwrap();
    let waiting = tokio::spawn(async move {
        let acquire = far.lock("a").ttl(Duration::from_secs(1));
        acquire.lock_delay(delay).await
    });
    until("it waits", async || {
        near.look("a").await.unwrap().waiters.len() == 1
    })
    .await;
    before.release().await.unwrap();
    let guard = soon("its turn", waiting).await.unwrap().unwrap();
    proxy.refuse(true).unwrap();
    proxy.reset();
    let next = soon("the next has it", near.lock("a")).await.unwrap();
    let granted = Clock::Boot.now();
    assert!(next.token() > guard.token());
    let end = guard.valid_until() + delay;
    assert!(granted >= end, "{:?} too early", end.since(granted));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_session_ends_is_lost_before_the_next_grant() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let near = connect(&server.url()).await;
    let far = connect(&format!("zookeeper://127.0.0.1:{}", proxy.port())).await;
    let guard = far.lock("a").ttl(Duration::from_secs(3)).await.unwrap();
    let waiter = wait_in_queue(&near, "a", false, 1).await;
    renewed(&guard).await;
    // A half-open connection: the servers receive nothing, and the client still receives what they sent before.
    proxy.requests(Flow::Lose);
    let next = soon("the next has it", waiter).await.unwrap();
    let granted = Clock::Boot.now();
    assert!(
        !guard.is_valid() && guard.valid_until() < granted,
        "two believe to hold"
    );
    proxy.requests(Flow::Pass);
    proxy.reset();
    let late = soon("the late release", guard.release()).await;
    assert!(!matches!(late, Ok(Release::Released)), "{late:?}");
    sleep(Duration::from_millis(300)).await;
    let view = near.look("a").await.unwrap();
    assert_eq!(
        view.token(),
        Some(next.token()),
        "a late release spares the next"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_client_that_closes() {
    let server = ZooKeeper::start().unwrap();
    let url = format!("{}/some/where", server.url());
    let client = connect(&url).await;
    let mut held = Vec::new();
    for name in ["a", "/a", "/a/b", "zookeeper", "held"] {
        held.push(client.lock(name).await.unwrap());
    }
    assert_eq!(
        server.children("/some/where").unwrap(),
        ["%2Fa", "%2Fa%2Fb", "%7Aookeeper", "a", "held"]
    );
    let last = held.pop();
    for guard in held {
        guard.release().await.unwrap();
    }
    drop(last);
    client.close().await.unwrap();
    assert_eq!(server.count_below("/some/where", None).unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_lock_after_its_last_user() {
    let server = ZooKeeper::start().unwrap();
    let (first, last) = (connect(&server.url()).await, connect(&server.url()).await);
    let held = first.lock("a").await.unwrap();
    let waiting = tokio::spawn({
        let last = last.clone();
        async move { last.lock("a").await }
    });
    until("it waits", async || {
        first.look("a").await.unwrap().waiters.len() == 1
    })
    .await;
    held.release().await.unwrap();
    first.close().await.unwrap();
    let next = soon("the lock", waiting).await.unwrap().unwrap();
    // While the lock is held, its node has a child, so the servers do not delete it themselves.
    assert_eq!(server.children("/").unwrap(), ["a", "zookeeper"]);
    next.release().await.unwrap();
    last.close().await.unwrap();
    assert_eq!(server.children("/").unwrap(), ["zookeeper"]);
}

/// A dead client leaves the lock's node. The node is a container, which the servers delete when it is empty.
#[tokio::test(flavor = "multi_thread")]
async fn the_servers_delete_the_lock_nodes_of_dead_clients() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let url = format!("zookeeper://127.0.0.1:{}?claim-window=1s", proxy.port());
    let far = connect(&url).await;
    let before = server.children("/").unwrap();
    let _guard = far.lock("a").ttl(Duration::from_secs(1)).await.unwrap();
    assert_eq!(server.children("/").unwrap(), ["a", "zookeeper"]);
    proxy.refuse(true).unwrap();
    proxy.reset();
    until("the lock's node is gone", async || {
        server.children("/").unwrap() == before
    })
    .await;
}

/// A permanent node of another library is not deleted.
#[tokio::test(flavor = "multi_thread")]
async fn permanent_nodes_of_others_stay() {
    let server = ZooKeeper::start().unwrap();
    server.make_root("/theirs", None).unwrap();
    let client = connect(&server.url()).await;
    for name in ["theirs", "ours"] {
        client.lock(name).await.unwrap().release().await.unwrap();
    }
    client.close().await.unwrap();
    assert_eq!(server.children("/").unwrap(), ["theirs", "zookeeper"]);
}

/// Below a node on which all users have all rights.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_user_has_rights_on_its_nodes() {
    let server = ZooKeeper::start().unwrap();
    server.make_root("/locks", None).unwrap();
    let address = format!("127.0.0.1:{}", server.port());
    let ann = connect(&format!("zookeeper://ann:secret@{address}/locks")).await;
    let stranger = connect(&format!("{}/locks", server.url())).await;
    let connector = zookeeper_client::Client::connector();
    let anns = connector.clone().with_auth("digest", b"ann:secret");
    let anns = anns.connect(&address).await.unwrap();
    let strangers = connector.connect(&address).await.unwrap();
    let guard = ann.lock("a").ttl(Duration::from_secs(9)).await.unwrap();
    // Before and after the move to a longer session.
    let mut owners = Vec::new();
    for moved in [false, true] {
        if moved {
            renewed(&guard).await;
        }
        let refused = soon("an answer", stranger.try_lock("a")).await.unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused:?}");
        let nodes = anns.list_children("/locks/a").await.unwrap();
        assert_eq!(nodes.len(), 1);
        let node = format!("/locks/a/{}", nodes[0]);
        for path in ["/locks/a", &node] {
            let listed = strangers.list_children(path).await;
            assert_eq!(listed.unwrap_err(), zookeeper_client::Error::NoAuth);
            let read = strangers.get_data(path).await;
            assert_eq!(read.unwrap_err(), zookeeper_client::Error::NoAuth);
        }
        let (_, stat) = anns.get_data(&node).await.unwrap();
        owners.push(stat.ephemeral_owner);
    }
    assert_ne!(owners[0], owners[1], "it has moved");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// A process that joins a hold relies on the holder's answer. A dead holder does not answer, even while its session lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_holder_does_not_answer_is_not_joined() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let far = connect(&format!("zookeeper://127.0.0.1:{}", proxy.port())).await;
    let near = connect(&server.url()).await;
    let owner = far.owner();
    let ttl = Duration::from_secs(12);
    let guard = far.lock("a").owner(&owner).ttl(ttl).await.unwrap();
    let joining = near.join(owner.as_str()).unwrap();
    for _ in 0..2 {
        let joined = soon("joining", near.try_lock("a").owner(&joining)).await;
        let joined = joined.unwrap();
        assert!(joined.joined() && joined.token() == guard.token());
        // Equal except for the margin that each process subtracts.
        assert!(joined.valid_until() <= guard.valid_until() + ttl / 50);
        // Tried once before the hold moves to a longer session, and once after.
        renewed(&guard).await;
    }
    proxy.both(Flow::Hold);
    // The node exists as long as its session, but the holder does not attest the hold.
    let silent = soon("an answer", near.try_lock("a").owner(&joining)).await;
    assert!(
        matches!(silent, Err(Error::Unavailable { .. })),
        "{silent:?}"
    );
    let view = near.look("a").await.unwrap();
    assert_eq!(view.token(), Some(guard.token()));
    proxy.both(Flow::Pass);
    proxy.reset();
    until("it answers again", async || {
        near.try_lock("a")
            .owner(&joining)
            .await
            .is_ok_and(|joined| joined.joined())
    })
    .await;
    guard.release().await.unwrap();
}
