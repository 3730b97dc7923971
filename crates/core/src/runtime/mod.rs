//! The machinery of one client. It returns a [`share::Share`] of a hold. The public types are built on that.
//!
//! The way of a claim: [`acquire`] makes it wait for its turn in this process ([`queue`]), and [`place`] places it at the store
//! until it holds. Then [`renewer`] renews the hold when its time comes ([`schedule`]), and [`withdraw`] releases it. No two
//! files import each other.

pub(crate) mod acquire;
pub(crate) mod attempt;
pub(crate) mod background;
pub(crate) mod caller;
pub(crate) mod cancel;
pub(crate) mod downgrade;
pub(crate) mod health;
pub(crate) mod hold;
pub(crate) mod joined;
#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
mod metrics;
pub(crate) mod observer;
pub(crate) mod owners;
pub(crate) mod place;
pub(crate) mod queue;
pub(crate) mod reenter;
pub(crate) mod renewer;
pub(crate) mod schedule;
mod seen;
pub(crate) mod share;
pub(crate) mod state;
pub(crate) mod withdraw;
