//! Histories with one violation each. The checker must find exactly that violation.

#![allow(clippy::unwrap_used)]

use crate::check::{Verdict, check};
use crate::history::{Attempt, Claimed, End, Fault, History, How, Late, Promised, Rule, Write};

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// An empty history of two locks, on a store that promises everything.
fn nothing() -> History {
    History {
        engine: "synthetic".into(),
        workers: 3,
        tasks: 2,
        names: vec!["a".into(), "b".into()],
        ttl: 1000 * MS,
        began: 0,
        ended: 100_000 * MS,
        promised: Promised {
            fifo: true,
            shared: true,
            ..Promised::default()
        },
        aftermath: 2000 * MS,
        recovery: 5000 * MS,
        ..History::default()
    }
}

/// A grant that was released in time. It was requested a millisecond before it was known.
fn grant(worker: u32, token: u64, from: u64, to: u64) -> Attempt {
    Attempt {
        worker,
        asked: (from * MS).saturating_sub(MS),
        granted: Some(from * MS),
        token: Some(token),
        claim: Some(format!("{token:032x}")),
        valid: Some(from * MS + 1000 * MS),
        until: Some(to * MS),
        end: End::Released,
        over: Some(to * MS),
        ..Attempt::default()
    }
}

fn shared(worker: u32, token: u64, from: u64, to: u64) -> Attempt {
    Attempt {
        shared: true,
        ..grant(worker, token, from, to)
    }
}

fn history(attempts: Vec<Attempt>) -> History {
    History {
        attempts,
        ..nothing()
    }
}

fn write(attempt: usize, token: u64, at: u64, accepted: bool) -> Write {
    Write {
        attempt,
        token,
        claim: format!("{token:032x}"),
        at: at * MS,
        accepted,
        ..Write::default()
    }
}

fn fault(what: &str, from: u64, to: u64, excuses: &[Rule]) -> Fault {
    Fault {
        what: what.into(),
        whom: "node 0".into(),
        from: from * MS,
        to: to * MS,
        excuses: excuses.into(),
        why: "it forgets".into(),
    }
}

fn rules(verdict: &Verdict) -> Vec<Rule> {
    verdict.violations.iter().map(|v| v.rule).collect()
}

#[track_caller]
fn objects(history: &History, rule: Rule) -> Verdict {
    let verdict = check(history);
    assert_eq!(rules(&verdict), [rule], "{:#?}", verdict.violations);
    assert!(!verdict.holds());
    verdict
}

#[track_caller]
fn accepts(history: &History) -> Verdict {
    let verdict = check(history);
    assert_eq!(rules(&verdict), [], "{:#?}", verdict.violations);
    assert!(verdict.holds());
    verdict
}

#[test]
fn a_good_history_passes() {
    accepts(&nothing());
    let mut good = history(vec![
        grant(0, 1, 10, 20),
        grant(1, 2, 20, 30),
        shared(0, 3, 40, 60),
        shared(1, 4, 45, 55),
        // Of two shared grants the later token may be known first.
        shared(0, 6, 57, 59),
        shared(2, 5, 58, 59),
        grant(2, 7, 60, 70),
        // Different locks.
        Attempt {
            name: 1,
            ..grant(1, 1, 10, 70)
        },
    ]);
    good.writes = vec![
        write(0, 1, 15, true),
        write(1, 2, 25, true),
        write(0, 1, 26, false),
    ];
    let verdict = accepts(&good);
    assert_eq!((verdict.grants, verdict.refused), (8, 1));
}

#[test]
fn two_at_once() {
    for (one, two) in [
        (grant(0, 1, 10, 20), grant(1, 2, 19, 30)),
        (shared(0, 1, 10, 20), grant(1, 2, 19, 30)),
        (grant(0, 1, 10, 20), shared(1, 2, 19, 30)),
        // The same in one process.
        (grant(0, 1, 10, 20), grant(0, 2, 19, 30)),
        // One belief inside the other.
        (grant(0, 1, 10, 90), grant(1, 2, 19, 30)),
    ] {
        let verdict = objects(&history(vec![one, two]), Rule::Exclusion);
        assert_eq!(verdict.violations[0].attempts, [0, 1]);
        assert_eq!(verdict.violations[0].at, 19 * MS);
    }
}

#[test]
fn a_long_belief_hides_behind_a_short_one() {
    let attempts = vec![
        shared(0, 1, 10, 100),
        shared(1, 2, 20, 21),
        grant(2, 3, 50, 60),
    ];
    let verdict = objects(&history(attempts), Rule::Exclusion);
    assert_eq!(verdict.violations[0].attempts, [0, 2]);
}

#[test]
fn a_grant_before_the_loss_of_the_one_before() {
    // The loss was reported after the end of its validity, and the next grant came before that.
    let lost = Attempt {
        valid: Some(500 * MS),
        told: Some(500 * MS),
        end: End::Expired,
        ..grant(0, 1, 10, 500)
    };
    objects(&history(vec![lost, grant(1, 2, 499, 600)]), Rule::LossFirst);
    // Killed: it believed until the kill.
    let killed = Attempt {
        end: End::Killed,
        ..grant(0, 1, 10, 400)
    };
    objects(
        &history(vec![killed, grant(1, 2, 399, 600)]),
        Rule::Exclusion,
    );
}

#[test]
fn a_belief_that_was_over_before_it_began_is_none() {
    // The process was stopped before it saw its grant, and another process has held since.
    let late = Attempt {
        asked: 5 * MS,
        valid: Some(1000 * MS),
        end: End::Expired,
        until: Some(1000 * MS),
        ..grant(0, 1, 3000, 3000)
    };
    accepts(&history(vec![late, grant(1, 2, 2000, 4000)]));
}

#[test]
fn a_grant_within_the_grant_of_another() {
    // The second token was held and released before the first was known: two grants at once, although the beliefs do not
    // overlap.
    let early = Attempt {
        asked: 5 * MS,
        ..grant(0, 1, 40, 50)
    };
    objects(&history(vec![early, grant(1, 2, 20, 30)]), Rule::Exclusion);
}

#[test]
fn a_token_twice() {
    objects(
        &history(vec![grant(0, 1, 10, 20), grant(1, 1, 30, 40)]),
        Rule::TokenOnce,
    );
    objects(
        &history(vec![shared(0, 1, 10, 20), shared(1, 1, 15, 40)]),
        Rule::TokenOnce,
    );
}

#[test]
fn tokens_against_time() {
    for (one, two) in [
        (grant(0, 2, 10, 20), grant(1, 1, 30, 40)),
        (shared(0, 2, 10, 20), grant(1, 1, 30, 40)),
        (grant(0, 2, 10, 20), shared(1, 1, 30, 40)),
    ] {
        objects(&history(vec![one, two]), Rule::TokenOrder);
    }
    // Shared holders may overtake each other.
    accepts(&history(vec![shared(0, 2, 10, 20), shared(1, 1, 30, 40)]));
    // The same with another grant in between.
    let attempts = vec![
        grant(0, 5, 10, 20),
        shared(1, 6, 30, 40),
        shared(2, 4, 50, 60),
    ];
    objects(&history(attempts), Rule::TokenOrder);
}

#[test]
fn the_fence_takes_what_is_older() {
    let mut bad = history(vec![grant(0, 1, 10, 20), grant(1, 2, 30, 40)]);
    bad.writes = vec![write(1, 2, 35, true), write(0, 1, 36, true)];
    let verdict = objects(&bad, Rule::Fence);
    assert_eq!(verdict.violations[0].attempts, [1, 0]);
    // The same token of another claim.
    let mut bad = history(vec![grant(0, 1, 10, 20)]);
    let other = Write {
        claim: "other".into(),
        ..write(0, 1, 36, true)
    };
    bad.writes = vec![write(0, 1, 15, true), other];
    objects(&bad, Rule::Fence);
    // A reader after a writer.
    let mut bad = history(vec![shared(0, 1, 10, 20), grant(1, 2, 30, 40)]);
    let late = Write {
        shared: true,
        ..write(0, 1, 36, true)
    };
    bad.writes = vec![write(1, 2, 35, true), late.clone()];
    objects(&bad, Rule::Fence);
    // The reader may write while a newer reader holds, too.
    let mut good = history(vec![shared(0, 1, 10, 20), shared(1, 2, 11, 40)]);
    let newer = Write {
        shared: true,
        ..write(1, 2, 12, true)
    };
    good.writes = vec![newer, late];
    accepts(&good);
}

#[test]
fn the_fence_refuses_a_holder() {
    let mut bad = history(vec![grant(0, 5, 10, 20), grant(1, 6, 30, 40)]);
    bad.writes = vec![write(1, 6, 35, false)];
    objects(&bad, Rule::FenceOpen);
    // A refusal after the release is correct.
    bad.writes = vec![write(1, 6, 41, false)];
    accepts(&bad);
}

fn claim(worker: u32, placed: u64, stood: Option<u64>, held: u64, token: u64) -> Claimed {
    Claimed {
        id: format!("{token:032x}"),
        worker,
        placed: placed * MS,
        stood: stood.map(|stood| stood * MS),
        held: Some((held * MS, token)),
        ..Claimed::default()
    }
}

#[test]
fn the_line() {
    let passed = [claim(0, 1, Some(5), 30, 2), claim(1, 6, Some(8), 20, 1)];
    let mut bad = nothing();
    bad.claims = passed.into();
    objects(&bad, Rule::Queue);
    // A claim that was sent before the other was queued may be granted first.
    let mut good = nothing();
    good.claims = vec![claim(0, 1, Some(5), 30, 2), claim(1, 4, Some(8), 20, 1)];
    accepts(&good);
    // A store without an order cannot break it.
    bad.promised.fifo = false;
    let verdict = check(&bad);
    assert!(verdict.holds());
    assert_eq!(rules(&verdict), [Rule::Queue]);
    // A worker that is cut off may be passed over.
    bad.promised.fifo = true;
    bad.faults = vec![fault("partition", 7, 9, &[])];
    bad.ended = 10_000 * MS;
    accepts(&bad);
}

#[test]
fn starvation() {
    let mut attempts: Vec<_> = (0..60)
        .map(|n| grant(1, n + 1, 100 + 10 * n, 105 + 10 * n))
        .collect();
    attempts.push(Attempt {
        worker: 0,
        asked: 50 * MS,
        end: End::TimedOut,
        over: Some(900 * MS),
        ..Attempt::default()
    });
    let mut bad = history(attempts);
    objects(&bad, Rule::Starvation);
    bad.attempts[60].how = How::Try;
    accepts(&bad);
}

#[test]
fn no_progress() {
    let waiting = Attempt {
        asked: 90 * MS,
        end: End::TimedOut,
        over: Some(40_000 * MS),
        ..Attempt::default()
    };
    let mut bad = history(vec![grant(0, 1, 10, 20), waiting, grant(1, 2, 6101, 6200)]);
    bad.faults = vec![fault("pause", 50, 1100, &[])];
    let verdict = objects(&bad, Rule::Progress);
    assert_eq!(verdict.longest_stall, 5001 * MS);
    bad.attempts[2] = grant(1, 2, 6100, 6200);
    assert_eq!(accepts(&bad).longest_stall, 5000 * MS);
}

#[test]
fn what_is_left() {
    let mut bad = nothing();
    bad.left = vec!["the key \"x\"".into()];
    objects(&bad, Rule::Leak);
    let open = Attempt {
        asked: MS,
        ..Attempt::default()
    };
    objects(&history(vec![open]), Rule::Leak);
}

#[test]
fn a_lock_that_was_taken_away() {
    let robbed = Attempt {
        end: End::NotOwner,
        ..grant(0, 1, 10, 20)
    };
    let mut bad = history(vec![robbed]);
    objects(&bad, Rule::Kept);
    // No violation if the answer to its release may have been lost, so that the release was repeated.
    bad.faults = vec![fault("reset", 19, 19, &[])];
    accepts(&bad);
    // No violation if a fault that may take the lock away came during the release. A later fault is no excuse.
    let under_way = Attempt {
        over: Some(30 * MS),
        ..bad.attempts[0].clone()
    };
    bad = history(vec![under_way]);
    bad.faults = vec![fault("clock-forward", 25, 90, &[Rule::Kept])];
    assert!(check(&bad).holds());
    bad.faults = vec![fault("clock-forward", 31, 90, &[Rule::Kept])];
    objects(&bad, Rule::Kept);
    let late = Attempt {
        end: End::NotOwner,
        valid: Some(20 * MS),
        ..grant(0, 1, 10, 20)
    };
    accepts(&history(vec![late]));
}

#[test]
fn a_holder_that_is_told_of_a_loss_without_a_fault_has_not_kept_its_lock() {
    let told = |told| Attempt {
        told: Some(told * MS),
        valid: Some(40 * MS),
        end: End::Expired,
        ..grant(0, 1, 10, 20)
    };
    let mut bad = history(vec![told(20)]);
    objects(&bad, Rule::Kept);
    bad.faults = vec![fault("reset", 5, 5, &[])];
    accepts(&bad);
    // At the end of its lease it is told without a fault.
    accepts(&history(vec![told(40)]));
}

#[test]
fn the_effect_of_a_late_request_is_reported_even_during_a_fault() {
    let mut bad = history(vec![grant(0, 1, 10, 20)]);
    accepts(&bad);
    bad.late = vec![Late {
        name: bad.names[0].clone(),
        at: 15 * MS,
        what: "a late request keeps it".into(),
    }];
    bad.faults = vec![fault("revive", 12, 14, &[])];
    objects(&bad, Rule::Late);
}

#[test]
fn what_is_not_promised_is_reported_as_such() {
    let mut broken = history(vec![grant(0, 1, 10, 500), grant(1, 2, 400, 600)]);
    objects(&broken, Rule::Exclusion);
    // The fault is an excuse only if it came shortly before.
    broken.faults = vec![fault("restart-empty", 300, 350, &[Rule::Exclusion])];
    let verdict = check(&broken);
    assert!(verdict.holds());
    assert_eq!(
        (verdict.broken().count(), verdict.excused().count()),
        (0, 1)
    );
    assert!(verdict.violations[0].to_string().contains("it forgets"));
    for (from, to) in [(401, 450), (1, 2)] {
        broken.faults = vec![fault("restart-empty", from, to, &[Rule::Exclusion])];
        broken.aftermath = 100 * MS;
        assert!(!check(&broken).holds());
    }
    // An incident that nobody injected excuses like a fault.
    broken.faults.clear();
    broken.befell = vec![fault("a change of the leader", 0, 700, &[Rule::Exclusion])];
    assert!(check(&broken).holds());
    broken.befell = vec![fault("a change of the leader", 0, 700, &[Rule::Queue])];
    objects(&broken, Rule::Exclusion);
    // Tokens are still promised.
    let mut twice = history(vec![grant(0, 1, 10, 20), grant(1, 1, 30, 40)]);
    twice.faults = vec![fault("restart-empty", 21, 25, &[Rule::Exclusion])];
    objects(&twice, Rule::TokenOnce);
}

#[test]
fn what_is_left_of_a_range_is_handed_on_out_of_order_only_where_two_may_hold() {
    // The store forgot that process 0 has tokens 1 to 16, and gave 20 to another process.
    let of_range = |token, from, to| Attempt {
        claim: Some("range".into()),
        ..grant(0, token, from, to)
    };
    let attempts = vec![
        of_range(1, 10, 20),
        grant(1, 20, 30, 40),
        of_range(2, 50, 60),
    ];
    let mut bad = history(attempts);
    objects(&bad, Rule::TokenOrder);
    bad.faults = vec![fault("restart-empty", 21, 25, &[Rule::Exclusion])];
    assert!(check(&bad).holds());
    // A grant by the store has no such excuse.
    bad.attempts[2].claim = Some("another".into());
    objects(&bad, Rule::TokenOrder);
}

#[test]
fn a_history_survives_json() {
    let mut all = history(vec![grant(0, 1, 10, 20), shared(1, 2, 30, 40)]);
    all.attempts[1].end = End::Failed("no answer".into());
    all.claims = vec![claim(0, 1, Some(5), 30, 2)];
    all.writes = vec![write(0, 1, 15, true)];
    all.faults = vec![fault("restart-empty", 21, 25, &[Rule::Exclusion])];
    let text = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<History>(&text).unwrap(), all);
}
