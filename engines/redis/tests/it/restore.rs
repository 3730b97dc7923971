//! An old file of a server is restored: the server has lost what it acknowledged since then.

use fencelock_core::engine::Leave;
use fencelock_core::{Engine, Token};
use fencelock_testbed::Redis as Server;

use crate::support::{Store, open};

async fn drill(mut server: Server, save: impl Fn(&Server), restore: impl Fn(&mut Server)) {
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
    let write = |server: &Server, what| server.command::<()>(&["SET", "written", what]).unwrap();
    write(&server, "before");
    save(&server);
    write(&server, "since");
    for _ in 0..20 {
        pass(&before).await;
    }
    restore(&mut server);
    let written: String = server.command(&["GET", "written"]).unwrap();
    assert_eq!(written, "before");
    let after = open(&server.url()).await;
    for store in [&after, &before, &after] {
        pass(store).await;
    }
}

#[tokio::test]
async fn tokens_still_grow_after_an_append_only_file_was_restored() {
    let server = Server::builder().append_only("always").start().unwrap();
    drill(
        server,
        |server| server.save().unwrap(),
        |server| server.restart_as_saved().unwrap(),
    )
    .await;
}

#[tokio::test]
async fn tokens_still_grow_after_a_snapshot_was_restored() {
    drill(
        Server::start().unwrap(),
        |server| server.command(&["SAVE"]).unwrap(),
        // The server is killed, so it has only that file.
        |server| server.restart().unwrap(),
    )
    .await;
}
