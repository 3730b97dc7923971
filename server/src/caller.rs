//! The caller of a request: who it is by its credentials, and what it may do.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use fencelock_core::LockName;
use fencelock_wire::Kind;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use tokio::sync::Semaphore;

use crate::access::{Access, Known, Streams, Waiter};
use crate::audit::{Audit, Deed, Line, STRANGERS_PER_S};
use crate::incoming::only_header;
use crate::principal::{BearerToken, Right};
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::seen::Seen;

/// For whom a proxy sends a request.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The two ends of a connection, and the client's certificate.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) peer: SocketAddr,
    pub(crate) local: Option<SocketAddr>,
    /// The name in the certificate of the client: its first DNS name or URI.
    pub(crate) certificate: Option<Arc<str>>,
    /// Admits few long bodies at a time. A peer may send many requests at once, and each body slowly.
    pub(crate) long_bodies: Semaphore,
}

/// How many long bodies of one connection are read at a time.
const LONG_BODIES: usize = 8;

impl Origin {
    pub(crate) fn new(
        peer: SocketAddr,
        local: Option<SocketAddr>,
        certificate: Option<Arc<str>>,
    ) -> Self {
        Self {
            peer,
            local,
            certificate,
            long_bodies: Semaphore::new(LONG_BODIES),
        }
    }
}

/// How a caller identifies itself.
#[derive(Clone, Debug)]
enum Credentials {
    None,
    Token(BearerToken),
    Certificate(Arc<str>),
}

impl Credentials {
    /// `None` if no principal has this token now.
    fn whose(&self, access: &Access) -> Option<Arc<Known>> {
        match self {
            Self::None => Some(access.anonymous()),
            Self::Token(token) => access.of_token(token),
            // A certificate of no principal counts as no certificate.
            Self::Certificate(name) => Some(
                access
                    .of_certificate(name)
                    .unwrap_or_else(|| access.anonymous()),
            ),
        }
    }
}

/// The caller of a request.
#[derive(Debug)]
pub(crate) struct Caller {
    known: Arc<Known>,
    credentials: Credentials,
    peer: Option<SocketAddr>,
    /// For whom the peer says that it asks, if the peer is one of the configured proxies. Only for the audit log.
    forwarded_for: Option<IpAddr>,
    replica: Arc<Replica>,
}

impl FromRequestParts<Arc<Replica>> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        replica: &Arc<Replica>,
    ) -> Result<Self, Refusal> {
        let origin = parts.extensions.get::<Arc<Origin>>();
        Self::by_credentials(origin.map(|origin| &**origin), &parts.headers, replica)
    }
}

/// The last address in `X-Forwarded-For` that is no configured proxy. Anybody can invent the addresses before it.
fn forwarded_for(
    replica: &Replica,
    peer: Option<SocketAddr>,
    headers: &HeaderMap,
) -> Option<IpAddr> {
    let proxies = &replica.config.proxies;
    let peer = peer?.ip().to_canonical();
    if !proxies.contains(&peer) {
        return None;
    }
    let mut found = None;
    for value in headers.get_all(FORWARDED_FOR).iter().rev() {
        for text in value.to_str().ok()?.rsplit(',') {
            let address: IpAddr = text.trim().parse().ok()?;
            found = Some(address);
            if !proxies.contains(&address) {
                return found;
            }
        }
    }
    found
}

fn bearer_token(text: &str) -> Option<BearerToken> {
    let (scheme, token) = text.split_once(' ')?;
    let bearer = scheme.eq_ignore_ascii_case("bearer");
    token.trim().parse().ok().filter(|_| bearer)
}

impl Caller {
    /// The caller of a request by its credentials, or the anonymous one.
    pub(crate) fn by_credentials(
        origin: Option<&Origin>,
        headers: &HeaderMap,
        replica: &Arc<Replica>,
    ) -> Result<Self, Refusal> {
        let access = replica.access();
        let bearer = only_header(headers, AUTHORIZATION.as_str())?;
        let certificate = origin.and_then(|origin| origin.certificate.as_ref());
        let credentials = match (bearer, certificate) {
            (Some(bearer), _) => {
                let text = bearer.to_str().unwrap_or_default();
                bearer_token(text).map(Credentials::Token)
            }
            (None, Some(name)) => Some(Credentials::Certificate(Arc::clone(name))),
            (None, None) => Some(Credentials::None),
        };
        let mut caller = Self::new(access.anonymous(), origin, headers, replica);
        let known = credentials.as_ref().and_then(|own| own.whose(&access));
        match (credentials, known) {
            (Some(credentials), Some(known)) => {
                (caller.credentials, caller.known) = (credentials, known);
                Ok(caller)
            }
            _ => Err(caller.bad_token()),
        }
    }

    /// The same caller, with the principals and rights that are configured now. An error if it is no longer known.
    pub(crate) fn again(&self) -> Result<Self, Refusal> {
        let known = self.credentials.whose(&self.replica.access());
        let known = known.ok_or_else(|| self.bad_token())?;
        Ok(Self {
            known,
            credentials: self.credentials.clone(),
            peer: self.peer,
            forwarded_for: self.forwarded_for,
            replica: Arc::clone(&self.replica),
        })
    }

    fn bad_token(&self) -> Refusal {
        self.note_refused(|line| line.outcome("bad token"));
        let detail = "this service does not know the bearer token, or the token has expired";
        Refusal::new(Kind::Unauthorized, detail)
    }

    /// A principal that is known already, as the caller of this request.
    pub(crate) fn of(known: Arc<Known>, parts: &Parts, replica: &Arc<Replica>) -> Self {
        let origin = parts.extensions.get::<Arc<Origin>>();
        let origin = origin.map(|origin| &**origin);
        Self::new(known, origin, &parts.headers, replica)
    }

    fn new(
        known: Arc<Known>,
        origin: Option<&Origin>,
        headers: &HeaderMap,
        replica: &Arc<Replica>,
    ) -> Self {
        let peer = origin.map(|origin| origin.peer);
        Self {
            known,
            credentials: Credentials::None,
            peer,
            forwarded_for: forwarded_for(replica, peer, headers),
            replica: Arc::clone(replica),
        }
    }

    /// The name to show to people.
    pub(crate) fn shown(&self) -> &str {
        self.known.shown()
    }

    /// Refuses what the caller has no right to.
    pub(crate) fn must(&self, right: Right, name: &LockName) -> Result<(), Refusal> {
        match self.may(right, name) {
            true => Ok(()),
            false => {
                self.note_refused(|line| line.name(name.as_str()).outcome(right.as_str()));
                let what = format!("{} lock {name}", verb(right));
                Err(self.refuse(&what).name(name))
            }
        }
    }

    /// Returns once a reload has taken the right from the caller. Cancel safe.
    pub(crate) async fn loses(&self, right: Right, name: &LockName) -> Refusal {
        let mut reloads = self.replica.reloads();
        loop {
            if reloads.changed().await.is_err() {
                // The replica is ending, and nobody reads rights any more.
                std::future::pending::<()>().await;
            }
            let still = self.again().and_then(|caller| caller.must(right, name));
            if let Err(refusal) = still {
                return refusal;
            }
        }
    }

    /// Refuses a caller that does not have this right on all names.
    pub(crate) fn must_on_all(&self, right: Right) -> Result<(), Refusal> {
        match self.may_on_all(right) {
            true => Ok(()),
            false => {
                self.note_refused(|line| line.outcome(right.as_str()));
                Err(self.refuse(&format!("{} all locks", verb(right))))
            }
        }
    }

    /// Refuses a caller that has no right at all.
    pub(crate) fn must_be_somebody(&self) -> Result<(), Refusal> {
        match self.known.may_anything() {
            true => Ok(()),
            false => Err(self.refuse("do anything")),
        }
    }

    pub(crate) fn may(&self, right: Right, name: &LockName) -> bool {
        self.known.may(right, name.as_str())
    }

    /// The locks whose names begin with this and which it may look at.
    pub(crate) fn sees<'a>(&'a self, prefix: &'a str) -> Seen<'a> {
        self.known.sees(prefix)
    }

    pub(crate) fn may_on_all(&self, right: Right) -> bool {
        self.known.may(right, "")
    }

    fn refuse(&self, what: &str) -> Refusal {
        match &self.known.name {
            Some(name) => {
                let detail = format!("{name} may not {what}");
                Refusal::new(Kind::Forbidden, detail)
            }
            None => {
                let detail = format!(
                    "without credentials nobody may {what} (header Authorization: Bearer flk_…)"
                );
                Refusal::new(Kind::Unauthorized, detail)
            }
        }
    }

    /// The owner of its claims, as the store has it.
    pub(crate) fn owner(&self, owner: &str) -> String {
        match (&self.known.name, owner) {
            (None, "") => "http".to_owned(),
            (None, owner) => owner.to_owned(),
            (Some(name), "") => name.clone(),
            (Some(name), owner) => format!("{name}/{owner}"),
        }
    }

    /// Counts a take.
    pub(crate) fn count_take(&self, name: &LockName) -> Result<(), Refusal> {
        self.known.count_take().map_err(|seconds| {
            let detail = format!(
                "{} takes too many locks a second at this replica (takes_per_s)",
                self.known.shown()
            );
            Refusal::new(Kind::Quota, detail)
                .retry_after(seconds)
                .name(name)
        })
    }

    /// Counts a take that has happened. Later ones may have to wait for it.
    pub(crate) fn charge_take(&self) {
        self.known.charge_take();
    }

    /// Whether requests that seem to be repeated are not counted: no take is owed.
    pub(crate) fn may_repeat(&self) -> bool {
        self.known.owes_no_take()
    }

    /// Counts a claim that waits.
    pub(crate) fn count_waiter(&self, name: &LockName) -> Result<Waiter, Refusal> {
        self.known.count_waiter().ok_or_else(|| {
            let detail = format!(
                "too many claims of {} wait at this replica (waiting)",
                self.known.shown()
            );
            Refusal::new(Kind::Quota, detail).name(name)
        })
    }

    /// Counts a stream of events.
    pub(crate) fn count_stream(&self) -> Result<Streams, Refusal> {
        self.known.count_stream().ok_or_else(|| {
            let detail = format!(
                "{} has too many streams of events open at this replica (streams)",
                self.known.shown()
            );
            Refusal::new(Kind::Quota, detail)
        })
    }

    /// Notes that the caller has renewed: its next connections are served even if too many are open.
    pub(crate) fn note_renewal(&self) {
        if let Some(peer) = self.peer {
            self.replica.renewers.note(peer.ip());
        }
    }

    /// Writes a line of the audit log, if there is a log, and keeps the line for the dashboard.
    pub(crate) fn note(&self, line: impl FnOnce(Line) -> Line, deed: Deed) {
        let line = line(self.line(deed));
        if let Some(audit) = &self.replica.audit {
            audit.note(&line);
        }
        self.replica.tail.push(line);
    }

    /// Notes that the caller was refused. Everybody can cause such lines, so those about strangers are few: they must not fill the
    /// disk, or push out the lines about others.
    fn note_refused(&self, line: impl FnOnce(Line) -> Line) {
        let is_stranger = self.known.name.is_none();
        match is_stranger && !self.replica.strangers.take(STRANGERS_PER_S) {
            true => self.replica.audit.iter().for_each(Audit::note_dropped),
            false => self.note(line, Deed::Refused),
        }
    }

    /// Like [`note`](Self::note), for grants and releases, which are optional.
    pub(crate) fn note_if_grants(&self, line: impl FnOnce(Line) -> Line, deed: Deed) {
        if self
            .replica
            .audit
            .as_ref()
            .is_some_and(|audit| audit.grants)
        {
            self.note(line, deed);
        }
    }

    /// Writes a line before the deed itself is done.
    pub(crate) async fn confirm(
        &self,
        line: impl FnOnce(Line) -> Line,
        deed: Deed,
    ) -> Result<(), Refusal> {
        let Some(audit) = &self.replica.audit else {
            return Ok(());
        };
        let written = audit.confirm(&line(self.line(deed))).await;
        written.map_err(|error| {
            let detail = format!("the audit log cannot be written, so nothing was done: {error}");
            Refusal::new(Kind::Unavailable, detail).title("The audit log cannot be written")
        })
    }

    fn line(&self, deed: Deed) -> Line {
        let peer = match self.forwarded_for {
            Some(client) => Some(client.to_string()),
            None => self.peer.map(|peer| peer.to_string()),
        };
        Line::new(&self.replica.id, self.known.shown(), peer, deed)
    }
}

fn verb(right: Right) -> &'static str {
    match right {
        Right::Take => "take",
        Right::Look => "look at",
        Right::Evict => "evict a holder of",
    }
}
