//! What is wrong with a set now: with each of its stores, and with the distribution of names over them.

use std::collections::BTreeMap;

use fencelock_core::engine::Cursor;
use fencelock_core::{Engine, Finding, Purpose, Result};
use futures_util::future::join_all;

use crate::engine::Routed;
use crate::member::Member;
use crate::open::of_shard;

/// How many held locks are counted at most on one shard.
const MOST_COUNTED: usize = 10_000;

/// With fewer held locks in total, an uneven distribution is chance.
const LEAST_COUNTED: usize = 200;

pub(crate) async fn diagnose(set: &Routed) -> Result<Vec<Finding>> {
    let looked = join_all(set.members().iter().map(look_at)).await;
    let mut held = Vec::new();
    let mut findings = Vec::new();
    for (member, (found, count)) in set.members().iter().zip(looked) {
        findings.extend(found.iter().map(|finding| of_shard(&member.id, finding)));
        held.push((member, count));
    }
    findings.extend(uneven(set, &held));
    findings.extend(on_one_server(set.members()));
    Ok(findings)
}

/// A finding for two shards on one server, perhaps with different prefixes: one more name for the same load and the same end.
fn on_one_server(members: &[Member]) -> Option<Finding> {
    let mut known: BTreeMap<(String, Vec<String>), &str> = BTreeMap::new();
    let twice = members.iter().find_map(|member| {
        let server = member.server()?;
        let before = known.insert(server, &member.id)?;
        Some((before, member))
    });
    let (before, member) = twice?;
    let what = format!(
        "[{before}] and [{}] are on one server: it carries the load of both, and both end with it",
        member.id
    );
    let change =
        "give each shard a server of its own, or make one shard of them, with the weight of both";
    Some(Finding::new(Purpose::Efficiency, what, change))
}

/// The findings of one store, and how many locks are held there, if it answers.
async fn look_at(member: &Member) -> (Vec<Finding>, Option<usize>) {
    let asked = async {
        let engine = member.engine().await?;
        let found = engine.inspect().diagnose().await?;
        Ok::<_, fencelock_core::Error>((found, count(&**engine).await?))
    };
    match asked.await {
        Ok((found, count)) => (found, Some(count)),
        Err(error) => {
            let what = format!("its locks cannot be taken or released now: {error}");
            let change =
                "bring the shard's store back; the locks of the other shards do not need it";
            (vec![Finding::new(Purpose::Efficiency, what, change)], None)
        }
    }
}

async fn count(engine: &dyn Engine) -> Result<usize> {
    let (mut held, mut at): (usize, Option<Cursor>) = (0, None);
    loop {
        let page = engine.inspect().list("", at, 1000).await?;
        held += page.items.len();
        at = page.next;
        if at.is_none() || held >= MOST_COUNTED {
            return Ok(held.min(MOST_COUNTED));
        }
    }
}

/// A finding for a shard that has more than twice its share of the held locks.
fn uneven(set: &Routed, held: &[(&Member, Option<usize>)]) -> Option<Finding> {
    let all: usize = held.iter().filter_map(|(_, count)| *count).sum();
    let weights: usize = set
        .map()
        .shards()
        .map(|(_, weight)| usize::from(weight))
        .sum();
    let mut crowded = held.iter().filter_map(|(member, count)| {
        let mut shards = set.map().shards();
        let (_, weight) = shards.find(|(id, _)| *id == member.id)?;
        let count = (*count)?;
        (count * weights > 2 * usize::from(weight) * all).then_some((member, count))
    });
    let (member, count) = crowded.next().filter(|_| all >= LEAST_COUNTED)?;
    let what = format!(
        "[{}] {count} of the {all} locks that are held lie on this one of {} shards",
        member.id,
        held.len()
    );
    let change = "many names have one key (the text within {…}, or before the slash): choose keys that divide them better";
    Some(Finding::new(Purpose::Efficiency, what, change))
}
