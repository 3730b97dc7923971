//! Releases a hold in one request.

use std::sync::Arc;

use fencelock_core::Mode;
use fencelock_core::engine::Claim;
use fencelock_sql::server::first_version;
use mysql_async::Value;

use super::connection::{Leases, Session, Tried};
use super::statements::release;
use super::stored::name;
use crate::request::{Request, bytes};

impl Leases {
    pub(super) async fn release_hold(&self, session: &mut Session, claim: &Claim) -> Tried<bool> {
        if session.compounds && claim.mode == Mode::Exclusive {
            let (of, id) = (claim.name.as_str(), claim.id.as_bytes());
            let mut values: Vec<Value> = vec![of.into(), first_version(claim.id).into(), id.into()];
            // The parameters of the three statements.
            values.extend([of.into(), of.into(), id.into(), of.into()]);
            let request = Request::prepared(Arc::clone(&self.release_statement), values);
            let answers = self.run(session, &request).await?;
            let live = answers[0].rows.first().map(|row| row.get::<u64, _>(0));
            return Ok(live.is_none_or(|live| live == Some(1)));
        }
        let (of, id) = (name(&claim.name), bytes(claim.id.as_bytes()));
        let [gate, live, last] = release(&self.tables, claim.mode, &of, &id);
        let mut request = Request::transaction();
        request.push(gate);
        let live = request.push(live);
        request.push(last);
        request.commit();
        let answers = self.run(session, &request).await?;
        Ok(answers[live].affected > 0)
    }
}
