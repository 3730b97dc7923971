//! The URL of a store, taken apart: `scheme://user:password@host:port,host:port/path?option=value`.
//!
//! Every engine takes the parts and options that it knows and then calls [`StoreUrl::finish`], which refuses the rest.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::duration::parse_duration;
use crate::error::{Error, Result};

/// A store's URL in parts. `Debug` and `Display` never show a password.
#[derive(Clone)]
pub struct StoreUrl {
    /// Before the first colon, in lower case.
    pub scheme: String,
    /// The user, percent-decoded.
    pub user: Option<String>,
    /// The password in the URL, percent-decoded; engines ask [`StoreUrl::take_password`] instead.
    password: Option<String>,
    /// `host` or `host:port`, as written; empty without `//`.
    pub hosts: Vec<String>,
    /// After the hosts, without the slash that begins it; without `//`, everything after the scheme. Percent-decoded.
    pub path: String,
    options: BTreeMap<String, String>,
    known: Vec<&'static str>,
    shown: String,
}

impl StoreUrl {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// [`Error::Config`] if it has no scheme, a part that is not UTF-8 when decoded, or an option twice.
    pub fn parse(text: &str) -> Result<Self> {
        let shown = redacted(text);
        let refuse = |why: String| Error::config(&shown, why);
        let decode = |part: &str| {
            let decoded = percent_decode_str(part).decode_utf8();
            let decoded = decoded.map(|text| text.into_owned());
            decoded.map_err(|_| refuse("a part of it is not UTF-8 when percent-decoded".into()))
        };
        let Some((scheme, rest)) = text.split_once(':') else {
            let why = "it is no store URL; write one such as sqlite:PATH or redis://HOST:PORT";
            return Err(refuse(why.into()));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (mut user, mut password, mut hosts) = (None, None, Vec::new());
        let path = match rest.strip_prefix("//") {
            None => decode(rest)?,
            Some(rest) => {
                let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
                let (userinfo, list) = match authority.rsplit_once('@') {
                    Some((userinfo, list)) => (Some(userinfo), list),
                    None => (None, authority),
                };
                if let Some(userinfo) = userinfo {
                    let (name, secret) = match userinfo.split_once(':') {
                        Some((name, secret)) => (name, Some(secret)),
                        None => (userinfo, None),
                    };
                    user = Some(decode(name)?).filter(|name| !name.is_empty());
                    password = secret.map(decode).transpose()?;
                }
                hosts = list.split(',').map(str::to_owned).collect();
                hosts.retain(|host| !host.is_empty());
                decode(path)?
            }
        };
        let mut options = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (key, value) = (decode(key)?, decode(value)?);
            if options.insert(key.clone(), value).is_some() {
                return Err(refuse(format!("the option {key:?} stands in it twice")));
            }
        }
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            user,
            password,
            hosts,
            path,
            options,
            known: Vec::new(),
            shown,
        })
    }

    /// Takes an option as it is written.
    pub fn take(&mut self, option: &'static str) -> Option<String> {
        self.known.push(option);
        self.options.remove(option)
    }

    /// Takes an option that is a duration.
    ///
    /// # Errors
    /// [`Error::Config`] if it is none.
    pub fn take_duration(&mut self, option: &'static str) -> Result<Option<Duration>> {
        let text = self.take(option);
        let parsed = text.map(|text| parse_duration(option, &text)).transpose();
        parsed.map_err(|error| self.refuse(error.to_string()))
    }

    /// Takes an option that is a whole number.
    ///
    /// # Errors
    /// [`Error::Config`] if it is none.
    pub fn take_number(&mut self, option: &'static str) -> Result<Option<u64>> {
        let Some(text) = self.take(option) else {
            return Ok(None);
        };
        let refuse = |_| self.refuse(format!("the option {option}={text} is not a whole number"));
        text.parse().map(Some).map_err(refuse)
    }

    /// Takes the password: from the URL, or the environment variable that `password-env` names, or the file that
    /// `password-file` names (one newline at its end is cut off).
    ///
    /// # Errors
    /// [`Error::Config`] if it is given twice, or the variable or the file cannot be read.
    pub fn take_password(&mut self) -> Result<Option<String>> {
        let env = self.take("password-env");
        let file = self.take("password-file");
        let inline = self.password.take();
        let given = [env.is_some(), file.is_some(), inline.is_some()];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(self.refuse(
                "the password is given twice; keep one of the URL's own, password-env and password-file",
            ));
        }
        if let Some(name) = env {
            let read = std::env::var(&name);
            return read.map(Some).map_err(|error| {
                self.refuse(format!(
                    "the environment variable {name} of password-env: {error}"
                ))
            });
        }
        if let Some(path) = file {
            let read = std::fs::read_to_string(&path);
            let read = read.map_err(|error| {
                self.refuse(format!("the file {path} of password-file: {error}"))
            })?;
            return Ok(Some(read.strip_suffix('\n').unwrap_or(&read).to_owned()));
        }
        Ok(inline)
    }

    /// Ends the reading: whatever was not taken is refused.
    ///
    /// # Errors
    /// [`Error::Config`] naming an unknown option and those that are known, or a password that has no place here.
    pub fn finish(mut self) -> Result<()> {
        if let Some(option) = self.options.keys().next() {
            self.known.sort_unstable();
            let known = if self.known.is_empty() {
                "it takes none".to_owned()
            } else {
                format!("it takes {}", self.known.join(", "))
            };
            return Err(self.refuse(format!("the option {option:?} is unknown; {known}")));
        }
        if self.password.is_some() {
            return Err(self.refuse("it has a password, and this kind of store takes none"));
        }
        Ok(())
    }

    /// An [`Error::Config`] about this URL.
    #[must_use]
    pub fn refuse(&self, why: impl Into<String>) -> Error {
        Error::config(&self.shown, why)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({})", self.shown)
    }
}

/// The URL with `***` for each password, whether or not the rest makes sense.
fn redacted(text: &str) -> String {
    let (before, rest) = match text.split_once("//") {
        Some((scheme, rest)) => (format!("{scheme}//"), rest),
        None => return text.to_owned(),
    };
    // A password may itself hold an unescaped '/', '?' or '@': everything up to the last '@' is kept back.
    let Some((userinfo, after)) = rest.rsplit_once('@') else {
        return text.to_owned();
    };
    match userinfo.split_once(':') {
        Some((user, _)) => format!("{before}{user}:***@{after}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_urls_apart() {
        let mut url =
            StoreUrl::parse("REDIS://ann:s%40c@h1:1,h2:2/3?connect-timeout=2s&max-ttl=1m").unwrap();
        assert_eq!(url.scheme, "redis");
        assert_eq!(url.user.as_deref(), Some("ann"));
        assert_eq!(url.take_password().unwrap().as_deref(), Some("s@c"));
        assert_eq!(url.hosts, ["h1:1", "h2:2"]);
        assert_eq!(url.path, "3");
        let timeout = url.take_duration("connect-timeout").unwrap();
        assert_eq!(timeout, Some(Duration::from_secs(2)));
        assert!(!url.to_string().contains("s%40c"));
        let error = url.finish().unwrap_err().to_string();
        assert!(
            error.contains("max-ttl") && error.contains("connect-timeout"),
            "{error}"
        );
    }

    #[test]
    fn paths_need_no_slashes() {
        let url = StoreUrl::parse("sqlite:/var/lib/a%20b.db").unwrap();
        assert_eq!(url.path, "/var/lib/a b.db");
        assert!(url.hosts.is_empty());
        url.finish().unwrap();
    }

    #[test]
    fn a_password_is_never_shown() {
        for text in [
            "redis://u:hunter2@h:1/0",
            "redis://:hunter2@h",
            "redis://u:hunt/hunter2@h",
            "redis://u:hunt?hunter2@h",
            "redis://u:hunt@hunter2@h",
            "nonsense//u:hunter2@",
        ] {
            let shown = match StoreUrl::parse(text) {
                Ok(url) => format!("{url} {url:?} {}", url.refuse("why")),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }

    #[test]
    fn a_password_given_twice_is_refused() {
        let mut url = StoreUrl::parse("redis://u:p@h?password-env=HOME").unwrap();
        let error = url.take_password().unwrap_err().to_string();
        assert!(error.contains("twice"), "{error}");
    }
}
