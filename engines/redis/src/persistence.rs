//! Whether a server's settings survive its next start. Those of `CONFIG SET` do not.
//!
//! A server reports its settings, but not where they come from. However, it counts its commands. If there was no `CONFIG SET`
//! since the start, the next start has the same settings. The server does not report whether the last `CONFIG SET` or the last
//! `CONFIG REWRITE` came later. If there was a `CONFIG REWRITE`, the engine assumes that it came later.

use crate::server::ServerInfo;

/// Where the current settings come from, as far as the server shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The server was started with them.
    Start,
    /// `CONFIG SET` changed some, and `CONFIG REWRITE` wrote them into the file.
    Written,
    /// `CONFIG SET` changed some, perhaps before the counts were reset, and no `CONFIG REWRITE` wrote them into the file.
    Unwritten,
    /// The server does not count these commands (before Redis 7).
    Unknown,
}

impl ServerInfo {
    /// The file that the server was started with. `CONFIG REWRITE` writes it.
    fn file(&self) -> Option<&str> {
        self.get("config_file").filter(|file| !file.is_empty())
    }

    /// How often a command has succeeded since the start.
    fn successes(&self, command: &str) -> u64 {
        let stats = self.get(&format!("cmdstat_{command}")).unwrap_or_default();
        let number = |field: &str| -> u64 {
            let mut all = stats.split(',').filter_map(|pair| pair.split_once('='));
            let found = all.find(|(key, _)| *key == field);
            found.and_then(|(_, count)| count.parse().ok()).unwrap_or(0)
        };
        // Failed calls are among the calls.
        number("calls").saturating_sub(number("failed_calls"))
    }

    fn origin(&self) -> Origin {
        let version = self
            .get("redis_version")
            .and_then(|text| text.split('.').next());
        let counts = version
            .and_then(|major| major.parse().ok())
            .is_some_and(|major: u32| major >= 7);
        // At least the command that opened this connection is counted.
        let counted = self.get("cmdstat_hello").is_some();
        if !counts || !counted {
            return Origin::Unknown;
        }
        // A `CONFIG SET` before the counts were reset is not counted.
        let perhaps_set = self.successes("config|set") + self.successes("config|resetstat");
        match (perhaps_set, self.successes("config|rewrite")) {
            (0, _) => Origin::Start,
            (_, 0) => Origin::Unwritten,
            _ => Origin::Written,
        }
    }

    /// Whether the current settings survive the next start, as far as can be known.
    pub(crate) fn settings_last(&self) -> bool {
        match self.origin() {
            Origin::Start | Origin::Written => true,
            Origin::Unwritten => false,
            // Without a file nothing can have been written.
            Origin::Unknown => self.file().is_some(),
        }
    }

    /// Whether the append-only file was on when the server started: if it was turned on later, it has been rewritten.
    pub(crate) fn append_only_from_start(&self) -> bool {
        let is = |field, value| self.get(field) == Some(value);
        is("aof_enabled", "1")
            && is("aof_last_rewrite_time_sec", "-1")
            && is("aof_rewrite_in_progress", "0")
            && is("aof_rewrite_scheduled", "0")
    }

    /// How to make settings that survive the next start: `name value` each.
    pub(crate) fn how_to_set(&self, settings: &[&str]) -> String {
        let lines = settings.join(" and ");
        // The file is not named, so that all nodes of a store get the same advice.
        match self.file() {
            Some(_) => {
                let set: Vec<String> = settings
                    .iter()
                    .map(|line| format!("CONFIG SET {line}"))
                    .collect();
                let set = set.join(", ");
                format!(
                    "{set}, and then CONFIG REWRITE, so that it lasts; or write {lines} into the server's redis.conf and \
                     restart it (an argument on its command line would win over the file)"
                )
            }
            None => format!(
                "start the server with a redis.conf that says {lines} (it runs without one, so CONFIG SET would last only until its next start)"
            ),
        }
    }

    /// How to make the current settings survive the next start.
    pub(crate) fn how_to_keep(&self, settings: &[&str]) -> String {
        match self.file() {
            Some(_) => "CONFIG REWRITE, which writes them into the server's redis.conf".to_owned(),
            None => self.how_to_set(settings),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::Value;

    fn info(version: &str, file: &str, stats: &str) -> ServerInfo {
        let text = format!("redis_version:{version}\r\nconfig_file:{file}\r\naof_enabled:1\r\n");
        let bytes = |text: String| Value::BulkString(text.into_bytes());
        let stats = format!("cmdstat_hello:calls=1,failed_calls=0\r\n{stats}");
        ServerInfo::new(Some(&bytes(text)), None).with_stats(Some(&bytes(stats)))
    }

    #[test]
    fn a_setting_that_is_not_written_does_not_last() {
        let set = "cmdstat_config|set:calls=2,usec=9,rejected_calls=0,failed_calls=0\r\n";
        let failed = "cmdstat_config|set:calls=2,usec=9,rejected_calls=0,failed_calls=2\r\n";
        let written = format!(
            "{set}cmdstat_config|rewrite:calls=1,usec=9,rejected_calls=0,failed_calls=0\r\n"
        );
        let in_vain = format!(
            "{set}cmdstat_config|rewrite:calls=1,usec=9,rejected_calls=0,failed_calls=1\r\n"
        );
        let reset = "cmdstat_config|resetstat:calls=1,usec=9,rejected_calls=0,failed_calls=0\r\n";
        for (version, file, stats, lasts) in [
            ("7.0.15", "", "", true),
            ("7.0.15", "/etc/redis.conf", failed, true),
            ("7.0.15", "/etc/redis.conf", set, false),
            ("8.0.0", "/etc/redis.conf", &written, true),
            ("7.0.15", "", &in_vain, false),
            ("7.0.15", "", reset, false),
            ("7.0.15", "/etc/redis.conf", reset, false),
            ("6.0.16", "", "", false),
            ("6.0.16", "/etc/redis.conf", "", true),
        ] {
            assert_eq!(
                info(version, file, stats).settings_last(),
                lasts,
                "{version} {file} {stats}"
            );
        }
    }

    #[test]
    fn the_advice_can_be_followed() {
        let with_file = info("7.0.15", "/r.conf", "").how_to_set(&["appendonly yes"]);
        assert!(
            with_file.contains("REWRITE") && with_file.contains("redis.conf"),
            "{with_file}"
        );
        let without = info("7.0.15", "", "").how_to_set(&["appendonly yes"]);
        assert!(!without.contains("REWRITE"), "{without}");
    }
}
