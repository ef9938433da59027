#![expect(clippy::float_cmp, reason = "a float holds these numbers as they are")]

use std::collections::{BTreeMap, BTreeSet};

use profiler_common::counter::Counter as Counted;
use profiler_profile::{
    ledger::{
        CpuEvent, EventCount, KernelSide, PerCpuCount, Scope, SourceSide, counters::PerCpuCounters,
        memory::Memory,
    },
    source::{Counts, Rate, Source},
};

use super::*;
use crate::windows::{Dropped, Fates};

/// A ledger of two events of one name and one of another, of which so many have fired and were delivered.
fn ledger(fired: u64, delivered: u64) -> Ledger {
    let side = |name: &'static str| {
        let mut values = [0; Counted::COUNT];
        values[Counted::Fired as usize] = fired;
        values[Counted::PeriodSum as usize] = fired;
        values[Counted::PeriodMax as usize] = 1;
        values[Counted::FilteredIdle as usize] = 3;
        values[Counted::RingFull as usize] = 2;
        let mut counters = PerCpuCounters::default();
        counters.set(0, values);
        let rate = Rate::Period(1);
        let count = EventCount { count: fired, enabled_ns: 10, running_ns: 10 };
        SourceSide {
            source: Source { slot: 0, name: name.into(), counts: Counts::Events, rate },
            skipped: 0,
            dithered: false,
            lowered: None,
            events: vec![CpuEvent {
                cpu: 0,
                count,
                events: 1,
                whole: true,
                refused: false,
                throttled: 0,
                idle: Duration::ZERO,
            }],
            counters,
        }
    };
    let kernel = KernelSide {
        sources: ["cycles", "cycles", "say \"hi\"\\"].map(side).into(),
        duration: Duration::from_secs(1),
        pids: Vec::new(),
        children: None,
        filters: Vec::new(),
        scope: Scope::default(),
        strangers: std::sync::Arc::new(PerCpuCount::new(3, 1)),
        sideband_lost: 0,
        sideband_malformed: 0,
        unwinding: Some(profiler_profile::ledger::unwinding::Unwinding::default()),
        memory: Memory::default(),
    };
    let count = PerCpuCount::new(3, 1);
    (0..3).for_each(|slot| (0..delivered).for_each(|_| count.add(slot, 0)));
    Ledger::so_far(&kernel, &count, &PerCpuCount::new(3, 1))
}

fn snapshot(fired: u64, delivered: u64) -> Snapshot {
    Snapshot {
        ledger: ledger(fired, delivered),
        cpu: Duration::from_millis(1500),
        parser_cpu: vec![(7, Duration::from_secs(1))],
        ebpf: Some((Duration::from_micros(5), 9)),
        ring_bytes: 4096,
    }
}

fn beside() -> Beside {
    let part = |name| Part { name, bytes: 1, limit_bytes: 2 };
    Beside {
        named: Named {
            user_ends: [("complete", 5)].into(),
            user_frames: [("named".to_owned(), 9), ("no symbol".to_owned(), 1)].into(),
            evicted_processes: 0,
            beyond_memory: 2,
        },
        windows: vec![
            Progress {
                name: "/tmp/a \"b\"".into(),
                fates: Fates {
                    written: 4,
                    bytes: 99,
                    dropped: Dropped { queue_full: 1, ..Dropped::default() },
                    ..Fates::default()
                },
                waiting: 1,
                busy_for: Duration::ZERO,
            },
            Progress {
                name: "otlp http://a".into(),
                fates: Fates {
                    is_remote: true,
                    written: 3,
                    spooled: 2,
                    retries: 7,
                    ..Fates::default()
                },
                waiting: 0,
                busy_for: Duration::ZERO,
            },
        ],
        queue: [part("samples"), part("stack_snapshots"), part("events")],
        began: 1.5e9,
    }
}

/// A reader of the format, by its specification and not by what writes it: the values by name and labels.
fn parse(text: &str) -> BTreeMap<(String, Vec<(String, String)>), f64> {
    let is_name = |it: &str| {
        let mut chars = it.chars();
        chars.next().is_some_and(|it| it.is_ascii_alphabetic() || it == '_')
            && chars.all(|it| it.is_ascii_alphanumeric() || it == '_')
    };
    assert!(text.ends_with('\n'));
    let (mut values, mut seen) = (BTreeMap::new(), BTreeSet::new());
    let (mut helped, mut family) = (String::new(), (String::new(), String::new()));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(seen.insert(name.to_owned()) && !help.is_empty(), "{line}");
            helped = name.to_owned();
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(name == helped && is_name(name), "{line}");
            // By convention.
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(kind == "counter" || kind == "gauge", "{line}");
            family = (name.to_owned(), kind.to_owned());
            continue;
        }
        let name: String = line.chars().take_while(|it| !" {".contains(*it)).collect();
        assert_eq!(name, family.0, "{line}");
        let mut rest = line[name.len()..].chars().peekable();
        let mut labels = Vec::new();
        while rest.next_if(|it| "{,".contains(*it)).is_some() {
            let label: String = std::iter::from_fn(|| rest.next_if(|it| *it != '=')).collect();
            assert!(is_name(&label), "{line}");
            assert_eq!((rest.next(), rest.next()), (Some('='), Some('"')), "{line}");
            let mut value = String::new();
            loop {
                match rest.next().unwrap() {
                    '"' => break,
                    '\\' => value.push(match rest.next().unwrap() {
                        'n' => '\n',
                        it => it,
                    }),
                    it => value.push(it),
                }
            }
            labels.push((label, value));
        }
        assert_eq!(rest.next_if_eq(&'}').is_some(), !labels.is_empty(), "{line}");
        let value: f64 = rest.collect::<String>().strip_prefix(' ').unwrap().parse().unwrap();
        assert!(values.insert((name, labels), value).is_none(), "twice: {line}");
    }
    values
}

#[test]
fn what_is_written_can_be_read_and_adds_up() {
    let mut totals = Totals::default();
    let text = write(&snapshot(20, 10), &beside(), &mut totals);
    let values = parse(&text);
    let sum = |name: &str, event: &str| -> f64 {
        let is_it = |labels: &[(String, String)]| labels.iter().any(|(_, value)| value == event);
        let of = values.iter().filter(|((it, labels), _)| it == name && is_it(labels));
        of.map(|(_, value)| value).sum()
    };
    for (event, each) in [("cycles", 2.0), ("say \"hi\"\\", 1.0)] {
        let [expected, delivered, filtered, lost] = ["expected", "delivered", "filtered", "lost"]
            .map(|it| sum(&format!("profiler_samples_{it}_total"), event));
        // Five of twenty wait, and have no fate yet.
        assert_eq!(
            [expected, delivered, filtered, lost],
            [15.0, 10.0, 3.0, 2.0].map(|it| it * each)
        );
    }
    let one = |name: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(it, value)| ((*it).to_owned(), (*value).to_owned()));
        values[&(name.to_owned(), labels.collect())]
    };
    assert_eq!(one("profiler_samples_waiting", &[]), 15.0);
    let fate = [("destination", "/tmp/a \"b\""), ("fate", "dropped")];
    assert_eq!(one("profiler_windows_total", &fate), 1.0);
    let full = [("destination", "/tmp/a \"b\""), ("reason", "queue_full")];
    assert_eq!(one("profiler_windows_dropped_total", &full), 1.0);
    let store = [("destination", "otlp http://a")];
    assert_eq!(one("profiler_windows_total", &[store[0], ("fate", "sent")]), 3.0);
    assert_eq!(one("profiler_windows_spooled", &store), 2.0);
    assert_eq!(one("profiler_send_retries_total", &store), 7.0);
    assert_eq!(
        one("profiler_samples_lost_total", &[("event", "cycles"), ("reason", "ring_full")]),
        4.0
    );
    assert_eq!(one("profiler_user_frames_total", &[("name", "no symbol")]), 1.0);
    assert_eq!(one("profiler_cpu_seconds_total", &[("process", "agent")]), 1.5);
    assert_eq!(one("profiler_samples_beyond_memory_total", &[]), 2.0);
    assert_eq!(one("profiler_ebpf_seconds_total", &[]), 5e-6);
}

#[test]
fn no_counter_goes_down_and_they_still_add_up() {
    let mut totals = Totals::default();
    let mut last: BTreeMap<_, f64> = BTreeMap::new();
    for (fired, delivered) in [(20, 10), (9, 4), (30, 12)] {
        let mut now = snapshot(fired, delivered);
        // An estimate.
        now.ledger.sources[0].total.lost.missed = fired;
        let values = parse(&write(&now, &beside(), &mut totals));
        let sum = |kind: &str| -> f64 {
            let name = format!("profiler_samples_{kind}_total");
            values.iter().filter(|((it, _), _)| *it == name).map(|(_, value)| value).sum()
        };
        assert_eq!(sum("expected"), sum("delivered") + sum("filtered") + sum("lost"));
        for (key, value) in values {
            let before = last.insert(key.clone(), value).unwrap_or(value);
            assert!(value >= before || !key.0.ends_with("_total"), "{key:?}: {before} {value}");
        }
    }
}

#[test]
fn the_time_of_parsers_that_have_ended_counts() {
    let mut totals = Totals::default();
    let s = Duration::from_secs;
    assert_eq!(totals.of_parsers(&[(1, s(5)), (2, s(1))]), s(6));
    assert_eq!(totals.of_parsers(&[(1, s(6)), (3, s(1))]), s(8));
    // The id is another's now.
    assert_eq!(totals.of_parsers(&[(1, s(1)), (3, s(1))]), s(9));
    assert_eq!(totals.of_parsers(&[]), s(9));
}
