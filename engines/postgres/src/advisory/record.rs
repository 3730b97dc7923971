//! Records of who holds and who waits, by which connection.

use fencelock_core::{ClaimId, Clock, Result, Token};
use fencelock_sql::bound::{Record, SessionId};
use fencelock_sql::lease::mode_text;
use futures_util::future::try_join_all;
use tokio_postgres::{Row, Statement};

use super::connection::Advisory;
use super::statements::{RECORD, STRATEGY};
use crate::connection::{Session, Values};

impl Advisory {
    pub(super) async fn record_all(
        &self,
        control: &mut Session,
        records: &[Record],
        asked: &[ClaimId],
    ) -> Result<Vec<ClaimId>> {
        const ASKED: &str = "SELECT claim FROM fencelock_bound WHERE asked AND claim = ANY($1)";
        let failed = |error| self.hosts.error("recording who holds", error);
        let write = control.statement(RECORD).await.map_err(failed)?;
        let ask = control.statement(ASKED).await.map_err(failed)?;
        // Sent together: one round trip.
        let recorded = records
            .iter()
            .map(|record| self.record_one(control, &write, record));
        let asked: Vec<&[u8]> = asked.iter().map(|claim| &claim.as_bytes()[..]).collect();
        let values: Values<'_> = &[&asked];
        let (recorded, asked_of) = tokio::join!(try_join_all(recorded), async {
            match asked.is_empty() {
                true => Ok(Vec::new()),
                false => control.client.query(&ask, values).await,
            }
        });
        recorded.map_err(failed)?;
        let asked_of = asked_of.map_err(failed)?;
        asked_of.iter().map(|row| self.claim(row, 0)).collect()
    }

    async fn record_one(
        &self,
        control: &Session,
        write: &Statement,
        record: &Record,
    ) -> Result<u64, tokio_postgres::Error> {
        let (pid, mark) = numbers(&record.session);
        let held = Clock::Boot.now().since(record.since).as_secs_f64();
        let ttl = i64::try_from(record.ttl.as_millis()).unwrap_or(i64::MAX);
        let values: Values<'_> = &[
            &&record.claim.as_bytes()[..],
            &STRATEGY,
            &record.name.as_str(),
            &&*mode_text(record.mode),
            &integer(record.tokens.first),
            &(record.tokens.count as i32),
            &integer(record.token),
            &&*record.owner,
            &record.label.as_deref(),
            &ttl,
            &held,
            &pid,
            &mark,
        ];
        control.client.execute(write, values).await
    }

    pub(super) fn claim(&self, row: &Row, at: usize) -> Result<ClaimId> {
        let bytes: &[u8] = row.get(at);
        let bytes = bytes
            .try_into()
            .map_err(|_| self.hosts.internal("a claim does not have 16 bytes"))?;
        Ok(ClaimId::from_bytes(bytes))
    }
}

pub(super) fn integer(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// The id of the server's process and the mark of a connection.
pub(super) fn numbers(session: &SessionId) -> (i32, i64) {
    let parts = session.0.split_once('@');
    let number = |text: &str| text.parse::<i64>().ok();
    let (pid, mark) = parts.map_or((None, None), |(pid, mark)| (number(pid), number(mark)));
    // These numbers belong to no connection.
    (
        pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0),
        mark.unwrap_or(0),
    )
}
