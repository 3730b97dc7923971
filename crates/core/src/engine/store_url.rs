//! Parsing the URL of a store. (Long by its examples.) Its form is
//! `scheme://user:password@host:port,host:port/path?option=value`.
//!
//! Every engine takes the parts and options that it knows and then calls [`StoreUrl::finish`], which refuses the rest. A
//! program can also build it from typed options (`StoreOptions`).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::host::{Address, UrlHost, credentials};
use super::promises::Purpose;
use super::redact::{self, redacted};
use crate::types::{ConfigPart, Error, Result, parse_duration};

/// A store's URL in parts. `Debug` and `Display` never show a password.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # fn main() -> Result<()> {
/// let mut url = StoreUrl::parse("toy://db:99/locks?poll=50ms&size=8")?;
/// assert_eq!((url.hosts[0].as_str(), url.path.as_str()), ("db:99", "locks"));
/// assert_eq!(url.take_duration("poll")?, Some(Duration::from_millis(50)));
/// assert_eq!(url.take_number("size")?, Some(8));
/// url.finish()?; // an option that was not taken would be refused here
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct StoreUrl {
    /// Before the first colon, in lower case.
    pub scheme: String,
    /// The user, percent-decoded.
    pub user: Option<String>,
    /// Passwords by the name of their option, percent-decoded; engines use [`StoreUrl::take_secret`] instead.
    secrets: BTreeMap<&'static str, String>,
    /// `host` or `host:port`, as written; empty without `//`.
    pub hosts: Vec<String>,
    /// Hosts and credentials, as written.
    authority: String,
    /// Whether the store is opened for inspection only: no locks are taken through it. Then opening writes nothing, and needs
    /// neither the right to write nor a server that takes writes.
    pub inspect_only: bool,
    /// Whether a set of stores opens only the stores that a call needs.
    pub as_needed: bool,
    /// What the locks in this store are for, if the program or the configuration file says so.
    pub purpose: Option<Purpose>,
    /// After the hosts, without the slash that begins it; without `//`, everything after the scheme. Percent-decoded.
    pub path: String,
    options: BTreeMap<String, String>,
    known: Vec<String>,
    /// The text, as it may be shown; `None` if a program built or changed the URL.
    shown: Option<String>,
}

/// The name of the URL's own password among its secrets.
const PASSWORD: &str = "password";

impl StoreUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`Error::Config`] if it has no scheme, a part that is not UTF-8 when decoded, an option twice, or an `@` that could
    /// belong to a password.
    pub fn parse(text: &str) -> Result<Self> {
        let shown = redacted(text);
        let refuse = |why: String| Error::config(&shown, ConfigPart::Url, why);
        let decode = |part: &str| {
            let decoded = percent_decode_str(part).decode_utf8();
            let decoded = decoded.map(|text| text.into_owned());
            decoded.map_err(|_| refuse("a part of it is not UTF-8 when percent-decoded".into()))
        };
        let Some((scheme, rest)) = redact::scheme(text) else {
            let why = "it is not a store URL; write one such as sqlite:PATH or redis://HOST:PORT";
            return Err(refuse(why.into()));
        };
        if redact::is_ambiguous(scheme, rest) {
            return Err(refuse(redact::AMBIGUOUS.into()));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (mut user, mut secrets, mut hosts) = (None, BTreeMap::new(), Vec::new());
        let mut written = String::new();
        let path = match rest.strip_prefix("//") {
            None => decode(rest)?,
            Some(rest) => {
                let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
                written = authority.to_owned();
                let (userinfo, list) = match authority.rsplit_once('@') {
                    Some((userinfo, list)) => (Some(userinfo), list),
                    None => (None, authority),
                };
                if let Some(userinfo) = userinfo {
                    let password;
                    (user, password) = credentials(userinfo, decode)?;
                    secrets.extend(password.map(|password| (PASSWORD, password)));
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
                return Err(refuse(format!("it has the option {key:?} twice")));
            }
        }
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            user,
            secrets,
            hosts,
            authority: written,
            inspect_only: false,
            as_needed: false,
            purpose: None,
            path,
            options,
            known: Vec::new(),
            shown: Some(shown),
        })
    }

    /// A URL from its parts, in which nothing is encoded. Opening the store refuses what cannot be used.
    #[must_use]
    pub fn new(
        scheme: &str,
        hosts: impl IntoIterator<Item = impl Into<String>>,
        path: impl Into<String>,
    ) -> Self {
        let mut url = Self {
            scheme: scheme.to_owned(),
            user: None,
            secrets: BTreeMap::new(),
            authority: String::new(),
            hosts: Vec::new(),
            inspect_only: false,
            as_needed: false,
            purpose: None,
            path: path.into(),
            options: BTreeMap::new(),
            known: Vec::new(),
            shown: None,
        };
        url.set_hosts(hosts);
        url
    }

    /// Sets other hosts.
    pub fn set_hosts(&mut self, hosts: impl IntoIterator<Item = impl Into<String>>) {
        let hosts = hosts.into_iter().map(Into::into);
        // The directory of a socket has slashes.
        let hosts = hosts.map(|host: String| host.replace('/', "%2F"));
        self.hosts = hosts.filter(|host| !host.is_empty()).collect();
        self.authority = self.hosts.join(",");
        self.shown = None;
    }

    /// Sets another scheme for the same server.
    pub fn set_scheme(&mut self, scheme: impl Into<String>) {
        self.scheme = scheme.into();
        self.shown = None;
    }

    /// Sets another path on the same server.
    pub fn set_path(&mut self, path: impl Into<String>) {
        self.path = path.into();
        self.shown = None;
    }

    /// Sets an option.
    pub fn set(&mut self, option: &str, value: impl Into<String>) {
        self.options.insert(option.to_owned(), value.into());
    }

    /// Sets the value that [`StoreUrl::take_secret`] returns.
    pub fn set_secret(&mut self, what: &'static str, secret: impl Into<String>) {
        self.secrets.insert(what, secret.into());
    }

    /// Whether both URLs name the same store with the same options, apart from passwords.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # fn main() -> Result<()> {
    /// let url = StoreUrl::parse("redis://ann:secret@db?db=1")?;
    /// assert!(url.is_alike(&StoreUrl::parse("redis://ann:other@db?db=1")?));
    /// assert!(!url.is_alike(&StoreUrl::parse("redis://ann:secret@db?db=2")?));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        (
            &self.scheme,
            &self.user,
            &self.hosts,
            &self.path,
            &self.options,
        ) == (
            &other.scheme,
            &other.user,
            &other.hosts,
            &other.path,
            &other.options,
        )
    }

    /// Whether it contains a password, in plain text or percent-encoded.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # fn main() -> Result<()> {
    /// assert!(StoreUrl::parse("redis://ann:secret@h")?.has_password());
    /// assert!(!StoreUrl::parse("redis://ann@h?password-file=/run/secret")?.has_password());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn has_password(&self) -> bool {
        let mut hosts = self.authority.split(',');
        let own = |host: &str| {
            let userinfo = host.rsplit_once('@').map(|(userinfo, _)| userinfo);
            userinfo.is_some_and(|userinfo| userinfo.contains(':'))
        };
        !self.secrets.is_empty() || hosts.any(own)
    }

    /// A text that may be a store's URL, in the form that may be shown: nothing before an `@`, and no option.
    #[must_use]
    pub fn redacted(text: &str) -> String {
        redacted(text)
    }

    /// Takes an option as it is written.
    pub fn take(&mut self, option: &str) -> Option<String> {
        self.known.push(option.to_owned());
        self.options.remove(option)
    }

    /// Takes all options except these, in the order of their names.
    pub fn take_others(&mut self, but: &[&str]) -> Vec<(String, String)> {
        let options = std::mem::take(&mut self.options);
        let (kept, taken) = options
            .into_iter()
            .partition(|(option, _)| but.contains(&option.as_str()));
        self.options = kept;
        BTreeMap::into_iter(taken).collect()
    }

    /// Takes an option that is a duration.
    ///
    /// # Errors
    /// [`Error::Config`] if it is no duration.
    pub fn take_duration(&mut self, option: &'static str) -> Result<Option<Duration>> {
        let text = self.take(option);
        let parsed = text.map(|text| parse_duration(option, &text)).transpose();
        parsed.map_err(|error| self.refuse(error.to_string()))
    }

    /// Takes an option that is a timeout.
    ///
    /// # Errors
    /// [`Error::Config`] if it is no duration, or 0.
    pub fn take_timeout(&mut self, option: &'static str, default: Duration) -> Result<Duration> {
        let timeout = self.take_duration(option)?.unwrap_or(default);
        match timeout.is_zero() {
            true => Err(self.refuse(format!("{option} is 0; it must be longer than 0"))),
            false => Ok(timeout),
        }
    }

    /// Takes an option that is one of some words. The first of them is the default.
    ///
    /// # Errors
    /// [`Error::Config`] if it is none of them.
    pub fn take_choice<T: Copy>(&mut self, option: &str, words: &[(&str, T)]) -> Result<T> {
        let text = self.take(option);
        let written = text.as_deref().unwrap_or(words[0].0);
        if let Some((_, meant)) = words.iter().find(|(word, _)| *word == written) {
            return Ok(*meant);
        }
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let known = words.join(", ");
        Err(self.refuse(format!("{option}={written} is unknown; known are {known}")))
    }

    /// Takes an option that is a whole number.
    ///
    /// # Errors
    /// [`Error::Config`] if it is no whole number.
    pub fn take_number(&mut self, option: &str) -> Result<Option<u64>> {
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
        self.take_secret(PASSWORD)
    }

    /// Takes another password in the same way: `WHAT-env`, `WHAT-file`, or what a program set.
    ///
    /// # Errors
    /// Those of [`StoreUrl::take_password`].
    pub fn take_secret(&mut self, what: &str) -> Result<Option<String>> {
        let [of_env, of_file] = ["env", "file"].map(|from| format!("{what}-{from}"));
        let env = self.take(&of_env);
        let file = self.take(&of_file);
        let inline = self.secrets.remove(what);
        let given = [env.is_some(), file.is_some(), inline.is_some()];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(self.refuse(format!(
                "the {what} is given twice; keep one of the URL's own, {of_env} and {of_file}"
            )));
        }
        if let Some(name) = env {
            let read = std::env::var(&name);
            return read.map(Some).map_err(|error| {
                let name = quotable(&name, |c| {
                    c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'
                });
                let why = format!("the environment variable{name} of {of_env}: {error}");
                self.refuse_part(ConfigPart::File, why)
            });
        }
        if let Some(path) = file {
            let read = std::fs::read_to_string(&path);
            let read = read.map_err(|error| {
                let path = quotable(&path, |c| c != '@');
                let path = if path.contains('/') {
                    path
                } else {
                    String::new()
                };
                let why = format!("the file{path} of {of_file}: {error}");
                self.refuse_part(ConfigPart::File, why)
            })?;
            return Ok(Some(read.strip_suffix('\n').unwrap_or(&read).to_owned()));
        }
        Ok(inline)
    }

    /// The hosts of a store whose servers have one port by default.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no host, a host is named twice, or a port is no number.
    pub fn addresses(&self, default_port: u16) -> Result<Vec<Address>> {
        let mut all = Vec::new();
        for host in &self.hosts {
            let address = self.address(host, default_port)?;
            if all.contains(&address) {
                return Err(self.refuse(format!("it names the host {host} twice")));
            }
            all.push(address);
        }
        if all.is_empty() {
            let scheme = &self.scheme;
            let why = format!("it names no host; write {scheme}://HOST:{default_port}");
            return Err(self.refuse(why));
        }
        Ok(all)
    }

    /// A `host` or `host:port`.
    ///
    /// # Errors
    /// [`Error::Config`] if the port is no number.
    pub fn address(&self, host: &str, default_port: u16) -> Result<Address> {
        // A parsed URL has no `@` here; only a program can have set one.
        if host.contains('@') {
            return Err(
                self.refuse("a host has an @; give user and password as options of their own")
            );
        }
        // An IPv6 address is in brackets.
        let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) => (address, port.strip_prefix(':')),
            None => match host.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (host, None),
            },
        };
        let port = match port {
            None => default_port,
            Some(port) => {
                let parsed = port.parse().ok().filter(|port| *port != 0);
                parsed.ok_or_else(|| {
                    self.refuse("the text after the colon of a host is not a port from 1 to 65535")
                })?
            }
        };
        Ok((name.to_owned(), port))
    }

    /// Checks the URL of a store that is described by a client or settings of the driver. They have the user, so the URL must
    /// have none.
    ///
    /// # Errors
    /// [`Error::Config`] if the URL has a user.
    pub fn without_user(&self) -> Result<()> {
        match self.user {
            None => Ok(()),
            Some(_) => Err(self.refuse("it has a user, but the client's own settings have one already; remove one of the two")),
        }
    }

    /// Takes the hosts of a store that consists of servers with credentials of their own:
    /// `user:password@host:port,:password@host:port`. Credentials only before the first host, and those of `password-env` and
    /// `password-file`, are for all hosts. In such a URL `,` and `@` in passwords must be percent-encoded.
    ///
    /// # Errors
    /// Those of [`StoreUrl::take_password`], and [`Error::Config`] if a part is not UTF-8 when percent-decoded.
    pub fn take_hosts(&mut self) -> Result<Vec<UrlHost>> {
        let decode = |part: &str| {
            let decoded = percent_decode_str(part).decode_utf8();
            let decoded = decoded.map(|text| text.into_owned());
            let why = "a part of it is not UTF-8 when percent-decoded";
            decoded.map_err(|_| self.refuse(why))
        };
        let written = self.authority.split(',').filter(|part| !part.is_empty());
        let mut hosts = Vec::new();
        for part in written {
            let (userinfo, host) = match part.rsplit_once('@') {
                Some((userinfo, host)) => (Some(userinfo), host),
                None => (None, part),
            };
            if !redact::is_plain_host(host) && self.authority.contains('@') {
                return Err(self.refuse(redact::AMBIGUOUS_LIST));
            }
            let (user, password) = match userinfo {
                Some(userinfo) => credentials(userinfo, decode)?,
                None => (None, None),
            };
            let host = host.to_owned();
            hosts.push(UrlHost {
                host,
                user,
                password,
            });
        }
        let own = |host: &UrlHost| host.user.is_some() || host.password.is_some();
        if hosts.iter().skip(1).any(own) {
            // Each host has its own password. A password for all may still come from an option.
            self.secrets.remove(PASSWORD);
            let inline = hosts.iter().any(|host| host.password.is_some());
            let common = self.take_password()?;
            if inline && common.is_some() {
                let why = "passwords are given twice; keep those in the URL, or password-env, or password-file";
                return Err(self.refuse(why));
            }
            for host in &mut hosts {
                host.password = host.password.take().or_else(|| common.clone());
            }
        } else {
            let (user, common) = (self.user.clone(), self.take_password()?);
            for host in &mut hosts {
                host.user.clone_from(&user);
                host.password.clone_from(&common);
            }
        }
        Ok(hosts)
    }

    /// Must be called after the last option: refuses every option that was not taken.
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
        if !self.secrets.is_empty() {
            return Err(self.refuse("it has a password, and this kind of store takes none"));
        }
        Ok(())
    }

    /// An [`Error::Config`] about this URL.
    #[must_use]
    pub fn refuse(&self, why: impl Into<String>) -> Error {
        self.refuse_part(ConfigPart::Url, why)
    }

    /// An [`Error::Config`] about something else that this URL needs.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # fn main() -> Result<()> {
    /// let url = StoreUrl::parse("etcds://db")?;
    /// let error = url.refuse_part(ConfigPart::Build, "this build has no TLS");
    /// assert_eq!(error.to_string(), "store etcds://db: this build has no TLS");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn refuse_part(&self, part: ConfigPart, why: impl Into<String>) -> Error {
        Error::config(self.to_string(), part, why)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(shown) = &self.shown {
            return f.write_str(shown);
        }
        let (scheme, hosts, path) = (&self.scheme, self.hosts.join(","), &self.path);
        let user = match self.user.is_some() || !self.secrets.is_empty() {
            true => "***@",
            false => "",
        };
        let text = match scheme.as_str() {
            "sqlite" => format!("{scheme}:{path}"),
            _ if path.is_empty() => format!("{scheme}://{user}{hosts}"),
            _ => format!("{scheme}://{user}{hosts}/{path}"),
        };
        f.write_str(&redacted(&text))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// The given name with a space before it, if it looks like a name. Otherwise it may be the password itself, and is left out.
fn quotable(named: &str, looks: impl Fn(char) -> bool) -> String {
    match named.chars().all(looks) {
        true => format!(" {named}"),
        false => String::new(),
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
    fn hosts_may_have_credentials_of_their_own() {
        let hosts = |text: &str| {
            let mut url = StoreUrl::parse(text).unwrap();
            let hosts = url.take_hosts().unwrap();
            url.finish().unwrap();
            let text = |text: Option<String>| text.unwrap_or_default();
            let hosts = hosts.into_iter();
            let hosts = hosts.map(|host| (host.host, text(host.user), text(host.password)));
            hosts.collect::<Vec<_>>()
        };
        let of = |host: &str, user: &str, password: &str| {
            (host.to_owned(), user.to_owned(), password.to_owned())
        };
        let each = hosts("redlock://:a%2Cb@h1:1,me:c@h2:2,h3/0");
        let want = [
            of("h1:1", "", "a,b"),
            of("h2:2", "me", "c"),
            of("h3", "", ""),
        ];
        assert_eq!(each, want);
        let all = hosts("redlock://me:c@h1:1,h2:2");
        assert_eq!(all, [of("h1:1", "me", "c"), of("h2:2", "me", "c")]);
        assert_eq!(hosts("redlock://h1"), [of("h1", "", "")]);
        let mut twice = StoreUrl::parse("redlock://:a@h1,:b@h2?password-env=HOME").unwrap();
        let error = twice.take_hosts().unwrap_err().to_string();
        assert!(error.contains("twice"), "{error}");
        let mut comma = StoreUrl::parse("redlock://u:hunt,er2@h1:1,:b@h2").unwrap();
        let error = comma.take_hosts().unwrap_err().to_string();
        assert!(error.contains("%2C") && !error.contains("hunt"), "{error}");
        let url = StoreUrl::parse("redlock://u:hunter1@h1:1,:hunter2@h2:2").unwrap();
        let shown = format!("{url} {url:?} {:?}", url.clone().take_hosts());
        assert!(!shown.contains("hunter"), "{shown}");
    }

    #[test]
    fn paths_need_no_slashes() {
        let url = StoreUrl::parse("sqlite:/var/lib/a%20b.db").unwrap();
        assert_eq!(url.path, "/var/lib/a b.db");
        assert!(url.hosts.is_empty());
        url.finish().unwrap();
    }

    #[test]
    fn a_password_in_the_place_of_its_variable_is_not_quoted() {
        for (option, quoted) in [
            ("password-env=hunter2", false),
            ("password-env=NO_SUCH_VARIABLE", true),
            ("password-file=hunter2", false),
            ("password-file=/no/such/file", true),
        ] {
            let mut url = StoreUrl::parse(&format!("redis://h?{option}")).unwrap();
            let error = url.take_password().unwrap_err().to_string();
            let named = option.split_once('=').unwrap().1;
            assert_eq!(error.contains(named), quoted, "{error}");
        }
    }

    #[test]
    fn a_password_given_twice_is_refused() {
        let mut url = StoreUrl::parse("redis://u:p@h?password-env=HOME").unwrap();
        let error = url.take_password().unwrap_err().to_string();
        assert!(error.contains("twice"), "{error}");
    }
}
