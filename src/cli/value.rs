//! Values as they are written on the command line: durations, sizes, counts, words, names.
//!
//! Pure. An error says what would be right; nothing is rounded or clamped.

use std::net::SocketAddr;
use std::time::Duration;

/// The units of [`duration`] and their nanoseconds, longest spelling first.
const UNITS: [(&str, u128); 6] = [
    ("ms", 1_000_000),
    ("us", 1_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Ten years: longer is taken for a slip.
const DURATION_MAX: Duration = Duration::from_secs(3650 * 86_400);

/// Kafka's requests carry timeouts as ms in 32 bits with a sign.
const TIMEOUT_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// `10ms`, `2s`, `1.5s`, `5m`, `1h`, `7d`, `250us`, `0`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let wrong = || format!("'{text}' is not a duration: write it as 10ms, 2s, 1.5s or 5m");
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || number.ends_with('.') {
        return Err(wrong());
    }
    if unit.is_empty() {
        return Err(format!("'{text}' has no unit: write {text}ms, {text}s or {text}m"));
    }
    let Some((_, unit_ns)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("'{text}' has an unknown unit: write it as 10ms, 2s, 1.5s or 5m"));
    };
    if whole.len() > 18 || fraction.len() > 9 {
        return Err(format!("'{text}' has too many digits: write it as 10ms, 2s, 1.5s or 5m"));
    }
    let whole: u128 = whole.parse().map_err(|_| wrong())?;
    let mut ns = whole * unit_ns;
    if !fraction.is_empty() {
        let digits: u128 = fraction.parse().map_err(|_| wrong())?;
        let scale = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| wrong())?);
        if !(digits * unit_ns).is_multiple_of(scale) {
            return Err(format!("'{text}' is finer than a nanosecond"));
        }
        ns += digits * unit_ns / scale;
    }
    if ns > DURATION_MAX.as_nanos() {
        return Err(format!("'{text}' is longer than ten years"));
    }
    u64::try_from(ns).map(Duration::from_nanos).map_err(|_| wrong())
}

/// A [`duration`] that fits Kafka's 32-bit milliseconds.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    if duration > TIMEOUT_MAX {
        return Err(format!("'{text}' is longer than 24d, the most that Kafka's requests can carry"));
    }
    Ok(duration)
}

/// A [`timeout`] of at least 1 ms.
pub(super) fn timeout_not_zero(text: &str) -> Result<Duration, String> {
    let duration = timeout(text)?;
    if duration < Duration::from_millis(1) {
        return Err(format!("'{text}' is too short: write 1ms or more"));
    }
    Ok(duration)
}

/// A [`timeout`] that is 0 or at least 1 ms: the time between two lines or two tries.
pub(super) fn period(text: &str) -> Result<Duration, String> {
    let duration = timeout(text)?;
    if !duration.is_zero() && duration < Duration::from_millis(1) {
        return Err(format!("'{text}' is too short: write 1ms or more, or 0 for none"));
    }
    Ok(duration)
}

/// The milliseconds of a property such as `session.timeout.ms`.
pub(super) fn milliseconds(text: &str) -> Result<Duration, String> {
    whole(text, 0, i32::MAX as u64).map(Duration::from_millis)
}

/// Milliseconds of at least 1.
pub(super) fn milliseconds_not_zero(text: &str) -> Result<Duration, String> {
    whole(text, 1, i32::MAX as u64).map(Duration::from_millis)
}

/// `64KiB`, `32MiB`, `1GiB`, plain bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(format!("'{text}' is not a size: write it as 64KiB, 32MiB, 1GiB or plain bytes")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{text}' is not a size: write it as 64KiB, 32MiB, 1GiB or plain bytes"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is larger than any memory"))
}

/// A [`size`] within `min..=max` bytes that fits 32 bits.
pub(super) fn size_within(text: &str, min: u32, max: u32) -> Result<u32, String> {
    match u32::try_from(size(text)?) {
        Ok(bytes) if (min..=max).contains(&bytes) => Ok(bytes),
        _ => Err(format!("'{text}' is out of range: write a size from {min} to {max} bytes")),
    }
}

/// A whole number within `min..=max`.
pub(super) fn whole(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None };
    match number {
        Some(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("'{text}' is not a whole number from {min} to {max}")),
    }
}

/// A [`whole`] number that fits 32 bits.
pub(super) fn whole_u32(text: &str, min: u32, max: u32) -> Result<u32, String> {
    let number = whole(text, min.into(), max.into())?;
    u32::try_from(number).map_err(|_| format!("'{text}' is too large"))
}

/// One of a few words.
pub(super) fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    words.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        format!("'{text}' is not one of {}", names.join(", "))
    })
}

/// A topic name that a broker would take.
pub(super) fn topic(text: &str) -> Result<String, String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.is_empty() || text.len() > 249 || text == "." || text == ".." || !text.chars().all(legal) {
        return Err(format!("'{text}' is not a topic name: write 1 to 249 letters, digits, '.', '_' or '-'"));
    }
    Ok(text.to_owned())
}

/// A group, client or instance id: anything but nothing.
pub(super) fn id(text: &str) -> Result<String, String> {
    // 32767 bytes is the longest string of the oldest request layouts.
    if text.is_empty() || text.len() > 32_767 {
        return Err("it must have 1 to 32767 bytes".to_owned());
    }
    Ok(text.to_owned())
}

/// Where to serve metrics.
pub(super) fn listen(text: &str) -> Result<SocketAddr, String> {
    let text = text.replace("localhost:", "127.0.0.1:");
    text.parse().map_err(|_| format!("'{text}' is not an address: write IP:PORT, such as 127.0.0.1:9400"))
}

/// `@MS`: milliseconds since 1970.
pub(super) fn timestamp(text: &str) -> Option<i64> {
    let number = text.strip_prefix('@')?;
    if number.bytes().all(|b| b.is_ascii_digit()) { number.parse().ok() } else { None }
}

/// Drops later repetitions.
pub(super) fn without_repetition<T: PartialEq>(items: Vec<T>) -> Vec<T> {
    let mut kept: Vec<T> = Vec::with_capacity(items.len());
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_that_are_right() {
        for (text, ns) in [
            ("0", 0),
            ("0ms", 0),
            ("10ms", 10_000_000),
            ("2s", 2_000_000_000),
            ("1.5s", 1_500_000_000),
            ("5m", 300_000_000_000),
            ("1h", 3_600_000_000_000),
            ("7d", 604_800_000_000_000),
            ("250us", 250_000),
            ("0.25ms", 250_000),
            ("0.000000001s", 1),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
    }

    #[test]
    fn durations_that_are_wrong_say_what_to_write() {
        for text in [
            "",
            "ms",
            "-1s",
            "+1s",
            "1,5s",
            ".5s",
            "1.s",
            "1..5s",
            "1 s",
            "1S",
            "1sec",
            "10",
            "00",
            "1.5",
            "9999999d",
            "0.0000000001s",
            "99999999999999999999s",
            "١s",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(duration("10").unwrap_err(), "'10' has no unit: write 10ms, 10s or 10m");
        assert!(timeout("25d").is_err());
        assert!(timeout("24d").is_ok());
        assert!(timeout_not_zero("0").is_err());
        assert!(timeout_not_zero("999us").is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([0-9.]{0,25}(ms|s|KiB|GiB|@|..)?|.{0,20})") {
            let _ = (duration(&text), timeout(&text), size(&text), whole(&text, 0, u64::MAX), topic(&text));
            let _ = (timestamp(&text), super::super::address::list(&text));
        }

        #[test]
        fn what_is_written_in_whole_units_is_read(number in 0u64..=86_400, unit in 0usize..4) {
            let (name, ns) = UNITS[unit];
            let expected = Duration::from_nanos(number * u64::try_from(ns).unwrap());
            proptest::prop_assert_eq!(duration(&format!("{number}{name}")), Ok(expected));
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("100", 100), ("64KiB", 65_536), ("32MiB", 33_554_432), ("1GiB", 1 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "KiB", "64K", "64KB", "64kib", "1.5MiB", "-1", "1 MiB", "99999999999GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(size_within("5GiB", 1, u32::MAX).is_err());
        assert_eq!(size_within("1KiB", 1, 1024), Ok(1024));
    }

    #[test]
    fn counts_words_and_names() {
        assert_eq!(whole("8", 1, 8), Ok(8));
        for text in ["", "0", "9", "+8", "8.0", "8x", " 8", "18446744073709551616"] {
            assert!(whole(text, 1, 8).is_err(), "{text}");
        }
        assert_eq!(word("b", &[("a", 1), ("b", 2)]), Ok(2));
        assert_eq!(word("c", &[("a", 1), ("b", 2)]), Err("'c' is not one of a, b".to_owned()));
        assert!(topic("orders.v1_x-2").is_ok());
        for text in ["", ".", "..", "a b", "a/b", "é", &"x".repeat(250)] {
            assert!(topic(text).is_err(), "{text}");
        }
        assert_eq!(timestamp("@1700000000000"), Some(1_700_000_000_000));
        for text in ["@", "@-1", "1", "@1x", "@99999999999999999999"] {
            assert_eq!(timestamp(text), None, "{text}");
        }
    }
}
