//! A fence in Redis or Valkey: a script that checks the marks and runs the holder's commands in one step.
//!
//! The marks are a key of their own, which does not expire. They must live as long as the data: in the same database, with
//! the same persistence, and with `maxmemory-policy noeviction`. Otherwise the server may forget the marks.

use fencelock_core::{Sequencer, Token};
use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, Script, Value};

use crate::error::{FenceError, Result, Stale};

/// A fence at one key.
///
/// ```no_run
/// # use fencelock_fence::redis::RedisFence;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// let server = redis::Client::open("redis://localhost")?;
/// let mut connection = server.get_multiplexed_async_connection().await?;
/// let fence = RedisFence::new("{ledger}:fence");
/// let mut set = redis::cmd("SET");
/// set.arg("{ledger}:entry").arg("by 34");
/// fence.write(&mut connection, &holder, &["{ledger}:entry"], &[set]).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RedisFence {
    key: String,
    script: Script,
}

impl RedisFence {
    /// A fence whose marks are at `key`. In a Cluster it must be in the same slot as the data: `{ledger}:fence`.
    ///
    /// ```
    /// # use fencelock_fence::redis::RedisFence;
    /// let fence = RedisFence::new("{ledger}:fence");
    /// ```
    #[must_use]
    pub fn new(key: &str) -> Self {
        let (key, script) = (key.to_owned(), Script::new(include_str!("redis/write.lua")));
        Self { key, script }
    }

    /// Raises the marks if the holder passes. Writes nothing else.
    ///
    /// # Errors
    /// As [`RedisFence::write`].
    ///
    /// # Cancel safety
    /// If dropped, the marks may still be raised.
    ///
    /// ```no_run
    /// # use fencelock_fence::redis::RedisFence;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// # let server = redis::Client::open("redis://localhost")?;
    /// # let mut connection = server.get_multiplexed_async_connection().await?;
    /// let fence = RedisFence::new("{ledger}:fence");
    /// fence.mark(&mut connection, &holder).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn mark(
        &self,
        connection: &mut impl ConnectionLike,
        sequencer: &Sequencer,
    ) -> Result<()> {
        self.write(connection, sequencer, &[], &[]).await.map(drop)
    }

    /// Runs `commands` in one step if the holder passes. `keys` are the keys that the commands touch. Returns their replies.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if the holder was superseded: nothing was written. [`FenceError::Write`] for errors of the
    /// server: commands before the one that failed have taken effect, as in any script. If the reply was lost, all of them
    /// may have taken effect. [`FenceError::Damaged`] if the key has another value than marks.
    ///
    /// # Cancel safety
    /// If dropped, the commands may have run.
    ///
    /// ```no_run
    /// # use fencelock_fence::redis::RedisFence;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// # let server = redis::Client::open("redis://localhost")?;
    /// # let mut connection = server.get_multiplexed_async_connection().await?;
    /// let fence = RedisFence::new("{ledger}:fence");
    /// let mut count = redis::cmd("INCR");
    /// count.arg("{ledger}:writes");
    /// let replies = fence.write(&mut connection, &holder, &["{ledger}:writes"], &[count]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn write(
        &self,
        connection: &mut impl ConnectionLike,
        sequencer: &Sequencer,
        keys: &[&str],
        commands: &[Cmd],
    ) -> Result<Vec<Value>> {
        let mut call = self.script.key(&self.key);
        for key in keys {
            call.key(key);
        }
        call.arg(sequencer.mode.letter().to_string())
            .arg(sequencer.token.get())
            .arg(sequencer.claim.to_string());
        for command in commands {
            call.arg(command.args_iter().len());
            for word in command.args_iter() {
                match word {
                    Arg::Simple(word) => call.arg(word),
                    // The first cursor of a scan.
                    _ => call.arg(0),
                };
            }
        }
        let failed = |error| FenceError::write(&self.key, "write", Box::new(error) as Box<_>);
        let answer: Vec<Value> = call.invoke_async(connection).await.map_err(failed)?;
        let mut answers = answer.into_iter();
        match (answers.next(), answers.next()) {
            (Some(Value::Int(0)), Some(won)) => {
                let won = redis::from_redis_value::<u64>(won);
                let won = Token(won.map_err(|error| failed(error.into()))?);
                let late = sequencer.clone();
                Err(Box::new(Stale { late, won }).into())
            }
            (Some(Value::Int(1)), first) => Ok(first.into_iter().chain(answers).collect()),
            (_, stored) => {
                let why = format!(
                    "{stored:?} is not a mark of this version; use another key, or a newer fencelock"
                );
                Err(FenceError::damaged(&self.key, why))
            }
        }
    }
}
