//! Gates: one mutex or read-write lock for each key.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

/// A gate for each key. It exists while it is in use.
#[derive(Debug)]
pub(crate) struct Gates<K, G> {
    gates: HashMap<K, Weak<G>>,
    /// Unused gates are removed when the number of gates reaches this limit.
    sweep_at: usize,
}

impl<K, G> Default for Gates<K, G> {
    fn default() -> Self {
        let (gates, sweep_at) = (HashMap::new(), 0);
        Self { gates, sweep_at }
    }
}

impl<K: Clone + Eq + Hash, G: Default> Gates<K, G> {
    pub(crate) fn of(&mut self, key: &K) -> Arc<G> {
        if let Some(gate) = self.gates.get(key).and_then(Weak::upgrade) {
            return gate;
        }
        if self.gates.len() >= self.sweep_at {
            self.gates.retain(|_, gate| gate.strong_count() > 0);
            self.sweep_at = 2 * self.gates.len() + 64;
        }
        let gate = Arc::default();
        self.gates.insert(key.clone(), Arc::downgrade(&gate));
        gate
    }
}
