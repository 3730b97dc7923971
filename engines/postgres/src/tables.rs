//! The tables and functions, and the token counter.

use fencelock_core::{ConfigPart, Error, Result, Token};

use super::connection::{Hosts, Session, columns};
use super::error::is_missing;

/// Creates the store's tables and functions.
pub(super) const SCHEMA: &str = include_str!("schema.sql");
const FORMAT: &str = "1";
/// The revision of the functions in the schema.
pub(super) const REVISION: u16 = 5;
/// The lock of clients that create the tables: a number that other programs are unlikely to use.
const SETUP_KEY: i64 = 0x0066_656e_6365_6c6b;

/// Identifies the run of the server: its timeline, its start, and when its statistics were reset. They are reset when one of
/// its processes was killed and the server continues without what had not reached the disk.
macro_rules! run {
    () => {
        "concat_ws('/', substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), \
         (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
         (SELECT (extract(epoch FROM stats_reset) * 1000000)::bigint FROM pg_stat_archiver))"
    };
}
const ASK: &str = concat!(
    "SELECT format, fencelock_revision(), run = ",
    run!(),
    " FROM fencelock_store, fencelock_tokens WHERE id = 1"
);
/// Lifts the token counter once per run. The lock has its own statement, so that no token is drawn from the sequence before the
/// row is locked. A crash loses the draws of a moment. So if a counter is already above the time, it is lifted by more than can
/// be drawn in that moment. The counter of new tables, which no crash has hit, is not lifted further: if it were far ahead of the
/// time, tokens would go back with the next loss of the tables. One message is one transaction, which ends by itself, so a client
/// that stops leaves nothing locked.
const LIFT_ONCE: &str = concat!(
    "SELECT 1 FROM fencelock_store WHERE id = 1 FOR UPDATE; \
     SELECT setval('fencelock_tokens', \
        CASE WHEN last_value < now THEN now WHEN run = '' THEN last_value ELSE last_value + 1000000 END) \
     FROM fencelock_tokens, (SELECT fencelock_now() AS now) AS clock, fencelock_store WHERE id = 1 AND run <> ",
    run!(),
    "; UPDATE fencelock_store SET run = ",
    run!(),
    " WHERE id = 1 AND run <> ",
    run!()
);

const LIFT: &str =
    "lifting tokens to the time (needs UPDATE on fencelock_store and fencelock_tokens)";

impl Hosts {
    /// Checks or creates the tables and functions, and lifts tokens above all earlier ones. Earlier tokens may be lost with an
    /// old server, or undone by an old dump. So it lifts them to the time.
    pub(super) async fn prepare_tokens(&self, session: &mut Session) -> Result<()> {
        let mut answer = self.ask(session).await?;
        if answer.is_none() {
            self.create_tables(session).await?;
            answer = self.ask(session).await?;
        }
        let answer =
            answer.ok_or_else(|| self.internal("the table fencelock_store stays empty"))?;
        let [format, _, lifted] = answer.as_slice() else {
            return Err(self.internal("a SELECT has other columns than it names"));
        };
        if format != FORMAT {
            let why = format!(
                "its tables have format {format}, and this version of fencelock knows format {FORMAT}; use a newer one"
            );
            return Err(Error::config(self, ConfigPart::Server, why));
        }
        if lifted != "t" {
            // Once per run: the second client finds it done.
            let once = session.client.simple_query(LIFT_ONCE).await;
            once.map_err(|error| self.error(LIFT, error))?;
        }
        self.lift_tokens(session).await
    }

    /// The format of the tables, the revision of the functions, and whether tokens were lifted in this run of the server.
    /// `None` if any of them is missing or older than this version.
    async fn ask(&self, session: &Session) -> Result<Option<Vec<String>>> {
        let answer = match session.client.simple_query(ASK).await {
            Err(error) if is_missing(&error) => return Ok(None),
            answer => {
                answer.map_err(|error| self.error("reading the table fencelock_store", error))?
            }
        };
        let known = |answer: &Vec<String>| {
            let revision = answer.get(1).and_then(|text| text.parse::<u16>().ok());
            revision.is_some_and(|revision| revision >= REVISION)
        };
        Ok(columns(&answer).filter(known))
    }

    /// Lifts tokens to the time, and above the floor of this connection.
    pub(super) async fn lift_tokens(&self, session: &mut Session) -> Result<()> {
        // This commit does not wait for a standby. The grant of a token does, and so it waits for this commit, too.
        let sql = format!(
            "SET LOCAL synchronous_commit = local; SELECT fencelock_lift({})",
            session.floor
        );
        let answer = session.client.simple_query(&sql).await;
        let answer = columns(&answer.map_err(|error| self.error(LIFT, error))?);
        let last = answer.as_ref().and_then(|row| row.first()?.parse().ok());
        let last = last.ok_or_else(|| self.internal("no answer to a SELECT"))?;
        session.floor = Token(last);
        Ok(())
    }

    pub(super) async fn create_tables(&self, session: &Session) -> Result<()> {
        // One message is one transaction.
        let sql = format!("SELECT pg_advisory_xact_lock({SETUP_KEY}); {SCHEMA}");
        let action = "creating its tables and functions, or the newer ones of this version (needs CREATE on the schema and ownership of \
                      the existing ones; or have an administrator run the output of `fencelock schema postgres`)";
        session
            .client
            .batch_execute(&sql)
            .await
            .map_err(|error| self.error(action, error))
    }
}
