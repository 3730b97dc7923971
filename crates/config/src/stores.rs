//! The named stores: `[store.NAME]`.

use std::collections::BTreeMap;
use std::path::Path;

use fencelock_core::{Error, Purpose, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::file::{Place, sections};
use crate::find::VARIABLE;
use crate::key::{FROM, Kind, MIGRATE, PURPOSE, SHARDS, STORE, TO, URL, WEIGHT};

/// The stores of a configuration file.
///
/// ```
/// let stores = fencelock_config::Stores::read(
///     "f.toml",
///     r#"
///     [store.cache]
///     url = "redis://cache:6379"
///     [store.orders]
///     shards = { a = "@cache", b = "redis://r2" }
///     "#,
/// )?;
/// assert_eq!(stores.url("orders")?, "shards:?set=orders&a=redis://cache:6379&b=redis://r2");
/// # Ok::<(), fencelock_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stores {
    pub(crate) file: String,
    pub(crate) stores: BTreeMap<String, Definition>,
}

/// The definition of one store in the file.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    pub(crate) what: What,
    pub(crate) purpose: Option<Purpose>,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A URL, as written, and the store that keeps its record: a URL, or `@` and the name of another store.
    Url { url: String, record: Option<String> },
    Set {
        kind: Kind,
        /// In the order of their ids. For two stores between which locks move: `from` and `to`.
        shards: BTreeMap<String, Shard>,
        /// The options of a URL `shards:` or `migrate:`.
        options: Vec<(&'static str, String)>,
    },
}

/// The store of a shard: a URL, or `@` and the name of another store.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) store: String,
    pub(crate) weight: Option<i64>,
}

/// The name of a store after its `@`; `None` for a URL.
///
/// ```
/// assert_eq!(fencelock_config::name_of("@orders"), Some("orders"));
/// assert_eq!(fencelock_config::name_of("redis://h"), None);
/// ```
#[must_use]
pub fn name_of(store: &str) -> Option<&str> {
    store.strip_prefix('@')
}

impl Stores {
    /// Reads a file.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::ConfigFile`] if the file cannot be read.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let file = path.as_ref().display().to_string();
        let text = std::fs::read_to_string(path.as_ref()).map_err(|error| {
            let why = format!(
                "{error}; name another one with --config FILE or ${}",
                VARIABLE
            );
            Error::config_file(&file, why)
        })?;
        Self::read(&file, &text)
    }

    /// Reads the text of a file. `file` is its name, for errors.
    ///
    /// # Errors
    /// [`Error::ConfigFile`] that names the file and the line, for an unknown key and a value of the wrong kind.
    pub fn read(file: &str, text: &str) -> Result<Self> {
        let sections = sections(file, text)?;
        let place = Place { file, text };
        let mut stores = BTreeMap::new();
        if let Some(section) = sections.get("store") {
            for (name, value) in place.table("[store]", section)? {
                check_name(place, name)?;
                let name = name.get_ref().to_string();
                let definition = definition(place, &name, value)?;
                stores.insert(name, definition);
            }
        }
        let file = file.to_owned();
        Ok(Self { file, stores })
    }

    /// The name of the file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The names of the stores, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.stores.keys().map(String::as_str)
    }

    /// The purpose of a store's locks, if the file has it.
    #[must_use]
    pub fn purpose(&self, name: &str) -> Option<Purpose> {
        self.stores.get(name)?.purpose
    }
}

/// A name must need no quotes on a command line, and must not look like a URL.
fn check_name<'a>(place: Place<'a>, name: &Spanned<std::borrow::Cow<'a, str>>) -> Result<()> {
    let text = name.get_ref();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if (1..=64).contains(&text.len()) && text.chars().all(plain) {
        return Ok(());
    }
    Err(place.error(
        name,
        "the name of a store must have 1 to 64 ASCII letters, digits, _ and -",
    ))
}

fn definition<'a>(
    place: Place<'a>,
    name: &str,
    value: &Spanned<DeValue<'a>>,
) -> Result<Definition> {
    let section = format!("[store.{name}]");
    let table = place.table(&section, value)?;
    let kinds = [Kind::One, Kind::Shards, Kind::Migrate];
    let mut written = kinds
        .into_iter()
        .filter_map(|kind| Some((kind, table.get(kind.key())?)));
    let (kind, of) = match (written.next(), written.next()) {
        (Some(only), None) => only,
        (Some(_), Some((_, second))) => {
            let why =
                format!("{section} has more than one of {URL}, {SHARDS} and {MIGRATE}; keep one");
            return Err(place.error(second, &why));
        }
        (None, _) => {
            refuse_unknown(place, &section, table, &kinds)?;
            let why = format!(
                "{section} needs one of url (one store), shards (a set of stores) and migrate (two stores between which locks move)"
            );
            return Err(place.error(value, &why));
        }
    };
    refuse_unknown(place, &section, table, &[kind])?;
    let what = match kind {
        Kind::One => What::Url {
            url: place.string("url", of)?,
            record: options(place, table, kind)?.pop().map(|(_, store)| store),
        },
        Kind::Shards | Kind::Migrate => What::Set {
            kind,
            shards: match kind {
                Kind::Migrate => read_migrate(place, of)?,
                _ => read_shards(place, of)?,
            },
            options: options(place, table, kind)?,
        },
    };
    let purpose = table
        .get(PURPOSE)
        .map(|purpose| read_purpose(place, purpose));
    let purpose = purpose.transpose()?;
    Ok(Definition { what, purpose })
}

/// Refuses a key that none of these kinds has.
fn refuse_unknown(
    place: Place<'_>,
    section: &str,
    table: &DeTable<'_>,
    kinds: &[Kind],
) -> Result<()> {
    for (name, _) in table {
        let key = name.get_ref().as_ref();
        let has = |kind: &Kind| kind.options().contains(&key) || kind.key() == key;
        if key != PURPOSE && !kinds.iter().any(has) {
            let known = Kind::known(kinds);
            let why = format!("{section} has the unknown key {key:?}; the known keys are {known}");
            return Err(place.error(name, &why));
        }
    }
    Ok(())
}

fn options<'a>(
    place: Place<'a>,
    table: &DeTable<'a>,
    kind: Kind,
) -> Result<Vec<(&'static str, String)>> {
    let written = kind
        .options()
        .iter()
        .filter_map(|key| Some((*key, table.get(*key)?)));
    let read = written.map(|(key, value)| Ok((key, place.string(key, value)?)));
    read.collect()
}

/// `{ from = …, to = … }`
fn read_migrate<'a>(
    place: Place<'a>,
    value: &Spanned<DeValue<'a>>,
) -> Result<BTreeMap<String, Shard>> {
    let mut stores = BTreeMap::new();
    for (id, value) in place.table(MIGRATE, value)? {
        let known = [FROM, TO].contains(&id.get_ref().as_ref());
        if !known {
            let key = id.get_ref();
            let why =
                format!("{MIGRATE} has the unknown key {key:?}; the known keys are {FROM}, {TO}");
            return Err(place.error(id, &why));
        }
        let store = place.string("a store", value)?;
        let weight = None;
        stores.insert(id.get_ref().to_string(), Shard { store, weight });
    }
    match stores.len() {
        2 => Ok(stores),
        _ => Err(place.error(value, &format!("{MIGRATE} needs {FROM} and {TO}"))),
    }
}

fn read_purpose<'a>(place: Place<'a>, value: &Spanned<DeValue<'a>>) -> Result<Purpose> {
    let text = place.string(PURPOSE, value)?;
    let purposes = [Purpose::Efficiency, Purpose::Correctness];
    let found = purposes
        .into_iter()
        .find(|purpose| purpose.as_str() == text);
    found.ok_or_else(|| place.error(value, "purpose must be \"efficiency\" or \"correctness\""))
}

fn read_shards<'a>(
    place: Place<'a>,
    value: &Spanned<DeValue<'a>>,
) -> Result<BTreeMap<String, Shard>> {
    let mut shards = BTreeMap::new();
    for (id, value) in place.table(SHARDS, value)? {
        let shard = match value.get_ref() {
            DeValue::Table(table) => read_shard(place, id.get_ref(), value, table)?,
            _ => Shard {
                store: place.string("a shard", value)?,
                weight: None,
            },
        };
        let id = id.get_ref();
        if id.is_empty() || !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let why = "the id of a shard must have ASCII letters, digits and _ only";
            return Err(place.error(value, why));
        }
        if ["key", "set", "prefix", "breaker"].contains(&id.as_ref()) {
            let why = format!("a shard cannot be called {id:?}, which is an option of sets");
            return Err(place.error(value, &why));
        }
        shards.insert(id.to_string(), shard);
    }
    Ok(shards)
}

fn read_shard<'a>(
    place: Place<'a>,
    id: &str,
    value: &Spanned<DeValue<'a>>,
    table: &DeTable<'a>,
) -> Result<Shard> {
    if let Some((name, _)) = table
        .iter()
        .find(|(name, _)| ![STORE, WEIGHT].contains(&name.get_ref().as_ref()))
    {
        let why = format!(
            "shard {id} has the unknown key {:?}; the known keys are {STORE}, {WEIGHT}",
            name.get_ref()
        );
        return Err(place.error(name, &why));
    }
    let Some(store) = table.get(STORE) else {
        return Err(place.error(
            value,
            &format!("shard {id} has no {STORE}: a URL, or @ and the name of a store"),
        ));
    };
    let weight = table.get(WEIGHT).map(|weight| {
        let number = weight.get_ref().as_integer();
        let number =
            number.and_then(|number| i64::from_str_radix(number.as_str(), number.radix()).ok());
        let fits = number.filter(|number| (1..=100).contains(number));
        fits.ok_or_else(|| place.error(weight, "a weight must be a whole number from 1 to 100"))
    });
    Ok(Shard {
        store: place.string(STORE, store)?,
        weight: weight.transpose()?,
    })
}
