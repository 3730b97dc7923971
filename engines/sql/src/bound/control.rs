//! The control connection: one per client, for everything that is not a hold. It is made anew when it breaks.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Cursor, Evict, LockView, Page};
use fencelock_core::{ClaimId, Error, LockName, Promises, Result, Token};
use tokio::sync::Mutex;

use super::dialect::{Dialect, Record, SessionId};
use super::signal::CloseSignal;
use crate::Settings;

pub(super) struct Control<D: Dialect> {
    dialect: Arc<D>,
    settings: Settings,
    session: Mutex<Option<(D::Session, Arc<CloseSignal>)>>,
}

/// Runs a call on the connection. Every call here may be repeated: on a fresh connection if this one broke, and after
/// conflicts for as long as there is time.
macro_rules! call {
    ($self:ident, $action:expr, |$session:ident| $call:expr) => {{
        let action: String = $action.into();
        $self
            .within(&action, async {
                let mut slot = $self.session.lock().await;
                loop {
                    // Taken out, so that a dropped call leaves no connection in an unknown state.
                    let (mut session, signal, fresh) = match slot.take() {
                        Some((session, signal)) if !signal.is_closed() => (session, signal, false),
                        _ => {
                            let signal = CloseSignal::new(None);
                            (
                                $self.dialect.connect(Arc::clone(&signal)).await?,
                                signal,
                                true,
                            )
                        }
                    };
                    let $session = &mut session;
                    match $call.await {
                        Err(Error::Unavailable { .. }) if !fresh => {}
                        Err(error) if D::is_conflict(&error) => {
                            // Random, so that the two do not conflict again.
                            let pause = Duration::from_micros(fastrand::u64(200..5000));
                            tokio::time::sleep(pause).await;
                        }
                        Err(error @ Error::Unavailable { .. }) => return Err(error),
                        answer => {
                            *slot = Some((session, signal));
                            return answer;
                        }
                    }
                }
            })
            .await
    }};
}

impl<D: Dialect> Control<D> {
    pub(super) fn new(dialect: Arc<D>, settings: Settings) -> Self {
        let session = Mutex::new(None);
        Self {
            dialect,
            settings,
            session,
        }
    }

    async fn within<T>(&self, action: &str, call: impl Future<Output = Result<T>>) -> Result<T> {
        timed(&*self.dialect, self.settings.response_timeout, action, call).await
    }

    /// The first connection.
    pub(super) async fn open(&self) -> Result<Promises> {
        let first = async {
            let signal = CloseSignal::new(None);
            let mut session = self.dialect.connect(Arc::clone(&signal)).await?;
            let promises = self.dialect.promises(&mut session).await?;
            *self.session.lock().await = Some((session, signal));
            Ok(promises)
        };
        timed(
            &*self.dialect,
            self.settings.connect_timeout,
            "open it",
            first,
        )
        .await
    }

    pub(super) async fn close(&self) {
        drop(self.session.lock().await.take());
    }

    pub(super) async fn record(
        &self,
        records: &[Record],
        asked: &[ClaimId],
    ) -> Result<Vec<ClaimId>> {
        call!(self, "record who holds", |session| self
            .dialect
            .record(session, records, asked))
    }

    pub(super) async fn delete_record(&self, claim: ClaimId) -> Result<()> {
        call!(self, "release a lock", |session| self
            .dialect
            .delete_record(session, claim))
    }

    pub(super) async fn look(&self, name: &LockName) -> Result<LockView> {
        call!(self, format!("look at lock {name}"), |session| self
            .dialect
            .look(session, name))
    }

    pub(super) async fn is_recorded(&self, name: &LockName) -> Result<bool> {
        call!(self, format!("look at lock {name}"), |session| self
            .dialect
            .is_recorded(session, name))
    }

    pub(super) async fn list(
        &self,
        prefix: &str,
        at: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>> {
        call!(self, "list locks", |session| self
            .dialect
            .list(session, prefix, at, limit))
    }

    pub(super) async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        call!(
            self,
            format!("take lock {name} from its holder"),
            |session| self.dialect.evict(session, name, token, how)
        )
    }

    pub(super) async fn is_open(&self, of: &SessionId) -> Result<bool> {
        call!(self, "wait for a lock", |session| self
            .dialect
            .is_open(session, of))
    }

    pub(super) async fn ended(&self, sessions: &[SessionId]) -> Result<Vec<SessionId>> {
        call!(self, "check connections", |session| self
            .dialect
            .ended(session, sessions))
    }

    pub(super) async fn end(&self, of: &SessionId) -> Result<()> {
        call!(self, "end a connection that was given up", |session| self
            .dialect
            .end(session, of))
    }

    pub(super) async fn clean_up(&self) -> Result<()> {
        call!(self, "clean up", |session| self.dialect.clean_up(session))
    }
}

/// The call's answer, or an error after the time limit.
pub(super) async fn timed<T>(
    store: impl ToString,
    limit: Duration,
    action: &str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(_) => {
            let why = format!("no answer within {limit:?}");
            Err(Error::unavailable(store, action, why))
        }
    }
}
