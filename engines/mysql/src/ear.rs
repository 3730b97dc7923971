//! The two connections by which a client's waiters are woken. The *ear* waits in the server until another client ends its wait
//! with KILL QUERY. It holds a lock of the server's own that has its name. Others find its connection by that lock, so a KILL
//! hits no other connection. It waits for another such lock, the *wake-up lock*, which the *control* connection holds. (A KILL
//! may take two seconds to reach a connection in SLEEP. It reaches one that waits for a lock at once.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencelock_core::{Error, Result};
use mysql_async::Conn;

use super::config::Config;
use super::connection::{Connected, connect, hang_up};
use super::error::caller_error;
use super::request::{Answer, Request};

/// The beginning of the name of an ear's lock.
pub(crate) const EAR: &str = "fencelock-ear-";
/// The beginning of the name of a wake-up lock.
const WAKE_LOCK: &str = "fencelock-bell-";

/// KILL found no such connection.
const NOBODY: u16 = 1094;

/// How long a new ear is tried out, and how often it is woken meanwhile.
const TRIAL: Duration = Duration::from_secs(2);
const WAKE_AGAIN: Duration = Duration::from_millis(5);

/// A name for an ear.
pub(crate) fn new_name() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// A statement that ends the wait of the connection that holds this lock, if there is one. `lock` is an SQL expression.
pub(crate) fn kill(lock: &str) -> String {
    format!("KILL QUERY COALESCE(IS_USED_LOCK({lock}), 0)")
}

/// A request that wakes the ear with this name.
pub(crate) fn wake(name: &str) -> Request {
    Request::of(kill(&format!("'{EAR}{name}'")))
}

/// The connection that holds the wake-up lock of this client's ear, and wakes the ears of other clients. It is opened when it
/// is needed.
pub(crate) struct Control {
    config: Config,
    name: String,
    conn: tokio::sync::Mutex<Option<Conn>>,
    /// Whether there is an ear for which it holds the wake-up lock.
    has_ear: AtomicBool,
}

impl Control {
    /// The control connection of the ear with this name.
    pub(crate) fn new(config: Config, name: String) -> Self {
        let conn = tokio::sync::Mutex::default();
        Self {
            config,
            name,
            conn,
            has_ear: false.into(),
        }
    }

    /// Holds the wake-up lock of its ear from now on.
    pub(crate) async fn hold_wake_lock(&self) -> Result<()> {
        self.has_ear.store(true, Ordering::SeqCst);
        let wake_lock = wake_lock(&self.name);
        self.run(&Request::of(format!("SELECT GET_LOCK('{wake_lock}', 1)")))
            .await
    }

    /// Runs a request. A KILL that finds no connection is no failure.
    pub(crate) async fn run(&self, request: &Request) -> Result<()> {
        const ACTION: &str = "waking a waiter";
        let mut kept = self.conn.lock().await;
        loop {
            let (mut conn, is_new) = match kept.take() {
                Some(conn) => (conn, false),
                None => (self.open().await?, true),
            };
            let limit = self.config.settings.response_timeout;
            let ran = tokio::time::timeout(limit, request.run(&mut conn)).await;
            let error = match ran {
                Err(_) => return Err(no_answer(&self.config, ACTION, limit)),
                Ok(Ok(_)) => {
                    *kept = Some(conn);
                    return Ok(());
                }
                Ok(Err(error)) => error,
            };
            match &error {
                mysql_async::Error::Server(server) => {
                    let found_nobody = server.code == NOBODY;
                    *kept = Some(conn);
                    return match found_nobody {
                        true => Ok(()),
                        false => Err(caller_error(&self.config.store, ACTION, error)),
                    };
                }
                // The server has ended it since.
                _ if !is_new => {}
                _ => return Err(caller_error(&self.config.store, ACTION, error)),
            }
        }
    }

    async fn open(&self) -> Result<Conn> {
        let Connected { mut conn, .. } = connect(&self.config).await?;
        // An earlier connection of this client may still hold the lock, which is equally good.
        let take = Request::of(format!("SELECT GET_LOCK('{}', 0)", wake_lock(&self.name)));
        let taken = take.run(&mut conn).await;
        taken.map_err(|error| {
            caller_error(&self.config.store, "preparing to wake waiters", error)
        })?;
        Ok(conn)
    }

    /// Ends the connection if there is no ear.
    pub(crate) fn hang_up_without_ear(&self) {
        if !self.has_ear.load(Ordering::SeqCst) {
            self.hang_up();
        }
    }

    /// Ends the connection, unless it is in use. Its ear has ended.
    pub(crate) fn hang_up(&self) {
        self.has_ear.store(false, Ordering::SeqCst);
        let conn = self.conn.try_lock().ok();
        if let Some(conn) = conn.and_then(|mut conn| conn.take()) {
            hang_up(conn);
        }
    }
}

/// A connection that waits to be woken.
pub(crate) struct Ear {
    config: Config,
    name: String,
    conn: Conn,
}

impl Ear {
    /// Opens an ear and makes sure that a KILL of this user reaches it.
    pub(crate) async fn open(config: &Config, name: &str, control: &Control) -> Result<Self> {
        let opening = Self::open_untried(config, name, control);
        let limit = config.settings.connect_timeout;
        let opened = tokio::time::timeout(limit, opening).await;
        let mut ear = opened.unwrap_or_else(|_| Err(no_answer(config, OPEN, limit)))?;
        ear.try_out(control).await?;
        Ok(ear)
    }

    async fn open_untried(config: &Config, name: &str, control: &Control) -> Result<Self> {
        let Connected { conn, info, .. } = connect(config).await?;
        let (config, name) = (config.clone(), name.to_owned());
        if info.is_cluster() {
            let why = "in a cluster a KILL reaches the connections of one server only";
            return Err(Error::unsupported(&config.store, OPEN, why));
        }
        let mut ear = Self { config, name, conn };
        for patience in [0, 1, 2] {
            let lock = format!("'{EAR}{}'", ear.name);
            let take = format!(
                "SELECT GET_LOCK({lock}, {patience}), IS_USED_LOCK({lock}) = CONNECTION_ID()"
            );
            let taken = ear.ask(&Request::of(take), Duration::ZERO).await?;
            let taken = taken
                .as_ref()
                .map(|taken| (number(&taken[0], 0), number(&taken[0], 1)));
            match taken {
                Some((Some(1), Some(1))) => {
                    control.hold_wake_lock().await?;
                    return Ok(ear);
                }
                // An earlier connection of this client has the lock, and was cut off.
                Some((Some(0), _)) => {
                    let end = format!("KILL CONNECTION COALESCE(IS_USED_LOCK({lock}), 0)");
                    control.run(&Request::of(end)).await?;
                }
                // A late KILL ended the statement.
                _ => {}
            }
        }
        let why = "the server does not say which connection holds a lock of GET_LOCK";
        Err(Error::unsupported(&ear.config.store, OPEN, why))
    }

    /// Checks that a KILL ends the wait of this ear.
    async fn try_out(&mut self, control: &Control) -> Result<()> {
        let (wake, wake_lock) = (wake(&self.name), wake_lock(&self.name));
        let wait = Request::of(format!(
            "SELECT GET_LOCK('{wake_lock}', {})",
            TRIAL.as_secs()
        ));
        let (config, is_over) = (self.config.clone(), AtomicBool::new(false));
        let waiting = async {
            let woken = self.ask(&wait, TRIAL).await;
            is_over.store(true, Ordering::SeqCst);
            woken
        };
        let waking = async {
            // The first KILL may arrive before the wait.
            while !is_over.load(Ordering::SeqCst) {
                control.run(&wake).await?;
                tokio::time::sleep(WAKE_AGAIN).await;
            }
            Ok(())
        };
        let (woken, sent) = tokio::join!(waiting, waking);
        sent?;
        match woken? {
            Some(answers) if number(&answers[0], 0).is_some() => {
                let why = "a KILL QUERY does not reach a connection of the same user";
                Err(Error::unsupported(&config.store, OPEN, why))
            }
            _ => Ok(()),
        }
    }

    /// Runs a request that may wait for `wait`. `None` if it was ended, by a KILL or a time limit of the server's. (MariaDB
    /// ends only the wait: it is NULL, and the request goes on.)
    pub(crate) async fn ask(
        &mut self,
        request: &Request,
        wait: Duration,
    ) -> Result<Option<Vec<Answer>>> {
        let limit = wait + self.config.settings.response_timeout;
        let ran = tokio::time::timeout(limit, request.run(&mut self.conn)).await;
        match ran {
            Err(_) => Err(no_answer(&self.config, OPEN, limit)),
            Ok(Ok(answers)) => Ok(Some(answers)),
            Ok(Err(mysql_async::Error::Server(server))) if is_ended(server.code) => Ok(None),
            Ok(Err(error)) => Err(caller_error(&self.config.store, OPEN, error)),
        }
    }

    /// An SQL expression that waits for the wake-up lock. It is 0 after that time, and NULL if its wait was ended. It is 1 if
    /// the lock was free, so the control connection is gone.
    pub(crate) fn wait(&self, wait: Duration) -> String {
        format!("GET_LOCK('{}', {})", wake_lock(&self.name), wait.as_secs())
    }

    /// Releases the wake-up lock, and has the control connection hold it again.
    pub(crate) async fn return_wake_lock(&mut self, control: &Control) -> Result<()> {
        let free = format!("SELECT RELEASE_LOCK('{}')", wake_lock(&self.name));
        let free = Request::of(free);
        // It may have the lock more than once, and a late KILL may end the request.
        loop {
            let answers = self.ask(&free, Duration::ZERO).await?;
            if answers.is_some_and(|answers| number(&answers[0], 0) != Some(1)) {
                return control.hold_wake_lock().await;
            }
        }
    }

    /// Ends the connection.
    pub(crate) fn hang_up(self) {
        hang_up(self.conn);
    }
}

/// The action of an ear, for errors.
const OPEN: &str = "waiting to be woken by KILL QUERY";

/// A number in an answer of one row; `None` for NULL.
pub(crate) fn number(answer: &Answer, column: usize) -> Option<u64> {
    let row = answer.rows.first()?;
    row.get::<Option<u64>, _>(column).flatten()
}

fn wake_lock(name: &str) -> String {
    format!("{WAKE_LOCK}{name}")
}

/// Whether a statement was interrupted, or took longer than `max_statement_time` or `max_execution_time`.
const fn is_ended(code: u16) -> bool {
    matches!(code, 1317 | 1969 | 3024)
}

fn no_answer(config: &Config, action: &str, limit: Duration) -> Error {
    let cause = format!("no answer within {limit:?}");
    Error::unavailable(&config.store, action, cause)
}
