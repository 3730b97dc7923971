//! `show`, `ls`, `check` and `release`: locks that other processes hold.

use std::fmt::Write;
use std::io::{self, IsTerminal};

use fencelock::engine::{Evict, HolderView, LockView};
use fencelock::{LockName, Sequencer, Token, in_words};

use crate::args::{Check, Ls, Patience, Purpose, Release, Show};
use crate::exit::{Failure, Outcome, code, one_line, print};
use crate::json;
use crate::store;
use crate::take;

pub(crate) async fn show(args: Show, store: Option<String>) -> Outcome {
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

pub(crate) async fn ls(args: Ls, store: Option<String>) -> Outcome {
    let client = store::open_to_inspect(store).await?;
    let held = client.list(&args.prefix).await?;
    if held.is_empty() && !args.json && io::stdout().is_terminal() {
        // A program that reads the output gets nothing instead.
        print(&match args.prefix.as_str() {
            "" => "no lock is held\n".to_owned(),
            prefix => format!("no lock whose name begins with {prefix:?} is held\n"),
        })?;
        return Ok(code::DONE);
    }
    print(&if args.json {
        let views: Vec<String> = held.iter().map(json::view).collect();
        json::array(&views) + "\n"
    } else {
        held.iter().map(describe).collect()
    })?;
    Ok(code::DONE)
}

pub(crate) async fn check(args: Check, store: Option<String>) -> Outcome {
    let sequencer: Sequencer = args.sequencer.parse()?;
    let client = store::open_to_inspect(store).await?;
    if client.check(&sequencer).await? {
        return Ok(code::DONE);
    }
    let Sequencer { name, token, .. } = sequencer;
    let why = format!("lock {name} is no longer held by that grant (token {token})");
    Err(Failure::new(code::HELD, why))
}

pub(crate) async fn release(args: Release, store: Option<String>) -> Outcome {
    if let Some(grant) = &args.grant {
        return take::release(grant, args.patience()?, store).await;
    }
    let (Some(name), Some(token)) = (&args.name, args.token) else {
        return Err(Failure::usage("a name and --token, or --grant, are needed"));
    };
    LockName::new(name)?;
    let client = store::open(store, Purpose::Efficiency, Patience::Endless, None).await?;
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
