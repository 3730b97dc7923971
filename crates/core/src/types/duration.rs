//! Durations as people write them, in URLs and on the command line.

use std::time::Duration;

/// The longest accepted duration: 100 years. A larger number is a mistake.
const LONGEST_SECONDS: f64 = 100.0 * 365.0 * 86_400.0;

/// Reads what [`parse_duration`](super::parse_duration) accepts. Otherwise it says what is wrong.
pub(super) fn read_duration(text: &str) -> Result<Duration, &'static str> {
    if text.starts_with('-') {
        return Err("it is negative; give a duration such as 30s, 500ms or 2m");
    }
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let Ok(number) = number.parse::<f64>() else {
        return Err(
            "it is not a duration; give one such as 30s, 500ms or 2m (a bare number counts seconds)",
        );
    };
    let seconds = match unit {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
        _ => return Err("it must be one number with one of the units ms, s, m, h, d"),
    };
    if seconds > LONGEST_SECONDS {
        return Err("it is longer than 100 years");
    }
    // Whole microseconds, so that 0.1s is exactly 100 ms.
    let duration = Duration::from_micros((seconds * 1e6).round() as u64);
    if duration.is_zero() && number > 0.0 {
        return Err("it is shorter than a microsecond");
    }
    Ok(duration)
}

/// A duration for people, in a unit that fits: `40ms`, `26.7s`, `2m05s`, `10 years`.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// assert_eq!(in_words(Duration::from_secs(125)), "2m05s");
/// ```
#[must_use]
pub fn in_words(duration: Duration) -> String {
    const YEAR: u64 = 365 * 86_400;
    // The bigger unit, and the smaller one unless it is zero.
    let two = |size: u64, big: &str, small_size: u64, small: &str| {
        let seconds = duration.as_secs();
        match seconds % size / small_size {
            0 => format!("{}{big}", seconds / size),
            rest => format!("{}{big}{rest:02}{small}", seconds / size),
        }
    };
    match duration.as_secs() {
        0 if duration.is_zero() => "0s".to_owned(),
        0 if duration.as_millis() == 0 => format!("{}us", duration.as_micros()),
        0 => format!("{}ms", duration.as_millis()),
        1..60 => {
            // Cut off, not rounded: a minute has sixty seconds.
            let tenths = duration.subsec_millis() / 100;
            match tenths {
                0 => format!("{}s", duration.as_secs()),
                tenths => format!("{}.{tenths}s", duration.as_secs()),
            }
        }
        60..7200 => two(60, "m", 1, "s"),
        7200..172_800 => two(3600, "h", 60, "m"),
        172_800..YEAR => two(86_400, "d", 3600, "h"),
        seconds => match seconds / YEAR {
            1 => "1 year".to_owned(),
            years => format!("{years} years"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_say_them() {
        for (text, said) in [
            ("0", "0s"),
            ("0.0005s", "500us"),
            ("40ms", "40ms"),
            ("1s", "1s"),
            ("26.712345s", "26.7s"),
            ("59.99s", "59.9s"),
            ("60s", "1m"),
            ("125s", "2m05s"),
            ("2h", "2h"),
            ("7260s", "2h01m"),
            ("180000s", "2d02h"),
            ("365d", "1 year"),
            ("3650d", "10 years"),
        ] {
            assert_eq!(in_words(read_duration(text).unwrap()), said);
        }
    }
}
