//! What a URL in the file must not have: a password, or a path that depends on who reads the file.

use fencelock_core::{Result, StoreUrl};

use crate::key::RECORD;

/// Refuses the URL of a store that contains a password or a relative path, including the URLs of the shards of a set. Other
/// users can often read the file, and it is kept in repositories and backups. A relative path would name another store in each
/// working directory.
///
/// # Errors
/// [`Error::Config`](fencelock_core::Error::Config), also if the text is not a URL.
pub fn check_url(url: &str) -> Result<()> {
    let parsed = StoreUrl::parse(url)?;
    if parsed.has_password() {
        return Err(parsed.refuse(
            "a URL in the configuration file has a password; write it to a file that only its user can read, with ?password-file=/run/secrets/NAME, or use an environment variable, with ?password-env=NAME",
        ));
    }
    let mut paths = Vec::new();
    // With slashes it is refused later: a file has no host.
    if parsed.scheme == "sqlite" && !url.contains("://") && !parsed.path.is_empty() {
        paths.push(parsed.path.clone());
    }
    let others = parsed.clone().take_others(&[]);
    let files = others.iter().filter(|(option, _)| names_a_file(option));
    paths.extend(files.map(|(_, path)| path.clone()));
    if paths.iter().any(|path| !path.starts_with('/')) {
        return Err(parsed.refuse(
            "a URL in the configuration file has a relative path, which names another file in each working directory; write the whole path, from / on",
        ));
    }
    let is_set = ["shards", "migrate"].contains(&parsed.scheme.as_str());
    // The options of a set are URLs, and others that are none.
    for (option, value) in others {
        if (is_set || option == RECORD) && value.contains(':') {
            check_url(&value)?;
        }
    }
    Ok(())
}

/// Whether the value of an option is a path.
fn names_a_file(option: &str) -> bool {
    option.ends_with("-file") || ["tls-ca", "tls-cert", "tls-key"].contains(&option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_refused_and_not_shown() {
        for url in [
            "redis://ann:hunter2@h",
            "redis://:hunter2@h:1/0?prefix=x",
            "redlock://h1:1,me:hunter2@h2:2,h3",
            "shards:?a=redis%3A%2F%2Fu%3Ahunter2%40h&b=redis://h",
            "migrate:?from=redis%3A%2F%2Fu%3Ahunter2%40h&to=redis://h",
            "redlock://h1,h2,h3?record=redis%3A%2F%2Fu%3Ahunter2%40h",
            "shards:?a=redlock%3A%2F%2Fh1%2Ch2%2Ch3%3Frecord%3Dredis%253A%252F%252Fu%253Ahunter2%2540h&b=redis://h",
        ] {
            let error = check_url(url).unwrap_err().to_string();
            assert!(error.contains("password-file"), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
        for url in [
            "sqlite:",
            "redis://ann@h?password-file=/run/x",
            "redlock://h1:1,h2:2",
            "shards:?a=redis://h:1&b=redis://h:2&key={}&prefix=a/",
            "sqlite:/x",
            "redlock://h1,h2,h3?record=redis://h",
        ] {
            check_url(url).unwrap();
        }
    }

    #[test]
    fn a_relative_path_is_refused() {
        for url in [
            "sqlite:locks.db",
            "sqlite:./a/locks.db?response-timeout=2s",
            "shards:?a=sqlite:/a&b=sqlite:b",
            "redlock://h1,h2,h3?record=sqlite:b",
            "redis://h?password-file=pw",
            "rediss://h?tls-ca=ca.pem",
        ] {
            let error = check_url(url).unwrap_err().to_string();
            assert!(error.contains("relative path"), "{url}: {error}");
        }
    }
}
