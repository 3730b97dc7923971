//! What is shown while the command waits for a lock.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use fencelock::engine::LockView;
use fencelock::{Client, in_words};
use rustix::termios::tcgetwinsize;

use crate::exit::{one_line, say};
use crate::terminal::Terminal;

/// A wait shorter than this is not reported.
const UNNOTICED: Duration = Duration::from_millis(200);

/// How long the report of a failure waits for the holder's name.
const ANSWER: Duration = Duration::from_secs(1);

/// How often the line on the terminal is updated.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// How often a waiter without a terminal asks whether the store still answers.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// After so many looks without a holder in between, it is no accident that nobody holds the lock.
const UNHELD_LOOKS: u32 = 2;

/// Reports the wait of `owner` for the lock `name`, until it is dropped: on a terminal as a line that is updated, elsewhere
/// as one message if `verbose`, and one whenever the store stops or begins to answer.
pub(crate) async fn report(client: &Client, name: &str, owner: &str, verbose: bool) {
    tokio::time::sleep(UNNOTICED).await;
    if io::stderr().is_terminal() {
        update_line(client, name, owner).await;
        return;
    }
    if verbose {
        say(&format!("waiting for lock {name}"));
    }
    report_silence(client, name).await;
}

/// Without these messages, a user could not distinguish a store that hangs from a lock that is held.
async fn report_silence(client: &Client, name: &str) {
    let (mut away, mut free) = (false, 0);
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        match client.look(name).await {
            Err(error) if error.is_away() && !away => {
                say(&format!("still waiting for lock {name}: {error}"));
                away = true;
            }
            Ok(_) if away => {
                say(&format!(
                    "still waiting for lock {name}: the store answers again"
                ));
                away = false;
            }
            // One look may come between two holders.
            Ok(view) if view.holders.is_empty() => {
                free += 1;
                if free == UNHELD_LOOKS {
                    say(&format!(
                        "still waiting for lock {name}, although nobody holds it; `fencelock doctor` may say why"
                    ));
                }
            }
            Ok(_) => free = 0,
            Err(_) => {}
        }
    }
}

async fn update_line(client: &Client, name: &str, owner: &str) {
    let mut line = Line { shown: false };
    loop {
        match client.look(name).await {
            Ok(view) => line.show(&describe(&view, owner)),
            Err(error) if error.is_away() => {
                line.show(&format!("fencelock: waiting for {name}: {error}"));
            }
            Err(_) => {}
        }
        tokio::time::sleep(UPDATE_INTERVAL).await;
    }
}

/// The place of `owner` in the queue and the holder. The least important part comes last, since a narrow terminal cuts
/// it off.
fn describe(view: &LockView, owner: &str) -> String {
    let mut text = format!("fencelock: waiting for {}", view.name);
    if let Some(at) = view.waiters.iter().position(|waiter| waiter.owner == owner) {
        text += &format!(" (place {} of {})", at + 1, view.waiters.len());
    }
    // While locks move between two stores, the request may already hold the lock in one of them.
    if let Some(held) = held(view).filter(|_| !view.holders.iter().any(|held| held.owner == owner))
    {
        text += &format!(", held {held}");
    }
    text
}

/// For how long the lock has been held and by whom, as far as the store knows; `None` if it is free.
fn held(view: &LockView) -> Option<String> {
    let holder = view.holders.first()?;
    let mut text = String::new();
    if let Some(held) = holder.held {
        text += &format!("for {} ", in_words(held));
    }
    // The part after `#` is for machines.
    let who = holder.owner.split('#').next();
    text += &format!("by {}", who.unwrap_or(&holder.owner));
    if let more @ 1.. = view.holders.len() - 1 {
        text += &format!(" and {more} more");
    }
    if let Some(label) = &holder.label {
        text += &format!(" ({label})");
    }
    Some(text)
}

/// The same as [`held`], read from the store now, if it answers soon.
pub(crate) async fn held_now(client: &Client, name: &str) -> Option<String> {
    let view = tokio::time::timeout(ANSWER, client.look(name)).await;
    held(&view.ok()?.ok()?)
}

/// A line on the terminal that is overwritten by each update and cleared at the end.
struct Line {
    shown: bool,
}

impl Line {
    fn show(&mut self, text: &str) {
        self.clear();
        // A job in the background does not write to the terminal.
        if Terminal::open().is_some_and(|terminal| !terminal.is_ours()) {
            return;
        }
        let columns = tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
        // 0 means that the terminal does not know its size.
        let columns = if columns == 0 { 80 } else { columns.into() };
        let text: String = one_line(text).chars().take(columns - 1).collect();
        self.shown = write!(io::stderr(), "{text}").is_ok();
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}
