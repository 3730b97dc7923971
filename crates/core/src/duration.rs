//! Durations as people write them, in URLs and on the command line.

use std::time::Duration;

use crate::error::{Error, Result};

/// The longest duration taken: 100 years. Beyond that a number is a mistake.
const LONGEST_SECONDS: f64 = 100.0 * 365.0 * 86_400.0;

/// Reads `30s`, `500ms`, `1.5m`, `2h`, `1d`; a bare number counts seconds. Zero is taken.
///
/// # Errors
/// [`Error::Invalid`] naming `what` if it is negative, has no number, an unknown unit, or is longer than 100 years.
pub fn parse_duration(what: &'static str, text: &str) -> Result<Duration> {
    let refuse = |why: &str| Err(Error::invalid(what, text, why));
    if text.starts_with('-') {
        return refuse("it is negative; give a duration such as 30s, 500ms or 2m");
    }
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let Ok(number) = number.parse::<f64>() else {
        return refuse(
            "it is no duration; give one such as 30s, 500ms or 2m (a bare number counts seconds)",
        );
    };
    let seconds = match unit {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
        _ => return refuse("its unit is not one of ms, s, m, h, d"),
    };
    if seconds > LONGEST_SECONDS {
        return refuse("it is longer than 100 years");
    }
    // Whole microseconds, so that 0.1s is 100 ms and not a hair more.
    let duration = Duration::from_micros((seconds * 1e6).round() as u64);
    if duration.is_zero() && number > 0.0 {
        return refuse("it is shorter than a microsecond");
    }
    Ok(duration)
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
