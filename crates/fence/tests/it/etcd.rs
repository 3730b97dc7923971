//! A fence on an etcd server.

use etcd_client::{Client, KvClient, TxnOp};
use fencelock_fence::etcd::EtcdFence;
use fencelock_fence::{FenceError, Marks};
use fencelock_testbed::Etcd;
use proptest::strategy::{Strategy, ValueTree};

use crate::{by, exclusive, grants, model, says_who_won};
use fencelock_core::Mode;

async fn connect(server: &Etcd) -> KvClient {
    let address = format!("127.0.0.1:{}", server.port(0));
    let client = Client::connect([address], None).await.unwrap();
    client.kv_client()
}

async fn stored(client: &mut KvClient, key: &str) -> String {
    let found = client.get(key, None).await.unwrap();
    let value = found.kvs().first().map(|kv| kv.value_str().unwrap());
    value.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_story_the_rule_and_foreign_values() {
    let server = Etcd::start().unwrap();
    let mut client = connect(&server).await;
    let fence = EtcdFence::new("ledger/fence");
    let put = |token: u64| vec![TxnOp::put("ledger", token.to_string(), None)];
    for token in [33, 33, 34] {
        let holder = exclusive(token);
        let written = fence.write(&mut client, &holder, put(token)).await;
        assert_eq!(written.unwrap().len(), 1);
    }
    let late = fence.write(&mut client, &exclusive(33), put(33)).await;
    says_who_won(late.unwrap_err().stale());
    let forged = by(Mode::Exclusive, 34, 1);
    let forged = fence.write(&mut client, &forged, put(0)).await;
    assert!(forged.unwrap_err().stale().is_some());
    assert_eq!(stored(&mut client, "ledger").await, "34");

    let mut runner = proptest::test_runner::TestRunner::default();
    for round in 0..20 {
        let key = format!("fence/{round}");
        let fence = EtcdFence::new(&key);
        let many = proptest::collection::vec(grants(), 1..30);
        let (mut passed, mut marks) = (Vec::new(), Marks::default());
        for next in many.new_tree(&mut runner).unwrap().current() {
            let expected = model(&passed, &next);
            let found = fence.write(&mut client, &next, Vec::new()).await;
            let found = found.map(drop);
            let won = |error: FenceError| error.stale().unwrap().won.get();
            assert_eq!(found.map_err(won), expected, "{next} after {passed:?}");
            if expected.is_ok() {
                marks = marks.judge(&next).unwrap();
                passed.push(next);
            }
            assert_eq!(stored(&mut client, &key).await, marks.to_string());
        }
    }

    client
        .put("ledger/fence", "something else", None)
        .await
        .unwrap();
    let damaged = fence.write(&mut client, &exclusive(35), put(35)).await;
    assert!(
        matches!(damaged, Err(FenceError::Damaged { .. })),
        "{damaged:?}"
    );
    server.kill9_all();
    let lost = fence.write(&mut client, &exclusive(35), put(35)).await;
    assert!(matches!(lost, Err(FenceError::Write { .. })), "{lost:?}");
}

/// Other holders pass between the read and the transaction: the holder is judged again, and overtakes none of them.
#[tokio::test]
async fn many_write_at_once_and_none_after_a_later_one() {
    let server = Etcd::start().unwrap();
    let client = connect(&server).await;
    let fence = EtcdFence::new("fence");
    let writing: Vec<_> = (1..=24u64)
        .map(|token| {
            let (mut client, fence) = (client.clone(), fence.clone());
            tokio::spawn(async move {
                let put = TxnOp::put("ledger", token.to_string(), None);
                fence.write(&mut client, &exclusive(token), vec![put]).await
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
    assert_eq!(stored(&mut client.clone(), "ledger").await, "24");
}
