//! The control connection: one per client, for everything that is not a hold. It is made again when it breaks.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Cursor, Evict, LockView, Page};
use fencelock_core::{ClaimId, Error, LockName, Promises, Result, Token};
use tokio::sync::Mutex;

use super::dialect::{Dialect, Record, SessionId, Settings, Tie};

pub(super) struct Control<D: Dialect> {
    dialect: Arc<D>,
    settings: Settings,
    session: Mutex<Option<(D::Session, Arc<Tie>)>>,
}

/// Runs a call on the connection: again on a fresh one if it broke, since every call here may be repeated; and for as long
/// as there is time if only others were in its way.
macro_rules! call {
    ($self:ident, $action:expr, |$session:ident| $call:expr) => {{
        let action: String = $action.into();
        $self.within(&action, async {
            let mut slot = $self.session.lock().await;
            loop {
                // Taken out meanwhile, so that a call that is dropped halfway leaves no connection in an unknown state.
                let (mut session, tie, fresh) = match slot.take() {
                    Some((session, tie)) if !tie.is_cut() => (session, tie, false),
                    _ => {
                        let tie = Tie::new(None);
                        ($self.dialect.connect(Arc::clone(&tie)).await?, tie, true)
                    }
                };
                let $session = &mut session;
                match $call.await {
                    Err(Error::Unavailable { .. }) if !fresh => {}
                    Err(error) if D::is_in_the_way(&error) => {
                        // Those who got in each other's way do not try again in step.
                        let pause = Duration::from_micros(fastrand::u64(200..5000));
                        tokio::time::sleep(pause).await;
                    }
                    Err(error @ Error::Unavailable { .. }) => return Err(error),
                    answer => {
                        *slot = Some((session, tie));
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
            let tie = Tie::new(None);
            let mut session = self.dialect.connect(Arc::clone(&tie)).await?;
            let promises = self.dialect.promises(&mut session).await?;
            *self.session.lock().await = Some((session, tie));
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
        call!(self, "write down who holds", |session| self
            .dialect
            .record(session, records, asked))
    }

    pub(super) async fn forget(&self, claim: ClaimId) -> Result<()> {
        call!(self, "release a lock", |session| self
            .dialect
            .forget(session, claim))
    }

    pub(super) async fn look(&self, name: &LockName) -> Result<LockView> {
        call!(self, format!("look at lock {name}"), |session| self
            .dialect
            .look(session, name))
    }

    pub(super) async fn is_written(&self, name: &LockName) -> Result<bool> {
        call!(self, format!("look at lock {name}"), |session| self
            .dialect
            .is_written(session, name))
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

    pub(super) async fn lives(&self, of: &SessionId) -> Result<bool> {
        call!(self, "wait for a lock", |session| self
            .dialect
            .lives(session, of))
    }

    pub(super) async fn gone(&self, sessions: &[SessionId]) -> Result<Vec<SessionId>> {
        call!(self, "look for connections", |session| self
            .dialect
            .gone(session, sessions))
    }

    pub(super) async fn end(&self, of: &SessionId) -> Result<()> {
        call!(self, "end a connection that was given up", |session| self
            .dialect
            .end(session, of))
    }

    pub(super) async fn sweep(&self) -> Result<()> {
        call!(self, "clear up", |session| self.dialect.sweep(session))
    }
}

/// What comes of a call within its time.
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
