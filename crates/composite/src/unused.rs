//! Checks whether a store is already in use.

use fencelock_core::{ConfigPart, Engine, Error, Result};

/// Refuses a store in which locks are held: its clients do not look for locks in other stores.
pub(crate) async fn check_unused(engine: &dyn Engine) -> Result<()> {
    let mut at = None;
    loop {
        let page = match engine.inspect().list("", at, 100).await {
            // The user has no right to list locks, or the store cannot list them.
            Err(Error::Refused { .. } | Error::Unsupported { .. }) => return Ok(()),
            page => page?,
        };
        if let Some(view) = page.items.first() {
            let why = format!(
                "lock {} is held there by a program that does not use the set; end such programs first",
                view.name
            );
            return Err(Error::config(engine, ConfigPart::Record, why));
        }
        at = page.next;
        if at.is_none() {
            return Ok(());
        }
    }
}
