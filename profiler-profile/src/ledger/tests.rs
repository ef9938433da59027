//! The account of whole runs.

use std::{sync::Arc, time::Duration};

use super::{counters::PerCpuCounters, *};
use crate::source::{Counts, Rate, Source};
use profiler_common::counter::Counter;

fn source(name: &'static str, counts: Counts, rate: Rate) -> Source {
    Source { slot: 0, name: name.into(), counts, rate }
}

fn counted(count: u64) -> EventCount {
    EventCount { count, enabled_ns: count, running_ns: count }
}

/// The ledger of a second in which the event of each CPU was enabled for so long.
pub(crate) fn ledger_of(enabled: impl IntoIterator<Item = (Duration, bool)>) -> Ledger {
    let events = enabled.into_iter().zip(0..).map(|((enabled, whole), cpu)| {
        let enabled_ns = enabled.as_nanos().try_into().unwrap();
        let count = EventCount { count: 0, enabled_ns, running_ns: enabled_ns };
        let (refused, idle) = (false, Duration::ZERO);
        CpuEvent { cpu, count, events: 1, whole, refused, throttled: 0, idle }
    });
    let kernel = KernelSide {
        sources: vec![SourceSide {
            source: source("cycles", Counts::Events, Rate::Frequency(99)),
            skipped: 0,
            dithered: false,
            lowered: None,
            events: events.collect(),
            counters: PerCpuCounters::default(),
        }],
        duration: Duration::from_secs(1),
        pids: Vec::new(),
        children: None,
        filters: Vec::new(),
        scope: Scope::default(),
        strangers: Arc::new(PerCpuCount::new(1, 0)),
        sideband_lost: 0,
        sideband_malformed: 0,
        unwinding: None,
        memory: Memory::default(),
    };
    Ledger::settle(&kernel, &PerCpuCount::new(1, 0), &PerCpuCount::new(1, 0))
}

#[test]
fn a_cpu_that_was_offline_was_not_sampled() {
    let not_sampled = |ledger: &Ledger| -> Vec<u64> {
        ledger.per_cpu.iter().map(|it| it.account.not_sampled_ns).collect()
    };
    let ms = |ms, whole| (Duration::from_millis(ms), whole);
    // The kernel's clock goes slower than ours, and the event of CPU 3 was enabled a little later.
    let ledger = ledger_of([ms(999, true), ms(249, false), ms(0, false), ms(998, true)]);
    assert_eq!(not_sampled(&ledger), [0, 750_000_000, 999_000_000, 0]);
    assert_eq!(ledger.total.not_sampled_ns, 1_749_000_000);
    assert_eq!(not_sampled(&ledger_of([ms(400, false)])), [600_000_000]);
    let table = ledger.table(false);
    assert!(table.contains("\nCPU 1 was not sampled for 0.75 s: offline\n"), "{table}");
    assert!(table.contains("\nCPU 2 was not sampled for 1.00 s: offline\n"), "{table}");
    assert!(!table.contains("CPU 0"), "{table}");

    let mut refused = ledger;
    refused.per_cpu[2].refused = true;
    let table = refused.table(false);
    assert!(table.contains("\nCPU 1 was not sampled for 0.75 s: offline\n"), "{table}");
    let line = "\nCPU 2 was not sampled for 1.00 s: no event could be opened\n";
    assert!(table.contains(line), "{table}");

    let table = ledger_of([ms(500, false); 40]).table(false);
    let line = "\nCPU 0-39 were not sampled for up to 0.50 s: offline\n";
    assert!(table.contains(line), "{table}");
}

#[test]
fn every_sample_has_one_fate() {
    let delivered_samples = PerCpuCount::new(1, 1);
    let behind = PerCpuCount::new(1, 1);
    (0..4).for_each(|_| delivered_samples.add(0, 0));
    behind.add(0, 0);
    let mut counters = [0; Counter::COUNT];
    counters[Counter::Fired as usize] = 12;
    counters[Counter::PeriodSum as usize] = 12 * 100;
    counters[Counter::FilteredIdle as usize] = 2;
    counters[Counter::FilteredSelf as usize] = 1;
    counters[Counter::FilteredPid as usize] = 1;
    let strangers = PerCpuCount::new(1, 1);
    strangers.add(0, 0);
    counters[Counter::RingFull as usize] = 1;
    let kernel = KernelSide {
        sources: vec![SourceSide {
            source: source("cpu-clock", Counts::Clock, Rate::Period(100)),
            skipped: 0,
            dithered: false,
            lowered: None,
            events: vec![CpuEvent {
                cpu: 0,
                count: counted(14 * 100),
                events: 1,
                whole: true,
                refused: false,
                throttled: 0,
                // Three periods, of which the event has seen two.
                idle: Duration::from_nanos(300),
            }],
            counters: PerCpuCounters::from(vec![counters]),
        }],
        duration: Duration::from_secs(1),
        pids: Vec::new(),
        children: None,
        filters: Vec::new(),
        scope: Scope::default(),
        strangers: Arc::new(strangers),
        sideband_lost: 3,
        sideband_malformed: 2,
        unwinding: None,
        memory: Memory::default(),
    };
    let ledger = Ledger::settle(&kernel, &delivered_samples, &behind);
    let Account { expected, fired, delivered, filtered, lost, .. } = ledger.total;
    assert_eq!((expected, fired, delivered, filtered.total()), (14, 12, 4, 6));
    // Left out by the program, and by the agent.
    assert_eq!((filtered.asleep, filtered.pid), (1, 2));
    let expected_loss =
        Lost { missed: 1, ring_full: 1, agent_behind: 1, undelivered: 1, ..Lost::default() };
    assert_eq!(lost, expected_loss);
    assert_eq!(expected, delivered + filtered.total() + lost.total());
    // While the run goes on, what has no fate yet only waits.
    let so_far = Ledger::so_far(&kernel, &delivered_samples, &behind);
    assert_eq!((so_far.waiting, so_far.total.lost.undelivered), (Some(1), 0));
    assert_eq!(so_far.total.lost.total() + 1, lost.total());
    let table = so_far.table(false);
    assert!(table.contains(" CPUs, so far\n"), "{table}");
    assert!(table.contains("\n1 samples are waiting to be named and written\n"), "{table}");
    let mut in_file = ledger.clone();
    in_file.user_ends = [("complete", 3), ("no_unwind_info", 1), ("memory_gone", 2)].into();
    assert_eq!(
        in_file.remarks(),
        [
            "cpu-clock every 100 for 1.00 s on 1 CPUs",
            "14 samples expected, 4 delivered, 6 filtered (idle 2, asleep 1, other process 2, \
             self 1), 4 lost (missed by the kernel 1, ring full 1, agent behind 1, undelivered 1)",
            "user stacks: 75.0 % complete; no unwind info 1",
            "2 user stacks were gone already: their processes were in exec or exit",
            "3 records of mappings were lost: names may be missing",
            "2 records of mappings could not be read: names may be missing",
        ]
    );
    // The one that was missed may be that in which the run has begun or ended.
    assert_eq!((ledger.lost_by_us(), ledger.lost_in_all()), (3, 3));
    let mut more = ledger.clone();
    more.per_cpu[0].account.lost.missed = 3;
    assert_eq!((more.lost_by_us(), more.lost_in_all()), (3, 5));
    let table = ledger.table(false);
    assert!(table.contains("ring full 1"), "{table}");
    assert!(table.contains("self 1"), "{table}");
    let mut selected = ledger.clone();
    selected.filters = vec!["--comm a*".into(), "--uid 7".into()];
    let table = selected.table(false);
    let line = "\nwhat matches --comm a*, --uid 7 has 7 samples: 4 delivered, 3 lost\n";
    assert!(table.contains(line) && table.contains("\nthe whole machine:\n"), "{table}");
    selected.scope = Scope::Cgroups;
    let table = selected.table(false);
    assert!(table.contains("\nthese cgroups on each CPU:\n"), "{table}");
    let mut of_family = ledger.clone();
    of_family.scope = Scope::Tasks;
    of_family.pids = vec![7];
    of_family.children = Some(Children { followed: 5, not_followed: 1 });
    let table = of_family.table(false);
    let line = "\nprocess 7 and 5 descendants: 4 samples delivered, at most 3 lost\nthese tasks on each CPU:\n";
    assert!(table.contains(line), "{table}");
    assert!(table.contains("\n1 descendants were not sampled, "), "{table}");
    assert!(table.contains("\nrecords of forks may be among them"), "{table}");
    let table = ledger.table(false);
    // No sample is lost by it.
    let line = "\n3 records of mappings were lost: names may be missing\n";
    assert!(table.contains(line) && ledger.sideband_lost == 3, "{table}");
    let line = "\n2 records of mappings could not be read: names may be missing\n";
    assert!(table.contains(line) && ledger.sideband_malformed == 2, "{table}");
}

/// A source whose event has fired so often on CPU 0, and counted `missed` periods more.
fn side(name: &'static str, fired: u64, missed: u64) -> SourceSide {
    let mut counters = [0; Counter::COUNT];
    counters[Counter::Fired as usize] = fired;
    counters[Counter::PeriodSum as usize] = 100 * fired;
    let event = CpuEvent {
        cpu: 0,
        count: counted(100 * (fired + missed)),
        events: 1,
        whole: true,
        refused: false,
        throttled: 0,
        idle: Duration::ZERO,
    };
    SourceSide {
        source: source(name, Counts::Events, Rate::Period(100)),
        skipped: 0,
        dithered: false,
        lowered: None,
        events: vec![event],
        counters: PerCpuCounters::from(vec![counters]),
    }
}

#[test]
fn each_source_has_an_account_and_all_have_one() {
    let (delivered, behind) = (PerCpuCount::new(2, 1), PerCpuCount::new(2, 1));
    (0..5).for_each(|_| delivered.add(0, 0));
    (0..2).for_each(|_| delivered.add(1, 0));
    behind.add(1, 0);
    let mut kernel = KernelSide {
        sources: vec![side("page-faults", 5, 0), side("cycles", 3, 4)],
        duration: Duration::from_secs(1),
        pids: Vec::new(),
        children: None,
        filters: Vec::new(),
        scope: Scope::default(),
        strangers: Arc::new(PerCpuCount::new(2, 1)),
        sideband_lost: 0,
        sideband_malformed: 0,
        unwinding: None,
        memory: Memory::default(),
    };
    let ledger = Ledger::settle(&kernel, &delivered, &behind);
    let counts = |it: &Account| (it.expected, it.delivered, it.lost.total());
    let of_sources: Vec<_> = ledger.sources.iter().map(|it| counts(&it.total)).collect();
    assert_eq!(of_sources, [(5, 5, 0), (7, 2, 5)]);
    assert_eq!(counts(&ledger.total), (12, 7, 5));
    assert_eq!((ledger.per_cpu.len(), counts(&ledger.per_cpu[0].account)), (1, (12, 7, 5)));
    assert_eq!((ledger.event.as_str(), ledger.period), ("page-faults,cycles", Some(100)));
    let table = ledger.table(false);
    let title = "\npage-faults every 100 and cycles every 100 for 1.00 s on 1 CPUs\n";
    assert!(table.starts_with(title), "{table}");
    assert_eq!(table.matches("\ntotal").count() + table.matches("\n  total").count(), 2, "{table}");
    assert!(table.contains("\ncycles every 100:\n"), "{table}");
    let json = serde_json::to_value(&ledger).unwrap();
    assert_eq!(json["sources"][1]["lost"]["agent_behind"], 1, "{json}");
    assert_eq!(json.get("skipped"), None);
    kernel.sources[1].skipped = 9;
    let ledger = Ledger::settle(&kernel, &delivered, &behind);
    assert!(ledger.table(false).contains("\ncycles: the kernel skipped 9 hits"));
    let json = serde_json::to_value(&ledger).unwrap();
    assert_eq!((&json["skipped"], &json["sources"][1]["skipped"]), (&9.into(), &9.into()));

    // A single one is as ever.
    kernel.sources.truncate(1);
    let json = serde_json::to_value(Ledger::settle(&kernel, &delivered, &behind)).unwrap();
    assert_eq!((json.get("sources"), &json["event"]), (None, &"page-faults".into()));
}
