//! The parsers of stored data (tools/fuzz/stored.rs) and of the history that `--check` reads. They get random bytes,
//! and valid input with random changes.

#[path = "../../../fuzz/stored.rs"]
mod readers;

use fastrand::Rng;
use fencelock_torture::check;
use fencelock_torture::history::History;

/// Valid inputs of each parser, which are changed at random.
const GOOD: [&str; 8] = [
    "fl1:0123456789abcdef0123456789abcdef:5:3:7:30000:0:0:250:chan:me: myself\u{1f}why: not",
    "fl1:*:s",
    "7:30000:0:0:250:chan:me",
    "g0123456789abcdef0123456789abcdef:7:3:nightly-report",
    r#"{"fencelock":1,"id":"0123456789abcdef0123456789abcdef","mode":"permit","of":3,"owner":"me","ttl_ms":30000,"lock_delay_ms":0,"tokens":15,"at":0,"mailbox":"m","base":1795260796412266,"label":"x"}"#,
    r#"{"fencelock":1,"id":"0123456789abcdef0123456789abcdef","mode":"exclusive","owner":"me","tokens":1,"at":9,"base":18446744073709551615}"#,
    "fl1\nowner=ann\nlabel=x\nttl-ms=30000\nlock-delay-ms=0\ncount=16\nfirst=320\ntoken=323\nasked=1\n",
    "fl1\nowner=ann\ncount=4294967295\nfirst=18446744073709551615\ntoken=18446744073709551615\n",
];

/// A history of two grants, as `--json` prints it.
const HISTORY: &str = r#"{"format":1,"engine":"redis","store":"redis://h","seed":1,"workers":1,"tasks":2,"names":["a"],"ttl":1000,"began":0,"ended":900,
"promised":{"fifo":true,"shared":true,"clock":"","limits":[]},"aftermath":10,"recovery":100,
"attempts":[{"worker":0,"life":0,"task":0,"name":0,"shared":false,"how":"wait","asked":1,"granted":2,"token":7,"claim":"c","valid":90,"until":20,"told":null,"end":"released","over":21},
{"worker":0,"life":0,"task":1,"name":0,"shared":false,"how":"wait","asked":3,"granted":30,"token":8,"claim":"d","valid":90,"until":40,"told":null,"end":"not-owner","over":41}],
"claims":[{"id":"c","worker":0,"name":0,"shared":false,"placed":1,"stood":2,"held":[3,7]}],
"writes":[{"attempt":0,"name":0,"token":7,"claim":"c","shared":false,"at":9,"accepted":true,"lost_update":false}],
"faults":[{"what":"pause","whom":"node 0","from":10,"to":12,"excuses":["exclusion"],"why":"x"}],"left":[],"troubles":[]}"#;

fn changed(good: &str, random: &mut Rng) -> Vec<u8> {
    let mut bytes = good.as_bytes().to_vec();
    for _ in 0..random.usize(..5) {
        let at = random.usize(..bytes.len().max(1));
        let byte = match random.bool() {
            true => b"0123456789\":,{}=-\n"[random.usize(..18)],
            false => random.u8(..),
        };
        match random.u32(..4) {
            0 => bytes.insert(at.min(bytes.len()), byte),
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => bytes.truncate(at.max(bytes.len() / 2)),
            _ if at < bytes.len() => bytes[at] = byte,
            _ => {}
        }
    }
    bytes
}

#[test]
fn nothing_that_is_stored_makes_a_reader_panic() {
    let mut random = Rng::with_seed(11);
    for round in 0..60_000 {
        let bytes = match GOOD.get(round) {
            Some(good) => good.as_bytes().to_vec(),
            None if random.u32(..8) == 0 => {
                (0..random.usize(..60)).map(|_| random.u8(..)).collect()
            }
            None => changed(GOOD[random.usize(..GOOD.len())], &mut random),
        };
        for (_, read) in readers::READERS {
            read(&bytes);
        }
    }
}

#[test]
fn no_history_makes_the_checker_panic() {
    let mut random = Rng::with_seed(12);
    let whole: History = serde_json::from_str(HISTORY).unwrap();
    assert_eq!(check(&whole).grants, 2);
    let mut judged = 0;
    for _ in 0..20_000 {
        let mut text = HISTORY.to_owned();
        for _ in 0..random.usize(..4) {
            // Replace a number by the largest possible one.
            let digits: Vec<usize> = text
                .match_indices(|c: char| c.is_ascii_digit())
                .map(|(at, _)| at)
                .collect();
            let at = digits[random.usize(..digits.len())];
            let number = [0, 1, u64::from(u32::MAX), u64::MAX, random.u64(..)][random.usize(..5)];
            text.replace_range(at..=at, &number.to_string());
        }
        let bytes = match random.bool() {
            true => text.into_bytes(),
            false => changed(&text, &mut random),
        };
        if let Ok(history) = serde_json::from_slice::<History>(&bytes) {
            judged += 1;
            drop(check(&history));
        }
    }
    assert!(judged > 1000, "{judged} were histories at all");
}
