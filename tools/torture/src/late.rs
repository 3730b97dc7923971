//! Requests of the lock service that are repeated late, and their effects. Random repetition hardly ever finds the
//! moments that matter. So this is a schedule: it looks at the lock after each repeated request.
//!
//! - The request that takes a lock is repeated after the release. The lock may then be held for one claim window at
//!   most, since no client knows of that grant. Renewals of the earlier grant must not prolong it.
//! - The request that took a lock is repeated while its claim holds. The lease must not become shorter. A renewal for a
//!   shorter time must not shorten it either, unless the renewal says so.

use std::collections::HashSet;
use std::io::{Error, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fencelock::Clock;
use fencelock_testbed::{Failure, Result};
use serde_json::Value;

use crate::history::Late;

/// How many claims of each kind are handled at once.
const AT_ONCE: usize = 6;
/// How long the claim is requested again.
const TAKING: Duration = Duration::from_secs(3);
/// How often a renewal of the earlier grant is repeated.
const RENEWALS: u32 = 3;
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(4);
/// The service gives the rest of a lease in whole milliseconds.
const ROUNDING: u64 = 5;

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found(Arc<Mutex<Vec<Late>>>);

impl Found {
    pub(crate) fn take(&self) -> Vec<Late> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, name: &str, what: String) {
        let (name, at) = (name.to_owned(), Clock::Boot.now().as_nanos());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Late { name, at, what });
    }
}

/// A request about claims: as it was on the wire, or one of a batch in the form of a single request.
#[derive(Clone, Debug)]
struct Request {
    bytes: Vec<u8>,
    method: String,
    path: String,
    body: Value,
}

impl Request {
    fn read(bytes: Vec<u8>) -> Option<Self> {
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut words = head.split(' ');
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let body = serde_json::from_str(body).unwrap_or_default();
        Some(Self {
            bytes,
            method,
            path,
            body,
        })
    }

    /// Reads a request. A batch counts as its requests, each sent alone.
    fn read_all(bytes: Vec<u8>) -> Vec<Self> {
        let Some(request) = Self::read(bytes) else {
            return Vec::new();
        };
        if request.path != "/v1/batch" {
            return vec![request];
        }
        let of = request.body["claims"].as_array().into_iter().flatten();
        of.filter_map(|one| request.alone(one)).collect()
    }

    /// One request of this batch, with the headers of the batch.
    fn alone(&self, one: &Value) -> Option<Self> {
        let claim = one["claim"].as_str()?;
        let (method, path, body) = match (one.get("take"), one.get("release")) {
            (Some(take), _) => ("PUT", format!("/v1/claims/{claim}"), take),
            (_, Some(release)) => ("POST", format!("/v1/claims/{claim}/release"), release),
            _ => return None,
        };
        let text = String::from_utf8_lossy(&self.bytes);
        let (head, _) = text.split_once("\r\n\r\n")?;
        let content = body.to_string();
        let mut alone = format!("{method} {path} HTTP/1.1\r\n");
        for header in head.split("\r\n").skip(1) {
            let (name, _) = header.split_once(':')?;
            // The media type of the answer also differs.
            if !["content-length", "accept"].contains(&&*name.to_ascii_lowercase()) {
                alone.push_str(&format!("{header}\r\n"));
            }
        }
        alone.push_str(&format!(
            "Content-Length: {}\r\n\r\n{content}",
            content.len()
        ));
        Some(Self {
            bytes: alone.into(),
            method: method.to_owned(),
            path,
            body: body.clone(),
        })
    }

    /// A renewal of this claim alone, for a quarter of the requested time.
    fn shorter(&self, claim: &str) -> Option<Vec<u8>> {
        let mut of = self.body.get("claims")?.as_array()?.iter();
        let mut one = of.find(|of| of["claim"] == claim)?.clone();
        one["ttl_ms"] = (one["ttl_ms"].as_u64()? / 4).into();
        let content = serde_json::json!({ "claims": [one] }).to_string();
        let text = String::from_utf8_lossy(&self.bytes);
        let (head, _) = text.split_once("\r\n\r\n")?;
        let is_length = |line: &&str| line.to_ascii_lowercase().starts_with("content-length:");
        let lines = head.split("\r\n").filter(|line| !is_length(line));
        let head = lines.collect::<Vec<_>>().join("\r\n");
        let length = content.len();
        Some(format!("{head}\r\nContent-Length: {length}\r\n\r\n{content}").into())
    }

    /// The claim that it takes, or polls for.
    fn takes(&self) -> Option<&str> {
        let claim = self.path.strip_prefix("/v1/claims/");
        claim.filter(|_| self.method == "PUT")
    }

    fn releases(&self) -> Option<&str> {
        let claim = self.path.strip_prefix("/v1/claims/")?;
        claim.strip_suffix("/release")
    }

    /// The token by which it renews a claim.
    fn renews(&self, claim: &str) -> Option<u64> {
        let mut of = self.body.get("claims")?.as_array()?.iter();
        of.find(|of| of["claim"] == claim)?["token"].as_u64()
    }
}

/// The requests of one claim that are repeated.
#[derive(Debug)]
pub(crate) struct Again {
    claim: String,
    name: String,
    /// The last one: a poll, if the claim waited.
    take: Request,
    /// A renewal of the earlier grant, and its token.
    renewal: Option<(Request, u64)>,
    released: bool,
}

impl Again {
    /// Picks claims that were released, preferably after a renewal, and claims that were renewed and not released.
    pub(crate) fn among(requests: Vec<Vec<u8>>) -> Vec<Self> {
        let all: Vec<Request> = requests.into_iter().flat_map(Request::read_all).collect();
        let mut known = HashSet::new();
        let claims = all.iter().filter_map(Request::takes);
        let claims = claims.filter(|claim| known.insert(*claim));
        let found = claims.filter_map(|claim| Self::of(claim, &all));
        let (mut released, held): (Vec<_>, Vec<_>) = found.partition(|again| again.released);
        released.sort_by_key(|again| again.renewal.is_none());
        let held = held.into_iter().filter(|again| again.renewal.is_some());
        let held: Vec<Self> = held.take(AT_ONCE).collect();
        released.into_iter().take(AT_ONCE).chain(held).collect()
    }

    fn of(claim: &str, all: &[Request]) -> Option<Self> {
        let take = all.iter().rfind(|one| one.takes() == Some(claim))?.clone();
        let mut renewals = all.iter().filter_map(|one| Some((one, one.renews(claim)?)));
        let renewal = renewals.next();
        Some(Self {
            claim: claim.to_owned(),
            name: take.body["name"].as_str()?.to_owned(),
            take,
            renewal: renewal.map(|(request, token)| (request.clone(), token)),
            released: all.iter().any(|one| one.releases() == Some(claim)),
        })
    }

    /// Repeats them at the replica on this port, in the background.
    pub(crate) fn start(self, port: u16, found: &Found) -> Result<()> {
        let (thread, found) = (std::thread::Builder::new(), found.clone());
        let started = thread.name("late requests".into()).spawn(move || {
            // Errors do not matter: the replica may be down.
            drop(match self.released {
                true => self.after_the_release(port, &found),
                false => self.while_it_holds(port, &found),
            });
        });
        started.map(drop).map_err(Failure::to("start a thread"))
    }

    fn after_the_release(&self, port: u16, found: &Found) -> std::io::Result<()> {
        let window = get(port, "/v1/store")?["claim_window_ms"].as_u64();
        let begin = Instant::now();
        let token = loop {
            let answer = ask(port, &self.take.bytes)?;
            if answer["state"] == "held" {
                break answer["token"].as_u64();
            }
            if begin.elapsed() > TAKING {
                return Ok(());
            }
        };
        let (Some(window), Some(token)) = (window, token) else {
            return Ok(());
        };
        // The same token as before: the claim was not released after all. The request may have been lost.
        if self.renewal.as_ref().is_some_and(|(_, of)| *of == token) {
            return Ok(());
        }
        let longest = window + ROUNDING;
        if let Some(left) = self.left(port, token)?.filter(|left| *left > longest) {
            let what =
                format!("a late request keeps it for {left} ms; a claim window has {window}");
            found.add(&self.name, what);
        }
        for (renewal, old) in self.renewal.iter().cycle().take(RENEWALS as usize) {
            let answer = ask(port, &renewal.bytes)?;
            let mut of = answer["claims"].as_array().into_iter().flatten();
            if of.any(|of| of["claim"] == self.claim && of["state"] == "held") {
                let what = format!("a renewal by token {old} prolonged the grant of token {token}");
                found.add(&self.name, what);
            }
        }
        Ok(())
    }

    fn while_it_holds(&self, port: u16, found: &Found) -> std::io::Result<()> {
        let Some((renewal, token)) = &self.renewal else {
            return Ok(());
        };
        self.shortens_nothing(port, *token, &self.take.bytes, found)?;
        match renewal.shorter(&self.claim) {
            Some(shorter) => self.shortens_nothing(port, *token, &shorter, found),
            None => Ok(()),
        }
    }

    fn shortens_nothing(
        &self,
        port: u16,
        token: u64,
        request: &[u8],
        found: &Found,
    ) -> std::io::Result<()> {
        let begin = Instant::now();
        let Some(before) = self.left(port, token)? else {
            return Ok(());
        };
        ask(port, request)?;
        let Some(after) = self.left(port, token)? else {
            return Ok(());
        };
        let gone = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        if after.saturating_add(gone).saturating_add(ROUNDING) < before {
            let what = format!(
                "the lease of token {token} had {before} ms left, and {after} ms after a late request and {gone} ms"
            );
            found.add(&self.name, what);
        }
        Ok(())
    }

    /// How long the store keeps the lock for the claim's grant of this token, in milliseconds.
    fn left(&self, port: u16, token: u64) -> std::io::Result<Option<u64>> {
        // The names of a run need no escapes.
        let view = get(port, &format!("/v1/lock?name={}", self.name))?;
        let mut holders = view["holders"].as_array().into_iter().flatten();
        let own = holders.find(|holder| holder["claim"] == self.claim && holder["token"] == token);
        Ok(own.and_then(|holder| {
            let delay = holder["lock_delay_ms"].as_u64().unwrap_or(0);
            Some(holder["ttl_left_ms"].as_u64()?.saturating_sub(delay))
        }))
    }
}

fn get(port: u16, path: &str) -> std::io::Result<Value> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    ask(port, request.as_bytes())
}

/// Sends a request over a connection of its own, and reads the answer, which is JSON.
fn ask(port: u16, request: &[u8]) -> std::io::Result<Value> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    server.set_read_timeout(Some(ANSWER))?;
    server.write_all(request)?;
    let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        match server.read(&mut bytes)? {
            0 => return Err(Error::other("the answer has no end")),
            count => answer.extend_from_slice(&bytes[..count]),
        }
        let text = String::from_utf8_lossy(&answer);
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && let Ok(json) = serde_json::from_str(body)
        {
            return Ok(json);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn claims_that_were_released_or_renewed_are_taken_again() {
        let put = |id: &str, wait: u32| {
            format!("PUT /v1/claims/{id} HTTP/1.1\r\n\r\n{{\"name\":\"x\",\"wait_ms\":{wait}}}")
        };
        let release = |id: &str| format!("POST /v1/claims/{id}/release HTTP/1.1\r\n\r\n{{}}");
        let renewal = |id: &str| {
            let one = format!(r#"{{"claims":[{{"claim":"{id}","token":7}}]}}"#);
            format!("POST /v1/renewals HTTP/1.1\r\n\r\n{one}")
        };
        let requests = [
            put("a1", 0),
            put("b2", 0),
            put("c3", 0),
            put("a1", 500),
            put("d4", 0),
            release("b2"),
            renewal("a1"),
            renewal("d4"),
            release("a1"),
        ];
        let found = Again::among(requests.iter().map(|text| text.clone().into()).collect());
        let what = |again: &Again| (again.claim.clone(), again.released, again.renewal.is_some());
        let found_claims: Vec<_> = found.iter().map(what).collect();
        // No request takes c3.
        let expected = [("a1", true, true), ("b2", true, false), ("d4", false, true)];
        let expected = expected.map(|(id, released, renewed)| (id.to_owned(), released, renewed));
        assert_eq!(found_claims, expected);
        assert_eq!(found[0].take.body["wait_ms"], 500, "the poll");
    }

    #[test]
    fn a_renewal_of_one_claim_comes_for_a_quarter_of_the_time() {
        let content = r#"{"claims":[{"claim":"a1","token":7,"ttl_ms":80},{"claim":"b2","token":8,"ttl_ms":9}]}"#;
        let head = "POST /v1/renewals HTTP/1.1\r\nhost: h";
        let length = content.len();
        let request = format!("{head}\r\ncontent-length: {length}\r\n\r\n{content}");
        let request = Request::read(request.into()).unwrap();
        let shorter = String::from_utf8(request.shorter("a1").unwrap()).unwrap();
        let expected = r#"{"claims":[{"claim":"a1","token":7,"ttl_ms":20}]}"#;
        let length = expected.len();
        let expected = format!("{head}\r\nContent-Length: {length}\r\n\r\n{expected}");
        assert_eq!(shorter, expected);
        assert!(request.shorter("c3").is_none());
    }

    #[test]
    fn one_of_a_batch_comes_again_alone() {
        let content = concat!(
            r#"{"claims":[{"claim":"a1","take":{"name":"x","ttl_ms":9}},"#,
            r#"{"claim":"b2","release":{"name":"y"}},{"claim":"c3","take":{"name":"z"}}]}"#
        );
        let head = "POST /v1/batch HTTP/1.1\r\nhost: h\r\nfencelock-key: k\r\naccept: application/x-ndjson";
        let batch = format!(
            "{head}\r\ncontent-length: {}\r\n\r\n{content}",
            content.len()
        );
        let put = |id: &str| format!("PUT /v1/claims/{id} HTTP/1.1\r\n\r\n{{\"name\":\"y\"}}");
        let renewal = r#"{"claims":[{"claim":"c3","token":7}]}"#;
        let renewal = format!("POST /v1/renewals HTTP/1.1\r\n\r\n{renewal}");
        let release = r#"{"claims":[{"claim":"a1","release":{"name":"x"}}]}"#;
        let release = format!("POST /v1/batch HTTP/1.1\r\n\r\n{release}");
        let requests = [put("b2"), batch, renewal, release];
        let found = Again::among(requests.iter().map(|text| text.clone().into()).collect());
        let what = |again: &Again| (again.claim.clone(), again.released);
        let found_claims: Vec<_> = found.iter().map(what).collect();
        let expected = [("b2", true), ("a1", true), ("c3", false)];
        let expected = expected.map(|(id, released)| (id.to_owned(), released));
        assert_eq!(found_claims, expected);
        let alone = String::from_utf8_lossy(&found[1].take.bytes);
        let (head, body) = alone.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, found[1].take.body.to_string());
        assert_eq!(
            found[1].take.body,
            serde_json::json!({"name": "x", "ttl_ms": 9})
        );
        let expected =
            "PUT /v1/claims/a1 HTTP/1.1\r\nhost: h\r\nfencelock-key: k\r\nContent-Length: 23";
        assert_eq!(head, expected);
    }
}
