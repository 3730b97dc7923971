//! The resource that the locks protect: for each name a register that checks tokens and one that does not. Workers reach it
//! on a loopback port, one line per request:
//!
//! | request | answer |
//! | --- | --- |
//! | `r NAME` | the unfenced register's value |
//! | `w ATTEMPT NAME TOKEN CLAIM MODE VALUE` | `1` if the fenced register accepted it, else `0` |
//! | `t` | the boot clock, in nanoseconds, for workers that cannot read it |
//!
//! The `VALUE` of an exclusive holder goes to the unfenced register, which accepts it with any token. It is one more than
//! the value that was read before.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use fencelock::Clock;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The two marks of a fence: the highest token of an exclusive holder, and the highest of any.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    exclusive: u64,
    any: u64,
    /// The claim with the highest token.
    claim: String,
}

impl Marks {
    /// Whether a write may pass. If so, its token is marked. An exclusive write passes above both marks, or if it has
    /// the highest token again for the same claim. A shared write passes above the exclusive mark.
    pub fn admit(&mut self, token: u64, claim: &str, shared: bool) -> bool {
        let again = token == self.any && claim == self.claim;
        let passes = match shared {
            true => token > self.exclusive,
            false => token > self.any || (again && token >= self.exclusive),
        };
        if passes {
            if !shared {
                self.exclusive = token;
            }
            if token > self.any {
                self.any = token;
                claim.clone_into(&mut self.claim);
            }
        }
        passes
    }
}

/// A write as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Came {
    /// `worker:life:number`.
    pub(crate) attempt: String,
    pub(crate) name: u32,
    pub(crate) token: u64,
    pub(crate) claim: String,
    pub(crate) shared: bool,
    pub(crate) at: u64,
    pub(crate) accepted: bool,
    pub(crate) lost_update: bool,
}

#[derive(Default)]
struct Registers {
    fences: HashMap<u32, Marks>,
    values: HashMap<u32, u64>,
    log: Vec<Came>,
}

/// The resource. It ends with the runtime that it was started in.
#[derive(Clone)]
pub(crate) struct Resource {
    registers: Arc<Mutex<Registers>>,
    port: u16,
}

impl Resource {
    pub(crate) async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let resource = Self {
            port: listener.local_addr()?.port(),
            registers: Arc::default(),
        };
        let registers = Arc::clone(&resource.registers);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&registers)));
            }
        });
        Ok(resource)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Takes the writes in order of arrival.
    pub(crate) fn take(&self) -> Vec<Came> {
        let mut registers = self
            .registers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut registers.log)
    }
}

async fn serve(stream: TcpStream, registers: Arc<Mutex<Registers>>) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    // A worker may end in the middle of a line.
    while let Ok(Some(line)) = lines.next_line().await {
        let answer = {
            let mut registers = registers.lock().unwrap_or_else(PoisonError::into_inner);
            registers.answer(&line)
        };
        let Some(answer) = answer else { return };
        if write
            .write_all(format!("{answer}\n").as_bytes())
            .await
            .is_err()
        {
            return;
        }
    }
}

impl Registers {
    fn answer(&mut self, line: &str) -> Option<u64> {
        let words: Vec<&str> = line.split(' ').collect();
        match *words.as_slice() {
            ["r", name] => {
                let name: u32 = name.parse().ok()?;
                Some(self.values.get(&name).copied().unwrap_or(0))
            }
            ["t"] => Some(Clock::Boot.now().as_nanos()),
            ["w", attempt, name, token, claim, mode, value] => {
                let (name, token) = (name.parse().ok()?, token.parse().ok()?);
                let value: u64 = value.parse().ok()?;
                let shared = mode == "s";
                let accepted = self
                    .fences
                    .entry(name)
                    .or_default()
                    .admit(token, claim, shared);
                // Shared holders do not count up: they may hold together, so lost updates would prove nothing.
                let before = match shared {
                    true => value.saturating_sub(1),
                    false => self.values.insert(name, value).unwrap_or(0),
                };
                self.log.push(Came {
                    attempt: attempt.to_owned(),
                    name,
                    token,
                    claim: claim.to_owned(),
                    shared,
                    at: Clock::Boot.now().as_nanos(),
                    accepted,
                    lost_update: value != before + 1,
                });
                Some(u64::from(accepted))
            }
            _ => None,
        }
    }
}

/// A worker's connection.
pub(crate) struct Access {
    stream: BufReader<TcpStream>,
}

impl Access {
    pub(crate) async fn open(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends one request.
    pub(crate) async fn ask(&mut self, request: &str) -> std::io::Result<u64> {
        let line = format!("{request}\n");
        self.stream.get_mut().write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await?;
        let answer = answer.trim().parse();
        answer.map_err(|_| std::io::Error::other("the resource has gone"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_takes_what_is_newer_and_refuses_what_is_older() {
        let mut marks = Marks::default();
        let mut admit = |token, claim: &str, shared| marks.admit(token, claim, shared);
        assert!(admit(5, "a", false));
        assert!(admit(5, "a", false), "the same holder again");
        assert!(!admit(5, "b", false), "another one with its token");
        assert!(!admit(4, "b", false));
        assert!(!admit(4, "b", true));
        assert!(admit(7, "c", true));
        assert!(admit(6, "d", true), "beside another reader");
        assert!(!admit(6, "d", false), "a writer older than a reader");
        assert!(admit(8, "e", false));
        assert!(!admit(7, "c", true));
    }
}
