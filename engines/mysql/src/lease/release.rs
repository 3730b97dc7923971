//! Releases a hold in one request.

use std::sync::Arc;

use fencelock_core::engine::Claim;
use fencelock_core::{Clock, Mode};
use fencelock_sql::server::first_version;
use mysql_async::Value;

use super::connection::{Leases, Session, Tried};
use super::statements::release;
use super::stored::{draws_row, id, name};
use super::wake_others::Whom;
use crate::request::{Request, bytes};

impl Leases {
    pub(super) async fn release_hold(&self, session: &mut Session, claim: &Claim) -> Tried<bool> {
        if session.compounds && claim.mode == Mode::Exclusive {
            return match self.ears.work() {
                true => self.hand_over(session, claim).await,
                false => self.release_exclusive(session, claim).await,
            };
        }
        let (of, id) = (name(&claim.name), bytes(claim.id.as_bytes()));
        let [gate, live, last] = release(&self.tables, claim.mode, &of, &id);
        let mut request = Request::transaction();
        request.push(gate);
        let live = request.push(live);
        let last = request.push(last);
        request.commit();
        let answers = self.run(session, &request).await?;
        let was_live = answers[live].affected > 0;
        if was_live && answers[last].affected == 0 {
            self.ears.wake(|| Whom::First(claim.name.clone()));
        }
        Ok(was_live)
    }

    async fn release_exclusive(&self, session: &mut Session, claim: &Claim) -> Tried<bool> {
        let (of, id) = (claim.name.as_str(), claim.id.as_bytes());
        let mut values: Vec<Value> = vec![of.into(), first_version(claim.id).into(), id.into()];
        // The parameters of the three statements.
        values.extend([of.into(), of.into(), id.into(), of.into()]);
        let request = Request::prepared(Arc::clone(&self.release_statement), values);
        let answers = self.run(session, &request).await?;
        let live = answers[0].rows.first().map(|row| row.get::<u64, _>(0));
        Ok(live.is_none_or(|live| live == Some(1)))
    }

    /// Releases a hold, and grants the lock to the next waiter.
    async fn hand_over(&self, session: &mut Session, claim: &Claim) -> Tried<bool> {
        let (of, who) = (claim.name.as_str(), claim.id.as_bytes());
        let lifts = session.has_to_lift();
        let values = vec![
            of.into(),
            first_version(claim.id).into(),
            who.into(),
            of.into(),
            who.into(),
            draws_row(&claim.name).into(),
            u8::from(lifts).into(),
            id(session.floor).into(),
        ];
        let request = Request::prepared(Arc::clone(&self.hand_over_statement), values);
        let asked_at = Clock::Boot.now();
        let answers = self.run(session, &request).await?;
        let Some(row) = answers[0].rows.first() else {
            return Ok(true);
        };
        let granted = row.get::<u64, _>(2) == Some(1);
        if granted && lifts {
            session.has_lifted(asked_at);
        }
        let ear = row.get::<Option<Vec<u8>>, _>(1).flatten();
        if let Some(ear) = ear.and_then(|ear| String::from_utf8(ear).ok()) {
            self.ears.wake(|| Whom::Ear(ear));
        }
        Ok(row.get::<u64, _>(0) == Some(1))
    }
}
