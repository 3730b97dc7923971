//! Callers: their credentials, rights and quotas.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, Error, Result};
use subtle::ConstantTimeEq;

use crate::principal::{BearerToken, Grant, Principal, Right, TokenHash};
use crate::seen::Seen;

/// The most bytes of a principal's name. An owner has room for it.
const MOST_NAME_BYTES: usize = 50;

/// The names that the audit log has for clients without credentials, and for the operator who reloads the configuration.
const RESERVED: [&str; 2] = [ANONYMOUS, OPERATOR];
const ANONYMOUS: &str = "anonymous";
pub(crate) const OPERATOR: &str = "operator";

/// How many streams of events a principal may have open by default.
const STREAMS: usize = 1000;

/// All principals, as they are configured now.
#[derive(Debug)]
pub(crate) struct Access {
    tokens: HashMap<String, (TokenHash, Arc<Known>)>,
    certificates: HashMap<String, Arc<Known>>,
    anonymous: Arc<Known>,
}

/// A principal, and what it has used at this replica.
#[derive(Debug)]
pub(crate) struct Known {
    /// None for a client without credentials.
    pub(crate) name: Option<String>,
    principal: Principal,
    used: Arc<Used>,
}

/// What a principal has used. It outlives a change of the configuration.
#[derive(Debug)]
struct Used {
    bucket: Bucket,
    waiting: AtomicUsize,
    streams: AtomicUsize,
}

/// A token bucket: it fills with time, and holds what may be done in a second.
#[derive(Debug)]
pub(crate) struct Bucket(Mutex<Filled>);

#[derive(Debug)]
struct Filled {
    left: f64,
    at: BootInstant,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(rate: f64) -> Self {
        Self(Mutex::new(Filled {
            left: rate,
            at: Clock::Boot.now(),
        }))
    }

    /// Fills it, and then changes what is left.
    fn change<T>(&self, rate: f64, change: impl FnOnce(&mut f64) -> T) -> T {
        let now = Clock::Boot.now();
        let mut filled = self.0.lock();
        let more = now.since(filled.at).as_secs_f64() * rate;
        filled.left = (filled.left + more).min(rate.max(1.0));
        filled.at = now;
        change(&mut filled.left)
    }

    /// Takes one out, if there is one.
    pub(crate) fn take(&self, rate: f64) -> bool {
        self.change(rate, |left| {
            let has = *left >= 1.0;
            *left -= if has { 1.0 } else { 0.0 };
            has
        })
    }
}

impl Access {
    /// Reads the configuration. A principal keeps its counts of use, by name.
    pub(crate) fn new(
        principals: &[Principal],
        anonymous: &[Grant],
        before: Option<&Self>,
    ) -> Result<Self> {
        let mut access = Self {
            tokens: HashMap::new(),
            certificates: HashMap::new(),
            anonymous: Known::new(
                None,
                Principal {
                    rights: anonymous.to_vec(),
                    ..Principal::new("")
                },
                before,
            )?,
        };
        let (mut names, mut hashes) = (Vec::new(), HashSet::new());
        for principal in principals {
            let name = principal.name.clone();
            if name.is_empty()
                || name.len() > MOST_NAME_BYTES
                || name.chars().any(|c| c.is_control() || c == '/')
            {
                let why = format!(
                    "it must have 1 to {MOST_NAME_BYTES} bytes, no / and no control characters"
                );
                return Err(Error::invalid("principal", name, why));
            }
            if names.contains(&name) {
                return Err(Error::invalid(
                    "principal",
                    name,
                    "it occurs more than once",
                ));
            }
            if RESERVED.contains(&name.as_str()) {
                let why = "the audit log has this name for another caller";
                return Err(Error::invalid("principal", name, why));
            }
            names.push(name.clone());
            let known = Known::new(Some(name), principal.clone(), before)?;
            for token in &principal.tokens {
                let known = (token.clone(), Arc::clone(&known));
                let twice = access.tokens.insert(token.id.clone(), known).is_some();
                if twice || !hashes.insert(token.sha256.0) {
                    let why = "it occurs more than once, so it is not clear whose token it is";
                    return Err(Error::invalid("token", &token.id, why));
                }
            }
            for certificate in &principal.certificates {
                let twice = access
                    .certificates
                    .insert(as_compared(certificate), Arc::clone(&known));
                if twice.is_some() {
                    let why = "two principals have it";
                    return Err(Error::invalid("certificate name", certificate, why));
                }
            }
        }
        Ok(access)
    }

    /// The principal that has this token.
    pub(crate) fn of_token(&self, token: &BearerToken) -> Option<Arc<Known>> {
        let (known, principal) = self.tokens.get(token.id())?;
        // It is compared in constant time, so that the time taken reveals nothing.
        let same: bool = token.sha256().0.ct_eq(&known.sha256.0).into();
        (same && !known.is_over()).then(|| Arc::clone(principal))
    }

    /// The principal that has a certificate with this name.
    pub(crate) fn of_certificate(&self, name: &str) -> Option<Arc<Known>> {
        self.certificates.get(&as_compared(name)).map(Arc::clone)
    }

    /// The principal of clients without credentials.
    pub(crate) fn anonymous(&self) -> Arc<Known> {
        Arc::clone(&self.anonymous)
    }

    fn used(&self, name: &str) -> Option<Arc<Used>> {
        let tokens = self.tokens.values().map(|(_, known)| known);
        let mut all = tokens.chain(self.certificates.values());
        let found = all.find(|known| known.name.as_deref() == Some(name))?;
        Some(Arc::clone(&found.used))
    }
}

/// The name in a certificate, as it is compared: a DNS name has no case (RFC 4343), a URI has.
fn as_compared(name: &str) -> String {
    match name.contains(':') {
        true => name.to_owned(),
        false => name.to_ascii_lowercase(),
    }
}

impl Known {
    fn new(
        name: Option<String>,
        principal: Principal,
        before: Option<&Access>,
    ) -> Result<Arc<Self>> {
        for (at, grant) in principal.rights.iter().enumerate() {
            let mut before = principal.rights[..at].iter();
            if before.any(|before| before.prefix == grant.prefix) {
                let why = "it occurs more than once in the rights of one principal";
                return Err(Error::invalid("prefix", &grant.prefix, why));
            }
            if !grant.prefix.is_empty() && !grant.prefix.ends_with('/') {
                let why = "it must be empty or end in /";
                return Err(Error::invalid("prefix", &grant.prefix, why));
            }
        }
        let before = before
            .zip(name.as_deref())
            .and_then(|(before, name)| before.used(name));
        let used = before.unwrap_or_else(|| {
            Arc::new(Used {
                bucket: Bucket::new(f64::from(principal.takes_per_s.unwrap_or_default())),
                waiting: AtomicUsize::new(0),
                streams: AtomicUsize::new(0),
            })
        });
        Ok(Arc::new(Self {
            name,
            principal,
            used,
        }))
    }

    /// Whether the principal has a right on a name.
    pub(crate) fn may(&self, right: Right, name: &str) -> bool {
        self.principal.may(right, name)
    }

    /// The locks whose names begin with this and which it may look at.
    pub(crate) fn sees<'a>(&'a self, prefix: &'a str) -> Seen<'a> {
        Seen::new(&self.principal, prefix)
    }

    /// Whether the principal has any right at all.
    pub(crate) fn may_anything(&self) -> bool {
        self.principal
            .rights
            .iter()
            .any(|grant| !grant.rights.is_empty())
    }

    /// Its name for people.
    pub(crate) fn shown(&self) -> &str {
        self.name.as_deref().unwrap_or(ANONYMOUS)
    }

    /// Counts a take. If there were too many, the error says in how many seconds there will be room.
    pub(crate) fn count_take(&self) -> std::result::Result<(), u32> {
        let Some(rate) = self.principal.takes_per_s.map(f64::from) else {
            return Ok(());
        };
        let bucket = &self.used.bucket;
        if bucket.take(rate) {
            return Ok(());
        }
        let lacks = bucket.change(rate, |left| 1.0 - *left);
        let seconds = (lacks / rate.max(1e-3)).ceil();
        Err(seconds.clamp(1.0, 3600.0) as u32)
    }

    /// Counts a take that has happened, even if there were too many.
    pub(crate) fn charge_take(&self) {
        let Some(rate) = self.principal.takes_per_s.map(f64::from) else {
            return;
        };
        let bucket = &self.used.bucket;
        bucket.change(rate, |left| *left = (*left - 1.0).max(-rate.max(1.0)));
    }

    /// Whether no take was counted for which there was no room.
    pub(crate) fn owes_no_take(&self) -> bool {
        let Some(rate) = self.principal.takes_per_s.map(f64::from) else {
            return true;
        };
        self.used.bucket.change(rate, |left| *left >= 0.0)
    }

    /// Counts a stream until it is dropped; `None` if there are too many.
    pub(crate) fn count_stream(&self) -> Option<Streams> {
        let open = self.used.streams.fetch_add(1, Ordering::Relaxed);
        let stream = Streams(Arc::clone(&self.used));
        (open < self.principal.streams.unwrap_or(STREAMS)).then_some(stream)
    }

    /// Counts a waiter until it is dropped; `None` if there are too many.
    pub(crate) fn count_waiter(&self) -> Option<Waiter> {
        let waiting = self.used.waiting.fetch_add(1, Ordering::Relaxed);
        let waiter = Waiter(Arc::clone(&self.used));
        let room = self.principal.waiting.is_none_or(|most| waiting < most);
        room.then_some(waiter)
    }
}

/// A stream of events of a principal, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Streams(Arc<Used>);

impl Drop for Streams {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A waiter of a principal, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiter(Arc<Used>);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_by_their_secret() {
        let (good, other) = (BearerToken::draw().unwrap(), BearerToken::draw().unwrap());
        let hash = |token: &BearerToken, not_after| TokenHash {
            id: good.id().to_owned(),
            sha256: token.sha256(),
            not_after,
        };
        let mut principal = Principal::new("p");
        principal.tokens = vec![hash(&good, Some(u64::MAX))];
        let access = Access::new(&[principal.clone()], &[], None).unwrap();
        assert_eq!(access.of_token(&good).unwrap().name.as_deref(), Some("p"));
        assert!(access.of_token(&other).is_none());
        principal.tokens = vec![hash(&other, None)];
        let access = Access::new(&[principal.clone()], &[], None).unwrap();
        assert!(access.of_token(&good).is_none());
        principal.tokens = vec![hash(&good, Some(1))];
        let access = Access::new(&[principal], &[], None).unwrap();
        assert!(access.of_token(&good).is_none());
    }

    #[test]
    fn the_case_of_a_certificate_matters_in_uris_only() {
        let mut principal = Principal::new("p");
        principal.certificates = vec![
            "Jobs.Example.com".to_owned(),
            "spiffe://corp/Jobs".to_owned(),
        ];
        let access = Access::new(&[principal], &[], None).unwrap();
        for (name, is_known) in [
            ("jobs.example.COM", true),
            ("spiffe://corp/Jobs", true),
            ("spiffe://corp/jobs", false),
        ] {
            assert_eq!(access.of_certificate(name).is_some(), is_known, "{name}");
        }
    }

    #[test]
    fn what_is_configured_twice_or_wrong_is_refused() {
        let named = |name: &str| Principal::new(name);
        for principals in [
            vec![named("a"), named("a")],
            vec![named("")],
            vec![named("a/b")],
            vec![named(&"a".repeat(51))],
            vec![named("anonymous")],
            vec![named("operator")],
        ] {
            assert!(Access::new(&principals, &[], None).is_err());
        }
        let mut odd = named("a");
        odd.rights = vec![Grant {
            prefix: "a".to_owned(),
            rights: Vec::new(),
        }];
        assert!(Access::new(&[odd], &[], None).is_err());
    }
}
