//! Which part of a store's URL may be shown: nothing before an `@`, and no option.
//!
//! A person may forget to encode a `/`, `?` or `@` of a password, or the slashes before the hosts. Then parsing takes the
//! password for a path, an option or a host. So every part before the last `@` may be a password. If such a part could only
//! be a path, an option or a host, the URL is refused before an error can quote the part.

/// What to do about an `@` after the hosts.
pub(crate) const AMBIGUOUS: &str = "it has an @ where no user and password can be; write SCHEME://USER:PASSWORD@HOST, and in user, password, path and options / as %2F, ? as %3F and @ as %40";

/// What to do about a password with a comma, where each host may have a password.
pub(crate) const AMBIGUOUS_LIST: &str =
    "a host in it is not HOST or HOST:PORT; in a password write , as %2C, @ as %40 and : as %3A";

/// Options that are a free text or the path of a file. No error quotes them from the URL before it is certain that they are
/// options.
const FREE: [&str; 6] = [
    "prefix",
    "password-file",
    "sentinel-password-file",
    "tls-ca",
    "tls-cert",
    "tls-key",
];

/// The schemes of stores whose options are the URLs of others.
const OF_URLS: [&str; 2] = ["shards", "migrate"];

/// The scheme and what comes after its colon.
pub(crate) fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    (!scheme.is_empty() && scheme.chars().all(plain)).then_some((scheme, rest))
}

/// Whether this looks like a host and its port, so that it may be quoted.
pub(crate) fn is_plain_host(host: &str) -> bool {
    // An IPv6 address is in brackets; a `%2F` begins the path of a socket.
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._%[:]".contains(c);
    let bracketed = name.starts_with('[') && name.ends_with(']');
    name.chars().all(plain)
        && (bracketed || !name.contains(':'))
        && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Whether the text before an `@` could be a password that parsing would mistake for something else.
pub(crate) fn is_ambiguous(scheme: &str, rest: &str) -> bool {
    let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (hosts, path) = match before.strip_prefix("//") {
        Some(hosts) => hosts.split_once('/').unwrap_or((hosts, "")),
        None => ("", before),
    };
    // The path of a file may contain an @, but not after a text that looks like `user:password`.
    let of_file = hosts.is_empty() && (scheme == "sqlite" || scheme.ends_with("+unix"));
    let in_path = match path.rsplit_once('@') {
        Some((before, _)) => !of_file || before.contains(':'),
        None => false,
    };
    let listed = hosts.rsplit_once('@').map_or(hosts, |(_, hosts)| hosts);
    let hosts_are_plain = listed.split(',').all(is_plain_host);
    let free = |pair: &str| {
        let key = pair.split_once('=').map_or("", |(key, _)| key);
        FREE.contains(&key)
    };
    let in_option = query
        .split('&')
        .any(|pair| pair.contains('@') && !(hosts_are_plain && free(pair)));
    in_path || in_option
}

/// The URL as it may be shown, even if it is wrong. It has no options. `***` stands for everything before the last `@`, and for
/// a host that does not look like one: it may be a password whose `@` was forgotten or encoded.
pub(crate) fn redacted(text: &str) -> String {
    // Its options are URLs, whose passwords may be encoded or not.
    if let Some((scheme, _)) =
        scheme(text).filter(|(scheme, _)| OF_URLS.iter().any(|of| scheme.eq_ignore_ascii_case(of)))
    {
        return format!("{scheme}:");
    }
    let Some((hidden, after)) = text.rsplit_once('@') else {
        let text = without_options(text);
        return match scheme(text) {
            Some((scheme, rest)) if rest.starts_with("//") => {
                format!("{scheme}://{}", hosts_and_path(&rest[2..]))
            }
            _ => text.to_owned(),
        };
    };
    // Without the slashes the text before the colon may be a user instead of a scheme.
    let scheme = scheme(hidden).filter(|(_, rest)| rest.starts_with("//"));
    let begin = match scheme {
        Some((scheme, _)) => format!("{scheme}://"),
        None if hidden.starts_with("sqlite:") => "sqlite:".to_owned(),
        None => String::new(),
    };
    let after = without_options(after);
    match scheme {
        Some(_) => format!("{begin}***@{}", hosts_and_path(after)),
        None => format!("{begin}***@{after}"),
    }
}

fn hosts_and_path(rest: &str) -> &str {
    let hosts = rest.split_once('/').map_or(rest, |(hosts, _)| hosts);
    match hosts.split(',').all(is_plain_host) {
        true => rest,
        false => "***",
    }
}

fn without_options(text: &str) -> &str {
    text.split_once('?').map_or(text, |(before, _)| before)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::StoreUrl;

    use super::*;

    /// Everything that parsing shows of a URL.
    fn shown(text: &str) -> String {
        match StoreUrl::parse(text) {
            Ok(url) => {
                let hosts = url.clone().take_hosts();
                let refused = url.clone().finish();
                let quoted = (&url.hosts, &url.path);
                format!(
                    "{url} {url:?} {} {hosts:?} {refused:?} {quoted:?}",
                    url.refuse("why")
                )
            }
            Err(error) => format!("{error} {error:?}"),
        }
    }

    #[test]
    fn parts_that_may_be_shown() {
        for (text, want) in [
            ("shards:?a=redis%3A%2F%2Fu%3Ap%40h&b=sqlite:/x", "shards:"),
            (
                "migrate:?from=redis%3A%2F%2Fu%3Ap%40h&to=sqlite:/x",
                "migrate:",
            ),
            (
                "shards:?a=redis://u:p@h&b=redis%3A%2F%2Fu%3Ap%40h",
                "shards:",
            ),
            ("SHARDS://u:p@h", "SHARDS:"),
            ("redis://u:p@h:1/0?prefix=a@b", "redis://***@b"),
            ("redis://u:p@h:1/0?prefix=a", "redis://***@h:1/0"),
            ("redis://h:1/0?password=p", "redis://h:1/0"),
            ("redis:/u:p@h", "***@h"),
            ("u:p@h:1", "***@h:1"),
            ("sqlite:/home/me@corp/x.db", "sqlite:***@corp/x.db"),
            ("sqlite:/x.db", "sqlite:/x.db"),
            ("nonsense", "nonsense"),
            ("redis://h1:1,[::1]:2/0", "redis://h1:1,[::1]:2/0"),
            ("redis+unix:///run/r.sock", "redis+unix:///run/r.sock"),
            ("mysql://u:hunter2%40h:1/d", "mysql://***"),
            ("zookeeper://u:hunter2", "zookeeper://***"),
            ("redlock://u:p@h:1,v:hunter2/h:2,h", "redlock://***@***"),
        ] {
            assert_eq!(redacted(text), want, "{text}");
        }
    }

    #[test]
    fn an_at_sign_outside_of_a_password_may_stay() {
        for text in [
            "sqlite:/home/me@corp/x.db",
            "redis+unix:///run/me@corp.sock",
            "redis://u:p%40@h/0?prefix=a@b",
            "postgres://u:p@h1,h2:1,[::1]:2/d?password-file=/run/a@b",
            "postgres://u:p@%2Frun%2Fpg/d?tls-ca=a@b",
        ] {
            StoreUrl::parse(text).unwrap();
        }
    }

    #[test]
    fn a_password_that_is_not_encoded_is_not_quoted() {
        for text in [
            "redis://u:hunter2@h:1/0",
            "redis://:hunter2@h",
            "redis://hunter2@h",
            "redis://u:hunt/hunter2@h",
            "redis://u:hunter2/hunt@h",
            "redis://u:1/hunter2@h",
            "redis://u:hunt?hunter2@h",
            "redis://u:hunter2?prefix=x@h",
            "redis://u:hunt?hunter2&x=y@h",
            "redis://u:hunt@hunter2@h",
            "redis://u:hunter2@x?y@h",
            "redis:/u:hunter2@h",
            "redis:u:hunter2@h",
            "redis:/hunter2@h",
            "redis:///u:hunter2@h",
            "sqlite:u:hunter2@h",
            "sqlite:/u:hunter2@h",
            "u:hunter2@h:6379",
            "hunter2@h:6379",
            ":hunter2@h",
            "nonsense//u:hunter2@",
            "redlock://u:hunter2,x@h1,h2,h3",
            "redlock://h0,u:x,hunter2@h1,:p@h2",
        ] {
            // What counts as a host is quoted only where `take_hosts` or the engine may quote it.
            let shown = shown(text);
            assert!(!shown.contains("hunter2"), "{text}: {shown}");
        }
    }

    proptest! {
        #[test]
        fn no_password_is_shown(
            scheme in "(shards|migrate|redis|rediss|redlock|mysql|postgres|etcd|zookeeper|sqlite|memory|x)",
            slashes in "(|/|//|///)",
            user in "[a-z]{0,3}",
            begin in "[!-~]{0,6}",
            core in "[Q-Z]{6}",
            end in "[!-~]{0,6}",
            host in "(h|h:1|h1:1,h2:2|\\[::1\\]:7)",
            tail in "(|/|/0|/db|\\?x=y|/0\\?prefix=z)",
        ) {
            let text = format!("{scheme}:{slashes}{user}:{begin}{core}{end}@{host}{tail}");
            // `//u:p@CORE,x@h` is also a list of hosts with credentials of their own, of which an engine quotes CORE.
            let listed = slashes == "//" && begin.contains('@') && end.contains(',');
            let shown = match listed {
                true => super::redacted(&text),
                false => shown(&text),
            };
            prop_assert!(!shown.contains(&core), "{}: {}", text, shown);
            let text = format!("{user}:{begin}{core}{end}@{host}{tail}");
            let shown = super::redacted(&text);
            prop_assert!(!shown.contains(&core), "{}: {}", text, shown);
        }

        #[test]
        fn no_value_of_an_unknown_option_is_shown(
            option in "(password|pass|auth|token|x)",
            value in "[Q-Z]{6}",
            more in "(|&a=b|&password-env=X)",
        ) {
            let text = format!("redis://h:1/0?{option}={value}{more}");
            let shown = shown(&text);
            prop_assert!(!shown.contains(&value), "{}: {}", text, shown);
        }
    }
}
