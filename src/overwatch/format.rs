//! Numbers, durations and names for people.

pub use crate::counted::{counted, thousands as count};

/// Formats seconds: `4.2s`, `42s`, `3m 07s`, `2h 05m`, `3d 4h`.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    if seconds < 10.0 {
        return format!("{seconds:.1}s");
    }
    let whole = seconds as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole}s"),
        (0, 0, _) => format!("{minutes}m {:02}s", whole % 60),
        (0, _, _) => format!("{hours}h {minutes:02}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Formats a short time: `85ms`, `4.2s`.
pub fn latency(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.01 => format!("{:.1}ms", seconds * 1e3),
        seconds if seconds < 1.0 => format!("{:.0}ms", seconds * 1e3),
        seconds => duration(seconds),
    }
}

/// Formats a measured value with about three significant digits: `0.512`, `12.3`, `4,096`, `1.2e-4`.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !size.is_finite() => "-".into(),
        size if size < 1e-3 => format!("{value:.1e}"),
        size if size < 10.0 => format!("{value:.3}"),
        size if size < 100.0 => format!("{value:.1}"),
        size if size < 1e7 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", count(size.round() as u64))
        }
        _ => format!("{value:.2e}"),
    }
}

/// Formats a large count: `65k`, `494M`, `7.6B`.
pub fn magnitude(count: u64) -> String {
    let count = count as f64;
    let (value, unit) = match count {
        count if count < 1e3 => (count, ""),
        count if count < 1e6 => (count / 1e3, "k"),
        count if count < 1e9 => (count / 1e6, "M"),
        count => (count / 1e9, "B"),
    };
    match value {
        value if value < 10.0 && !unit.is_empty() => format!("{value:.1}{unit}"),
        value => format!("{value:.0}{unit}"),
    }
}

/// Formats bytes: `512 MiB`, `3.4 GiB`.
pub fn bytes(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    match mib {
        mib if mib < 1024.0 => format!("{mib:.0} MiB"),
        mib => format!("{:.1} GiB", mib / 1024.0),
    }
}

/// Formats a share of 1: `42%`.
pub fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Returns the first part of an identifier, enough to distinguish a few.
pub fn short(identifier: &str) -> String {
    identifier.chars().take(8).collect()
}

/// Truncates a name at its start, since the names of a data set differ at their ends.
pub fn ending(name: &str, width: u16) -> String {
    let cut = name.chars().count().saturating_sub(width.into());
    match cut {
        0 => name.to_owned(),
        _ => format!("…{}", name.chars().skip(cut + 1).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_for_people() {
        for (seconds, want) in [
            (-1.0, "0.0s"),
            (4.23, "4.2s"),
            (42.9, "42s"),
            (187.0, "3m 07s"),
            (7500.0, "2h 05m"),
            (273_600.0, "3d 4h"),
        ] {
            assert_eq!(duration(seconds), want);
        }
        for (seconds, want) in [(0.0042, "4.2ms"), (0.085, "85ms"), (4.2, "4.2s"), (70.0, "1m 10s")] {
            assert_eq!(latency(seconds), want);
        }
        for (value, want) in [
            (0.0, "0"),
            (-0.5123, "-0.512"),
            (0.000123, "1.2e-4"),
            (12.34, "12.3"),
            (4096.4, "4,096"),
            (-1234567.0, "-1,234,567"),
            (1e12, "1.00e12"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(number(value), want);
        }
        for (count, want) in [
            (7, "7"),
            (65_100, "65k"),
            (1_500, "1.5k"),
            (494_000_000, "494M"),
            (7_600_000_000, "7.6B"),
        ] {
            assert_eq!(magnitude(count), want);
        }
        assert_eq!((bytes(512 << 20), bytes(3 << 30)), ("512 MiB".into(), "3.0 GiB".into()));
        assert_eq!(percent(0.424), "42%");
    }

    #[test]
    fn a_long_name_shows_its_end() {
        for (width, shown) in [
            (20, "reverse_text_1203"),
            (17, "reverse_text_1203"),
            (7, "…t_1203"),
            (1, "…"),
        ] {
            assert_eq!(ending("reverse_text_1203", width), shown);
        }
        assert_eq!(ending("größe_7", 4), "…e_7");
        assert_eq!(short("3f1c9a52-aaaa"), "3f1c9a52");
    }
}
