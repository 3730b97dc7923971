//! The story of these examples, in two processes. Each example has another fence.
//!
//! The sleeper takes the lock, and is stopped (SIGSTOP) for longer than its lease. The successor takes the lock and writes.
//! Then the sleeper wakes up in the middle of its work and writes, too. The fence refuses it, and names the token that won.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, io, process};

use fencelock::Sequencer;

pub(crate) type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// The protected resource.
pub(crate) trait Ledger {
    /// Writes in one step with the check that no later holder has passed.
    async fn write(&self, holder: &Sequencer, text: &str) -> Result<()>;
}

/// The location of the ledger: the first argument.
pub(crate) fn place() -> Result<String> {
    let place = env::args().nth(1);
    Ok(place.ok_or("say where the ledger is, such as redis://127.0.0.1:6379")?)
}

/// Set in the process of the sleeper, to the store of the locks.
const STORE: &str = "SLEEPER_STORE";

pub(crate) async fn run(ledger: &impl Ledger, place: &str) -> Result<()> {
    if let Ok(store) = env::var(STORE) {
        return sleep(ledger, &store).await;
    }
    let directory = env::temp_dir().join(format!("fencelock-story-{}", process::id()));
    fs::create_dir_all(&directory)?;
    let store = format!("sqlite:{}", directory.join("locks.db").display());
    let mut sleeper = Command::new(env::current_exe()?)
        .arg(place)
        .env(STORE, &store)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let result = watch(ledger, &store, &mut sleeper).await;
    // In any case, since it may still be stopped.
    sleeper.kill()?;
    sleeper.wait()?;
    fs::remove_dir_all(&directory)?;
    result
}

async fn sleep(ledger: &impl Ledger, store: &str) -> Result<()> {
    let client = fencelock::connect(store).await?;
    let request = client.lock("ledger").ttl(Duration::from_millis(500));
    // Without renewal: the lease ends while the process is stopped.
    let guard = request.renew(false).await?;
    let holder = guard.sequencer().await?;
    println!("{holder}");
    io::stdin().read_line(&mut String::new())?;
    // A program should check `guard.is_valid()` here. But even then it may be stopped right after the check.
    match ledger.write(&holder, "by the sleeper").await {
        Ok(()) => println!("it is not refused"),
        Err(refusal) => println!("it is refused: {refusal}"),
    }
    Ok(())
}

async fn watch(ledger: &impl Ledger, store: &str, sleeper: &mut Child) -> Result<()> {
    let (stdin, stdout) = (sleeper.stdin.take(), sleeper.stdout.take());
    let mut answers = BufReader::new(stdout.ok_or("no output")?).lines();
    let mut hear = || -> Result<String> {
        let line = answers.next().ok_or("the sleeper has ended")?;
        Ok(line?)
    };
    let early: Sequencer = hear()?.parse()?;
    println!("The sleeper has token {}. It is stopped.", early.token);
    signal("-STOP", sleeper)?;

    let client = fencelock::connect(store).await?;
    // Granted when the sleeper's lease has ended.
    let guard = client.lock("ledger").await?;
    let holder = guard.sequencer().await?;
    ledger.write(&holder, "by the successor").await?;
    println!("The successor has token {}, and has written.", holder.token);

    writeln!(stdin.ok_or("no input")?, "go on")?;
    signal("-CONT", sleeper)?;
    let answer = hear()?;
    println!("The sleeper wakes up and writes: {answer}");
    guard.release().await?;
    client.close().await?;
    match answer.contains(&format!("token {} has been here", holder.token)) {
        true => Ok(()),
        false => Err("that is not what a fence is for".into()),
    }
}

fn signal(signal: &str, child: &Child) -> Result<()> {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status()?;
    match sent.success() {
        true => Ok(()),
        false => Err(format!("kill {signal} failed").into()),
    }
}
