//! The append-only file of a server is put back: what it acknowledged since is undone.

use fencelock_core::engine::Leave;
use fencelock_core::{Engine, Token};
use fencelock_testbed::Redis as Server;

use crate::support::{Store, open};

#[tokio::test]
async fn tokens_go_on_above_after_a_file_was_put_back() {
    let mut server = Server::builder().append_only("always").start().unwrap();
    let before: Store = open(&server.url()).await;
    let mut fence = Token(0);
    let mut pass = async |store: &Store| {
        for claim in [store.plain("a"), store.claim("a")] {
            let token = store.lock(&claim).await.tokens.first;
            assert!(token > fence, "{token:?} after {fence:?}");
            fence = token;
            store.engine.withdraw(&claim, Leave::Release).await.unwrap();
        }
    };
    pass(&before).await;
    server.save().unwrap();
    for _ in 0..20 {
        pass(&before).await;
    }
    server.restart_as_saved().unwrap();
    let after = open(&server.url()).await;
    for store in [&after, &before, &after] {
        pass(store).await;
    }
}
