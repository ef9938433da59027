//! Sizes and times as people type them.

use regex::Regex;
use std::time::Duration;

/// A whole number of at least 1.
pub(crate) fn parse_positive(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err("not a whole number".into()),
    }
}

/// How often to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    /// So many times a second.
    Hz(u64),
    /// As often as the kernel allows.
    Max,
}

/// `99`, or `max`.
pub(crate) fn parse_frequency(text: &str) -> Result<Frequency, String> {
    if text == "max" { Ok(Frequency::Max) } else { parse_positive(text).map(Frequency::Hz) }
}

/// A regular expression; what is wrong with one is said with its place.
pub(crate) fn parse_pattern(text: &str) -> Result<Regex, String> {
    use regex_syntax::Error;
    let at = |column: usize, what: &dyn std::fmt::Display| format!("column {column}: {what}");
    match regex_syntax::parse(text) {
        Ok(_) => Regex::new(text).map_err(|error| error.to_string()),
        Err(Error::Parse(error)) => Err(at(error.span().start.column, error.kind())),
        Err(Error::Translate(error)) => Err(at(error.span().start.column, error.kind())),
        Err(error) => Err(error.to_string()),
    }
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessSpec {
    /// By its id.
    Pid(u32),
    /// By what it is called.
    Name(String),
}

/// `812`, or a name, which is no number.
pub(crate) fn parse_process(text: &str) -> Result<ProcessSpec, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        let name = Some(text).filter(|it| !it.is_empty() && !it.contains('/'));
        let name = name.ok_or("not the id or the name of a process")?;
        return Ok(ProcessSpec::Name(name.to_owned()));
    }
    parse_tid(text).map(ProcessSpec::Pid).map_err(|_| "not a process id".into())
}

/// The id of a thread: not zero.
pub(crate) fn parse_tid(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|&tid| tid > 0).ok_or_else(|| "not a thread id".into())
}

/// `10`, `10s`, `500ms`, `2m`, `1h`: more than nothing, at most a year.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 =
        digits.parse().map_err(|_| "not a time; try 10, 500ms, 2m, 1h or 7d".to_owned())?;
    let unit_ms = match text.get(digits.len()..).unwrap_or_default() {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 24 * 3_600_000,
        other => return Err(format!("unknown unit '{other}'; try ms, s, m, h or d")),
    };
    let year = Duration::from_secs(365 * 24 * 3600);
    match number.checked_mul(unit_ms).map(Duration::from_millis) {
        Some(Duration::ZERO) => Err("no time at all; leave it out to run until Ctrl-C".into()),
        Some(duration) if duration <= year => Ok(duration),
        _ => Err("more than a year".into()),
    }
}

/// `65536`, `64K`, `8M`, `1G`, with or without `iB`: powers of 1,024.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| "not a size; try 65536, 512K or 8M".to_owned())?;
    let unit = match text.get(digits.len()..).unwrap_or_default().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        other => return Err(format!("unknown unit '{other}'; try K, M or G")),
    };
    match number.checked_mul(unit) {
        Some(0) => Err("must be at least 1".into()),
        Some(bytes) => Ok(bytes),
        None => Err("larger than any memory".into()),
    }
}

/// `401126` or `0x401126`: always hexadecimal.
pub(crate) fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
        .ok_or_else(|| "not an address; try 401126 or 0x401126".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses() {
        assert_eq!(parse_address("401126"), Ok(0x40_1126));
        assert_eq!(parse_address("0xffffFFFFffffffff"), Ok(u64::MAX));
        for wrong in ["", "0x", "+1", "-1", "0x0x1", "10000000000000000", "main"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn processes() {
        assert_eq!(parse_process("812"), Ok(ProcessSpec::Pid(812)));
        for name in ["nginx", "7zip", "-1", "nginx: worker", "Zürich"] {
            assert_eq!(parse_process(name), Ok(ProcessSpec::Name(name.into())));
        }
        for wrong in ["", "0", "4294967296", "/bin/sh"] {
            assert!(parse_process(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(7 * 24 * 3600)));
        for wrong in ["", "0", "0s", "-1", "1.5", "s", "10 s", "10x", "9000h", "1e3", "ü"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("512K"), Ok(512 << 10));
        assert_eq!(parse_bytes("8MiB"), Ok(8 << 20));
        assert_eq!(parse_bytes("1g"), Ok(1 << 30));
        for wrong in ["", "0", "-1", "K", "8X", "99999999999G"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_value_or_an_error(text in ".{0,20}") {
            let _ = (parse_duration(&text), parse_bytes(&text));
        }

        #[test]
        fn milliseconds_come_back(ms in 1_u64..1_000_000_000) {
            prop_assert_eq!(parse_duration(&format!("{ms}ms")), Ok(Duration::from_millis(ms)));
        }
    }
}
