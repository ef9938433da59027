//! Numbers in few cells.

use std::time::Duration;

use profiler_profile::source::{Rate, Source};

/// A part of something, `100%` at most wide.
pub(super) fn share(part: u64, of: u64) -> String {
    if of == 0 { "-".into() } else { percent(part as f64 / of as f64) }
}

/// A share of one.
pub(super) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent >= 99.95 { format!("{percent:.0}%") } else { format!("{percent:.1}%") }
}

/// A count in at most five cells.
pub(super) fn count(count: u64) -> String {
    let of = |unit: f64, letter: char| {
        let number = count as f64 / unit;
        if number < 99.95 { format!("{number:.1}{letter}") } else { format!("{number:.0}{letter}") }
    };
    match count {
        0..=9_999 => count.to_string(),
        10_000..=999_499 => of(1e3, 'k'),
        999_500..=999_499_999 => of(1e6, 'M'),
        _ => of(1e9, 'G'),
    }
}

/// So many in a time, a second.
pub(super) fn rate(of: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds <= 0.0 {
        return "-".into();
    }
    per_second(of as f64 / seconds)
}

/// So many a second, in at most seven cells.
pub(super) fn per_second(rate: f64) -> String {
    match rate {
        ..9.95 => format!("{rate:.1}/s"),
        ..9_999.5 => format!("{rate:.0}/s"),
        ..999_500.0 => format!("{:.0}k/s", rate / 1e3),
        _ => format!("{:.0}M/s", rate / 1e6),
    }
}

/// A time in at most six cells.
pub(super) fn short_time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..0.000_999_5 => format!("{:.0} µs", 1e6 * seconds),
        ..0.009_95 => format!("{:.1} ms", 1e3 * seconds),
        ..0.999_5 => format!("{:.0} ms", 1e3 * seconds),
        ..9.95 => format!("{seconds:.1} s"),
        ..9999.5 => format!("{seconds:.0} s"),
        _ => format!("{:.0} h", seconds / 3600.0),
    }
}

/// A time as people type it.
pub(super) fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..=99 => format!("{:.1} s", time.as_secs_f64()),
        100..=5999 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// How much of a CPU so many samples in a time are, if their source tells that: clocks count it, and where the kernel
/// keeps a frequency, it takes so many samples a second of a CPU that is in use.
pub(super) fn cpu_share(source: &Source, count: u64, value: u64, time: Duration) -> Option<f64> {
    let seconds = time.as_secs_f64();
    if seconds <= 0.0 {
        return None;
    }
    match source.rate {
        _ if source.counts.is_clock() => Some(value as f64 / 1e9 / seconds),
        Rate::Frequency(hz) if &*source.name == "cycles" => {
            Some(count as f64 / hz.max(1) as f64 / seconds)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_profile::source::Counts;

    #[test]
    fn numbers_take_few_cells() {
        let all =
            [0, 9_999, 10_000, 99_999, 999_499, 999_500, 12_345_678, 999_499_999, 5_000_000_000];
        let shown: Vec<String> = all.map(count).into();
        let expected = ["0", "9999", "10.0k", "100k", "999k", "1.0M", "12.3M", "999M", "5.0G"];
        assert_eq!(shown, expected);
        assert_eq!(
            (share(1, 3), share(3, 3), share(1, 0)),
            ("33.3%".into(), "100%".into(), "-".into())
        );
        let rates = [(0, 1), (3, 10), (1_570, 10), (99_994, 1), (1, 0)];
        let shown = rates.map(|(of, seconds)| rate(of, Duration::from_secs(seconds)));
        assert_eq!(shown, ["0.0/s", "0.3/s", "157/s", "100k/s", "-"]);
        let times = [0, 999, 1_000, 9_940, 10_000, 999_000, 1_500_000, 60_000_000, 36_000_000_000];
        let shown = times.map(|it| short_time(Duration::from_micros(it)));
        let expected =
            ["0 µs", "999 µs", "1.0 ms", "9.9 ms", "10 ms", "999 ms", "1.5 s", "60 s", "10 h"];
        assert_eq!(shown, expected);
        assert_eq!(time(Duration::from_millis(9_950)), "9.9 s");
        assert_eq!(time(Duration::from_secs(3_599)), "59 min 59 s");
        assert_eq!(time(Duration::from_secs(7_260)), "2 h 1 min");
    }

    #[test]
    fn only_what_is_in_step_with_time_tells_a_share_of_cpus() {
        let source =
            |name: &'static str, counts, rate| Source { slot: 0, name: name.into(), counts, rate };
        let time = Duration::from_secs(2);
        let clock = source("cpu-clock", Counts::Clock, Rate::Frequency(99));
        assert_eq!(cpu_share(&clock, 9, 1_000_000_000, time), Some(0.5));
        let cycles = source("cycles", Counts::Events, Rate::Frequency(100));
        assert_eq!(cpu_share(&cycles, 50, 1, time), Some(0.25));
        let faults = source("page-faults", Counts::Events, Rate::Frequency(100));
        let fixed = source("cycles", Counts::Events, Rate::Period(100));
        assert_eq!(cpu_share(&faults, 50, 1, time).or(cpu_share(&fixed, 50, 1, time)), None);
        assert_eq!(cpu_share(&clock, 9, 9, Duration::ZERO), None);
    }
}
