//! Releases holds, leaves the queue, and ends connections that were given up.

use fencelock_core::engine::{Claim, Leave, Withdrawn};
use fencelock_core::{Clock, Result};

use super::control::on_control;
use super::dialect::{Dialect, SessionId};
use super::entry::{Entry, Hold};
use super::pool::PooledSession;
use super::state::{CLAIM_WINDOW, State};

impl<D: Dialect> Entry<D> {
    pub(super) fn given_up(session: SessionId, claim: &Claim, held: bool) -> Self {
        // Twice the time, since the request may reach the server late.
        let until = Clock::Boot.now() + (claim.ttl + CLAIM_WINDOW).saturating_mul(2);
        Self::GivenUp {
            session,
            held,
            until,
        }
    }
}

impl<D: Dialect> State<D> {
    pub(super) async fn withdraw(
        &self,
        claim: &Claim,
        how: Leave,
        entry: &mut Entry<D>,
    ) -> Result<Withdrawn> {
        match std::mem::take(entry) {
            Entry::Empty => Ok(Withdrawn::NotOwner),
            Entry::GivenUp {
                session,
                held,
                until,
            } => {
                *entry = Entry::GivenUp {
                    session,
                    held,
                    until,
                };
                self.end_given_up(entry).await?;
                Ok(match held {
                    true => Withdrawn::Released,
                    false => Withdrawn::LeftQueue,
                })
            }
            Entry::Queued(_) => Ok(Withdrawn::LeftQueue),
            Entry::Waiting(waiting) => match waiting.end().await {
                Ok(hold) => self.release(claim, hold, entry).await,
                Err(session) => {
                    *entry = Entry::given_up(session, claim, false);
                    self.end_given_up(entry).await?;
                    Ok(Withdrawn::LeftQueue)
                }
            },
            Entry::Holding(hold) => match how {
                Leave::Release => self.release(claim, hold, entry).await,
                Leave::Abandon => {
                    hold.conn.signal.unbind();
                    *entry = Entry::given_up(self.session_id(&hold.conn), claim, true);
                    drop(hold);
                    self.end_given_up(entry).await?;
                    Ok(Withdrawn::Expired)
                }
            },
        }
    }

    async fn release(
        &self,
        claim: &Claim,
        mut hold: Box<Hold<D>>,
        entry: &mut Entry<D>,
    ) -> Result<Withdrawn> {
        let id = self.session_id(&hold.conn);
        if !hold.conn.signal.unbind() {
            *entry = Entry::given_up(id, claim, true);
            drop(hold);
            self.end_given_up(entry).await?;
            return Ok(Withdrawn::Expired);
        }
        let action = format!("releasing lock {}", claim.name);
        // The record is deleted first, so that no client sees it together with that of the next holder.
        let deleted = match hold.listed {
            true => on_control!(self.control, "releasing a lock", delete_record(claim.id)),
            false => Ok(()),
        };
        let released = self.dialect.release(&mut hold.conn.session, claim);
        let released = self.within(&action, released).await;
        // A record that stays would look like a hold while the connection is open.
        match released.and_then(|released| deleted.map(|()| released)) {
            Ok(true) => {
                self.pool.put_back(hold.conn);
                Ok(Withdrawn::Released)
            }
            Ok(false) => Ok(Withdrawn::Expired),
            Err(error) => {
                *entry = Entry::given_up(id, claim, true);
                drop(hold);
                // The end of the connection is a release, whether the request arrived or not.
                match self.end_given_up(entry).await {
                    Ok(()) => Ok(Withdrawn::Released),
                    Err(_) => Err(error),
                }
            }
        }
    }

    /// Ends what may be left of a connection that was given up.
    pub(super) async fn end_given_up(&self, entry: &mut Entry<D>) -> Result<()> {
        if let Entry::GivenUp { session, .. } = entry {
            let action = "ending a connection that was given up";
            on_control!(self.control, action, end(session))?;
            *entry = Entry::Empty;
        }
        Ok(())
    }

    pub(super) fn session_id(&self, conn: &PooledSession<D>) -> SessionId {
        self.dialect.session_id(&conn.session)
    }
}
