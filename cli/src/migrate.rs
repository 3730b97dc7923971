//! `migrate offline`: raises the tokens of one store above all those of another.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::{Claim, ClaimId, ClaimIds, Engine, Floor, Leave, MAX_FLOOR, Standing};
use fencelock::{Error, LockName, Token};

use crate::exit::{Failure, Outcome, code, print};
use crate::store::{CLOSE_TIMEOUT, Wanted};

/// The lock whose grant shows how high a store's tokens are. It also prevents two moves at the same time.
const PROBE: &str = "fencelock/migrate";

/// How many locks a refusal names.
const NAMED: usize = 3;

pub(crate) async fn offline(from: &str, to: &str, wanted: Wanted) -> Outcome {
    if wanted.store.is_some() {
        let why =
            "`migrate offline` takes both stores as arguments: FROM and TO; leave out --store";
        return Err(Failure::usage(why));
    }
    let from = open(from, &wanted).await?;
    let to = match open(to, &wanted).await {
        Ok(to) => to,
        Err(failure) => {
            close(&from).await;
            return Err(failure);
        }
    };
    let moved = raise(&from, &to).await;
    close(&from).await;
    close(&to).await;
    let Moved { last, next, raised } = moved?;
    let done = match raised {
        true => "raised the tokens of",
        false => "nothing to raise in",
    };
    print(&format!(
        "{done} {to}: its next token is above {next}, and the last of {from} is {last}\n"
    ))?;
    Ok(code::DONE)
}

/// What a move found and did.
struct Moved {
    /// The highest token of the old store.
    last: Token,
    /// A token of the new store above that.
    next: Token,
    /// Whether the new store's tokens were lower before.
    raised: bool,
}

/// Opens the store of a URL, or of a name in the configuration file.
async fn open(named: &str, wanted: &Wanted) -> Result<Arc<dyn Engine>, Failure> {
    let store = Some(named.to_owned());
    let config = wanted.config.clone();
    let url = Wanted { store, config }.resolve()?.url;
    let engine = fencelock::open_engine(&url).await?;
    let promises = engine.promises();
    let why = match promises.floor {
        _ if promises.engine == "migrate" => {
            "it is a set whose locks move while programs run; finish that move, and name one store"
        }
        Floor::Store | Floor::Name => return Ok(engine),
        _ => "its tokens can be neither compared with those of another store nor raised",
    };
    let failure = cannot(&engine, why);
    close(&engine).await;
    Err(failure)
}

fn cannot(store: impl Display, why: &str) -> Failure {
    let what = format!(
        "locks cannot be moved from or to store {store}: {why}; use new names for the locks, or let the fences begin anew (docs/operations.md)"
    );
    Failure::new(code::CONFIG, what)
}

async fn close(engine: &Arc<dyn Engine>) {
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, engine.close()).await;
}

async fn raise(from: &Arc<dyn Engine>, to: &Arc<dyn Engine>) -> Result<Moved, Failure> {
    let old = Probe::of(from)?;
    let moved = raise_above(&old, from, to).await;
    old.end().await;
    moved
}

async fn raise_above(
    old: &Probe<'_>,
    from: &Arc<dyn Engine>,
    to: &Arc<dyn Engine>,
) -> Result<Moved, Failure> {
    let last = old.token(Token(0)).await?;
    let held = [unused(from).await, unused(to).await];
    held.into_iter().collect::<Result<(), _>>()?;
    // Drawing a token of several counters raises those that are below it.
    let mut raised = to.promises().floor == Floor::Name;
    let mut next = token_of(to, Token(0)).await?;
    if next < last {
        if last > MAX_FLOOR {
            let why = format!(
                "its last token is {last}, and tokens cannot be raised above more than {MAX_FLOOR}"
            );
            return Err(cannot(from, &why));
        }
        next = token_of(to, last).await?;
        raised = true;
    }
    if next < last {
        let why = format!("its tokens were raised to {next}, which is below {last}");
        return Err(Failure::internal(&format!("store {to}"), why));
    }
    // A program that still uses the old store may have got a token above `last` meanwhile.
    unused(from).await?;
    Ok(Moved { last, next, raised })
}

/// A token of the store, not below this floor: all later ones are above it.
async fn token_of(store: &Arc<dyn Engine>, floor: Token) -> Result<Token, Failure> {
    let probe = Probe::of(store)?;
    let token = probe.token(floor).await;
    probe.end().await;
    token
}

/// A claim on the lock [`PROBE`] of a store.
struct Probe<'a> {
    store: &'a Arc<dyn Engine>,
    claim: Claim,
}

impl<'a> Probe<'a> {
    fn of(store: &'a Arc<dyn Engine>) -> Result<Self, Failure> {
        let promises = store.promises();
        let ttl = Duration::from_secs(30).clamp(promises.min_ttl, promises.max_ttl);
        let id = claim_id(store)?;
        let claim = Claim::new(id, "fencelock migrate", LockName::new(PROBE)?);
        let claim = claim.ttl(ttl).wait(false).record(true);
        Ok(Self { store, claim })
    }

    /// Takes the lock. No earlier token of the store is above the result, and all later ones are.
    async fn token(&self, floor: Token) -> Result<Token, Failure> {
        let claim = self.claim.clone().floor(floor);
        match self.store.place(&claim).await? {
            // The grant's token says nothing about the other counters.
            Standing::Held(_) if self.store.promises().floor == Floor::Name => {
                match self.store.raise_tokens(floor).await {
                    Err(Error::Invalid { input, .. }) => {
                        let why = format!(
                            "one of its tokens is {input}, and tokens cannot be raised above more than {MAX_FLOOR}"
                        );
                        Err(cannot(self.store, &why))
                    }
                    raised => Ok(raised?),
                }
            }
            Standing::Held(grant) => {
                let tokens = grant.tokens;
                Ok(Token(tokens.first.get() + u64::from(tokens.count) - 1))
            }
            _ => {
                let store = self.store;
                let why = format!(
                    "lock {PROBE} of store {store} is held: another `fencelock migrate` runs, or FROM and TO are one store"
                );
                Err(Failure::new(code::HELD, why))
            }
        }
    }

    /// Releases the lock. If that fails, the lease ends the hold.
    async fn end(&self) {
        let _ = self.store.withdraw(&self.claim, Leave::Release).await;
    }
}

fn claim_id(store: &Arc<dyn Engine>) -> Result<ClaimId, Failure> {
    let ids = match store.claim_ids() {
        Some(begin) => ClaimIds::with(begin),
        None => ClaimIds::new()?,
    };
    Ok(ids.next())
}

/// # Errors
/// If a lock of the store is held.
async fn unused(store: &Arc<dyn Engine>) -> Result<(), Failure> {
    let (mut held, mut more, mut at) = (Vec::new(), false, None);
    loop {
        let page = store.inspect().list("", at, 1000).await?;
        for view in page.items {
            let is_held = view.name.as_str() != PROBE && !view.holders.is_empty();
            more |= is_held && held.len() == NAMED;
            if is_held && held.len() < NAMED {
                held.push(view.name.to_string());
            }
        }
        at = page.next;
        if at.is_none() {
            break;
        }
    }
    if held.is_empty() {
        return Ok(());
    }
    let names = held.join(", ");
    let others = if more { " and others" } else { "" };
    let why = format!(
        "locks of store {store} are held ({names}{others}), so programs use it; end all programs of both stores first, and \
         repeat this"
    );
    Err(Failure::new(code::HELD, why))
}
