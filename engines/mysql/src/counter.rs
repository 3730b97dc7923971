//! The tokens of `get-lock`, which cost no write: they go by the number that the server counts for UUID_SHORT().
//!
//! The server counts in memory, one number for each call of anybody: whoever calls later has a higher one, and it does not
//! matter what others use them for. That holds for one run of one server; the next run may begin below. So a row says what
//! the numbers of this run mean: a *section*, in which number `origin` is id `base`, and so on.
//!
//! * Numbers below `upto` are reserved: that was committed before a token was made of one. Whoever draws a higher one raises
//!   `upto` first. A new section begins where the reservation of the last one ends, so it is above all that was granted,
//!   whatever the clock says. The time is only the floor below which it does not begin, for stores that lost or never
//!   heard of the last reservations.
//! * A new section must begin with each run of a server, and must not while somebody draws from the old one. Neither can be
//!   told by the numbers alone, of which others use many, nor by the clock. But locks of the server's own can tell: they are
//!   known to all, and end with their connection, and with the server. Each connection keeps one as its *mark*, which
//!   has the section's origin in its name. If there is such a mark, the section is of this run, and in use. If there is none,
//!   nobody draws from it any more.
//! * A number that cannot be of the section shows that the connection is not to the server that it was to.

use fencelock_core::Token;
use fencelock_sql::lease::MOST_TOKENS;

use super::line::{Failed, Line, Session};
use super::wire::{NOW, Request};

/// How many numbers are reserved at first. As many again as were used, whenever they are used up, but not more than
/// [`MANY`]: what was reserved and not used is lost, and ids must not overtake the time.
const FEW: u64 = 16;
const MANY: u64 = 1 << 16;
/// Numbers that are so far from the origin are not of its section.
const FAR: u64 = 1 << 44;
/// How many connections can have marks. Fewer than the servers let a query recur.
const MARKS: u32 = 900;
/// How much of a key a mark begins with: the origin's twenty digits and the slot come after it, and 64 characters are taken.
const MARK: usize = 36;
/// The highest token, and one more.
const END: u64 = 1 << 53;

/// What the numbers of this run of the server mean.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Section {
    origin: u64,
    base: u64,
    upto: u64,
}

impl Section {
    /// What names it in the table.
    pub(super) const fn numbers(&self) -> [u64; 2] {
        [self.origin, self.base]
    }

    /// The same for a prepared statement.
    pub(super) fn values(&self) -> [mysql_async::Value; 2] {
        self.numbers().map(mysql_async::Value::from)
    }

    /// The token of a number, the first of sixteen. `None` if it is not of this section.
    fn token(&self, number: u64) -> Option<Token> {
        let ahead = number.checked_sub(self.origin)?;
        let id = self.base.checked_add(ahead)?;
        let token = id.checked_mul(u64::from(MOST_TOKENS))?;
        (ahead > 0 && ahead < FAR && token < END).then_some(Token(token))
    }
}

impl Line {
    /// The token that goes by this number, which was drawn on this connection just now.
    pub(super) async fn token_of(
        &self,
        session: &mut Session,
        number: u64,
    ) -> Result<Token, Failed> {
        let Some(token) = session.section.token(number) else {
            return Err(session.give_up("the counter of tokens is not that of before"));
        };
        if number >= session.section.upto {
            self.reserve(session, number).await?;
        }
        Ok(token)
    }

    /// Reserves this number, and more.
    async fn reserve(&self, session: &mut Session, number: u64) -> Result<(), Failed> {
        let counter = &self.tables.counter;
        let Section { origin, base, .. } = session.section;
        let upto = number + (number - origin).clamp(FEW, MANY);
        let mine = format!("id = 1 AND origin = {origin} AND base = {base}");
        let mut request = Request::of(format!(
            "UPDATE {counter} SET upto = GREATEST(upto, {upto}) WHERE {mine}"
        ));
        let told = request.push(format!("SELECT upto FROM {counter} WHERE {mine}"));
        let answers = session.run(request).await?;
        let row = answers[told].rows.first();
        let upto = row.and_then(|row| row.get::<u64, _>(0));
        let Some(upto) = upto.filter(|upto| *upto > number) else {
            return Err(session.give_up("tokens are counted anew"));
        };
        session.section.upto = upto;
        Ok(())
    }

    /// Joins the section of this run of the server, or begins it.
    pub(super) async fn join(&self, session: &mut Session) -> Result<(), Failed> {
        let mark = format!("{}-", &session.key(&self.config.table, "r", b"")[..MARK]);
        let (request, told) = self.joining(&mark);
        let answers = session.run(request).await?;
        let row = answers[told].rows.first().cloned();
        let row = row.map(mysql_async::from_row_opt::<(u64, u64, u64, Option<u64>)>);
        let Some(Ok((origin, base, upto, marked))) = row else {
            return Err(session.give_up("the counter of tokens has no row"));
        };
        if marked != Some(1) {
            let why = format!("more than {MARKS} connections use these tables for get-lock");
            return Err(session.give_up(&why));
        }
        session.section = Section { origin, base, upto };
        Ok(())
    }

    /// All in one request, so that a client that is stopped has no row locked.
    fn joining(&self, mark: &str) -> (Request, usize) {
        let (counter, tokens) = (&self.tables.counter, &self.tables.tokens);
        let slots = format!(
            "WITH RECURSIVE slots (slot) AS (SELECT 1 UNION ALL SELECT slot + 1 FROM slots WHERE slot < {MARKS})"
        );
        let mut request = Request::of(format!(
            "INSERT IGNORE INTO {counter} (id, origin, base, upto) VALUES (1, 0, 0, 0)"
        ));
        request.push("START TRANSACTION");
        // One at a time comes in here.
        request.push(format!(
            "SELECT origin INTO @fencelock_origin FROM {counter} WHERE id = 1 FOR UPDATE"
        ));
        request.push("SET @fencelock_number = UUID_SHORT()");
        request.push(format!(
            "SET @fencelock_live = @fencelock_number > @fencelock_origin \
             AND @fencelock_number < @fencelock_origin + {FAR} AND EXISTS ({slots} SELECT 1 FROM slots \
             WHERE IS_USED_LOCK(CONCAT('{mark}', @fencelock_origin, '-', slot)) IS NOT NULL)"
        ));
        // Tokens came from here before, and those of for-update still do.
        request.push(format!(
            "INSERT INTO {tokens} (id) SELECT NULL FROM DUAL WHERE NOT @fencelock_live"
        ));
        request.push("SET @fencelock_drawn = IF(ROW_COUNT() > 0, LAST_INSERT_ID(), 0)");
        request.push(format!("DELETE FROM {tokens} WHERE id = @fencelock_drawn"));
        // Ten microseconds for each id, and 16 tokens for each: below 2^53 until the year 2148.
        request.push(format!(
            "UPDATE {counter} SET base = GREATEST(base + (upto - origin), {NOW} DIV 10, @fencelock_drawn), \
             upto = @fencelock_number + {FEW}, origin = @fencelock_number WHERE id = 1 AND NOT @fencelock_live"
        ));
        request.push(
            "SET @fencelock_origin = IF(@fencelock_live, @fencelock_origin, @fencelock_number)",
        );
        request.push(format!(
            "SET @fencelock_slot = ({slots} SELECT MIN(slot) FROM slots \
             WHERE IS_FREE_LOCK(CONCAT('{mark}', @fencelock_origin, '-', slot)) = 1)"
        ));
        let told = request.push(format!(
            "SELECT origin, base, upto, \
             GET_LOCK(CONCAT('{mark}', @fencelock_origin, '-', IFNULL(@fencelock_slot, 0)), 0) FROM {counter} WHERE id = 1"
        ));
        // The mark is set before anybody can see the section.
        request.push("COMMIT");
        (request, told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_another_counter_makes_no_token() {
        let section = Section {
            origin: 1000,
            base: 50,
            upto: 1016,
        };
        assert_eq!(section.token(1001), Some(Token(51 * 16)));
        assert_eq!(section.token(5000), Some(Token(4050 * 16)));
        for foreign in [0, 999, 1000, 1000 + FAR, u64::MAX] {
            assert_eq!(section.token(foreign), None, "{foreign}");
        }
        let last = Section {
            base: END / 16 - 10,
            ..section
        };
        assert!(last.token(1009).is_some_and(|token| token.get() < END));
        assert_eq!(last.token(1010), None);
    }
}
