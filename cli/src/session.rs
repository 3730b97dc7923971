//! From a command line to a lock that is held: opening the store, waiting, and closing.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use fencelock::engine::LockView;
use fencelock::{Client, Guard, LockName, Owner, in_words};
use rustix::termios::tcgetwinsize;

use crate::args::{Patience, Purpose, Taking, Times};
use crate::exit::{Failure, code, one_line, say};
use crate::signals::Signals;
use crate::terminal::Terminal;

/// The variable that names the store.
const STORE: &str = "FENCELOCK_STORE";

/// The variable by which a nested command joins the hold around it.
pub(crate) const OWNER: &str = "FENCELOCK_OWNER";

/// For how long the end of this process waits for a store to take note of it. What it does not confirm by then is over
/// with its lease.
pub(crate) const CLOSING: Duration = Duration::from_secs(2);

/// Who waits is told of it when it takes longer than this.
const UNNOTICED: Duration = Duration::from_millis(200);

/// How often the line on the terminal is renewed.
const LINE: Duration = Duration::from_secs(1);

/// The store of the command line, else of the environment, else the default.
pub(crate) fn store_url(store: Option<String>) -> String {
    let from_environment = || std::env::var(STORE).ok().filter(|url| !url.is_empty());
    store
        .or_else(from_environment)
        .unwrap_or_else(|| "sqlite:".to_owned())
}

/// Opens the store (see [`store_url`]) to look at it only.
pub(crate) async fn open_to_look(store: Option<String>) -> Result<Client, Failure> {
    Ok(fencelock::connect(&store_url(store)).inspect_only().await?)
}

/// Opens the store (see [`store_url`]). One that does not answer is asked again for as long as its URL says, but no longer
/// than the lock would be waited for.
pub(crate) async fn open(
    store: Option<String>,
    purpose: Purpose,
    patience: Patience,
) -> Result<Client, Failure> {
    let url = store_url(store);
    let mut connect = fencelock::connect(&url).purpose(purpose.into());
    if let Patience::Until(most) = patience {
        connect = connect.patience(most);
    }
    let client = connect.await?;
    for limit in client.warnings() {
        say(&format!("warning: {}; {}", limit.what, limit.change));
    }
    Ok(client)
}

/// A lock that is held, and what belongs to it.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) guard: Guard,
}

/// Opens the store and takes the lock.
pub(crate) async fn take(
    taking: &Taking,
    times: &Times,
    name: &str,
    store: Option<String>,
    signals: &mut Signals,
) -> Result<Session, Failure> {
    // A bad name is told also while the store is away.
    LockName::new(name)?;
    let client = tokio::select! {
        biased;
        signal = signals.next_end() => return Err(ended_by(signal)),
        client = open(store, taking.purpose, times.patience) => client?,
    };
    let taken = tokio::select! {
        biased;
        signal = signals.next_end() => Err(ended_by(signal)),
        guard = wish(&client, taking, times, name) => guard,
    };
    match taken {
        Ok(guard) => Ok(Session { client, guard }),
        Err(failure) => {
            // What was begun is undone before this process is gone.
            close(&client).await;
            Err(failure.conflict(taking.conflict_exit_code, taking.quiet))
        }
    }
}

/// Ends a client, within reason.
pub(crate) async fn close(client: &Client) {
    // What the store did not confirm is over with its lease.
    let _ = tokio::time::timeout(CLOSING, client.close()).await;
}

fn ended_by(signal: u8) -> Failure {
    Failure::silent(code::SIGNAL.saturating_add(signal))
}

async fn wish(
    client: &Client,
    taking: &Taking,
    times: &Times,
    name: &str,
) -> Result<Guard, Failure> {
    let owner = owner(client)?;
    let mut wish = match times.patience {
        Patience::None => client.try_lock(name),
        Patience::Until(most) => client.lock(name).timeout(most),
        Patience::Endless => client.lock(name),
    };
    wish = wish.ttl(times.ttl).lock_delay(times.lock_delay);
    wish = wish.owner(&owner).recorded();
    if let Some(least) = times.at_least {
        wish = wish.at_least(least);
    }
    if taking.shared {
        wish = wish.shared();
    }
    if taking.unfair {
        wish = wish.unfair();
    }
    if let Some(label) = &taking.label {
        wish = wish.label(label);
    }
    let told = async {
        if times.patience != Patience::None && !taking.quiet {
            tokio::time::sleep(UNNOTICED).await;
            if io::stderr().is_terminal() {
                tell_place(client, name, owner.as_str()).await;
            } else if taking.verbose {
                say(&format!("waiting for lock {name}"));
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        guard = wish.into_future() => Ok(guard?),
        never = told => never,
    }
}

/// Who claims: the owner of the command around this one, else a new one.
fn owner(client: &Client) -> Result<Owner, Failure> {
    match outer_owner() {
        None => Ok(client.owner()),
        Some(text) => Ok(client.join(&text.to_string_lossy())?),
    }
}

/// The owner of the command around this one, if there is one. An empty text is none, as with every variable.
pub(crate) fn outer_owner() -> Option<OsString> {
    std::env::var_os(OWNER).filter(|text| !text.is_empty())
}

/// Keeps a line on the terminal that tells who holds the lock, since when, and one's place. Never returns.
async fn tell_place(client: &Client, name: &str, me: &str) {
    let mut line = Line { shown: false };
    loop {
        if let Ok(view) = client.look(name).await {
            line.show(&place(&view, me));
        }
        tokio::time::sleep(LINE).await;
    }
}

/// What comes last is cut off on a narrow terminal.
fn place(view: &LockView, me: &str) -> String {
    let mut text = format!("fencelock: waiting for {}", view.name);
    if let Some(at) = view.waiters.iter().position(|waiter| waiter.owner == me) {
        text += &format!(" (place {} of {})", at + 1, view.waiters.len());
    }
    if let Some(holder) = view.holders.first() {
        text += ", held";
        if let Some(held) = holder.held {
            text += &format!(" for {}", in_words(held));
        }
        // Without the part that only machines read.
        let who = holder.owner.split('#').next();
        text += &format!(" by {}", who.unwrap_or(&holder.owner));
        if let more @ 1.. = view.holders.len() - 1 {
            text += &format!(" and {more} more");
        }
        if let Some(label) = &holder.label {
            text += &format!(" ({label})");
        }
    }
    text
}

/// A line on the terminal that is written over again and again, and gone in the end.
struct Line {
    shown: bool,
}

impl Line {
    fn show(&mut self, text: &str) {
        self.clear();
        // A job in the background leaves the terminal to others.
        if Terminal::open().is_some_and(|terminal| !terminal.is_ours()) {
            return;
        }
        let columns = tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
        // A terminal that does not know its size says 0.
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
