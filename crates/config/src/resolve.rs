//! From a name to a URL.

use fencelock_core::{ConfigPart, Error, Result, StoreUrl};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::in_file::check_url;
use crate::key::{Kind, RECORD};
use crate::stores::{Shard, Stores, What, name_of};

/// Characters that stay as they are in an option of a URL, so that a person can read it.
const OPTION: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b':')
    .remove(b'/')
    .remove(b'=')
    .remove(b',')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'{')
    .remove(b'}')
    .remove(b'[')
    .remove(b']');

impl Stores {
    /// The URL of a store, with or without the `@` before its name. For a set of stores it is a URL `shards:` or
    /// `migrate:`.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no such store, if its URL has a password, or if it contains itself.
    pub fn url(&self, name: &str) -> Result<String> {
        self.follow(name_of(name).unwrap_or(name), &mut Vec::new())
    }

    /// `way` contains the stores on the way to this one.
    fn follow<'s>(&'s self, name: &'s str, way: &mut Vec<&'s str>) -> Result<String> {
        let Some(definition) = self.stores.get(name) else {
            return Err(self.unknown(name));
        };
        if way.contains(&name) {
            let circle: Vec<_> = way
                .iter()
                .chain([&name])
                .map(|name| format!("@{name}"))
                .collect();
            let why = format!("it contains itself: {}", circle.join(" contains "));
            return Err(self.error(name, &why));
        }
        way.push(name);
        let url = match &definition.what {
            What::Url { url, record } => {
                if name_of(url).is_some() {
                    let why = "its url is the name of a store; use that name";
                    return Err(self.error(name, why));
                }
                check_url(url).map_err(|error| self.error_in(name, &error))?;
                match record {
                    Some(record) => {
                        let record = self.record(name, record, way)?;
                        let sign = if url.contains('?') { '&' } else { '?' };
                        format!("{url}{sign}{RECORD}={}", encoded(&record))
                    }
                    None => url.clone(),
                }
            }
            What::Set {
                kind,
                shards,
                options,
            } => {
                let mut url = format!("{}:?", kind.key());
                if !options.iter().any(|(option, _)| *option == "set") {
                    url += &format!("set={name}");
                }
                for (option, value) in options {
                    url += &format!("&{option}={}", encoded(value));
                }
                for (id, shard) in shards {
                    let store = self.shard(name, *kind, (id, shard), way)?;
                    url += &format!("&{id}={}", encoded(&store));
                    if let Some(weight) = shard.weight {
                        url += &format!("&{id}.weight={weight}");
                    }
                }
                url.replacen("?&", "?", 1)
            }
        };
        way.pop();
        Ok(url)
    }

    /// The URL of the store that keeps the record of the store with this name.
    fn record<'s>(&'s self, of: &'s str, store: &'s str, way: &mut Vec<&'s str>) -> Result<String> {
        match name_of(store) {
            Some(other) => self.follow(other, way),
            None => {
                check_url(store).map_err(|error| self.error_in(of, &error))?;
                Ok(store.to_owned())
            }
        }
    }

    fn shard<'s>(
        &'s self,
        set: &'s str,
        kind: Kind,
        (id, shard): (&str, &'s Shard),
        way: &mut Vec<&'s str>,
    ) -> Result<String> {
        let Some(other) = name_of(&shard.store) else {
            let checked = check_url(&shard.store);
            checked.map_err(|error| self.error_in(set, &error))?;
            return Ok(shard.store.clone());
        };
        // Report a circle before the error that no set is a shard.
        let url = self.follow(other, way)?;
        match self.stores.get(other).map(|definition| &definition.what) {
            // Locks move between sets of shards as they move between stores.
            Some(What::Set { kind: of, .. }) if (kind, *of) != (Kind::Migrate, Kind::Shards) => {
                let why = format!(
                    "its shard {id} is @{other}, which is a set; a set cannot contain a set"
                );
                Err(self.error(set, &why))
            }
            _ => Ok(url),
        }
    }

    fn unknown(&self, name: &str) -> Error {
        let known: Vec<_> = self.names().map(|name| format!("@{name}")).collect();
        let known = match known.is_empty() {
            true => "it names no store".to_owned(),
            false => format!("it names {}", known.join(", ")),
        };
        // A user may have put an @ before a URL.
        let name = match name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
        {
            true => format!("@{name}"),
            false => StoreUrl::redacted(&format!("@{name}")),
        };
        let file = &self.file;
        Error::config(
            name,
            ConfigPart::Url,
            format!("the configuration file {file} has no such store; {known}"),
        )
    }

    fn error(&self, name: &str, why: &str) -> Error {
        Error::config(
            format!("@{name}"),
            ConfigPart::Url,
            format!("{why} (configuration file {})", self.file),
        )
    }

    /// An error about the URL of a store.
    fn error_in(&self, name: &str, error: &Error) -> Error {
        self.error(name, &error.to_string())
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, OPTION).to_string()
}
