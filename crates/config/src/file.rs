//! The file as a whole: its sections, and errors that name a line of it.

use fencelock_core::{Error, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The sections of the file, and the kind of each.
const SECTIONS: [(&str, &str); 3] = [
    ("store", "table"),
    ("serve", "table"),
    ("principal", "array"),
];

/// Refuses a text that is not TOML, and any section except `store`, `serve` and `principal`. `file` is its name, for
/// errors.
///
/// ```
/// let error = fencelock_config::check_sections("f.toml", "[sevre]\n").unwrap_err().to_string();
/// assert!(error.contains("f.toml") && error.contains("sevre") && error.contains("serve"));
/// ```
///
/// # Errors
/// [`Error::ConfigFile`] that names the file and the line.
pub fn check_sections(file: &str, text: &str) -> Result<()> {
    sections(file, text).map(|_| ())
}

/// The sections. All of them are known.
pub(crate) fn sections<'t>(file: &str, text: &'t str) -> Result<DeTable<'t>> {
    let parsed = DeTable::parse(text).map_err(|error| toml_error(file, text, &error))?;
    let sections = parsed.into_inner();
    for (name, value) in &sections {
        let (is, known) = (value.get_ref().type_str(), name.get_ref().as_ref());
        match SECTIONS.iter().find(|(section, _)| *section == known) {
            Some((_, kind)) if *kind == is => {}
            Some((_, kind)) => {
                let why =
                    format!("{known:?} must be of the type {kind:?}, and is of the type {is:?}");
                return Err(error_at(file, text, name.span().start, &why));
            }
            None => {
                let why = format!(
                    "the section {known:?} is unknown; the known sections are [store.NAME], [serve] and [[principal]]"
                );
                return Err(error_at(file, text, name.span().start, &why));
            }
        }
    }
    Ok(sections)
}

/// An error about a file, with the line at this offset.
#[must_use]
pub fn error_at(file: &str, text: &str, at: usize, why: &str) -> Error {
    let before = text.as_bytes().iter().take(at);
    let line = before.filter(|byte| **byte == b'\n').count() + 1;
    Error::config_file(file, format!("line {line}: {why}"))
}

/// An error of the parser. It shows no line of the file and no value, since these may contain a password.
#[must_use]
pub fn toml_error(file: &str, text: &str, error: &toml::de::Error) -> Error {
    let at = error.span().map_or(0, |span| span.start);
    let message = error.message();
    let why = match message.split_once("string \"") {
        // The parser quotes a text that it did not expect, so remove the quotation.
        Some((before, rest)) => {
            let after = rest.rsplit_once('"').map_or("", |(_, after)| after);
            format!("{before}a string{after}")
        }
        None => message.to_owned(),
    };
    error_at(file, text, at, &why)
}

/// A value of the file and its place in the file.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) file: &'a str,
    pub(crate) text: &'a str,
}

impl<'a> Place<'a> {
    /// An error about a key or a value.
    pub(crate) fn error<T>(self, of: &Spanned<T>, why: &str) -> Error {
        error_at(self.file, self.text, of.span().start, why)
    }

    /// A value that must be a text.
    pub(crate) fn string(self, what: &str, value: &Spanned<DeValue<'a>>) -> Result<String> {
        let text = value.get_ref().as_str().map(str::to_owned);
        text.ok_or_else(|| {
            let is = value.get_ref().type_str();
            self.error(
                value,
                &format!("{what} must be a text in quotes, and is of the type {is:?}"),
            )
        })
    }

    /// A value that must be a table.
    pub(crate) fn table<'v>(
        self,
        what: &str,
        value: &'v Spanned<DeValue<'a>>,
    ) -> Result<&'v DeTable<'a>> {
        value.get_ref().as_table().ok_or_else(|| {
            let is = value.get_ref().type_str();
            self.error(
                value,
                &format!("{what} must be a table, and is of the type {is:?}"),
            )
        })
    }
}
