//! `show`, `ls`, `check` and `release`: looking at locks that others hold, and taking them away.

use std::fmt::Write;
use std::time::Duration;

use fencelock::engine::{Evict, HolderView, LockView};
use fencelock::{LockName, Sequencer, Token};

use crate::args::{Check, Ls, Purpose, Release, Show};
use crate::exit::{Failure, Outcome, code, one_line, print};
use crate::json;
use crate::session;

pub(crate) async fn show(args: Show, store: Option<String>) -> Outcome {
    LockName::new(&args.name)?;
    let client = session::open(store, Purpose::Efficiency).await?;
    let view = client.look(&args.name).await?;
    print(&if args.json {
        json::view(&view) + "\n"
    } else {
        describe(&view)
    })?;
    Ok(code::DONE)
}

pub(crate) async fn ls(args: Ls, store: Option<String>) -> Outcome {
    let client = session::open(store, Purpose::Efficiency).await?;
    let held = client.list(&args.prefix).await?;
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
    let client = session::open(store, Purpose::Efficiency).await?;
    if client.check(&sequencer).await? {
        return Ok(code::DONE);
    }
    let Sequencer { name, token, .. } = sequencer;
    let why = format!("lock {name} is not held by that grant any more (token {token})");
    Err(Failure::new(code::HELD, why))
}

pub(crate) async fn release(args: Release, store: Option<String>) -> Outcome {
    LockName::new(&args.name)?;
    let client = session::open(store, Purpose::Efficiency).await?;
    let (name, token) = (&args.name, args.token);
    let how = if args.ask { Evict::Ask } else { Evict::Release };
    if client.evict(name, Token(token), how).await? {
        return Ok(code::DONE);
    }
    let why = format!(
        "lock {name} is not held with token {token}; `fencelock show {name}` tells which token holds"
    );
    Err(Failure::new(code::HELD, why))
}

/// A lock in a line for each holder and waiter.
fn describe(view: &LockView) -> String {
    let name = one_line(view.name.as_str());
    if view.holders.is_empty() && view.waiters.is_empty() {
        return format!("{name}: free\n");
    }
    let mut text = String::new();
    let holders = view.holders.iter().map(holder_line);
    let waiters = view.waiters.iter().enumerate().map(|(i, waiter)| {
        let (mode, owner) = (waiter.mode.as_str(), one_line(&waiter.owner));
        format!("waiting, place {}: {mode}, {owner}", i + 1)
    });
    for line in holders.chain(waiters) {
        // Writing to a string never fails.
        let _ = writeln!(text, "{name}: {line}");
    }
    text
}

fn holder_line(holder: &HolderView) -> String {
    let mut line = format!("held, {}, ", holder.mode.as_str());
    line += &match holder.token {
        Some(token) => format!("token {token}, "),
        None => "token not recorded, ".to_owned(),
    };
    line += &one_line(&holder.owner);
    if let Some(held) = holder.held {
        line += &format!(", for {}", rough(held));
    }
    line += &match holder.ttl_left {
        Some(left) => format!(", lease ends in {}", rough(left)),
        None => ", without a lease".to_owned(),
    };
    if let Some(label) = &holder.label {
        line += &format!(" ({})", one_line(label));
    }
    line
}

/// A duration as people say it.
pub(crate) fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..120 => format!("{seconds}s"),
        120..7200 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        7200..172_800 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_say_them() {
        let said = |seconds| rough(Duration::from_secs_f64(seconds));
        assert_eq!(said(0.25), "0.2s");
        assert_eq!(said(59.9), "59s");
        assert_eq!(said(125.0), "2m05s");
        assert_eq!(said(7260.0), "2h01m");
        assert_eq!(said(180_000.0), "2d02h");
    }
}
