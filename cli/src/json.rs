//! The JSON that scripts read: stable names, in the documented order.

use std::time::Duration;

use fencelock::engine::{HeldClaim, HolderView, LockView, WaiterView};
use fencelock::{Guard, Sequencer};
use fencelock_wire::ClaimKey;
use serde_json::Value;

use crate::args::Times;

/// What `hold` prints when the lock is granted.
pub(crate) fn granted(guard: &Guard, sequencer: &Sequencer, ttl: Duration) -> String {
    object(&[
        ("name", guard.name().as_str().into()),
        ("token", guard.token().get().into()),
        ("mode", guard.mode().as_str().into()),
        ("sequencer", sequencer.to_string().into()),
        ("owner", guard.owner().into()),
        ("ttl_ms", millis(ttl)),
    ])
}

/// What `take` prints and writes.
pub(crate) struct Taken<'a> {
    pub(crate) guard: &'a Guard,
    pub(crate) sequencer: &'a Sequencer,
    pub(crate) times: &'a Times,
    pub(crate) label: Option<&'a str>,
    /// The only place where the grant can be renewed and released, if there is one.
    pub(crate) home: Option<String>,
}

impl Taken<'_> {
    /// The JSON with the key, which is a secret: a process that has it may renew and release the hold.
    pub(crate) fn with_key(&self, key: &ClaimKey) -> String {
        object(&self.members(Some(key)))
    }

    /// The JSON without the key, which everybody may read.
    pub(crate) fn without_key(&self) -> String {
        object(&self.members(None))
    }

    fn members(&self, key: Option<&ClaimKey>) -> Vec<(&'static str, Value)> {
        let (guard, times) = (self.guard, self.times);
        let mut all = vec![
            ("name", guard.name().as_str().into()),
            ("claim", self.sequencer.claim.to_string().into()),
            ("token", guard.token().get().into()),
        ];
        all.extend(key.map(|key| ("key", key.secret().into())));
        all.extend([
            ("ttl_ms", millis(times.ttl)),
            ("lock_delay_ms", millis(times.lock_delay)),
            ("mode", guard.mode().as_str().into()),
            ("owner", guard.owner().into()),
            ("label", self.label.into()),
            ("sequencer", self.sequencer.to_string().into()),
            ("valid_ms", millis(guard.remaining())),
        ]);
        all.extend(self.home.as_deref().map(|home| ("home", home.into())));
        all
    }
}

/// What `renew` prints: for how long the hold may be believed from now on.
pub(crate) fn renewed(held: &HeldClaim, left: Duration, asked: bool) -> String {
    object(&[
        ("name", held.claim.name.as_str().into()),
        ("token", held.token.get().into()),
        ("valid_ms", millis(left)),
        ("asked", asked.into()),
    ])
}

/// What `hold` prints when the lock is lost.
pub(crate) fn lost(reason: &str) -> String {
    object(&[("lost", true.into()), ("reason", reason.into())])
}

/// What `hold` prints when somebody asks for the lock.
pub(crate) fn asked() -> String {
    object(&[("asked", true.into())])
}

/// One lock, as `show` prints it.
pub(crate) fn view(view: &LockView) -> String {
    format!("{{{}}}", of_lock(view))
}

/// The same, with the name of its store in the configuration file.
pub(crate) fn view_in(store: &str, view: &LockView) -> String {
    format!(
        "{{{},{}}}",
        members(&[("store", store.into())]),
        of_lock(view)
    )
}

fn of_lock(view: &LockView) -> String {
    let holders: Vec<String> = view.holders.iter().map(holder).collect();
    let waiters: Vec<String> = view.waiters.iter().map(waiter).collect();
    let begin = members(&[
        ("name", view.name.as_str().into()),
        ("token", view.token().map(|token| token.get()).into()),
    ]);
    let (holders, waiters) = (array(&holders), array(&waiters));
    format!("{begin},\"holders\":{holders},\"waiters\":{waiters}")
}

/// An array of items that are JSON already.
pub(crate) fn array(items: &[String]) -> String {
    format!("[{}]", items.join(","))
}

fn holder(holder: &HolderView) -> String {
    object(&[
        ("owner", holder.owner.as_str().into()),
        ("token", holder.token.map(|token| token.get()).into()),
        ("mode", holder.mode.as_str().into()),
        ("ttl_left_ms", holder.ttl_left.map_or(Value::Null, millis)),
        ("held_ms", holder.held.map_or(Value::Null, millis)),
        ("label", holder.label.as_deref().into()),
        // A claim of this library has an id.
        ("foreign", holder.claim.is_none().into()),
    ])
}

fn waiter(waiter: &WaiterView) -> String {
    object(&[
        ("owner", waiter.owner.as_str().into()),
        ("mode", waiter.mode.as_str().into()),
        ("label", waiter.label.as_deref().into()),
    ])
}

fn object(all: &[(&str, Value)]) -> String {
    format!("{{{}}}", members(all))
}

fn members(all: &[(&str, Value)]) -> String {
    let member = |(key, value): &(&str, Value)| format!("{}:{value}", Value::from(*key));
    all.iter().map(member).collect::<Vec<_>>().join(",")
}

fn millis(duration: Duration) -> Value {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .into()
}

#[cfg(test)]
mod tests {
    use fencelock::engine::ClaimId;
    use fencelock::{LockName, Mode, Token};

    use super::*;

    #[test]
    fn a_lock_reads_as_documented() {
        let name = LockName::new("a \"b\"").unwrap();
        let free = LockView::free(name.clone());
        assert_eq!(
            view(&free),
            r#"{"name":"a \"b\"","token":null,"holders":[],"waiters":[]}"#
        );
        let held = LockView::new(
            name,
            vec![
                HolderView::new("me".into(), Mode::Shared)
                    .claim(ClaimId::from_bytes([1; 16]))
                    .token(Token(7))
                    .ttl_left(Duration::from_micros(1_999_999))
                    .label(Some("why".into())),
            ],
            vec![WaiterView::new("you".into(), Mode::Exclusive).label(Some("too".into()))],
        );
        assert_eq!(
            view(&held),
            concat!(
                r#"{"name":"a \"b\"","token":7,"holders":[{"owner":"me","token":7,"mode":"shared","#,
                r#""ttl_left_ms":1999,"held_ms":null,"label":"why","foreign":false}],"waiters":[{"#,
                r#""owner":"you","#,
                r#""mode":"exclusive","label":"too"}]}"#
            )
        );
    }
}
