//! Renewals: many holds in few round trips.

use std::collections::BTreeMap;
use std::sync::Arc;

use fencelock_core::engine::{HeldClaim, Renewal};
use fencelock_core::{BootInstant, Clock, Error, LockName, Mode};
use futures_util::stream::{self, StreamExt};
use redis::{Cmd, Pipeline, RedisError, Value};

use crate::cluster::{Turns, asks, is_redirection};
use crate::connection::unexpected;
use crate::engine::{Redis, shortfall};
use crate::error::{explain, is_noscript};
use crate::hub::Terms;
use crate::stored::{kind, mark, push_rest, px};

/// How many exclusive holds one request prolongs; it blocks the server for about a millisecond.
const AT_ONCE: usize = 500;
/// How many requests are under way at once at one server.
const UNDER_WAY: usize = 4;
/// How many shared holds are.
const SHARED_UNDER_WAY: usize = 64;

/// Holds of one slot, by their place among all that are renewed: what one script can prolong.
type Group = (u16, Vec<usize>);

/// What is renewed at one server.
#[derive(Debug, Default)]
struct Share {
    /// The exclusive holds, a request each of few enough.
    requests: Vec<Vec<Group>>,
    shared: Vec<usize>,
}

fn alone(held: &HeldClaim) -> bool {
    held.claim.mode == Mode::Exclusive
}

fn unknown(store: &str, error: &Error) -> Renewal {
    match error {
        Error::Closed => Renewal::Unknown(Error::Closed),
        _ => Renewal::Unknown(Error::unavailable(store, "renewing", error.to_string())),
    }
}

impl Redis {
    pub(crate) async fn renew_all(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        if self.hub().config.inspect_only {
            let refused = |_| self.hub().check_whole("renewing a lock").err();
            let refused = held.iter().filter_map(refused);
            return refused.map(Renewal::Unknown).collect();
        }
        let mut renewed: Vec<Option<Renewal>> = held.iter().map(|_| None).collect();
        let shares = self.shares(held);
        // The futures stand in vectors: a lazy iterator of them would not be `Send` for every lifetime.
        let shares: Vec<_> = shares
            .iter()
            .map(|share| {
                let exclusive = share.requests.iter();
                let exclusive: Vec<_> = exclusive
                    .map(|groups| self.renew_groups(held, groups))
                    .collect();
                let shared: Vec<_> = share
                    .shared
                    .iter()
                    .map(|at| async move { vec![(*at, self.renew_shared(&held[*at]).await)] })
                    .collect();
                Box::pin(stream::select(
                    stream::iter(exclusive).buffer_unordered(UNDER_WAY),
                    stream::iter(shared).buffer_unordered(SHARED_UNDER_WAY),
                ))
            })
            .collect();
        let mut shares = stream::select_all(shares);
        // A little longer than for one answer, so that who gets none notes that first.
        let patience = self.hub().config.response_timeout.mul_f64(1.125);
        let several = self.hub().cluster().is_some();
        let mut heard = Clock::Boot.now();
        loop {
            let next = shares.next();
            let answers = if several {
                let left = patience.saturating_sub(Clock::Boot.now().since(heard));
                // Whatever is left is a dead node's; the holds of the others cannot wait for it.
                let Ok(answers) = tokio::time::timeout(left, next).await else {
                    break;
                };
                answers
            } else {
                next.await
            };
            let Some(answers) = answers else { break };
            for (at, answer) in answers {
                if !matches!(answer, Renewal::Unknown(_)) {
                    heard = Clock::Boot.now();
                }
                renewed[at] = Some(answer);
            }
        }
        drop(shares);
        let answers = renewed.into_iter().map(|answer| {
            let silent = || Error::unavailable(self.hub().store(), "renewing", "no answer in time");
            answer.unwrap_or_else(|| Renewal::Unknown(silent()))
        });
        let answers: Vec<Renewal> = answers.collect();
        let lost = held.iter().zip(&answers);
        let lost = lost.filter(|(held, answer)| alone(held) && matches!(answer, Renewal::Lost));
        let lost: Vec<LockName> = lost.map(|(held, _)| held.claim.name.clone()).collect();
        if !lost.is_empty() {
            self.poke(lost);
        }
        answers
    }

    /// The holds by server.
    fn shares(&self, held: &[HeldClaim]) -> Vec<Share> {
        let cluster = self.hub().cluster();
        let mut slots: BTreeMap<u16, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (at, held) in held.iter().enumerate() {
            let slot = cluster.map_or(0, |_| crate::keys::slot(held.claim.name.as_str()));
            let (exclusive, shared) = slots.entry(slot).or_default();
            if alone(held) {
                exclusive.push(at);
            } else {
                shared.push(at);
            }
        }
        let mut nodes: BTreeMap<usize, Share> = BTreeMap::new();
        for (slot, (exclusive, shared)) in slots {
            // Only to tell nodes apart; unknown ones are together.
            let owner = cluster.and_then(|cluster| cluster.owner(slot));
            let node = owner.map_or(0, |node| Arc::as_ptr(&node) as usize);
            let share = nodes.entry(node).or_default();
            share.shared.extend(shared);
            for chunk in exclusive.chunks(AT_ONCE) {
                let count =
                    |groups: &[Group]| -> usize { groups.iter().map(|(_, all)| all.len()).sum() };
                match share.requests.last_mut() {
                    Some(last) if count(last) + chunk.len() <= AT_ONCE => {
                        last.push((slot, chunk.to_vec()));
                    }
                    _ => share.requests.push(vec![(slot, chunk.to_vec())]),
                }
            }
        }
        nodes.into_values().collect()
    }

    /// The arguments of the script after its name.
    fn fill<'a>(
        &self,
        command: &mut Cmd,
        held: impl ExactSizeIterator<Item = &'a HeldClaim> + Clone,
    ) {
        command.arg(held.len());
        for held in held.clone() {
            command.arg(held.claim.name.as_str());
        }
        for held in held {
            let claim = &held.claim;
            command
                .arg(&mark(&claim.id)[..])
                .arg(held.token.get())
                .arg(px(claim));
            if claim.reserve > 1 {
                // Handed on inside the process, perhaps to another owner.
                let mut rest = Vec::with_capacity(64 + claim.owner.len());
                push_rest(&mut rest, claim, &self.hub().channel);
                command.arg(&rest[..]);
            } else {
                command.arg("");
            }
        }
    }

    /// One request to one server.
    async fn renew_groups(&self, held: &[HeldClaim], groups: &[Group]) -> Vec<(usize, Renewal)> {
        let hub = self.hub();
        let all = || groups.iter().flat_map(|(_, all)| all.iter().copied());
        let fail = |error: Error| all().map(|at| (at, unknown(hub.store(), &error))).collect();
        let Some((slot, _)) = groups.first() else {
            return Vec::new();
        };
        let (node, main) = match hub.link_to_renew(*slot).await {
            Ok(found) => found,
            Err(error) => return fail(error),
        };
        if let Err(error) = hub.check_master(&node) {
            return fail(error);
        }
        let asked = hub.config.replicas;
        let mut writer = match asked {
            0 => None,
            _ => match node.renewer(hub, &main).await {
                Ok(writer) => Some(writer),
                Err(error) => return fail(error),
            },
        };
        let link = Arc::clone(writer.as_deref().unwrap_or(&main));
        if let Some(writer) = &mut writer {
            writer.sends();
        }
        let script = &hub.scripts.renew;
        let mut commands = Pipeline::with_capacity(groups.len());
        for (_, group) in groups {
            let mut command = Cmd::with_capacity(3 + 5 * group.len(), 160 * group.len());
            command.arg("EVALSHA").arg(&script.sha);
            self.fill(&mut command, group.iter().map(|at| &held[*at]));
            commands.add_command(command);
        }
        let asked_at = Clock::Boot.now();
        let answers = match link.send_all(&commands).await {
            Ok(answers) if answers.len() == groups.len() => answers,
            other => {
                let error = other.err().unwrap_or_else(|| unexpected(&Value::Nil));
                return fail(self.failed("renewing", None, error));
            }
        };
        let mut renewed = Vec::new();
        let mut alone: Vec<usize> = Vec::new();
        for ((_, group), answer) in groups.iter().zip(answers) {
            let members = || group.iter().map(|at| &held[*at]);
            let answer = match answer {
                Value::ServerError(error) => {
                    let error = RedisError::from(error);
                    link.note(Some(&error));
                    if is_noscript(&error) {
                        link.run(script, |command| self.fill(command, members()))
                            .await
                    } else {
                        Err(error)
                    }
                }
                answer => Ok(answer),
            };
            match answer {
                Ok(Value::Array(codes)) if codes.len() == group.len() => {
                    for (code, at) in codes.iter().zip(group) {
                        renewed.push((*at, self.renewal(code, asked_at, &held[*at])));
                    }
                }
                Err(error) if is_redirection(&error) => alone.extend(group),
                other => {
                    let error = match other {
                        Ok(answer) => unexpected(&answer),
                        Err(error) => error,
                    };
                    let error = self.failed("renewing", None, error);
                    let failed = group.iter().map(|at| (*at, unknown(hub.store(), &error)));
                    renewed.extend(failed);
                }
            }
        }
        if asked > 0 {
            let patience = hub.config.response_timeout / 2;
            let have = link.replicated(asked, patience).await;
            if let (Ok(_), Some(writer)) = (&have, &mut writer) {
                writer.answered();
            }
            let failed = match have {
                Ok(have) if have >= asked => None,
                Ok(have) => Some(shortfall(hub.store(), have, asked, patience)),
                Err(error) => Some(self.failed("waiting for replicas", None, error)),
            };
            if let Some(error) = failed {
                // What is lost is lost all the same.
                for (_, renewal) in &mut renewed {
                    if !matches!(renewal, Renewal::Lost) {
                        *renewal = unknown(hub.store(), &error);
                    }
                }
            }
        }
        drop(writer);
        // A slot is on its way: what of it has arrived is renewed there.
        let alone: Vec<_> = alone
            .into_iter()
            .map(|at| async move { (at, self.renew_alone(&held[at]).await) })
            .collect();
        let alone = stream::iter(alone).buffer_unordered(16);
        renewed.extend(alone.collect::<Vec<_>>().await);
        renewed
    }

    /// One hold, wherever it is.
    async fn renew_alone(&self, held: &HeldClaim) -> Renewal {
        let hub = self.hub();
        let script = &hub.scripts.renew;
        let name = &held.claim.name;
        let slot = hub.keys(name).slot;
        let fail = |error: RedisError| {
            Renewal::Unknown(explain(hub.store(), "renewing", Some(name), error))
        };
        let mut turns = Turns::new(&hub.config);
        loop {
            let (node, link) = match hub.link(slot).await {
                Ok(found) => found,
                Err(error) => return Renewal::Unknown(error),
            };
            let asked_at = Clock::Boot.now();
            let args = |command: &mut Cmd| self.fill(command, std::iter::once(held));
            let mut answer = link.run(script, args).await;
            let mut wrote = (node, link);
            if let Err(error) = &answer
                && let Some(address) = asks(error)
                && let Some(cluster) = hub.cluster()
                && let Ok(node) = cluster.node_at(hub, &address)
                && let Ok(link) = node.link(hub).await
            {
                let mut commands = Pipeline::with_capacity(2);
                commands.cmd("ASKING");
                let mut eval = redis::cmd("EVAL");
                eval.arg(&script.text);
                args(&mut eval);
                commands.add_command(eval);
                answer =
                    link.send_all(&commands)
                        .await
                        .and_then(|mut answers| match answers.pop() {
                            Some(Value::ServerError(error)) => Err(error.into()),
                            Some(answer) => Ok(answer),
                            None => Err(unexpected(&Value::Nil)),
                        });
                wrote = (node, link);
            }
            match answer {
                Ok(Value::Array(codes)) if codes.len() == 1 => {
                    let renewal = self.renewal(&codes[0], asked_at, held);
                    if hub.config.replicas > 0 && matches!(renewal, Renewal::Kept { .. }) {
                        // Its replicas were not waited for; the next renewal does that.
                        drop(wrote);
                        let cause = "its slot is on its way to another node";
                        let error = Error::unavailable(hub.store(), "renewing", cause);
                        return Renewal::Unknown(error);
                    }
                    return renewal;
                }
                Ok(other) => return fail(unexpected(&other)),
                Err(error) => {
                    if !hub.turn(&mut turns, slot, &error).await {
                        return fail(error);
                    }
                }
            }
        }
    }

    async fn renew_shared(&self, held: &HeldClaim) -> Renewal {
        let claim = &held.claim;
        let hub = self.hub();
        let keys = hub.keys(&claim.name);
        let (id, kind) = (mark(&claim.id), kind(claim.mode));
        let args = |command: &mut Cmd, terms: &Terms| {
            keys.push_all(command);
            command.arg(&id[4..]).arg(&kind).arg(px(claim));
            command.arg(held.token.get());
            terms.push(command);
        };
        let fail =
            |error: RedisError| Renewal::Unknown(self.failed("renewing", Some(&claim.name), error));
        let mut turns = Turns::new(&hub.config);
        loop {
            let (node, main) = match hub.link_to_renew(keys.slot).await {
                Ok(found) => found,
                Err(error) => return Renewal::Unknown(error),
            };
            if let Err(error) = hub.check_master(&node) {
                return Renewal::Unknown(error);
            }
            let asked = hub.config.replicas;
            let mut writer = match asked {
                0 => None,
                _ => match node.renewer(hub, &main).await {
                    Ok(writer) => Some(writer),
                    Err(error) => return Renewal::Unknown(error),
                },
            };
            let link = Arc::clone(writer.as_deref().unwrap_or(&main));
            if let Some(writer) = &mut writer {
                writer.sends();
            }
            let asked_at = Clock::Boot.now();
            let terms = hub.terms(keys.slot, &node, &main);
            let args = |command: &mut Cmd| args(command, &terms);
            let answer = link.run(&hub.scripts.renew_shared, args).await;
            let code = match answer {
                Ok(code) => code,
                Err(error) => {
                    if hub.turn(&mut turns, keys.slot, &error).await {
                        if let Some(writer) = &mut writer {
                            writer.answered();
                        }
                        continue;
                    }
                    return fail(error);
                }
            };
            let renewal = self.renewal(&code, asked_at, held);
            if asked > 0 && !matches!(renewal, Renewal::Lost) {
                let patience = hub.config.response_timeout / 2;
                let have = match link.replicated(asked, patience).await {
                    Ok(have) => have,
                    Err(error) => return fail(error),
                };
                if let Some(writer) = &mut writer {
                    writer.answered();
                }
                if have < asked {
                    return Renewal::Unknown(shortfall(hub.store(), have, asked, patience));
                }
            } else if let Some(writer) = &mut writer {
                writer.answered();
            }
            return renewal;
        }
    }

    fn renewal(&self, code: &Value, counted_from: BootInstant, held: &HeldClaim) -> Renewal {
        match code {
            Value::Int(0) => Renewal::Lost,
            Value::Int(code @ (1 | 2)) => Renewal::Kept {
                counted_from,
                lease: held.claim.ttl,
                asked: *code == 2,
            },
            _ => {
                let action = format!("renewing lock {}", held.claim.name);
                let cause = "the server is out of memory (maxmemory); free some or allow more";
                Renewal::Unknown(Error::unavailable(self.hub().store(), action, cause))
            }
        }
    }

    /// Serves the lines of locks that were found lost.
    fn poke(&self, names: Vec<LockName>) {
        let hub = Arc::clone(self.hub());
        tokio::spawn(async move {
            let hub = &hub;
            let pokes = names.into_iter().map(|name| async move {
                let keys = hub.keys(&name);
                let args = |command: &mut Cmd, terms: &Terms| {
                    keys.push_all(command);
                    terms.push(command);
                };
                let poked = hub.run("serving a line", &keys, &hub.scripts.serve, args);
                if let Err(error) = poked.await {
                    tracing::debug!(%name, %error, "a line could not be served; its waiters will ask");
                }
            });
            stream::iter(pokes)
                .buffer_unordered(16)
                .collect::<()>()
                .await;
        });
    }
}
