//! Medians, percentiles, and the format of numbers in a table.

use std::time::Duration;

/// The median of `values`; `None` if there are none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    percentile(values, 50.0)
}

/// The value below which `percent` of `values` lie, by nearest rank; `None` if there are none.
pub(crate) fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// The median of the ratios of `ours` to `theirs` in the same round, so that a drift between rounds affects both.
pub(crate) fn paired_ratio(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
    median(&ratios)
}

/// A rate as text: `12,345`.
pub(crate) fn rate(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration as text with three digits: `75.3 us`, `1.20 ms`.
pub(crate) fn time(duration: Duration) -> String {
    let us = duration.as_secs_f64() * 1e6;
    let (value, unit) = match us {
        us if us < 1e3 => (us, "us"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let places = if value < 10.0 {
        2
    } else {
        usize::from(value < 100.0)
    };
    format!("{value:.places$} {unit}")
}

/// A number that may be missing, as text.
pub(crate) fn or_dash<T>(value: Option<T>, write: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".into(), write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!(median(&values), Some(3.0));
        assert_eq!(percentile(&values, 99.0), Some(5.0));
        assert_eq!(percentile(&values, 1.0), Some(1.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        assert_eq!(
            paired_ratio(&[8.0, 80.0, 9.0], &[10.0, 100.0, 10.0]),
            Some(0.8)
        );
    }

    #[test]
    fn figures_read_well() {
        assert_eq!(rate(1_234_567.4), "1,234,567");
        assert_eq!(rate(12.0), "12");
        assert_eq!(time(Duration::from_nanos(75_300)), "75.3 us");
        assert_eq!(time(Duration::from_micros(1200)), "1.20 ms");
        assert_eq!(time(Duration::from_secs(3)), "3.00 s");
    }
}
