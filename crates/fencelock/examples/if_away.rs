//! A job that runs without its lock while the store is away: it says so, and does only the part that may run twice.
//!
//! The program makes this choice, never the store. A job that may not run twice has to fail instead.

use std::sync::Arc;

use fencelock::layers::{Breaker, Fault, Trouble};
use fencelock::{Client, Error, Memory};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Error> {
    // In a program: fencelock::connect("redis://cache?breaker=yes").await?
    let (store, bad_day) = Fault::new(Arc::new(Memory::new()));
    let client = Client::new(Arc::new(Breaker::new(Arc::new(store))))?;

    assert_eq!(warm_cache(&client).await?, "warmed by one of us");
    bad_day.by_chance(|_| Trouble::LoseRequest);
    for _ in 0..10 {
        assert_eq!(warm_cache(&client).await?, "warmed, perhaps by others, too");
    }
    Ok(())
}

async fn warm_cache(client: &Client) -> Result<&'static str, Error> {
    match client.try_lock("warm-cache").await {
        Ok(held) => {
            let warmed = "warmed by one of us";
            held.release().await?;
            Ok(warmed)
        }
        // With a breaker this comes at once, and not after a time-out for each call.
        Err(error) if error.is_away() => {
            eprintln!("without a lock: {error}");
            Ok("warmed, perhaps by others, too")
        }
        // Held by another, who warms it.
        Err(Error::Held { .. }) => Ok("warmed by another"),
        Err(error) => Err(error),
    }
}
