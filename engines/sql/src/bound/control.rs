//! The control connection: one per client, for everything that is not a hold. It is opened again when it breaks.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{ClaimId, Error, Promises, Result};
use tokio::sync::Mutex;

use super::dialect::{Dialect, Record};
use super::signal::CloseSignal;
use crate::Settings;

pub(super) struct Control<D: Dialect> {
    pub(super) dialect: Arc<D>,
    settings: Settings,
    pub(super) session: Mutex<Option<(D::Session, Arc<CloseSignal>)>>,
}

/// Makes a call of the dialect on the control connection. Every call here may be repeated: on a fresh connection if this one
/// broke, and after conflicts for as long as there is time.
macro_rules! on_control {
    ($control:expr, $action:expr, $call:ident($($value:expr),*)) => {{
        let control = &$control;
        let call = async {
            let mut slot = control.session.lock().await;
            loop {
                let (mut session, signal, fresh) = control.take(&mut slot).await?;
                let answer = control.dialect.$call(&mut session, $($value),*).await;
                if let Some(answer) = control.judge(answer, fresh).await {
                    if !matches!(answer, Err(fencelock_core::Error::Unavailable { .. })) {
                        *slot = Some((session, signal));
                    }
                    break answer;
                }
            }
        };
        control.within($action, call).await
    }};
}
pub(super) use on_control;

impl<D: Dialect> Control<D> {
    pub(super) fn new(dialect: Arc<D>, settings: Settings) -> Self {
        let session = Mutex::new(None);
        Self {
            dialect,
            settings,
            session,
        }
    }

    pub(super) async fn within<T>(
        &self,
        action: impl Into<String>,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        timed(&*self.dialect, self.settings.response_timeout, action, call).await
    }

    /// Takes out the connection, so that a dropped call cannot leave it in an unknown state. Also returns whether it is fresh.
    pub(super) async fn take(
        &self,
        slot: &mut Option<(D::Session, Arc<CloseSignal>)>,
    ) -> Result<(D::Session, Arc<CloseSignal>, bool)> {
        if let Some((session, signal)) = slot.take().filter(|(_, signal)| !signal.is_closed()) {
            return Ok((session, signal, false));
        }
        let signal = CloseSignal::new(None);
        let session = self.dialect.connect(Arc::clone(&signal)).await?;
        Ok((session, signal, true))
    }

    /// The answer, unless the call should be made again.
    pub(super) async fn judge<T>(&self, answer: Result<T>, fresh: bool) -> Option<Result<T>> {
        match answer {
            Err(Error::Unavailable { .. }) if !fresh => None,
            Err(error) if D::is_conflict(&error) => {
                // Random, so that the two do not conflict again.
                tokio::time::sleep(Duration::from_micros(fastrand::u64(200..5000))).await;
                None
            }
            answer => Some(answer),
        }
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
            "opening it",
            first,
        )
        .await
    }

    pub(super) async fn record(
        &self,
        records: &[Record],
        asked: &[ClaimId],
    ) -> Result<Vec<ClaimId>> {
        on_control!(self, "recording who holds", record(records, asked))
    }

    pub(super) async fn close(&self) {
        drop(self.session.lock().await.take());
    }
}

/// The call's answer, or an error after the time limit.
pub(super) async fn timed<T>(
    store: impl ToString,
    limit: Duration,
    action: impl Into<String>,
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
