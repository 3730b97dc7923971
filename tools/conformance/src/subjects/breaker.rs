//! The reference engine behind a breaker, which changes nothing while the store answers.

use std::sync::Arc;

use async_trait::async_trait;
use fencelock::Memory;
use fencelock::engine::Engine;
use fencelock::layers::Breaker;
use fencelock_testbed::Result;

use crate::subject::{Store, Subject};

pub(crate) struct BehindBreaker;

#[async_trait]
impl Subject for BehindBreaker {
    fn name(&self) -> &'static str {
        "breaker"
    }

    fn spans_processes(&self) -> bool {
        false
    }

    async fn open(&self, _server: bool) -> Result<Box<dyn Store>> {
        Ok(Box::new(Broken(Memory::new())))
    }
}

struct Broken(Memory);

#[async_trait]
impl Store for Broken {
    async fn engine(&self) -> fencelock::Result<Arc<dyn Engine>> {
        Ok(Arc::new(Breaker::new(Arc::new(self.0.another()))))
    }

    fn url(&self) -> String {
        "memory:?breaker=yes".to_owned()
    }

    async fn leftovers(&self) -> Result<u64> {
        Ok(self.0.len() as u64)
    }
}
