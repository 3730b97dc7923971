//! The core against a plain model, under random schedules of lost and late messages and dropped futures: no two clients believe
//! that they hold a lock in conflict, tokens rise, and in the end nothing is left.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock_core::layers::Trouble;
use proptest::prelude::*;

use crate::{World, ms};

#[derive(Clone, Debug)]
struct Step {
    client: usize,
    name: usize,
    shared: bool,
    pause: u64,
    patience: u64,
    work: u64,
    ending: Ending,
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Release,
    Drop,
    DropRequest,
    KeepPastLease,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ending = prop_oneof![
        4 => Just(Ending::Release),
        2 => Just(Ending::Drop),
        2 => Just(Ending::DropRequest),
        1 => Just(Ending::KeepPastLease),
    ];
    let step = (
        0..3usize,
        0..2usize,
        any::<bool>(),
        0..300u64,
        1..1500u64,
        0..400u64,
        ending,
    );
    let step = step.prop_map(
        |(client, name, shared, pause, patience, work, ending)| Step {
            client,
            name,
            shared,
            pause,
            patience,
            work,
            ending,
        },
    );
    prop::collection::vec(step, 1..40)
}

/// For one name: the clients that believe that they hold it, and the highest tokens. Shared grants overlap, so their order
/// among themselves is not checked.
#[derive(Default)]
struct Model {
    believers: Vec<(u64, bool)>,
    highest_exclusive: u64,
    highest: u64,
}

fn check(models: &Mutex<[Model; 2]>, name: usize, id: u64, shared: bool, token: u64) {
    let mut models = models.lock().unwrap();
    let model = &mut models[name];
    let alone = model.believers.iter().all(|(_, other)| shared && *other);
    assert!(alone, "{id} holds {name} beside {:?}", model.believers);
    let mark = match shared {
        true => model.highest_exclusive,
        false => model.highest,
    };
    assert!(token > mark, "token {token} after {mark}");
    model.highest = model.highest.max(token);
    if !shared {
        model.highest_exclusive = token;
    }
    model.believers.push((id, shared));
}

async fn run(steps: Vec<Step>, seed: u64) {
    let world = World::new();
    let mut random = fastrand::Rng::with_seed(seed);
    let clients: Vec<_> = (0..3).map(|_| world.faulty()).collect();
    for (_, faults) in &clients {
        let mut random = random.fork();
        faults.by_chance(move |_| match random.u32(0..20) {
            0 => Trouble::LoseRequest,
            1 => Trouble::LoseReply,
            2 => Trouble::DelayRequest(Duration::from_millis(random.u64(0..700))),
            3 => Trouble::DelayReply(Duration::from_millis(random.u64(0..700))),
            _ => Trouble::None,
        });
    }
    let models = Arc::new(Mutex::new(<[Model; 2]>::default()));
    let mut tasks = Vec::new();
    for (id, step) in steps.into_iter().enumerate() {
        tokio::time::sleep(ms(step.pause)).await;
        let client = clients[step.client].0.clone();
        let models = Arc::clone(&models);
        tasks.push(tokio::spawn(async move {
            let id = id as u64;
            let name = ["a", "b"][step.name];
            let renews = !matches!(step.ending, Ending::KeepPastLease);
            let mut request = client
                .lock(name)
                .timeout(ms(step.patience))
                .ttl(ms(500))
                .renew(renews);
            if step.shared {
                request = request.shared();
            }
            if matches!(step.ending, Ending::DropRequest) {
                let _ = tokio::time::timeout(ms(step.patience / 2), request).await;
                return;
            }
            let Ok(guard) = request.await else { return };
            check(&models, step.name, id, step.shared, guard.token().get());
            let work = match step.ending {
                Ending::KeepPastLease => ms(2000),
                _ => ms(step.work),
            };
            tokio::select! {
                biased;
                _ = guard.lost() => {}
                () = tokio::time::sleep(work) => {}
            }
            // The client stops believing before it sends a request.
            models.lock().unwrap()[step.name]
                .believers
                .retain(|(other, _)| *other != id);
            match step.ending {
                Ending::Release => drop(guard.release().await),
                _ => drop(guard),
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for (client, faults) in &clients {
        faults.calm();
        client.close().await.unwrap();
    }
    tokio::time::sleep(ms(10_000)).await;
    assert_eq!(world.left(), 0, "something was left");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000,
        failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_schedule_breaks_a_promise(steps in steps(), seed in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(steps, seed));
    }
}
