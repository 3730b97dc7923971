//! One server, or the present master: its current connection, and the task that replaces it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::support::{Backoff, Mutex};
use fencelock_core::{BootInstant, Clock, ConfigPart, Error, Result};
use tokio::sync::{Notify, watch};

use crate::config::Address;
use crate::connect::{OnPush, Purpose, Push, Setup};
use crate::connection::Connection;
use crate::earlier::Earlier;
use crate::sentinel::{Found, MARGIN, Sentinels};
use crate::server::ServerInfo;
use crate::state::{State, Task};
use crate::stored::Message;
use crate::uptime::Uptime;
use crate::writer::{Use, Writer, Writers};

/// The longest pause between attempts to reconnect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How a server is found.
#[derive(Debug)]
pub(crate) enum Target {
    /// Always the same server.
    Fixed(Box<redis::Client>),
    /// The server that the Sentinels name.
    Master(Arc<Sentinels>),
}

#[derive(Clone, Debug)]
enum Status {
    Up(Arc<Connection>),
    /// `refused` if the server was reached and refused.
    Down {
        why: String,
        refused: bool,
    },
    Closed,
}

impl Status {
    fn lost() -> Self {
        Self::Down {
            why: "the connection was lost".into(),
            refused: false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Node {
    target: Target,
    status: watch::Sender<Status>,
    /// Notified when the connection breaks.
    wake_up: Arc<Notify>,
    /// The generation of the newest connection.
    newest: AtomicU64,
    /// The server process seen last.
    run_id: Mutex<Option<String>>,
    /// Until this instant no connection grants, because another server has replaced the former one.
    replaced_until: Mutex<Option<BootInstant>>,
    uptime: Uptime,
    /// Where the Sentinels saw the master last.
    address: Mutex<Option<Address>>,
    earlier: Arc<Earlier>,
    writers: Arc<Writers>,
    maintained: AtomicBool,
}

impl Node {
    pub(crate) fn new(target: Target) -> Arc<Self> {
        let who = match &target {
            Target::Fixed(client) => format!("{}: ", client.get_connection_info().addr()),
            Target::Master(_) => String::new(),
        };
        let status = Status::Down {
            why: format!("{who}not connected yet"),
            refused: false,
        };
        let earlier = Arc::<Earlier>::default();
        Arc::new(Self {
            target,
            status: watch::Sender::new(status),
            wake_up: Arc::default(),
            newest: AtomicU64::new(0),
            run_id: Mutex::default(),
            replaced_until: Mutex::default(),
            uptime: Uptime::default(),
            address: Mutex::default(),
            writers: Writers::new(Arc::clone(&earlier)),
            earlier,
            maintained: AtomicBool::new(false),
        })
    }

    /// The current connection. Waits for one for at most the response timeout.
    pub(crate) async fn connection(&self, state: &State) -> Result<Arc<Connection>> {
        let ready = |status: &Status| match status {
            Status::Up(connection) if !connection.is_broken() => Some(Ok(Arc::clone(connection))),
            Status::Closed => Some(Err(Error::Closed)),
            _ => None,
        };
        if let Some(answer) = ready(&self.status.borrow()) {
            return answer;
        }
        let mut changes = self.status.subscribe();
        let connected = changes.wait_for(|status| ready(status).is_some());
        if let Ok(Ok(status)) = tokio::time::timeout(state.config.response_timeout, connected).await
            && let Some(answer) = ready(&status)
        {
            return answer;
        }
        let (why, refused) = match self.status.borrow().clone() {
            Status::Down { why, refused } => (why, refused),
            _ => ("the connection was lost".to_owned(), false),
        };
        let action = "reconnecting";
        Err(if refused {
            Error::refused(state.store(), action, why)
        } else {
            Error::unavailable(state.store(), action, why)
        })
    }

    pub(crate) fn connection_if_up(&self) -> Option<Arc<Connection>> {
        match &*self.status.borrow() {
            Status::Up(connection) if !connection.is_broken() => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    pub(crate) fn address(&self) -> Option<Address> {
        self.address.lock().clone()
    }

    fn is_newest(&self, generation: u64) -> bool {
        generation == self.newest.load(Ordering::SeqCst)
    }

    /// Connects once.
    pub(crate) async fn connect(self: &Arc<Self>, state: &Arc<State>) -> Result<ServerInfo> {
        let config = &state.config;
        let (client, found) = match &self.target {
            Target::Fixed(client) => (redis::Client::clone(client), None),
            Target::Master(sentinels) => {
                let found = sentinels.find(config).await?;
                (config.client_at(&found.address)?, Some(found))
            }
        };
        let generation = state.next_generation();
        self.newest.store(generation, Ordering::SeqCst);
        let setup = Setup {
            state,
            uptime: &self.uptime,
            client,
            purpose: match config.inspect_only {
                true => Purpose::Look,
                false => Purpose::Full,
            },
            generation,
            wake_up: Arc::clone(&self.wake_up),
        };
        let (mut connection, info) = setup.open(self.on_push(state, generation)).await?;
        let replaced_until = self.note_process(&connection, config.restart_delay);
        connection.grants_from = connection.grants_from.max(replaced_until);
        if let Some(found) = found {
            let promoted_until = promotion_delay(state, &connection, &found)?;
            connection.grants_from = connection.grants_from.max(promoted_until);
            *self.address.lock() = Some(found.address);
        }
        if !config.is_cluster() {
            state.saw(0, connection.floor);
        }
        self.earlier.end(&connection).await;
        let connection = Arc::new(connection);
        self.status.send_if_modified(|status| {
            let open = !matches!(status, Status::Closed);
            if open {
                *status = Status::Up(connection);
            }
            open
        });
        // The server knows the channel again. Only from now on may waiters join the queue.
        state.entries.wake_all();
        Ok(info)
    }

    /// Handles the pushes of the connection of this generation.
    fn on_push(self: &Arc<Self>, state: &Arc<State>, generation: u64) -> OnPush {
        let (state, node) = (Arc::downgrade(state), Arc::downgrade(self));
        Arc::new(move |push: Push<'_>| {
            let (Some(state), Some(node)) = (state.upgrade(), node.upgrade()) else {
                return;
            };
            match push {
                Push::Message(payload) => {
                    if let Some(message) = Message::parse(payload) {
                        state.receive(message, node.is_newest(generation));
                    }
                }
                // The waiters are placed again, and then listen at another node.
                Push::SlotMoved => state.entries.wake_all(),
            }
        })
    }

    /// Replaces the connection in the background whenever it is lost, until the store or the node is dropped.
    pub(crate) fn maintain(self: &Arc<Self>, state: &Arc<State>) {
        if self.maintained.swap(true, Ordering::SeqCst) {
            return;
        }
        let (wake_up, status) = (Arc::clone(&self.wake_up), self.status.subscribe());
        if self.connection_if_up().is_none() {
            wake_up.notify_one();
        }
        let (state, node) = (Arc::downgrade(state), Arc::downgrade(self));
        tokio::spawn(reconnect(state, node, wake_up, status));
    }

    /// Until when nothing is granted because another server has replaced the former one. That server may have run for long.
    /// Later connections to it wait until the same time.
    fn note_process(
        &self,
        connection: &Connection,
        restart_delay: Duration,
    ) -> Option<BootInstant> {
        let before = std::mem::replace(&mut *self.run_id.lock(), connection.run_id.clone());
        let mut until = self.replaced_until.lock();
        if before.is_some() && before != connection.run_id && !restart_delay.is_zero() {
            *until = (*until).max(Some(Clock::Boot.now() + restart_delay));
        }
        *until
    }

    pub(crate) async fn end_earlier(&self, connection: &Connection) {
        self.earlier.end(connection).await;
    }

    pub(crate) fn has_earlier(&self, first: u64, current: &Connection) -> bool {
        self.earlier.has(first, current)
    }

    /// Notes that the connection is lost. Returns `false` if it is not lost, or if the node is closed.
    fn note_loss(&self) -> bool {
        let mut lost = false;
        self.status.send_if_modified(|status| {
            let Status::Up(connection) = status else {
                lost = matches!(status, Status::Down { .. });
                return false;
            };
            self.earlier.remember(connection);
            lost = true;
            *status = Status::lost();
            true
        });
        lost
    }

    fn note_failure(&self, error: Error) {
        let refused = matches!(error, Error::Refused { .. } | Error::Config { .. });
        let why = match error {
            Error::Unavailable { action, cause, .. } => format!("{action}: {cause}"),
            other => other.to_string(),
        };
        self.status.send_if_modified(|status| {
            let down = matches!(status, Status::Down { .. });
            if down {
                *status = Status::Down { why, refused };
            }
            down
        });
    }

    /// A connection for writing, to the server of `main`, if grants or renewals wait for replicas.
    pub(crate) async fn writer(
        &self,
        purpose: Use,
        state: &State,
        main: &Connection,
    ) -> Result<Option<Writer>> {
        if state.config.replicas == 0 {
            return Ok(None);
        }
        let writer = self.writers.get(purpose, state, &self.uptime, main);
        writer.await.map(Some)
    }

    pub(crate) fn close(&self) {
        self.status.send_replace(Status::Closed);
        self.writers.close();
    }

    fn leave(&self) {
        if let Some(connection) = self.connection_if_up() {
            connection.break_off();
        }
    }
}

/// Until when a master that was perhaps promoted recently grants nothing.
fn promotion_delay(
    state: &State,
    connection: &Connection,
    found: &Found,
) -> Result<Option<BootInstant>> {
    let config = &state.config;
    if config.promotion_delay.is_zero() || config.inspect_only {
        return Ok(None);
    }
    let Some(ran) = connection.ran else {
        let why = "promotion-delay needs the start time of the server; allow the command INFO to this user";
        return Err(Error::config(&config.store, ConfigPart::Server, why));
    };
    let delay = config.promotion_delay + MARGIN + Duration::from_secs(1);
    let left = delay.checked_sub(found.age.min(ran));
    Ok(left.map(|left| found.at + left))
}

async fn reconnect(
    state: Weak<State>,
    node: Weak<Node>,
    wake_up: Arc<Notify>,
    mut status: watch::Receiver<Status>,
) {
    loop {
        tokio::select! {
            () = wake_up.notified() => {}
            () = closed(&mut status) => return,
        }
        let mut pauses = Backoff::new(Duration::from_millis(5), LONGEST_PAUSE);
        loop {
            let (Some(state), Some(node)) = (state.upgrade(), node.upgrade()) else {
                return;
            };
            let is_up = match &*node.status.borrow() {
                Status::Closed => return,
                Status::Up(connection) => !connection.is_broken(),
                Status::Down { .. } => false,
            };
            // If the node is up, the notification came from a connection that was replaced meanwhile.
            if is_up || !node.note_loss() {
                break;
            }
            match node.connect(&state).await {
                Ok(_) => break,
                Err(error) => {
                    tracing::debug!(store = state.store(), %error, "reconnecting failed");
                    node.note_failure(error);
                    state.ask_for(Task::FindServers);
                }
            }
            drop((state, node));
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }
}

async fn closed(status: &mut watch::Receiver<Status>) {
    // An error means that the node was dropped.
    let _ = status
        .wait_for(|status| matches!(status, Status::Closed))
        .await;
}

/// Asks the Sentinels again and again in the background until the store is dropped, and disconnects from a server that is no
/// longer the master.
pub(crate) fn follow_master(sentinels: &Arc<Sentinels>, state: &Arc<State>, node: &Arc<Node>) {
    let pause = sentinels.pause();
    let sentinels = Arc::clone(sentinels);
    let (state, node) = (Arc::downgrade(state), Arc::downgrade(node));
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
            let (Some(state), Some(node)) = (state.upgrade(), node.upgrade()) else {
                return;
            };
            let store = state.store();
            match sentinels.find(&state.config).await {
                Ok(found) if node.address().is_some_and(|here| here != found.address) => {
                    let (host, port) = &found.address;
                    tracing::info!(store, host, port, "another server is the master now");
                    node.leave();
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(store, %error, "the Sentinels do not name a master"),
            }
        }
    });
}
