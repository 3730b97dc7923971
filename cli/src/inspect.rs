//! `show`, `ls`, `check` and `release`: locks that other processes hold.

use std::fmt::Write;
use std::io::{self, IsTerminal};

use fencelock::composite::list_partial;
use fencelock::engine::{Evict, HolderView, LockView};
use fencelock::{Config, Error, LockName, Sequencer, StoreUrl, Token, in_words, shard_urls};

use crate::args::{Check, Ls, Patience, Purpose, Release, Show};
use crate::exit::{Failure, Outcome, code, one_line, print, worse};
use crate::json;
use crate::store::{self, Resolved, Wanted};
use crate::take;

pub(crate) async fn show(args: Show, store: Wanted) -> Outcome {
    LockName::new(&args.name)?;
    let client = store::open_to_inspect(store).await?;
    let view = client.look(&args.name).await?;
    print(&if args.json {
        json::view(&view) + "\n"
    } else {
        describe(&view)
    })?;
    Ok(code::DONE)
}

pub(crate) async fn ls(args: Ls, store: Wanted) -> Outcome {
    if args.all {
        return ls_all(&args, &store.config_file()?).await;
    }
    let Resolved { url, .. } = store.resolve()?;
    let (held, away) = list(&url, &args).await?;
    let left_out = away.into_iter().map(Failure::from);
    let code = left_out.fold(code::DONE, |code, failure| {
        worse(code, failure.of("left out").report())
    });
    if held.is_empty() && !args.json && io::stdout().is_terminal() {
        // If standard output is not a terminal, nothing is printed: a program may read it.
        print(&match args.prefix.as_str() {
            "" => "no lock is held\n".to_owned(),
            prefix => format!("no lock whose name begins with {prefix:?} is held\n"),
        })?;
        return Ok(code);
    }
    print(&if args.json {
        let views: Vec<String> = held.iter().map(json::view).collect();
        json::array(&views) + "\n"
    } else {
        held.iter().map(describe).collect()
    })?;
    Ok(code)
}

/// The locks of all stores of the file, each with the name of its store before it.
async fn ls_all(args: &Ls, file: &Config) -> Outcome {
    let mut worst = code::DONE;
    let mut views = Vec::new();
    for name in file.names() {
        let listed = match file.url(name) {
            Ok(url) => list(&url, args).await,
            Err(error) => Err(error.into()),
        };
        let (held, away) = listed.unwrap_or_else(|failure| {
            worst = worse(worst, failure.of(&format!("@{name}")).report());
            Default::default()
        });
        for error in away {
            let failure = Failure::from(error).of(&format!("@{name}: left out"));
            worst = worse(worst, failure.report());
        }
        for view in &held {
            views.push(match args.json {
                true => json::view_in(name, view),
                false => {
                    let lines = describe(view);
                    let lines = lines.lines().map(|line| format!("@{name} {line}\n"));
                    lines.collect()
                }
            });
        }
    }
    print(&if args.json {
        json::array(&views) + "\n"
    } else {
        views.concat()
    })?;
    Ok(worst)
}

/// The locks of a store, and with --partial why some of them are left out.
async fn list(url: &str, args: &Ls) -> Result<(Vec<LockView>, Vec<Error>), Failure> {
    let shards = match args.partial {
        true => shard_urls(&StoreUrl::parse(url)?),
        false => Vec::new(),
    };
    if shards.is_empty() {
        let client = fencelock::connect(url).inspect_only().await?;
        let held = client.list(&args.prefix).await;
        store::close(&client).await;
        return Ok((held?, Vec::new()));
    }
    let engine = store::engine_to_inspect(url).await?;
    let ids: Vec<_> = shards.iter().map(|(id, _)| id.as_str()).collect();
    let listed = list_partial(&*engine, &ids, &args.prefix).await;
    let _ = tokio::time::timeout(store::CLOSE_TIMEOUT, engine.close()).await;
    Ok(listed?)
}

pub(crate) async fn check(args: Check, store: Wanted) -> Outcome {
    let sequencer: Sequencer = args.sequencer.parse()?;
    let client = store::open_to_inspect(store).await?;
    if client.check(&sequencer).await? {
        return Ok(code::DONE);
    }
    let Sequencer { name, token, .. } = sequencer;
    let why = format!("this grant (token {token}) no longer holds lock {name}");
    Err(Failure::new(code::HELD, why))
}

pub(crate) async fn release(args: Release, store: Wanted) -> Outcome {
    if let Some(grant) = &args.grant {
        return take::release(grant, args.patience()?, store).await;
    }
    let (Some(name), Some(token)) = (&args.name, args.token) else {
        return Err(Failure::usage("give a name and --token, or --grant"));
    };
    LockName::new(name)?;
    let client = store::open(
        store,
        Some(Purpose::Efficiency),
        Patience::Endless,
        None,
        None,
    )
    .await?;
    let how = if args.ask { Evict::Ask } else { Evict::Release };
    if client.evict(name, Token(token), how).await? {
        return Ok(code::DONE);
    }
    let why = format!(
        "lock {name} is not held with token {token}; `fencelock show {name}` prints the token of the holder"
    );
    Err(Failure::new(code::HELD, why))
}

/// One line for each holder and waiter of a lock.
fn describe(view: &LockView) -> String {
    let name = one_line(view.name.as_str());
    if view.holders.is_empty() && view.waiters.is_empty() {
        return format!("{name}: free\n");
    }
    let mut text = String::new();
    let holders = view.holders.iter().map(holder_line);
    let waiters = view.waiters.iter().enumerate().map(|(i, waiter)| {
        let (mode, owner) = (waiter.mode.as_str(), one_line(&waiter.owner));
        let label = in_parentheses(waiter.label.as_deref());
        format!("waiting, place {}: {mode}, {owner}{label}", i + 1)
    });
    for line in holders.chain(waiters) {
        // Writing to a string never fails.
        let _ = writeln!(text, "{name}: {line}");
    }
    text
}

fn holder_line(holder: &HolderView) -> String {
    let mut line = format!("held, {}, ", holder.mode.as_str());
    // A claim of this library has an id.
    let foreign = holder.claim.is_none();
    line += &match (holder.token, foreign) {
        (Some(token), _) => format!("token {token}, "),
        (None, true) => "without a token, ".to_owned(),
        (None, false) => "token not recorded, ".to_owned(),
    };
    if foreign {
        line += "by another library: ";
    }
    line += &one_line(&holder.owner);
    if let Some(held) = holder.held {
        line += &format!(", for {}", in_words(held));
    }
    line += &match holder.ttl_left {
        Some(left) => format!(", lease ends in {}", in_words(left)),
        None => ", without a lease".to_owned(),
    };
    line += &in_parentheses(holder.label.as_deref());
    line
}

fn in_parentheses(label: Option<&str>) -> String {
    label.map_or(String::new(), |label| format!(" ({})", one_line(label)))
}

#[cfg(test)]
mod tests {
    use fencelock::Mode;
    use fencelock::engine::WaiterView;

    use super::*;

    #[test]
    fn waiters_are_shown_with_their_labels() {
        let mut view = LockView::free(LockName::new("a").unwrap());
        let waiter = |owner: &str, label: Option<&str>| {
            WaiterView::new(owner.to_owned(), Mode::Exclusive).label(label.map(str::to_owned))
        };
        view.waiters = vec![waiter("me", Some("by\thand")), waiter("you", None)];
        let expected =
            "a: waiting, place 1: exclusive, me (by hand)\na: waiting, place 2: exclusive, you\n";
        assert_eq!(describe(&view), expected);
    }
}
