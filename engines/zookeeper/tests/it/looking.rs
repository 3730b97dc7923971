//! Opened to look only: nothing is made, and nothing that a user may not do is asked for.

use fencelock_core::{Engine, LockName, StoreUrl};
use fencelock_testbed::ZooKeeper;

async fn open_to_look(url: &str) -> fencelock_zookeeper::ZooKeeper {
    let mut url = StoreUrl::parse(url).unwrap();
    url.inspect_only = true;
    fencelock_zookeeper::ZooKeeper::open(url).await.unwrap()
}

#[tokio::test]
async fn whoever_looks_makes_nothing() {
    let server = ZooKeeper::start().unwrap();
    let before = server.children("/").unwrap();
    let store = open_to_look(&format!("{}/not/there", server.url())).await;
    let name = LockName::new("a").unwrap();
    assert!(
        store
            .inspect()
            .look(&name)
            .await
            .unwrap()
            .holders
            .is_empty()
    );
    assert!(
        store
            .inspect()
            .list("", None, 10)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let findings = store.inspect().diagnose().await.unwrap();
    // It stands alone, and follows nobody: a follower's bug is none of its own.
    let whats: Vec<&str> = findings.iter().map(|finding| &*finding.what).collect();
    assert!(whats.iter().any(|what| what.contains("alone")), "{whats:?}");
    assert!(!whats.iter().any(|what| what.contains("4785")), "{whats:?}");
    store.close().await.unwrap();
    assert_eq!(server.children("/").unwrap(), before);
}
