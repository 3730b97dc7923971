//! A fence on a Redis server.

use fencelock_fence::redis::RedisFence;
use fencelock_fence::{FenceError, Marks};
use fencelock_testbed::Redis;
use redis::{Value, cmd};

use crate::{exclusive, grants, model, says_who_won};

async fn connect(server: &Redis) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

#[tokio::test]
async fn the_story_of_33_and_34() {
    let server = Redis::start().unwrap();
    let (mut connection, fence) = (connect(&server).await, RedisFence::new("ledger:fence"));
    let write = |value: u64| {
        let mut set = cmd("SET");
        set.arg("ledger").arg(value);
        let mut add = cmd("INCR");
        add.arg("ledger:writes");
        [set, add]
    };
    let keys = ["ledger", "ledger:writes"];
    for token in [33, 33, 34] {
        let (holder, commands) = (exclusive(token), write(token));
        let answers = fence.write(&mut connection, &holder, &keys, &commands);
        let answers = answers.await.unwrap();
        assert!(
            matches!(
                answers[..],
                [Value::Okay | Value::SimpleString(_), Value::Int(_)]
            ),
            "{answers:?}"
        );
    }
    let late = fence
        .write(&mut connection, &exclusive(33), &keys, &write(33))
        .await;
    says_who_won(late.unwrap_err().stale());
    let (value, writes): (u64, u64) = (
        server.command(&["GET", "ledger"]).unwrap(),
        server.command(&["GET", "ledger:writes"]).unwrap(),
    );
    assert_eq!((value, writes), (34, 3));
    // The fence loads a flushed script again. It reports an error of a command.
    let _: String = server.command(&["SCRIPT", "FLUSH"]).unwrap();
    fence.mark(&mut connection, &exclusive(35)).await.unwrap();
    let wrong = fence
        .write(&mut connection, &exclusive(35), &[], &[cmd("NO-SUCH")])
        .await;
    assert!(matches!(wrong, Err(FenceError::Write { .. })), "{wrong:?}");
    let _: String = server
        .command(&["SET", "ledger:fence", "something else"])
        .unwrap();
    let damaged = fence.mark(&mut connection, &exclusive(36)).await;
    assert!(
        matches!(damaged, Err(FenceError::Damaged { .. })),
        "{damaged:?}"
    );
}

#[tokio::test]
async fn the_script_follows_the_rule() {
    use proptest::strategy::{Strategy, ValueTree};
    let server = Redis::start().unwrap();
    let mut connection = connect(&server).await;
    let mut runner = proptest::test_runner::TestRunner::default();
    for round in 0..60 {
        let key = format!("fence:{round}");
        let fence = RedisFence::new(&key);
        let many = proptest::collection::vec(grants(), 1..40);
        let grants = many.new_tree(&mut runner).unwrap().current();
        let mut passed = Vec::new();
        let mut marks = Marks::default();
        for next in &grants {
            let expected = model(&passed, next);
            let found = fence.mark(&mut connection, next).await;
            let found = found.map_err(|error| error.stale().unwrap().won.get());
            assert_eq!(found, expected, "{next} after {passed:?}");
            if expected.is_ok() {
                marks = marks.judge(next).unwrap();
                passed.push(next.clone());
                let stored: String = server.command(&["GET", &key]).unwrap();
                assert_eq!(stored, marks.to_string());
            }
        }
    }
}
