//! Whether a store is in use already.

use fencelock_core::{Engine, Error, Result};

/// Refuses a store that is in use: a client that locks there does not look for locks on other stores.
pub(crate) async fn check_unused(engine: &dyn Engine) -> Result<()> {
    let mut at = None;
    loop {
        let page = match engine.inspect().list("", at, 100).await {
            // This user may not list locks.
            Err(Error::Refused { .. } | Error::Unsupported { .. }) => return Ok(()),
            page => page?,
        };
        if let Some(view) = page.items.first() {
            let why = format!(
                "lock {} is held there by a program that does not use the set; end such programs first",
                view.name
            );
            return Err(Error::config(engine, why));
        }
        at = page.next;
        if at.is_none() {
            return Ok(());
        }
    }
}
