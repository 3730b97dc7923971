//! A fence on a ZooKeeper server.

use std::time::Duration;

use fencelock_core::Mode;
use fencelock_fence::zookeeper::ZooKeeperFence;
use fencelock_fence::{FenceError, Marks};
use fencelock_testbed::ZooKeeper;
use proptest::strategy::{Strategy, ValueTree};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::{by, exclusive, grants, model, says_who_won};

async fn connect(server: &ZooKeeper) -> Client {
    let connector = Client::connector().with_session_timeout(Duration::from_secs(10));
    let address = format!("127.0.0.1:{}", server.port());
    connector.connect(&address).await.unwrap()
}

async fn stored(client: &Client, path: &str) -> String {
    let (data, _) = client.get_data(path).await.unwrap();
    String::from_utf8(data).unwrap()
}

async fn with_ledger(server: &ZooKeeper) -> Client {
    let client = connect(server).await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/ledger", b"", &options).await.unwrap();
    client
}

#[tokio::test]
async fn the_story_the_rule_and_foreign_values() {
    let server = ZooKeeper::start().unwrap();
    let client = with_ledger(&server).await;
    let fence = ZooKeeperFence::new("/ledger/fence");
    let write = async |token: u64, holder: &fencelock_core::Sequencer| {
        let text = token.to_string();
        let written = fence.write(&client, holder, |multi| {
            multi.add_set_data("/ledger", text.as_bytes(), None)
        });
        written.await
    };
    for token in [33, 33, 34] {
        let written = write(token, &exclusive(token)).await;
        assert_eq!(written.unwrap().len(), 1);
    }
    says_who_won(write(33, &exclusive(33)).await.unwrap_err().stale());
    let forged = write(0, &by(Mode::Exclusive, 34, 1)).await;
    assert!(forged.unwrap_err().stale().is_some());
    assert_eq!(stored(&client, "/ledger").await, "34");
    // An error of the holder's writes undoes the marks, too.
    let holder = exclusive(35);
    let nowhere = fence.write(&client, &holder, |multi| {
        multi.add_set_data("/nowhere", b"", None)
    });
    let nowhere = nowhere.await;
    assert!(
        matches!(nowhere, Err(FenceError::Write { .. })),
        "{nowhere:?}"
    );
    write(34, &exclusive(34)).await.unwrap();

    let mut runner = proptest::test_runner::TestRunner::default();
    for round in 0..20 {
        let path = format!("/ledger/fence-{round}");
        let fence = ZooKeeperFence::new(&path);
        let many = proptest::collection::vec(grants(), 1..30);
        let (mut passed, mut marks) = (Vec::new(), Marks::default());
        for next in many.new_tree(&mut runner).unwrap().current() {
            let expected = model(&passed, &next);
            let found = fence.write(&client, &next, |_| Ok(())).await.map(drop);
            let won = |error: FenceError| error.stale().unwrap().won.get();
            assert_eq!(found.map_err(won), expected, "{next} after {passed:?}");
            if expected.is_ok() {
                marks = marks.judge(&next).unwrap();
                passed.push(next);
            }
            assert_eq!(stored(&client, &path).await, marks.to_string());
        }
    }

    let other = b"something else";
    client.set_data("/ledger/fence", other, None).await.unwrap();
    let damaged = write(36, &exclusive(36)).await;
    assert!(
        matches!(damaged, Err(FenceError::Damaged { .. })),
        "{damaged:?}"
    );
}

/// Other holders pass between the read and the multi: the holder is judged again, and overtakes none of them.
#[tokio::test]
async fn many_write_at_once_and_none_after_a_later_one() {
    let server = ZooKeeper::start().unwrap();
    let client = with_ledger(&server).await;
    let fence = ZooKeeperFence::new("/ledger/fence");
    let writing: Vec<_> = (1..=24u64)
        .map(|token| {
            let (client, fence) = (client.clone(), fence.clone());
            tokio::spawn(async move {
                let (text, holder) = (token.to_string(), exclusive(token));
                let written = fence.write(&client, &holder, |multi| {
                    multi.add_set_data("/ledger", text.as_bytes(), None)
                });
                written.await
            })
        })
        .collect();
    let mut accepted = 0;
    for (token, writing) in (1..).zip(writing) {
        match writing.await.unwrap() {
            Ok(_) => accepted = token,
            Err(refusal) => assert!(refusal.stale().is_some(), "{refusal}"),
        }
    }
    assert_eq!(accepted, 24, "no holder came after it");
    assert_eq!(stored(&client, "/ledger").await, "24");
}
