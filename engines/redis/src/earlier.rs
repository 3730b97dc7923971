//! Connections that this client has given up. The server may still work on a request that one of them carried.

use fencelock_core::support::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::connection::Connection;

/// How many earlier connections are remembered one by one.
const REMEMBERED: usize = 64;

#[derive(Debug)]
struct One {
    generation: u64,
    client_id: Option<i64>,
    run_id: Option<String>,
}

/// The earlier connections to one node.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    all: Mutex<VecDeque<One>>,
    /// The newest generation of the connections that were dropped from the list; 0 if there are none.
    forgotten: AtomicU64,
}

impl Earlier {
    pub(crate) fn remember(&self, connection: &Connection) {
        let mut all = self.all.lock();
        all.push_back(One {
            generation: connection.generation,
            client_id: connection.client_id,
            run_id: connection.run_id.clone(),
        });
        if all.len() > REMEMBERED
            && let Some(oldest) = all.pop_front()
        {
            self.forgotten
                .fetch_max(oldest.generation, Ordering::SeqCst);
        }
    }

    /// Whether a connection of generation `first` or later, other than `current`, may still carry a request.
    pub(crate) fn has(&self, first: u64, current: &Connection) -> bool {
        let another = |one: &One| one.generation >= first && one.generation != current.generation;
        first <= self.forgotten.load(Ordering::SeqCst) || self.all.lock().iter().any(another)
    }

    /// Makes sure that no request sent over an earlier connection can still take effect.
    pub(crate) async fn end(&self, current: &Connection) {
        // All stay in the list meanwhile, since a concurrent withdrawal must not think that they have ended.
        let (mut ended, mut asked, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for one in self.all.lock().iter() {
            match (&one.run_id, &current.run_id, one.client_id) {
                // The server process was replaced, and its requests ended with it.
                (Some(before), Some(now), _) if before != now => ended.push(one.generation),
                (Some(_), Some(_), Some(id)) => {
                    asked.push(one.generation);
                    ids.push(id);
                }
                _ => {}
            }
        }
        let answers = current.kill(&ids).await;
        let asked = asked.into_iter().zip(answers);
        ended.extend(asked.filter_map(|(generation, certain)| certain.then_some(generation)));
        self.all
            .lock()
            .retain(|one| !ended.contains(&one.generation));
    }
}
