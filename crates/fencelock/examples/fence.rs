//! A resource that refuses late writers by their token, and one that asks the store.

use fencelock::{Release, Sequencer, Token};

/// What the lock protects. It remembers the highest token it has seen.
#[derive(Debug, Default)]
struct Ledger {
    seen: u64,
    entries: Vec<String>,
}

impl Ledger {
    /// For writers that hold the lock alone.
    fn write(&mut self, token: Token, entry: &str) -> Result<(), String> {
        if token.get() < self.seen {
            return Err(format!("token {token} is older than {}", self.seen));
        }
        self.seen = token.get();
        self.entries.push(entry.to_owned());
        Ok(())
    }
}

#[tokio::main]
pub(crate) async fn main() -> fencelock::Result<()> {
    let client = fencelock::connect("memory:").await?;
    let mut ledger = Ledger::default();

    let first = client.lock("ledger").await?;
    let late = first.token();
    // Printable, for a resource on another machine.
    let shown = first.sequencer().await?.to_string();
    let read: Sequencer = shown.parse()?;
    assert!(client.check(&read).await?);
    assert_eq!(first.release().await?, Release::Released);
    assert!(!client.check(&read).await?);

    let second = client.lock("ledger").await?;
    assert_eq!(ledger.write(second.token(), "by the second"), Ok(()));
    assert!(ledger.write(late, "by the first, too late").is_err());
    assert_eq!(ledger.entries.len(), 1);
    second.release().await?;
    client.close().await
}
