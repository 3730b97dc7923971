//! A claim that was released, and comes back: its request to take the lock arrives once more, and then its renewals do. The lock
//! service promises that this keeps the lock for a claim window and no longer. Random repetition hardly ever finds the moment
//! for the renewal, so that this is a schedule.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use fencelock_testbed::{Failure, Result};

/// How long the claim is asked for.
const TAKING: Duration = Duration::from_secs(3);
/// How long it is renewed, and how often.
const RENEWING: Duration = Duration::from_millis(600);
const PAUSE: Duration = Duration::from_millis(60);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(1);

/// The requests of one claim, as they were on the wire.
pub(crate) struct Revived {
    take: Vec<u8>,
    renewal: Option<Vec<u8>>,
}

impl Revived {
    /// Among requests, those of a claim that was taken and released; preferably of one that was renewed.
    pub(crate) fn find(requests: Vec<Vec<u8>>) -> Option<Self> {
        let texts: Vec<_> = requests
            .iter()
            .map(|bytes| String::from_utf8_lossy(bytes))
            .collect();
        let of = |method: &str, text: &str| {
            let path = text.strip_prefix(method)?.strip_prefix(" /v1/claims/")?;
            Some(path.split([' ', '/']).next()?.to_owned())
        };
        let released = texts.iter().filter(|text| {
            text.starts_with("POST ")
                && text
                    .lines()
                    .next()
                    .is_some_and(|line| line.contains("/release "))
        });
        let released: Vec<String> = released.filter_map(|text| of("POST", text)).collect();
        let found = released.iter().filter_map(|id| {
            // The last one: a poll, if the claim has waited.
            let takes = |text: &&std::borrow::Cow<'_, str>| of("PUT", text).as_ref() == Some(id);
            let take = texts.iter().rposition(|text| takes(&text))?;
            let renews = |text: &std::borrow::Cow<'_, str>| {
                text.starts_with("POST ")
                    && text.contains("\"token\"")
                    && text.contains(id.as_str())
            };
            Some((texts.iter().position(renews), take))
        });
        // Those with a renewal come last.
        let (renewal, take) = found.max()?;
        Some(Self {
            take: requests[take].clone(),
            renewal: renewal.map(|at| requests[at].clone()),
        })
    }

    /// Sends them to the replica on a port, in the background.
    pub(crate) fn start(self, port: u16) -> Result<()> {
        let thread = std::thread::Builder::new().name("a revived claim".into());
        let started = thread.spawn(move || {
            // The replica may be down, which ends it.
            drop(self.send(port));
        });
        started.map(drop).map_err(Failure::to("start a thread"))
    }

    fn send(&self, port: u16) -> std::io::Result<()> {
        let begin = Instant::now();
        while !ask(port, &self.take)?.contains("\"state\":\"held\"") {
            if begin.elapsed() > TAKING {
                return Ok(());
            }
        }
        let begin = Instant::now();
        while begin.elapsed() < RENEWING
            && let Some(renewal) = &self.renewal
        {
            ask(port, renewal)?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// Sends a request over a connection of its own, and reads the answer, which is JSON.
fn ask(port: u16, request: &[u8]) -> std::io::Result<String> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    server.set_read_timeout(Some(ANSWER))?;
    server.write_all(request)?;
    let (mut answer, mut bytes) = (String::new(), [0; 4096]);
    while !answer.contains('}') {
        match server.read(&mut bytes)? {
            0 => break,
            count => answer.push_str(&String::from_utf8_lossy(&bytes[..count])),
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_claim_is_revived_that_was_taken_renewed_and_released() {
        let put = |id: &str, wait: u32| {
            format!("PUT /v1/claims/{id} HTTP/1.1\r\n\r\n{{\"wait_ms\":{wait}}}")
        };
        let release = |id: &str| format!("POST /v1/claims/{id}/release HTTP/1.1\r\n\r\n{{}}");
        let renewal = r#"POST /v1/renewals HTTP/1.1

{"claims":[{"claim":"a1","token":7}]}"#;
        let bytes = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        let (first, poll) = (put("a1", 0), put("a1", 500));
        let (other, ended, end) = (put("b2", 0), release("b2"), release("a1"));
        // Not released yet.
        assert!(Revived::find(bytes(&[&first, &poll, renewal, &other])).is_none());
        let found = Revived::find(bytes(&[&other, &ended])).unwrap();
        assert_eq!(
            (found.take, found.renewal),
            (other.clone().into_bytes(), None)
        );
        let all = [&first, &poll, renewal, &end, &other, &ended];
        let found = Revived::find(bytes(&all)).unwrap();
        assert_eq!(found.take, poll.into_bytes(), "the poll");
        assert_eq!(found.renewal, Some(renewal.as_bytes().to_vec()));
    }
}
