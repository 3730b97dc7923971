//! The file must not contain a password.

use fencelock_core::{Result, StoreUrl};

use crate::key::RECORD;

/// Refuses the URL of a store that contains a password, including the URLs of the shards of a set. Other users can
/// often read the file, and it is kept in repositories and backups.
///
/// # Errors
/// [`Error::Config`](fencelock_core::Error::Config), also if the text is not a URL.
pub fn refuse_password(url: &str) -> Result<()> {
    let parsed = StoreUrl::parse(url)?;
    if parsed.has_password() {
        return Err(parsed.refuse(
            "a URL in the configuration file has a password; write it to a file that only its user can read, with ?password-file=/run/secrets/NAME, or use an environment variable, with ?password-env=NAME",
        ));
    }
    let is_set = ["shards", "migrate"].contains(&parsed.scheme.as_str());
    // The options of a set are URLs, and others that are none.
    for (option, value) in parsed.clone().take_others(&[]) {
        if (is_set || option == RECORD) && value.contains(':') {
            refuse_password(&value)?;
        }
    }
    Ok(())
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
            let error = refuse_password(url).unwrap_err().to_string();
            assert!(error.contains("password-file"), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
        for url in [
            "redis://ann@h?password-file=/run/x",
            "redlock://h1:1,h2:2",
            "shards:?a=redis://h:1&b=redis://h:2&key={}&prefix=a/",
            "sqlite:/x",
            "redlock://h1,h2,h3?record=redis://h",
        ] {
            refuse_password(url).unwrap();
        }
    }
}
