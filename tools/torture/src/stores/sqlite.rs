//! A SQLite file. It has no server, so only its clients have faults.

use fencelock_testbed::{Dir, Result};

use super::store::{TestStore, unknown};
use crate::fault::FaultKind;
use crate::history::Rule;

struct File(Dir);

pub(super) fn start() -> Result<Box<dyn TestStore>> {
    Ok(Box::new(File(Dir::new("torture")?)))
}

impl TestStore for File {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn ports(&self) -> Vec<u16> {
        Vec::new()
    }

    fn url(&self, _ports: &[u16]) -> String {
        format!("sqlite:{}", self.0.join("locks.db"))
    }

    fn faults(&self) -> Vec<FaultKind> {
        Vec::new()
    }

    fn begin(&mut self, kind: FaultKind, _node: usize) -> Result<()> {
        Err(unknown(self, kind))
    }

    fn heal(&mut self, kind: FaultKind, _node: usize) -> Result<()> {
        Err(unknown(self, kind))
    }

    fn excuses(&self, _harm: FaultKind) -> (Vec<Rule>, &'static str) {
        (Vec::new(), "")
    }

    fn window(&self) -> u64 {
        6000
    }

    fn left(&mut self) -> Result<Vec<String>> {
        // `list`, which is called for every store, shows all rows.
        Ok(Vec::new())
    }
}
