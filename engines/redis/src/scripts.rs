//! The scripts that run on the server, each a file in `scripts/`.

use std::sync::Arc;

/// One script: its text, and the hash by which the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) sha: String,
}

impl Script {
    /// With `timed`, every token is at least the server's time.
    pub(crate) fn new(text: &str, timed: bool) -> Self {
        let lib = concat!("local timed = false\n", include_str!("scripts/lib.lua"));
        let lib = match timed {
            true => lib.replacen("timed = false", "timed = true", 1),
            false => lib.to_owned(),
        };
        let text = text.replacen("-- include lib.lua", &lib, 1);
        #[cfg(fencelock_planted)]
        let text = planted(text);
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }
}

/// Planted bugs: replaces a part of the script by a wrong one.
#[cfg(fencelock_planted)]
fn planted(text: String) -> String {
    const BUGS: [(&str, &str, &str); 4] = [
        (
            "release-without-owner-check",
            "value and string.sub(value, 1, 36) == ARGV[1]\n",
            "value and not redis.call('ZSCORE', queue, claim)\n",
        ),
        ("place-shortens", "left > tonumber(px) then", "false then"),
        (
            "renewal-shortens",
            "not exact and left > px then",
            "false then",
        ),
        (
            "renew-by-id",
            "lowest > 0 and (number < lowest or number >= lowest + count) then",
            "false then",
        ),
    ];
    let on = |bug: &&(&str, &str, &str)| fencelock_core::planted::is(bug.0);
    match BUGS.iter().find(on) {
        Some((_, right, wrong)) => text.replace(right, wrong),
        None => text,
    }
}

#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) seed: Script,
    pub(crate) uptime: Script,
    pub(crate) place: Script,
    pub(crate) take: Script,
    pub(crate) take_all: Arc<Script>,
    pub(crate) release: Script,
    pub(crate) release_all: Arc<Script>,
    pub(crate) withdraw: Script,
    pub(crate) renew: Script,
    pub(crate) renew_shared: Script,
    pub(crate) serve: Script,
    pub(crate) evict: Script,
    pub(crate) look: Script,
    pub(crate) record: Script,
    pub(crate) raise: Script,
}

impl Scripts {
    pub(crate) fn new(timed: bool) -> Self {
        let script = |text| Script::new(text, timed);
        Self {
            seed: script(include_str!("scripts/seed.lua")),
            uptime: script(include_str!("scripts/uptime.lua")),
            place: script(include_str!("scripts/place.lua")),
            take: script(include_str!("scripts/take.lua")),
            take_all: Arc::new(script(include_str!("scripts/take_all.lua"))),
            release: script(include_str!("scripts/release.lua")),
            release_all: Arc::new(script(include_str!("scripts/release_all.lua"))),
            withdraw: script(include_str!("scripts/withdraw.lua")),
            renew: script(include_str!("scripts/renew.lua")),
            renew_shared: script(include_str!("scripts/renew_shared.lua")),
            serve: script(include_str!("scripts/serve.lua")),
            evict: script(include_str!("scripts/evict.lua")),
            look: script(include_str!("scripts/look.lua")),
            record: script(include_str!("scripts/record.lua")),
            raise: script(include_str!("scripts/raise.lua")),
        }
    }
}
