//! The tokens of `get-lock`, which cost no write: they are made of the numbers of UUID_SHORT().
//!
//! The server counts these numbers in memory, one for each call of any client: a later call gets a higher number. That holds
//! for one run of one server; the next run may begin lower. So a row says what the numbers of this run mean. That is a
//! *section*, in which number `origin` is id `base`, and so on.
//!
//! * Numbers below `upto` are reserved; the reservation is committed before a token is made of one. A client that draws a
//!   higher number raises `upto` first. A new section begins where the last reservation ends, so it is above all granted
//!   tokens, even if the clock is wrong. The time is only a floor for the beginning, for stores that lost the last reservations
//!   or never received them.
//! * A new section must begin with each run of a server, and must not begin while a client draws from the old one. Neither the
//!   clock nor the numbers, many of which others use, can show that. But locks of the server's own can: all connections see
//!   them, and they end with their connection and with the server. Each connection keeps one as its *mark*, with the section's
//!   origin in its name. If such a mark exists, the section is of this run and in use. If not, no client draws from the section
//!   any more.
//! * A number that cannot be of the section shows that the connection now leads to another server.

use super::connection::{BoundLocks, Session};
use fencelock_core::Token;
use fencelock_sql::server::Failure;

use super::section::{FAR, Section};
use crate::request::{NOW, Request};

/// How many numbers are reserved at first. When they are used up, the reservation doubles, but grows by [`MAX_RESERVED`] at
/// most: unused numbers are lost, and ids must not overtake the time.
const MIN_RESERVED: u64 = 16;
const MAX_RESERVED: u64 = 1 << 16;
/// How many connections can have marks. The servers let a query recur a little more often than that.
const MARKS: u32 = 900;
/// How many characters of a key a mark begins with. The origin's twenty digits and the slot follow, and 64 characters are the
/// limit.
const MARK: usize = 36;

impl BoundLocks {
    /// The token of this number, which was just drawn on this connection.
    pub(super) async fn token_of(
        &self,
        session: &mut Session,
        number: u64,
    ) -> Result<Token, Failure> {
        let Some(token) = session.section.token(number) else {
            return Err(session.give_up("the token counter is another one than before"));
        };
        if number >= session.section.upto {
            self.reserve(session, number).await?;
        }
        Ok(token)
    }

    /// Reserves this number and some more.
    async fn reserve(&self, session: &mut Session, number: u64) -> Result<(), Failure> {
        let counter = &self.tables.counter;
        let Section { origin, base, .. } = session.section;
        let upto = number + (number - origin).clamp(MIN_RESERVED, MAX_RESERVED);
        let mine = format!("id = 1 AND origin = {origin} AND base = {base}");
        let mut request = Request::of(format!(
            "UPDATE {counter} SET upto = GREATEST(upto, {upto}) WHERE {mine}"
        ));
        let selected = request.push(format!("SELECT upto FROM {counter} WHERE {mine}"));
        let answers = session.run(request).await?;
        let row = answers[selected].rows.first();
        let upto = row.and_then(|row| row.get::<u64, _>(0));
        let Some(upto) = upto.filter(|upto| *upto > number) else {
            return Err(session.give_up("tokens are counted anew"));
        };
        session.section.upto = upto;
        Ok(())
    }

    /// Joins the section of this run of the server, or begins it.
    pub(super) async fn join(&self, session: &mut Session) -> Result<(), Failure> {
        let mark = format!("{}-", &session.key(&self.config.table, "r", b"")[..MARK]);
        let (request, selected) = self.joining(&mark);
        let answers = session.run(request).await?;
        let row = answers[selected].rows.first().cloned();
        let row = row.map(mysql_async::from_row_opt::<(u64, u64, u64, Option<u64>)>);
        let Some(Ok((origin, base, upto, marked))) = row else {
            return Err(session.give_up("the token counter has no row"));
        };
        if marked != Some(1) {
            let why = format!(
                "more than {MARKS} connections use these tables for get-lock; give some programs other tables with table=NAME"
            );
            return Err(session.give_up(&why));
        }
        session.section = Section { origin, base, upto };
        Ok(())
    }

    /// It is one request, so that a client that is stopped keeps no row locked.
    fn joining(&self, mark: &str) -> (Request, usize) {
        let (counter, tokens) = (&self.tables.counter, &self.tables.tokens);
        let slots = format!(
            "WITH RECURSIVE slots (slot) AS (SELECT 1 UNION ALL SELECT slot + 1 FROM slots WHERE slot < {MARKS})"
        );
        let mut request = Request::of(format!(
            "INSERT IGNORE INTO {counter} (id, origin, base, upto) VALUES (1, 0, 0, 0)"
        ));
        request.push("START TRANSACTION");
        // Only one client at a time gets past this statement.
        request.push(format!(
            "SELECT origin INTO @fencelock_origin FROM {counter} WHERE id = 1 FOR UPDATE"
        ));
        request.push("SET @fencelock_number = UUID_SHORT()");
        request.push(format!(
            "SET @fencelock_live = @fencelock_number > @fencelock_origin \
             AND @fencelock_number < @fencelock_origin + {FAR} AND EXISTS ({slots} SELECT 1 FROM slots \
             WHERE IS_USED_LOCK(CONCAT('{mark}', @fencelock_origin, '-', slot)) IS NOT NULL)"
        ));
        // Earlier versions drew tokens from here, and for-update still does.
        request.push(format!(
            "INSERT INTO {tokens} (id) SELECT NULL FROM DUAL WHERE NOT @fencelock_live"
        ));
        request.push("SET @fencelock_drawn = IF(ROW_COUNT() > 0, LAST_INSERT_ID(), 0)");
        request.push(format!("DELETE FROM {tokens} WHERE id = @fencelock_drawn"));
        // Ten microseconds for each id, and 16 tokens for each: below 2^53 until the year 2148.
        request.push(format!(
            "UPDATE {counter} SET base = GREATEST(base + (upto - origin), {NOW} DIV 10, @fencelock_drawn), \
             upto = @fencelock_number + {MIN_RESERVED}, origin = @fencelock_number WHERE id = 1 AND NOT @fencelock_live"
        ));
        request.push(
            "SET @fencelock_origin = IF(@fencelock_live, @fencelock_origin, @fencelock_number)",
        );
        request.push(format!(
            "SET @fencelock_slot = ({slots} SELECT MIN(slot) FROM slots \
             WHERE IS_FREE_LOCK(CONCAT('{mark}', @fencelock_origin, '-', slot)) = 1)"
        ));
        let selected = request.push(format!(
            "SELECT origin, base, upto, \
             GET_LOCK(CONCAT('{mark}', @fencelock_origin, '-', IFNULL(@fencelock_slot, 0)), 0) FROM {counter} WHERE id = 1"
        ));
        // The mark is set before others can see the section.
        request.push("COMMIT");
        (request, selected)
    }
}
