//! The scripts that run on each node. Only a node that votes gets them.

use crate::scripts::Script;

#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) attach: Script,
    pub(crate) survey: Script,
    pub(crate) join: Script,
    pub(crate) acquire: Script,
    pub(crate) mark: Script,
    pub(crate) renew: Script,
    pub(crate) withdraw: Script,
    pub(crate) ask: Script,
    pub(crate) look: Script,
    pub(crate) raise: Script,
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self {
            attach: Script::new(include_str!("../scripts/redlock_attach.lua"), false),
            survey: Script::new(include_str!("../scripts/redlock_survey.lua"), false),
            join: Script::new(include_str!("../scripts/redlock_join.lua"), false),
            acquire: Script::new(include_str!("../scripts/redlock_acquire.lua"), false),
            mark: Script::new(include_str!("../scripts/redlock_mark.lua"), false),
            renew: Script::new(include_str!("../scripts/redlock_renew.lua"), false),
            withdraw: Script::new(include_str!("../scripts/redlock_withdraw.lua"), false),
            ask: Script::new(include_str!("../scripts/redlock_ask.lua"), false),
            look: Script::new(include_str!("../scripts/redlock_look.lua"), false),
            raise: Script::new(include_str!("../scripts/redlock_raise.lua"), false),
        }
    }

    /// The scripts that are called by their hash.
    pub(crate) fn loaded(&self) -> [&Script; 6] {
        [
            &self.acquire,
            &self.mark,
            &self.renew,
            &self.withdraw,
            &self.ask,
            &self.look,
        ]
    }
}
