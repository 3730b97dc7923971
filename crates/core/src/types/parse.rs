//! Names and durations from text, with an [`Error`] for other texts.

use std::str::FromStr;
use std::time::Duration;

use super::duration::read_duration;
use super::error::{Error, Result};
use super::name::LockName;

impl LockName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is empty, longer than 512 bytes, or has a control character.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert!(LockName::new("orders/7").is_ok());
    /// assert!(LockName::new("").is_err());
    /// ```
    pub fn new(name: &str) -> Result<Self> {
        Self::checked(name).map_err(|bad| Error::invalid("lock name", bad.shown, bad.why))
    }
}

impl TryFrom<&str> for LockName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl FromStr for LockName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

/// Reads `30s`, `500ms`, `1.5m`, `2h`, `1d`; a bare number counts seconds. Zero is accepted.
///
/// # Errors
/// [`Error::Invalid`] naming `what` if it is negative, has no number, an unknown unit, or is longer than 100 years.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # fn main() -> Result<()> {
/// let timeout = parse_duration("timeout", "1.5m")?;
/// assert_eq!(timeout, Duration::from_secs(90));
/// # Ok(())
/// # }
/// ```
pub fn parse_duration(what: &'static str, text: &str) -> Result<Duration> {
    read_duration(text).map_err(|why| Error::invalid(what, text, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        let ms = |text| parse_duration("ttl", text).map(|d| d.as_millis());
        for (text, want) in [
            ("30", 30_000),
            ("30s", 30_000),
            ("500ms", 500),
            ("1.5m", 90_000),
            ("0.1s", 100),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("0", 0),
        ] {
            assert_eq!(ms(text).unwrap(), want, "{text}");
        }
        for text in [
            "",
            "-1s",
            "s",
            "1w",
            "1.2.3",
            "1e9h",
            "9999999d",
            "0.0000001s",
            "nan",
            "1 s",
        ] {
            let error = ms(text).unwrap_err().to_string();
            assert!(error.contains("ttl") && error.contains(text), "{error}");
        }
    }
}
