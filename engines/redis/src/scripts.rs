//! The scripts that run on the server, each a file in `scripts/`.

/// One script, whole, and the name under which the server keeps it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) sha: String,
}

impl Script {
    fn new(text: &str) -> Self {
        let text = text.replacen("-- include lib.lua", include_str!("scripts/lib.lua"), 1);
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) seed: Script,
    pub(crate) place: Script,
    pub(crate) withdraw: Script,
    pub(crate) renew: Script,
    pub(crate) renew_shared: Script,
    pub(crate) poke: Script,
    pub(crate) evict: Script,
    pub(crate) look: Script,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self {
            seed: Script::new(include_str!("scripts/seed.lua")),
            place: Script::new(include_str!("scripts/place.lua")),
            withdraw: Script::new(include_str!("scripts/withdraw.lua")),
            renew: Script::new(include_str!("scripts/renew.lua")),
            renew_shared: Script::new(include_str!("scripts/renew_shared.lua")),
            poke: Script::new(include_str!("scripts/poke.lua")),
            evict: Script::new(include_str!("scripts/evict.lua")),
            look: Script::new(include_str!("scripts/look.lua")),
        }
    }
}
