//! Records of who holds and who waits, by which connection.

use std::collections::HashSet;
use std::time::Duration;

use fencelock_core::{ClaimId, Clock, Error, LockName};
use fencelock_sql::bound::{Record, SessionId};
use fencelock_sql::server::{Failure, micros};

use super::connection::{BoundLocks, Session};
use super::for_update::CLEAN_UP_SECONDS;
use super::stored::{claim_of, take, text_of};
use crate::request::{Answer, NOW, Request, bytes};

impl BoundLocks {
    /// Selects records of open connections.
    pub(super) fn open_records(&self, what: &str, rest: &str) -> String {
        format!(
            "SELECT {what} FROM {} AS b JOIN information_schema.processlist AS p ON p.id = b.conn AND p.host = b.host \
             WHERE b.strategy = '{}' AND {rest}",
            self.tables.bound,
            self.strategy()
        )
    }

    fn record_one(&self, record: &Record, login: &str) -> String {
        let (conn, host) = record.session.0.split_once(' ').unwrap_or(("0", ""));
        let held = micros(Clock::Boot.now().since(record.since));
        let label = record.label.as_deref();
        let label = label.map_or_else(|| "NULL".to_owned(), |label| bytes(label.as_bytes()));
        let (first, count) = (record.tokens.first, record.tokens.count);
        let values = format!(
            "first = {first}, count = {count}, token = {}, owner = {}, label = {label}, ttl = {}, conn = {conn}, \
             host = {}, login = {}",
            record.token,
            bytes(record.owner.as_bytes()),
            micros(record.ttl),
            bytes(host.as_bytes()),
            bytes(login.as_bytes()),
        );
        format!(
            "INSERT INTO {} SET claim = {}, strategy = '{}', name = {}, since = {NOW} - {held}, {values} \
             ON DUPLICATE KEY UPDATE {values}",
            self.tables.bound,
            bytes(record.claim.as_bytes()),
            self.strategy(),
            bytes(record.name.as_str().as_bytes()),
        )
    }

    pub(super) async fn record_all(
        &self,
        control: &mut Session,
        records: &[Record],
        asked: &[ClaimId],
    ) -> Result<Vec<ClaimId>, Failure> {
        let mut request = Request::default();
        for record in records {
            request.push(self.record_one(record, &control.login));
        }
        if asked.is_empty() {
            if !request.is_empty() {
                control.run(request).await?;
            }
            return Ok(Vec::new());
        }
        let of: Vec<String> = asked.iter().map(|claim| bytes(claim.as_bytes())).collect();
        let asked_of = request.push(format!(
            "SELECT claim FROM {} WHERE asked = 1 AND claim IN ({})",
            self.tables.bound,
            of.join(",")
        ));
        let mut answers = control.run(request).await?;
        let asked_of = answers[asked_of]
            .rows
            .iter_mut()
            .filter_map(|row| claim_of(row, 0));
        Ok(asked_of.collect())
    }

    pub(super) async fn recorded(
        &self,
        control: &mut Session,
        of: &LockName,
    ) -> Result<bool, Failure> {
        let name = bytes(of.as_str().as_bytes());
        let says_one = |answer: &Answer| -> bool {
            let row = answer.rows.first();
            row.and_then(|row| row.get::<u64, _>(0)) == Some(1)
        };
        if self.get_lock {
            let ask = format!(
                "SELECT used.id IS NULL OR EXISTS (SELECT 1 FROM {} AS b WHERE b.strategy = 'get-lock' AND b.name = {name} \
                 AND b.conn = used.id AND b.count > 0) FROM (SELECT IS_USED_LOCK('{}') AS id) AS used",
                self.tables.bound,
                self.lock_key(control, of)
            );
            return Ok(says_one(&control.run(Request::of(ask)).await?[0]));
        }
        let rest = format!("b.name = {name} AND b.count > 0");
        let live = control
            .run(Request::of(self.open_records("1", &rest)))
            .await?;
        if !live[0].rows.is_empty() {
            return Ok(true);
        }
        // No client locks the row, or it does not exist. A client that acquires meanwhile waits for this, as for a clean-up.
        let (names, sweep) = (&self.tables.names, self.clean_up_key(control));
        let mut ask = Request::of(format!("DO GET_LOCK('{sweep}', {})", CLEAN_UP_SECONDS + 1));
        ask.push("START TRANSACTION");
        ask.push("SET @fencelock_free = 0");
        ask.push(format!(
            "SELECT COUNT(*) INTO @fencelock_free FROM {names} WHERE name = {name} FOR UPDATE SKIP LOCKED"
        ));
        ask.push("ROLLBACK");
        ask.push(format!("DO RELEASE_LOCK('{sweep}')"));
        let free = ask.push(format!(
            "SELECT (SELECT COUNT(*) FROM {names} WHERE name = {name}) <= @fencelock_free"
        ));
        Ok(says_one(&control.run(ask).await?[free]))
    }

    /// Deletes the records of ended connections. A user may not see the connections of other users, so it leaves their records
    /// alone.
    pub(super) async fn delete_ended(&self, control: &mut Session) -> Result<(), Failure> {
        let bound = &self.tables.bound;
        let ask = Request::of(format!(
            "SELECT b.claim, b.conn FROM {bound} AS b LEFT JOIN information_schema.processlist AS p \
             ON p.id = b.conn AND p.host = b.host WHERE p.id IS NULL AND b.login = {}",
            bytes(control.login.as_bytes())
        ));
        let mut answers = control.run(ask).await?;
        let mut forget = Request::default();
        for row in &mut answers[0].rows {
            if let (Some(claim), Some(conn)) = (take::<Vec<u8>>(row, 0), take::<u64>(row, 1)) {
                let claim = bytes(&claim);
                forget.push(format!(
                    "DELETE FROM {bound} WHERE claim = {claim} AND conn = {conn}"
                ));
            }
        }
        match forget.is_empty() {
            true => Ok(()),
            false => control.run(forget).await.map(drop),
        }
    }

    pub(super) async fn end_connection(
        &self,
        control: &mut Session,
        session: &SessionId,
    ) -> Result<bool, Failure> {
        let Some((id, host)) = session.0.split_once(' ') else {
            return Ok(true);
        };
        let host = bytes(host.as_bytes());
        let there = format!(
            "SELECT 1 FROM information_schema.processlist WHERE id = {id} AND host = {host}"
        );
        for _ in 0..100 {
            if control.run(Request::of(&there)).await?[0].rows.is_empty() {
                let bound = &self.tables.bound;
                let forget = format!("DELETE FROM {bound} WHERE conn = {id} AND host = {host}");
                control.run(Request::of(forget)).await?;
                return Ok(true);
            }
            match control
                .run(Request::of(format!("KILL CONNECTION {id}")))
                .await
            {
                // It has just ended by itself.
                Err(Failure::Final(Error::Internal { .. })) | Ok(_) => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(false)
    }

    /// Those of these connections that have ended.
    pub(super) async fn ended_of(
        &self,
        control: &mut Session,
        sessions: &[SessionId],
    ) -> Result<Vec<SessionId>, Failure> {
        let ids = sessions.iter().filter_map(|id| id.0.split_once(' '));
        let ids: Vec<&str> = ids.map(|(id, _)| id).collect();
        let ask = Request::of(format!(
            "SELECT CONCAT(id, ' ', host) FROM information_schema.processlist WHERE id IN ({})",
            ids.join(",")
        ));
        let mut answers = control.run(ask).await?;
        let open = answers[0].rows.iter_mut().filter_map(|row| text_of(row, 0));
        let open: HashSet<String> = open.collect();
        let ended = sessions.iter().filter(|id| !open.contains(&id.0));
        Ok(ended.cloned().collect())
    }
}
