//! The events that the service sends: server-sent events about this client's claims, from each replica.
//!
//! They are hints. A hold is lost when its validity ends or a renewal says so, even if no event ever comes.

use std::sync::Weak;
use std::time::Duration;

use fencelock_core::ClaimId;
use fencelock_core::engine::Event;
use fencelock_core::support::Backoff;
use serde::Deserialize;
use tokio::time::timeout;

use crate::connection::{Ask, Connections, NoAnswer};
use crate::exchange::Exchange;
use crate::state::State;

/// A stream without bytes for this long is dead: the service writes at least every ten seconds.
const SILENCE: Duration = Duration::from_secs(25);

/// The shortest and the longest pause before a stream is opened again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// More bytes than the longest line of the service has.
const MOST_BYTES: usize = 64 << 10;

#[derive(Deserialize)]
struct Data {
    claim: ClaimId,
}

/// Listens to one replica until the engine is gone.
pub(crate) async fn listen(state: Weak<State>, replica: usize) {
    let mut pauses = Backoff::new(PAUSES.0, PAUSES.1);
    loop {
        let Some(engine) = state.upgrade() else {
            return;
        };
        let mut closed = engine.closed.subscribe();
        let opened = open(&engine, replica).await;
        drop(engine);
        let read = async {
            if let Ok(stream) = opened {
                pauses = Backoff::new(PAUSES.0, PAUSES.1);
                read(&state, stream).await;
            }
            tokio::time::sleep(pauses.next_pause()).await;
        };
        tokio::select! {
            () = read => {}
            _ = closed.wait_for(|closed| *closed) => return,
        }
    }
}

async fn open(state: &State, replica: usize) -> Result<Exchange, NoAnswer> {
    let connections: &Connections = &state.connections;
    let ask = Ask {
        key: state.config.keys.first().map(|key| &key.header),
        accept: "text/event-stream",
        // Grants come as answers to requests, too.
        ..Ask::get(match state.info.takes_without() {
            true => "/v1/events?without=granted",
            false => "/v1/events",
        })
    };
    let address = state.replicas.address(replica);
    let stream = connections.begin(address, ask, state.config.response_timeout);
    let stream = stream.await?;
    match stream.status().is_success() {
        true => Ok(stream),
        false => Err(NoAnswer::NotSent(stream.status().to_string())),
    }
}

/// Reads until the stream ends or is silent.
async fn read(state: &Weak<State>, mut stream: Exchange) {
    let mut lines = Lines::default();
    while let Ok(Some(Ok(bytes))) = timeout(SILENCE, stream.more()).await {
        for event in lines.take(&bytes) {
            let Some(state) = state.upgrade() else {
                return;
            };
            state.sender.tell(event);
        }
    }
}

/// The format of server-sent events, as far as the service uses it.
#[derive(Default)]
struct Lines {
    /// The beginning of a line that is not complete yet.
    rest: Vec<u8>,
    event: String,
    data: String,
}

impl Lines {
    fn take(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.rest.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            events.extend(self.line(line.trim_end_matches(['\r', '\n'])));
        }
        if self.rest.len() > MOST_BYTES {
            self.rest.clear();
        }
        events
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        let value = |value: &str| value.strip_prefix(' ').unwrap_or(value).to_owned();
        match line.split_once(':') {
            Some(("event", text)) => self.event = value(text),
            Some(("data", text)) => self.data = value(text),
            None if line.is_empty() => {
                let (event, data) = (
                    std::mem::take(&mut self.event),
                    std::mem::take(&mut self.data),
                );
                let Data { claim } = serde_json::from_str(&data).ok()?;
                return match event.as_str() {
                    "lost" => Some(Event::Lost(claim)),
                    "release-requested" => Some(Event::Asked(claim)),
                    _ => None,
                };
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_they_are_cut() {
        let id = ClaimId::from_bytes([7; 16]);
        let text = format!(
            "retry: 1000\n\n: hello\n\nevent: granted\ndata: {{\"claim\":\"{id}\"}}\n\n\
             event: lost\r\ndata: {{\"claim\":\"{id}\",\"name\":\"a:b\",\"token\":3}}\r\n\r\n\
             event:release-requested\ndata:{{\"claim\":\"{id}\"}}\n\nevent: lost\ndata: no json\n\n"
        );
        let want = [Event::Lost(id), Event::Asked(id)];
        for step in [1, 7, text.len()] {
            let mut lines = Lines::default();
            let cut = text.as_bytes().chunks(step);
            let events: Vec<Event> = cut.flat_map(|bytes| lines.take(bytes)).collect();
            assert_eq!(events, want, "in steps of {step}");
        }
    }
}
