//! Knowing without looking that nobody else stands at a lock.
//!
//! Servers number the children of a node in the order in which they are made. So if a claim was seen to be alone, is gone
//! since, and the next claim has the next number, then nobody came between: that one is alone, too. That holds as
//! long as the node above them is the same; whether it is tells a watch on it, whose news come before the answer to
//! anything asked later over the same connection.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use zookeeper_client::OneshotWatcher;

use crate::line;
use crate::session::Link;
use crate::store::Above;

/// What is known of how quiet it is at a name.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// Whether this client's last claim was alone when it looked.
    alone: bool,
    alarm: Option<Alarm>,
    last: Option<Last>,
}

/// The last claim that was alone, with the alarm set.
#[derive(Clone, Copy, Debug)]
struct Last {
    number: i64,
    gone: bool,
}

/// Goes off when the node of the name is deleted, or changed otherwise.
struct Alarm {
    link: Weak<Link>,
    off: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").finish_non_exhaustive()
    }
}

/// What a new claim is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Look at the line.
    Look,
    /// Look, and set the alarm before.
    SetAlarm,
    /// Look only if its number is not this one.
    Unless(i64),
}

impl Quiet {
    /// Whether the alarm is set over this connection, and has not gone off.
    fn is_guarded(&mut self, link: &Arc<Link>) -> bool {
        let still = match &mut self.alarm {
            Some(alarm) if std::ptr::eq(alarm.link.as_ptr(), &**link) => {
                link.while_open(|| (&mut alarm.off).now_or_never().is_none())
            }
            _ => None,
        };
        if still != Some(true) {
            self.alarm = None;
            self.last = None;
        }
        still == Some(true)
    }
}

impl Above {
    /// What a claim that is about to be made over this connection is to do.
    pub(crate) fn what_to_ask(&self, link: &Arc<Link>) -> Ask {
        let mut quiet = self.quiet();
        match (quiet.is_guarded(link), quiet.last) {
            (true, Some(Last { number, gone: true })) => Ask::Unless(number + 1),
            (false, _) if quiet.alone => Ask::SetAlarm,
            _ => Ask::Look,
        }
    }

    /// Whether a claim that got the number that was hoped for is alone.
    pub(crate) fn is_still_quiet(&self, number: i64, link: &Arc<Link>) -> bool {
        let mut quiet = self.quiet();
        let guarded = quiet.is_guarded(link);
        if guarded {
            let gone = false;
            quiet.last = Some(Last { number, gone });
        }
        guarded
    }

    /// The alarm was set before the line was looked at.
    pub(crate) fn set_alarm(&self, link: &Arc<Link>, watcher: OneshotWatcher) {
        let link = Arc::downgrade(link);
        let off = Box::pin(watcher.changed().map(drop));
        let alarm = Alarm { link, off };
        // Dropped outside the lock: the one before, if there was one.
        let before = {
            let mut quiet = self.quiet();
            quiet.last = None;
            quiet.alarm.replace(alarm)
        };
        drop(before);
    }

    /// What the line was when this claim had been made in it.
    pub(crate) fn note_line(&self, node: &str, link: &Arc<Link>, line: &[String]) {
        let alone = matches!(line, [only] if only == node);
        let mut quiet = self.quiet();
        quiet.alone = alone;
        let number = number(node).filter(|_| alone && quiet.is_guarded(link));
        quiet.last = number.map(|number| Last {
            number,
            gone: false,
        });
    }

    /// A claim's node is gone for certain.
    pub(crate) fn note_gone(&self, node: &str) {
        if let Some(last) = &mut self.quiet().last
            && number(node) == Some(last.number)
        {
            last.gone = true;
        }
    }
}

fn number(node: &str) -> Option<i64> {
    let (_, number) = line::split(node)?;
    number.parse().ok()
}
