//! What counts say beside each other: cycles per second, instructions per cycle, misses per access.

use std::{borrow::Cow, time::Duration};

use perf_event_open_sys::bindings as sys;
use profiler_events::Attr;

/// A number that people read off two counts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ratio {
    /// In this unit.
    pub(crate) value: f64,
    /// What it is.
    pub(crate) unit: Cow<'static, str>,
}

/// Where `config` of a cache event has what came of an access: a miss or not.
const CACHE_MISS: u64 = (sys::PERF_COUNT_HW_CACHE_RESULT_MISS as u64) << 16;
/// What is left of `config` where it has the PMU's type in its upper half.
const NUMBER: u64 = u32::MAX as u64;
/// Units of a rate, the largest first.
const RATES: [(f64, &str); 3] = [(1e6, "M/sec"), (1e3, "K/sec"), (1.0, "/sec")];

/// What an event's count says beside the others that were counted in this time; `None` if nothing.
pub(crate) fn ratio(
    event: &Attr,
    count: u64,
    others: &[(&Attr, u64)],
    elapsed: Duration,
) -> Option<Ratio> {
    let seconds = Some(elapsed.as_secs_f64()).filter(|it| *it > 0.0)?;
    if is_clock(event) {
        return Some(new(count as f64 / 1e9 / seconds, "CPUs used"));
    }
    if let Some(unit) = &event.unit {
        let scaled = count as f64 * event.scale.unwrap_or(1.0);
        return Some(new(scaled / seconds, format!("{unit}/sec")));
    }
    let cpu_ns = others.iter().find(|it| is_clock(it.0)).map(|it| it.1);
    if let Some(found) = by_meaning(event, count, others, cpu_ns) {
        return Some(found);
    }
    let seconds = cpu_ns.map_or(seconds, |ns| ns as f64 / 1e9);
    let rate = Some(count as f64 / seconds).filter(|it| it.is_finite())?;
    let (of, unit) = RATES.into_iter().find(|it| rate >= it.0).unwrap_or((1.0, "/sec"));
    Some(new(rate / of, unit))
}

/// Whether it counts the nanoseconds for which CPUs are used. When it is counted, its modifiers mean nothing.
pub(crate) fn is_clock(event: &Attr) -> bool {
    let clocks = [sys::PERF_COUNT_SW_CPU_CLOCK, sys::PERF_COUNT_SW_TASK_CLOCK];
    event.kind == sys::PERF_TYPE_SOFTWARE && clocks.iter().any(|it| u64::from(*it) == event.config)
}

/// What a hardware or cache event is set against.
fn by_meaning(
    event: &Attr,
    count: u64,
    others: &[(&Attr, u64)],
    cpu_ns: Option<u64>,
) -> Option<Ratio> {
    // Of the same PMU, in the same modes.
    let beside = |number: u64| {
        let is_it = |it: &Attr| {
            (it.kind, it.exclude, it.config & !NUMBER)
                == (event.kind, event.exclude, event.config & !NUMBER)
                && it.config & NUMBER == number
        };
        others.iter().find(|it| is_it(it.0)).map(|it| it.1).filter(|it| *it > 0)
    };
    let hardware = |number: u32| beside(number.into());
    let per = |other: u64| count as f64 / other as f64;
    let number = event.config & NUMBER;
    if event.kind == sys::PERF_TYPE_HW_CACHE {
        let accesses = beside(number & !CACHE_MISS).filter(|_| number & CACHE_MISS != 0)?;
        return Some(new(100.0 * per(accesses), "% of all of these accesses"));
    }
    if event.kind != sys::PERF_TYPE_HARDWARE {
        return None;
    }
    let percent = |of: u32, unit| Some(new(100.0 * per(hardware(of)?), unit));
    match u32::try_from(number).ok()? {
        sys::PERF_COUNT_HW_CPU_CYCLES => {
            cpu_ns.filter(|it| *it > 0).map(|cpu_ns| new(per(cpu_ns), "GHz"))
        }
        sys::PERF_COUNT_HW_INSTRUCTIONS => {
            Some(new(per(hardware(sys::PERF_COUNT_HW_CPU_CYCLES)?), "per cycle"))
        }
        sys::PERF_COUNT_HW_BRANCH_MISSES => {
            percent(sys::PERF_COUNT_HW_BRANCH_INSTRUCTIONS, "% of all branches")
        }
        sys::PERF_COUNT_HW_CACHE_MISSES => {
            percent(sys::PERF_COUNT_HW_CACHE_REFERENCES, "% of all cache references")
        }
        sys::PERF_COUNT_HW_STALLED_CYCLES_FRONTEND | sys::PERF_COUNT_HW_STALLED_CYCLES_BACKEND => {
            percent(sys::PERF_COUNT_HW_CPU_CYCLES, "% of all cycles")
        }
        _ => None,
    }
}

fn new(value: f64, unit: impl Into<Cow<'static, str>>) -> Ratio {
    Ratio { value, unit: unit.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_events::{Machine, Purpose, parse};

    fn attr(text: &str) -> Attr {
        let root = tempfile::tempdir().unwrap();
        let events = parse(text).unwrap();
        Machine::at(root.path()).resolve(&events, Purpose::Count).unwrap().remove(0).attrs.remove(0)
    }

    /// What the first of these says beside all, in two seconds.
    fn said(counts: &[(&str, u64)]) -> Option<(f64, String)> {
        let attrs: Vec<Attr> = counts.iter().map(|it| attr(it.0)).collect();
        let all: Vec<(&Attr, u64)> = attrs.iter().zip(counts.iter().map(|it| it.1)).collect();
        let said = ratio(all[0].0, all[0].1, &all, Duration::from_secs(2))?;
        Some((said.value, said.unit.into_owned()))
    }

    fn says(counts: &[(&str, u64)], value: f64, unit: &str) {
        let (found, of) = said(counts).unwrap();
        assert!((found - value).abs() < 1e-9 && of == unit, "{counts:?}: {found} {of}");
    }

    #[test]
    fn counts_are_set_against_what_people_compare_them_with() {
        const CLOCK: (&str, u64) = ("task-clock", 1_000_000_000);
        says(&[("task-clock", 3_000_000_000)], 1.5, "CPUs used");
        says(&[("cpu-clock", 4_000_000_000)], 2.0, "CPUs used");
        says(&[("cycles", 3_000_000_000), CLOCK], 3.0, "GHz");
        says(&[("instructions", 30), ("cycles", 20)], 1.5, "per cycle");
        says(&[("branch-misses", 1), ("branches", 50)], 2.0, "% of all branches");
        says(&[("cache-misses", 1), ("cache-references", 4)], 25.0, "% of all cache references");
        says(&[("stalled-cycles-backend", 1), ("cycles", 4)], 25.0, "% of all cycles");
        says(
            &[("LLC-load-misses", 1), ("LLC-stores", 9), ("LLC-loads", 2)],
            50.0,
            "% of all of these accesses",
        );
    }

    #[test]
    fn modes_are_not_mixed() {
        says(&[("instructions:u", 30), ("cycles", 10), ("cycles:u", 20)], 1.5, "per cycle");
        says(&[("instructions:u", 30), ("cycles", 10)], 15.0, "/sec");
        // But a clock counts all modes, whatever it is told.
        says(&[("task-clock:u", 3_000_000_000)], 1.5, "CPUs used");
    }

    #[test]
    fn other_counts_are_rates() {
        says(&[("page-faults", 4_000_000)], 2.0, "M/sec");
        says(&[("page-faults", 4_000)], 2.0, "K/sec");
        says(&[("page-faults", 4)], 2.0, "/sec");
        // Of the time that it runs, not of that in which it sleeps.
        says(&[("page-faults", 4), ("task-clock", 500_000_000)], 8.0, "/sec");
        assert_eq!(said(&[("page-faults", 4), ("task-clock", 0)]), None);
        says(&[("page-faults", 0)], 0.0, "/sec");
    }

    #[test]
    fn units_are_per_second_of_time_that_passes() {
        let energy = Attr { scale: Some(0.5), unit: Some("Joules".into()), ..Attr::new(9, 1) };
        let found = ratio(&energy, 40, &[], Duration::from_secs(2)).unwrap();
        assert_eq!((found.value, &*found.unit), (10.0, "Joules/sec"));
        assert_eq!(ratio(&energy, 40, &[], Duration::ZERO), None);
    }
}
