//! The signals that others send to this process.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Signals to this process, one at a time. SIGTSTP is not among them: its ordinary work, to stop this process, is what
/// is wanted.
#[derive(Debug)]
pub(crate) struct Signals(mpsc::UnboundedReceiver<i32>);

impl Signals {
    /// Listens from now on. What this process was started to ignore (as by `nohup`) stays ignored, here and in the
    /// command.
    pub(crate) fn listen() -> io::Result<Self> {
        let (tell, heard) = mpsc::unbounded_channel();
        let ignored = ignored();
        for kind in [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
            SignalKind::window_change(),
            SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()),
        ] {
            let number = kind.as_raw_value();
            if ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            let mut arrivals = signal(kind)?;
            let tell = tell.clone();
            tokio::spawn(async move {
                while arrivals.recv().await.is_some() {
                    if tell.send(number).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self(heard))
    }

    /// The next signal's number.
    pub(crate) async fn next(&mut self) -> i32 {
        match self.0.recv().await {
            Some(number) => number,
            // All are ignored: none ever comes.
            None => std::future::pending().await,
        }
    }

    /// The next signal that asks this process to end.
    pub(crate) async fn next_end(&mut self) -> u8 {
        let harmless = [
            SignalKind::window_change().as_raw_value(),
            rustix::process::Signal::CONT.as_raw(),
        ];
        loop {
            let number = self.next().await;
            if !harmless.contains(&number) {
                return u8::try_from(number).unwrap_or(0);
            }
        }
    }
}

/// The signals that this process ignores, a bit each. Empty where the system does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
