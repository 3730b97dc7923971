//! A SQLite file: no server, so its clients suffer.

use fencelock_testbed::{Dir, Result};

use crate::beds::{Bed, unknown};
use crate::harm::Harm;
use crate::history::Rule;

struct File(Dir);

pub(super) fn start() -> Result<Box<dyn Bed>> {
    Ok(Box::new(File(Dir::new("torture")?)))
}

impl Bed for File {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn ports(&self) -> Vec<u16> {
        Vec::new()
    }

    fn url(&self, _ports: &[u16]) -> String {
        format!("sqlite:{}", self.0.join("locks.db"))
    }

    fn harms(&self) -> Vec<Harm> {
        Vec::new()
    }

    fn begin(&mut self, harm: Harm, _node: usize) -> Result<()> {
        Err(unknown(self, harm))
    }

    fn heal(&mut self, harm: Harm, _node: usize) -> Result<()> {
        Err(unknown(self, harm))
    }

    fn excuses(&self, _harm: Harm) -> (Vec<Rule>, &'static str) {
        (Vec::new(), "")
    }

    fn window(&self) -> u64 {
        6000
    }

    fn left(&mut self) -> Result<Vec<String>> {
        // The listing of locks and lines, which is asked of every store, sees all rows.
        Ok(Vec::new())
    }
}
