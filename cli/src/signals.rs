//! The signals that this process receives.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The signals to this process, one at a time. SIGTSTP is not among them: its default action, to stop this process, is
/// the right one.
#[derive(Debug)]
pub(crate) struct Signals(mpsc::UnboundedReceiver<i32>);

impl Signals {
    /// Listens from now on. A signal that was ignored when this process started (as `nohup` does) stays ignored, here and
    /// in the command.
    pub(crate) fn listen() -> io::Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
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
            let sender = sender.clone();
            tokio::spawn(async move {
                while arrivals.recv().await.is_some() {
                    if sender.send(number).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self(receiver))
    }

    /// The number of the next signal.
    pub(crate) async fn next(&mut self) -> i32 {
        match self.0.recv().await {
            Some(number) => number,
            // All signals are ignored.
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

/// The signals that this process ignores, one bit each. 0 on systems without `/proc`.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
