//! The state of a client of the service: its replicas, their information, and its waiting claims.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencelock_core::engine::{Claim, EventSender, Promises};
use fencelock_core::support::{Contention, Mutex};
use fencelock_core::{BootInstant, ClaimId, Clock, ConfigPart, Error, Result};
use fencelock_wire::Kind;
use http::{HeaderValue, Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::batch::{Batches, What};
use crate::config::{Config, Key};
use crate::connection::{Answer, Ask, Connections, NoAnswer};
use crate::entry::Entries;
use crate::error::{Action, RequestError, refused, unreadable};
use crate::home::{Home, Homes};
use crate::open::{ask_all, ask_store, homes};
use crate::replicas::Replicas;
use crate::reply::{Asked, Reply};
use crate::server::ServerInfo;

/// How many ids of replicas that serve this store are remembered. There are only more if replicas restart.
const MOST_KNOWN: usize = 256;

/// The least time that a replica has for an answer, although another one could be asked.
const SHORTEST_PART: Duration = Duration::from_millis(20);

/// How many connections to a load balancer are tried before its replica counts as one that does not answer.
const TRIES: usize = 16;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) connections: Arc<Connections>,
    /// For each replica.
    batches: Vec<Arc<Batches>>,
    pub(crate) replicas: Replicas,
    /// The replicas that take claims, where claims belong to a replica.
    pub(crate) homes: Option<Homes>,
    /// The replica to which the claims of other clients belong.
    given: Option<Arc<Home>>,
    pub(crate) info: ServerInfo,
    pub(crate) promises: Promises,
    pub(crate) entries: Arc<Entries>,
    pub(crate) contention: Contention,
    pub(crate) sender: EventSender,
    /// Set once by `close`.
    pub(crate) closed: watch::Sender<bool>,
    /// The ids of replicas that are known to serve the same store.
    known: Mutex<Vec<String>>,
}

/// A request, and what it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) ask: Ask<'a>,
    pub(crate) action: Action<'a>,
    /// The claim of the request, if there is one.
    pub(crate) claim: Option<&'a ClaimId>,
    /// The replica to try first, if that matters.
    pub(crate) at: Option<usize>,
    /// The only replica that may get the request: the claim belongs to it.
    pub(crate) home: Option<&'a Arc<Home>>,
    /// What it asks for, if it may be sent together with others.
    pub(crate) with_others: Option<What>,
    /// Whether it goes on to the next replica if one does not answer in a part of `limit`. Such a request may take effect more
    /// than once.
    pub(crate) moves_on: bool,
    /// The longest time that all of it may take.
    pub(crate) limit: Duration,
}

/// Whether a replica serves this store.
enum Served {
    Ours,
    /// It serves another store, for this reason.
    Other(String),
    Unknown(String),
}

impl State {
    /// Asks all replicas for their store. Those that answer must serve the same one.
    pub(crate) async fn open(config: Config, sender: EventSender) -> Result<Self> {
        let connections = Arc::new(Connections::new(&config));
        let replicas = Replicas::new(&config.replicas, config.spread);
        let answers = ask_all(&config, &connections, &replicas).await;
        let (mut said, mut failed) = (Vec::new(), None);
        for (index, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(store) => said.push((index, store)),
                Err(error) => {
                    replicas.failed(index);
                    failed = failed.or(Some(error));
                }
            }
        }
        let Some((_, first)) = said.first() else {
            let none = || Error::internal(&config.store, "no replica was asked");
            return Err(failed.unwrap_or_else(none));
        };
        let mut info = ServerInfo::new(&config, first.clone())?;
        for (index, store) in &said {
            if let Some(why) = info.differs(store) {
                let why = format!("{}: {why}", replicas.address(*index));
                return Err(Error::config(&config.store, ConfigPart::Server, why));
            }
            info.is_served_by(store);
        }
        let homes = match info.is_bound() {
            true => Some(homes(&config, &said).await?),
            false => None,
        };
        let known = said.into_iter().map(|(_, store)| store.replica).collect();
        let state = Self {
            promises: info.promises(&config),
            homes,
            given: Home::given(&config)?.map(Arc::new),
            entries: Arc::new(Entries::new(2 * info.window())),
            contention: Contention::default(),
            known: Mutex::new(known),
            closed: watch::Sender::new(false),
            batches: config
                .replicas
                .iter()
                .map(|address| Batches::new(Arc::clone(&connections), address))
                .collect(),
            config,
            connections,
            replicas,
            info,
            sender,
        };
        state.check_store().await?;
        Ok(state)
    }

    /// Closes connections and ends background tasks.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
        self.connections.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// The key of a claim.
    pub(crate) fn key_of(&self, claim: &Claim) -> Result<&Key> {
        let mut keys = self.config.keys.iter();
        keys.find(|key| key.key.speaks_for(&claim.id))
            .ok_or_else(|| {
                Error::refused(
                    &self.config.store,
                    format!("speaking for claim {} of lock {}", claim.id, claim.name),
                    "this client does not have its key; give the claim's key to Options::claim_key",
                )
            })
    }

    /// Sends a request to one replica. Tries the next one if nothing was sent, or the replica began nothing, or the request
    /// moves on.
    pub(crate) async fn ask(&self, request: Request<'_>) -> Result<Reply, RequestError> {
        if let Some(home) = request.home {
            return self.ask_home(request, home).await;
        }
        let until = Clock::Boot.now() + request.limit;
        let mut failed = None;
        let order = self.replicas.order(request.claim);
        let first = request.at.into_iter();
        for index in first.chain(order.into_iter().filter(|index| request.at != Some(*index))) {
            let sent = Clock::Boot.now();
            let left = until.since(sent);
            if left.is_zero() {
                break;
            }
            let replica = Asked::Listed(index);
            let limit = self.time_for(index, &request, left);
            match self.ask_one(&replica, request, limit).await {
                Ok(answer) => {
                    return Ok(Reply {
                        answer,
                        sent,
                        replica,
                        in_doubt_before: failed.is_some_and(|failed: RequestError| failed.in_doubt),
                    });
                }
                Err(error) => {
                    self.note_doubt(request, &error, sent);
                    let is_done = error.in_doubt && !request.moves_on;
                    if is_done || matches!(error.error, Error::Closed) {
                        return Err(error);
                    }
                    failed = match failed {
                        // An error in doubt says more than one of a request that was not sent.
                        Some(before) if before.in_doubt || !error.in_doubt => Some(before),
                        _ => Some(error),
                    };
                }
            }
        }
        Err(failed.unwrap_or_else(|| self.unreached(request.action)))
    }

    /// As [`State::ask`]; asks twice if there is no other address. That address may be a load balancer, or only the connection may
    /// be dead, so it is asked once more over another connection, while the first lease of a grant still runs: that is one claim
    /// window, whatever the ttl.
    pub(crate) async fn ask_again(&self, request: Request<'_>) -> Result<Reply, RequestError> {
        if request.home.is_none() && self.replicas.len() > 1 {
            return self.ask(request).await;
        }
        let part = (self.info.window() / 3).max(SHORTEST_PART);
        let limit = request.limit.min(part);
        match self.ask(Request { limit, ..request }).await {
            Err(failed) if failed.in_doubt => {
                let mut reply = self.ask(request).await?;
                reply.in_doubt_before = true;
                Ok(reply)
            }
            answer => answer,
        }
    }

    /// How long one replica may take of the time that is left. A replica that hangs must leave time for another one. If no other
    /// one works, it gets all of the time.
    fn time_for(&self, index: usize, request: &Request<'_>, left: Duration) -> Duration {
        if !request.moves_on || !self.replicas.has_another(index) {
            return left;
        }
        let part = request.limit.min(self.info.window()) / 4;
        left.min(part.max(SHORTEST_PART))
    }

    /// Sends the first request of a claim to a replica that then has the claim. Tries the next one only if nothing was sent, or
    /// the replica refused the request.
    pub(crate) async fn ask_first(
        &self,
        homes: &Homes,
        claim: &ClaimId,
        request: Request<'_>,
    ) -> Result<Reply, RequestError> {
        let until = Clock::Boot.now() + request.limit;
        let mut failed = None;
        for index in self.replicas.order(Some(claim)) {
            let mut known = homes.at(index);
            // If the known id is out of date, it is read again, once.
            for _ in 0..2 {
                let left = until.since(Clock::Boot.now());
                if left.is_zero() {
                    break;
                }
                let home = match known.take() {
                    Some(home) => home,
                    None => match self
                        .find_home(homes, index, self.time_for(index, &request, left))
                        .await
                    {
                        Ok(home) => home,
                        Err(error) => {
                            failed = failed.or(Some(error.into()));
                            break;
                        }
                    },
                };
                self.entries.lives(claim, &home);
                let left = until.since(Clock::Boot.now());
                let limit = self.time_for(index, &request, left);
                match self.ask_home(Request { limit, ..request }, &home).await {
                    Ok(reply) if reply.status() == StatusCode::MISDIRECTED_REQUEST => {
                        failed = failed.or(self.read::<()>(&reply, request.action).err());
                    }
                    Ok(reply) => return Ok(reply),
                    Err(error) if error.in_doubt || matches!(error.error, Error::Closed) => {
                        return Err(error);
                    }
                    Err(error) => {
                        failed = failed.or(Some(error));
                        self.entries.lives_nowhere(claim);
                        break;
                    }
                }
                self.entries.lives_nowhere(claim);
            }
        }
        Err(failed.unwrap_or_else(|| self.unreached(request.action)))
    }

    fn unreached(&self, action: Action<'_>) -> RequestError {
        let why = "no replica could be reached in time";
        Error::unavailable(&self.config.store, action.text(), why).into()
    }

    /// Asks the replica at this index for its id.
    async fn find_home(&self, homes: &Homes, index: usize, limit: Duration) -> Result<Arc<Home>> {
        let address = self.replicas.address(index);
        let said = ask_store(&self.config, &self.connections, address, limit).await;
        let said = said.inspect_err(|_| self.replicas.failed(index))?;
        if let Some(why) = self.info.differs(&said) {
            self.replicas.failed(index);
            return Err(Error::config(
                &self.config.store,
                ConfigPart::Server,
                format!("{address}: {why}"),
            ));
        }
        let home = Arc::new(Home::new(&self.config, index, &said)?);
        homes.found(&home);
        Ok(home)
    }

    /// Sends a request to the replica to which the claim belongs.
    async fn ask_home(
        &self,
        request: Request<'_>,
        home: &Arc<Home>,
    ) -> Result<Reply, RequestError> {
        let (sent, replica) = (Clock::Boot.now(), Asked::Home(Arc::clone(home)));
        let ask = Ask {
            replica: Some(&home.id),
            ..request.ask
        };
        let asked = Request { ask, ..request };
        let answer = self.ask_one(&replica, asked, request.limit).await;
        let is_it = |answer: &Answer| {
            let id = answer.replica.as_ref();
            id.is_some_and(|id| id.as_bytes() == home.id.as_bytes())
        };
        if !answer.as_ref().is_ok_and(is_it)
            && let Some(homes) = &self.homes
        {
            homes.forget(home);
        }
        match answer {
            Ok(answer) => Ok(Reply {
                answer,
                sent,
                replica,
                in_doubt_before: false,
            }),
            Err(error) => {
                self.note_doubt(request, &error, sent);
                Err(error)
            }
        }
    }

    /// The replica to which a claim belongs, if it was placed by this engine, or another process told it.
    pub(crate) fn home_of(&self, claim: &ClaimId) -> Option<Arc<Home>> {
        let placed = self.entries.home(claim);
        placed.or_else(|| {
            let others = &self.config.keys[1..];
            let is_of_others = others.iter().any(|key| key.key.speaks_for(claim));
            self.given.clone().filter(|_| is_of_others)
        })
    }

    /// Notes with the claim that a request of it may take effect late.
    fn note_doubt(&self, request: Request<'_>, error: &RequestError, sent: BootInstant) {
        if let Some(claim) = request.claim
            && error.in_doubt
            && request.ask.method == Method::PUT
        {
            self.entries.doubt(claim, sent);
        }
    }

    /// One attempt. If an error is not in doubt, this replica began nothing.
    async fn ask_one(
        &self,
        replica: &Asked,
        request: Request<'_>,
        limit: Duration,
    ) -> Result<Answer, RequestError> {
        let (index, address) = (replica.index(), replica.address(&self.replicas));
        let (ask, batches) = (request.ask, &self.batches[index]);
        // A request that must reach one replica is sent alone: its header names the replica.
        let with_others = request
            .with_others
            .filter(|_| ask.replica.is_none() && self.info.takes_batches());
        let answer = match (with_others, request.claim, ask.key, ask.body) {
            (Some(what), Some(claim), Some(key), Some(body)) => {
                let asked = (what, *claim);
                batches.ask(asked, ask, (key, body), limit).await
            }
            _ => self.connections.ask(address, ask, limit).await,
        };
        let answer = answer.map_err(|none| {
            self.replicas.failed(index);
            self.no_answer(address, request.action, none)
        })?;
        let unavailable = |why: String, in_doubt| {
            self.replicas.failed(index);
            let action = request.action.text();
            RequestError {
                error: Error::unavailable(&self.config.store, action, why),
                in_doubt,
                kind: None,
            }
        };
        let said = (answer.status, answer.replica.clone());
        match self.served_by(address, said, limit).await {
            Served::Ours => {}
            Served::Unknown(why) => return Err(unavailable(why, true)),
            Served::Other(why) => {
                tracing::warn!(store = %self.config.store, replica = address, why, "a replica is not used");
                self.replicas.failed(index);
                let why = format!("{address}: {why}");
                return Err(Error::config(&self.config.store, ConfigPart::Server, why).into());
            }
        }
        if answer.status == StatusCode::SERVICE_UNAVAILABLE {
            self.replicas.failed(index);
            let refused = self.refused(address, request.action, &answer);
            if refused.kind == Some(Kind::Draining) {
                return Err(refused);
            }
        } else {
            self.replicas.answered(index);
        }
        Ok(answer)
    }

    fn refused(&self, address: &str, action: Action<'_>, answer: &Answer) -> RequestError {
        refused(
            &self.config.store,
            address,
            action,
            answer.status,
            &answer.body,
        )
    }

    pub(crate) fn no_answer(
        &self,
        address: &str,
        action: Action<'_>,
        none: NoAnswer,
    ) -> RequestError {
        let (why, in_doubt) = match none {
            NoAnswer::Closed => return Error::Closed.into(),
            NoAnswer::NotSent(why) => (why, false),
            NoAnswer::InDoubt(why) => (why, true),
        };
        let cause = format!("{address}: {why}");
        RequestError {
            error: Error::unavailable(&self.config.store, action.text(), cause),
            in_doubt,
            kind: None,
        }
    }

    /// Whether an answer is from a replica that serves this store. A replica with an unknown id is asked, since it may serve
    /// another store.
    async fn served_by(
        &self,
        address: &str,
        (status, id): (StatusCode, Option<HeaderValue>),
        limit: Duration,
    ) -> Served {
        let Some(id) = id else {
            // A replica always gives its id, but a load balancer may answer for a replica that is down.
            return match status.is_success() {
                true => Served::Unknown("the answer does not say which replica it is from".into()),
                false => Served::Ours,
            };
        };
        for attempt in 0..TRIES {
            let is_it = |known: &String| known.as_bytes() == id.as_bytes();
            if self.known.lock().iter().any(is_it) {
                return Served::Ours;
            }
            // A load balancer chooses by connection: one that is open would lead to the same replica again and again.
            let fresh = (attempt > 0).then(|| Connections::new(&self.config));
            let connections = fresh.as_ref().unwrap_or(&self.connections);
            match ask_store(&self.config, connections, address, limit).await {
                Ok(store) => {
                    if let Some(why) = self.info.differs(&store) {
                        return Served::Other(why);
                    }
                    let mut known = self.known.lock();
                    if known.len() >= MOST_KNOWN {
                        known.remove(0);
                    }
                    known.push(store.replica);
                }
                Err(error) => return Served::Unknown(error.to_string()),
            }
        }
        let why = format!("replica {id:?} does not say which store it serves");
        Served::Unknown(why)
    }

    /// Checks that the store behind the service answers.
    async fn check_store(&self) -> Result<()> {
        let request = Request {
            // Any name is suitable.
            ask: Ask::get("/v1/lock?name=fencelock-open"),
            action: Action::plain("opening the store"),
            claim: None,
            at: None,
            home: None,
            with_others: None,
            moves_on: true,
            limit: self.config.response_timeout,
        };
        let reply = self.ask(request).await?;
        match self.read::<serde_json::Value>(&reply, request.action) {
            // This client has no right to look at this name. Its credentials were checked before.
            Err(refused) if matches!(refused.kind, Some(Kind::Forbidden | Kind::Unauthorized)) => {
                Ok(())
            }
            Err(refused) => Err(refused.into()),
            Ok(_) => Ok(()),
        }
    }

    /// A request about a claim, with its key.
    pub(crate) fn post<'a>(path: &'a str, key: &'a HeaderValue, body: &'a Bytes) -> Ask<'a> {
        Ask {
            method: &Method::POST,
            key: Some(key),
            body: Some(body),
            ..Ask::get(path)
        }
    }

    /// A body as JSON.
    pub(crate) fn json(&self, body: &impl Serialize) -> Result<Bytes> {
        let written = serde_json::to_vec(body);
        let written = written.map_err(|error| {
            Error::internal(&self.config.store, format!("writing a request: {error}"))
        });
        written.map(Bytes::from)
    }

    /// Reads a successful answer. Otherwise the error has the service's problem.
    pub(crate) fn read<T: DeserializeOwned>(
        &self,
        reply: &Reply,
        action: Action<'_>,
    ) -> Result<T, RequestError> {
        if !reply.answer.status.is_success() {
            let address = reply.replica.address(&self.replicas);
            return Err(self.refused(address, action, &reply.answer));
        }
        serde_json::from_slice(&reply.answer.body).map_err(|error| {
            let address = reply.replica.address(&self.replicas);
            unreadable(&self.config.store, address, action, &error.to_string())
        })
    }
}
