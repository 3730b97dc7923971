//! The reference engine. Its store lives in this process only.

use std::sync::Arc;

use async_trait::async_trait;
use fencelock::Memory;
use fencelock::engine::Engine;
use fencelock_testbed::Result;

use crate::subject::{Store, Subject};

pub(crate) struct InMemory;

#[async_trait]
impl Subject for InMemory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn spans_processes(&self) -> bool {
        false
    }

    async fn open(&self, _server: bool) -> Result<Box<dyn Store>> {
        Ok(Box::new(Memory::new()))
    }
}

#[async_trait]
impl Store for Memory {
    async fn engine(&self) -> fencelock::Result<Arc<dyn Engine>> {
        Ok(Arc::new(self.another()))
    }

    fn url(&self) -> String {
        "memory:".to_owned()
    }

    async fn leftovers(&self) -> Result<u64> {
        Ok(self.len() as u64)
    }
}
