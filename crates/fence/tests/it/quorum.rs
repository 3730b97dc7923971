//! Replicas that are slow, answer in any order, lose answers, or are down for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{Mode, Sequencer};
use fencelock_fence::{FenceError, Marks, Quorum, Replica, Result};
use proptest::prelude::*;
use tokio::time::sleep;

use crate::{exclusive, says_who_won};

/// What happens to one request to one replica.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Fine,
    /// It arrives after this delay.
    Late(u64),
    /// It takes effect, and its answer comes after this delay.
    LateReply(u64),
    Lost,
    /// It takes effect, and the caller gets an error.
    ReplyLost,
}

#[derive(Debug, Default)]
struct Disk {
    marks: Marks,
    /// The writes, in order.
    written: Vec<(u64, u32)>,
}

/// Its disk survives crashes. While it is down it does not answer.
#[derive(Clone, Debug)]
struct Place {
    disk: Arc<Mutex<Disk>>,
    fates: Arc<Mutex<Vec<Fate>>>,
}

impl Place {
    fn new(fates: Vec<Fate>) -> Self {
        Self {
            disk: Arc::default(),
            fates: Arc::new(Mutex::new(fates)),
        }
    }

    fn lost<T>() -> Result<T> {
        Err(FenceError::write("a replica", "answer", "no answer"))
    }

    async fn ask(&self, sequencer: &Sequencer, value: Option<u32>) -> Result<()> {
        let fate = self.fates.lock().unwrap().pop().unwrap_or(Fate::Fine);
        match fate {
            Fate::Late(by) => sleep(Duration::from_millis(by)).await,
            Fate::Lost => return Self::lost(),
            _ => {}
        }
        let done = {
            let mut disk = self.disk.lock().unwrap();
            let judged = disk.marks.judge(sequencer);
            judged.map(|after| {
                disk.marks = after;
                disk.written
                    .extend(value.map(|value| (sequencer.token.get(), value)));
            })
        };
        match fate {
            Fate::LateReply(by) => sleep(Duration::from_millis(by)).await,
            Fate::ReplyLost => return Self::lost(),
            _ => {}
        }
        Ok(done?)
    }
}

#[async_trait]
impl Replica<u32> for Place {
    async fn mark(&self, sequencer: &Sequencer) -> Result<()> {
        self.ask(sequencer, None).await
    }

    async fn write(&self, sequencer: &Sequencer, value: &u32) -> Result<()> {
        self.ask(sequencer, Some(*value)).await
    }
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        4 => Just(Fate::Fine),
        3 => (1..60u64).prop_map(Fate::Late),
        2 => (1..60u64).prop_map(Fate::LateReply),
        2 => Just(Fate::Lost),
        1 => Just(Fate::ReplyLost),
    ];
    proptest::collection::vec(fate, 0..40)
}

/// The holders, by token, with the delay before each of their writes.
fn holders() -> impl Strategy<Value = BTreeMap<u64, Vec<u64>>> {
    let pauses = proptest::collection::vec(0..80u64, 1..4);
    proptest::collection::btree_map(1..9u64, pauses, 1..6)
}

/// An accepted write: its token and value, and the times of its start and its answer.
#[derive(Clone, Copy, Debug)]
struct Accepted {
    written: (u64, u32),
    begun: tokio::time::Instant,
    ended: tokio::time::Instant,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_lower_token_is_never_accepted_after_a_higher_one(
        fates in proptest::collection::vec(fates(), 3..=5), holders in holders()
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let places: Vec<Place> = fates.into_iter().map(Place::new).collect();
        let accepted: Arc<Mutex<Vec<Accepted>>> = Arc::default();
        runtime.block_on(async {
            let quorum = Arc::new(Quorum::new(places.clone()));
            let mut tasks = Vec::new();
            for (token, pauses) in holders {
                let (quorum, accepted) = (Arc::clone(&quorum), Arc::clone(&accepted));
                tasks.push(tokio::spawn(async move {
                    for (at, pause) in pauses.into_iter().enumerate() {
                        sleep(Duration::from_millis(pause)).await;
                        let begun = tokio::time::Instant::now();
                        if quorum.write(&exclusive(token), at as u32).await.is_ok() {
                            // Only earlier writes that have ended come before it.
                            let ended = tokio::time::Instant::now();
                            let written = (token, at as u32);
                            accepted.lock().unwrap().push(Accepted { written, begun, ended });
                        }
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            // Requests in flight arrive.
            sleep(Duration::from_secs(10)).await;
        });
        let accepted = accepted.lock().unwrap();
        for early in accepted.iter() {
            for late in accepted.iter().filter(|late| late.begun > early.ended) {
                prop_assert!(late.written > early.written, "{early:?} and then {late:?}");
            }
        }
        for place in &places {
            // By token, and the writes of one holder in their order.
            let disk = place.disk.lock().unwrap();
            prop_assert!(disk.written.is_sorted(), "{:?}", disk.written);
        }
        // A reader asks a majority and takes the value with the highest token. It gets the last accepted write, or a
        // later one.
        let majority = places.len() / 2 + 1;
        if let Some(last) = accepted.iter().map(|a| a.written).max() {
            let have = places.iter().filter(|place| {
                let disk = place.disk.lock().unwrap();
                disk.written.last().is_some_and(|written| *written >= last)
            });
            prop_assert!(have.count() >= majority);
        }
    }
}

#[tokio::test]
async fn the_story_of_33_and_34_on_three_replicas() {
    let places: Vec<Place> = (0..3).map(|_| Place::new(Vec::new())).collect();
    let quorum = Quorum::new(places.clone());
    assert_eq!(quorum.majority(), 2);
    quorum.write(&exclusive(33), 1).await.unwrap();
    // The successor marks, so that the value that it reads does not change.
    quorum.mark(&exclusive(34)).await.unwrap();
    says_who_won(quorum.write(&exclusive(33), 2).await.unwrap_err().stale());
    quorum.write(&exclusive(34), 3).await.unwrap();
    says_who_won(quorum.mark(&exclusive(33)).await.unwrap_err().stale());
    for place in &places {
        let written: Vec<u64> = place
            .disk
            .lock()
            .unwrap()
            .written
            .iter()
            .map(|w| w.0)
            .collect();
        assert!(
            written.is_sorted() && written.ends_with(&[34]),
            "{written:?}"
        );
    }
}

#[tokio::test]
async fn one_replica_may_be_down_and_two_may_not() {
    let down = |count: usize| {
        let away =
            (0..3).map(move |at| Place::new(vec![Fate::Lost; if at < count { 9 } else { 0 }]));
        Quorum::new(away)
    };
    down(1).write(&exclusive(1), 1).await.unwrap();
    let error = down(2).write(&exclusive(1), 1).await.unwrap_err();
    let FenceError::TooFew {
        done, needed, of, ..
    } = error
    else {
        panic!("{error:?}");
    };
    // It ends as soon as the result is certain.
    assert!(done <= 1);
    assert_eq!((needed, of), (2, 3));
    let none: Quorum<Place> = Quorum::new([]);
    assert!(none.write(&exclusive(1), 1).await.is_err());
    assert_eq!(exclusive(1).mode, Mode::Exclusive);
}

/// A slow replica must not do a write after the next write of the same holder.
#[tokio::test(start_paused = true)]
async fn a_slow_replica_does_the_writes_of_a_holder_in_order() {
    // The fates of its requests, the last request first: mark and write of the second write, then of the first.
    let slow = vec![Fate::Fine, Fate::Fine, Fate::Late(50), Fate::Fine];
    let fates = [Vec::new(), Vec::new(), slow];
    let places = fates.map(Place::new);
    let quorum = Quorum::new(places.clone());
    for value in [1, 2] {
        quorum.write(&exclusive(33), value).await.unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    for place in &places {
        let disk = place.disk.lock().unwrap();
        assert_eq!(disk.written, [(33, 1), (33, 2)]);
    }
}
