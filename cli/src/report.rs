//! The report of `doctor`, as text and as JSON.

use std::fmt::Write;

use fencelock::{Durability, Finding, LeaseKind, Order, Promises, Purpose, Wake, in_words};
use serde_json::{Value, json};

use crate::exit::{code, one_line};

/// The results of `doctor` for a store.
pub(crate) struct Report {
    pub(crate) store: String,
    pub(crate) promises: Promises,
    pub(crate) findings: Vec<Finding>,
    /// What the locks are for.
    pub(crate) purpose: Purpose,
}

impl Report {
    /// Whether no finding concerns the purpose.
    pub(crate) fn is_fine(&self) -> bool {
        self.findings_for(self.purpose).next().is_none()
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self.is_fine() {
            true => code::DONE,
            false => code::HELD,
        }
    }

    /// The findings that concern a purpose: correctness needs everything that efficiency needs.
    fn findings_for(&self, purpose: Purpose) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| {
            purpose == Purpose::Correctness || finding.purpose == Purpose::Efficiency
        })
    }

    fn modes(&self) -> Vec<&'static str> {
        let promises = &self.promises;
        let modes = [
            ("exclusive", true),
            ("shared", promises.shared),
            ("permits", promises.permits),
        ];
        let modes = modes.into_iter().filter(|(_, promised)| *promised);
        modes.map(|(mode, _)| mode).collect()
    }

    /// The report for a person.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        for (what, text) in self.lines() {
            let _ = writeln!(out, "{what:<12} {}", one_line(&text));
        }
        for purpose in [Purpose::Efficiency, Purpose::Correctness] {
            let name = purpose.as_str();
            let _ = match self.findings_for(purpose).count() {
                0 => writeln!(out, "\nfor {name}: nothing to change"),
                1 => writeln!(out, "\nfor {name}: 1 finding"),
                count => writeln!(out, "\nfor {name}: {count} findings"),
            };
            let own = |finding: &&Finding| finding.purpose == purpose;
            for finding in self.findings.iter().filter(own) {
                let _ = writeln!(out, "  - {}", one_line(&finding.what));
                let _ = writeln!(out, "    change: {}", one_line(&finding.change));
            }
        }
        out
    }

    /// The store and its promises.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let promises = &self.promises;
        let waiters = match (promises.order, promises.wake) {
            (Order::Fifo, Wake::Push) => "first come, first served; a message wakes the next one",
            (Order::Fifo, _) => "first come, first served; they poll the store",
            (_, Wake::Push) => "in no order; a message wakes them",
            _ => "in no order; they poll the store",
        };
        let lock_delay = if promises.lock_delay { "yes" } else { "no" };
        let end = match promises.lease {
            LeaseKind::Lease => "with its own lease",
            LeaseKind::Session => "with the session of its client",
            LeaseKind::Connection => "with the connection of its client",
            other => other.as_str(),
        };
        let remembers = match promises.durability {
            Durability::Durable => "every grant, after a crash and after a power loss",
            Durability::Process => "every grant after a crash; a power loss may lose the newest",
            _ => "nothing after a restart",
        };
        let (min, max) = (in_words(promises.min_ttl), in_words(promises.max_ttl));
        vec![
            ("store", self.store.clone()),
            ("engine", promises.engine.to_owned()),
            ("waiters", waiters.to_owned()),
            ("modes", self.modes().join(", ")),
            ("lock-delay", lock_delay.to_owned()),
            ("a hold ends", end.to_owned()),
            ("remembers", remembers.to_owned()),
            ("assumes", promises.clock.to_owned()),
            ("ttl", format!("{min} to {max}")),
        ]
    }

    /// The report as one JSON object.
    pub(crate) fn json(&self) -> Value {
        let promises = &self.promises;
        let findings = self.findings.iter().map(|finding| {
            json!({"purpose": finding.purpose.as_str(), "what": finding.what, "change": finding.change})
        });
        json!({
            "store": self.store,
            "engine": promises.engine,
            "purpose": self.purpose.as_str(),
            "fine": self.is_fine(),
            "promises": {
                "order": promises.order.as_str(),
                "modes": self.modes(),
                "lock_delay": promises.lock_delay,
                "lease": promises.lease.as_str(),
                "wake": promises.wake.as_str(),
                "durability": promises.durability.as_str(),
                "clock": promises.clock,
                "min_ttl_ms": promises.min_ttl.as_millis() as u64,
                "max_ttl_ms": u64::try_from(promises.max_ttl.as_millis()).unwrap_or(u64::MAX),
            },
            "findings": findings.collect::<Vec<_>>(),
        })
    }
}
