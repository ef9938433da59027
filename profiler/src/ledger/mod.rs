//! Every sample's fate: `expected = delivered + filtered + lost`, on each CPU and in total.
//!
//! Three parties count, each on its own: the kernel how often the event should have fired, the eBPF
//! program what it did with each run, the agent what it printed. What does not add up shows as
//! [`Lost::missed`] or [`Lost::undelivered`].

mod missed;
pub mod naming;
mod table;
pub mod unwinding;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use profiler_common::counter::Counter;
use serde::Serialize;

use self::{
    missed::{Periods, missed},
    naming::FileNaming,
    unwinding::Unwinding,
};
use crate::{
    bpf::counters::PerCpuCounters,
    perf::{attr::Rate, event::EventSpec, open::EventCount},
};

/// Samples counted by CPU number, from any thread.
#[derive(Debug)]
pub struct PerCpuCount(Vec<AtomicU64>);

impl PerCpuCount {
    /// Zero for each CPU below `cpus`.
    #[must_use]
    pub fn new(cpus: usize) -> Self {
        Self((0..cpus).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts one sample of a CPU.
    pub fn add(&self, cpu: u32) {
        if let Some(count) = usize::try_from(cpu).ok().and_then(|cpu| self.0.get(cpu)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets every count to zero again.
    pub fn clear(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    pub(crate) fn get(&self, cpu: u32) -> u64 {
        let count = usize::try_from(cpu).ok().and_then(|cpu| self.0.get(cpu));
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// What the kernel side has counted when the events are disabled and the ring is empty.
#[derive(Debug)]
pub struct KernelSide {
    /// The event that was sampled.
    pub event: EventSpec,
    /// How often.
    pub rate: Rate,
    /// For how long the events were enabled.
    pub duration: Duration,
    /// Whether the idle task was asked for.
    pub keep_idle: bool,
    /// The events of each CPU.
    pub events: Vec<CpuEvent>,
    /// What the eBPF program counted.
    pub counters: PerCpuCounters,
    /// Records of mappings that did not fit into their rings, or that a thread was too far behind to be
    /// told of.
    pub sideband_lost: u64,
    /// Records of the sideband that could not be read.
    pub sideband_malformed: u64,
    /// What the walk by unwind information had; `None` without such a walk.
    pub unwinding: Option<Unwinding>,
}

/// What one CPU's events have done: one, unless the CPU was offline or refused.
#[derive(Clone, Copy, Debug)]
pub struct CpuEvent {
    /// The CPU.
    pub cpu: u32,
    /// What they have counted together.
    pub count: EventCount,
    /// How many there were.
    pub events: u64,
    /// Whether it was one, from the start to the end.
    pub whole: bool,
    /// Whether one could not be opened while the CPU was online.
    pub refused: bool,
    /// How often the kernel has throttled them.
    pub throttled: u64,
    /// For how long the CPU was idle meanwhile.
    pub idle: Duration,
}

/// Samples that were left out because the user asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Filtered {
    /// The idle task.
    pub idle: u64,
    /// The idle task, too, but the event did not even fire: on some virtual machines the timer
    /// behind `cpu-clock` stands still while a CPU sleeps. Told from [`Lost::missed`] by the time
    /// that the CPU was idle.
    pub asleep: u64,
    /// Another process than the ones asked for.
    pub pid: u64,
}

/// Samples that should be there and are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Whole periods of the event passed in which the program never ran: its timer was late, the event
    /// was throttled or not on the PMU, or another eBPF program was running.
    pub missed: u64,
    /// The ring between kernel and agent was full.
    pub ring_full: u64,
    /// The ring's lock was taken by another CPU.
    pub ring_contended: u64,
    /// The program's scratch on this CPU was in use.
    pub scratch_busy: u64,
    /// The agent's queue was full: symbolizing or writing did not keep up.
    pub agent_behind: u64,
    /// Read from the ring, but not printed, since the output failed.
    pub undelivered: u64,
}

/// The account of one CPU, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Samples that the kernel's count of the event stands for.
    pub expected: u64,
    /// How often the program ran; the rest of `expected` was missed.
    pub fired: u64,
    /// Samples printed: written without an error.
    pub delivered: u64,
    /// Samples left out on request.
    pub filtered: Filtered,
    /// Samples lost.
    pub lost: Lost,
    /// How often the kernel has throttled the event.
    pub throttled: u64,
    /// For how long the CPU had no event, since it was offline or refused.
    pub not_sampled_ns: u64,
}

impl Filtered {
    /// All reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.reasons().iter().map(|(_, count)| count).sum()
    }

    fn reasons(&self) -> [(&'static str, u64); 3] {
        [("idle", self.idle), ("asleep", self.asleep), ("other process", self.pid)]
    }
}

impl Lost {
    /// All reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.reasons().iter().map(|(_, count)| count).sum()
    }

    fn reasons(&self) -> [(&'static str, u64); 6] {
        [
            ("missed by the kernel", self.missed),
            ("ring full", self.ring_full),
            ("ring contended", self.ring_contended),
            ("scratch busy", self.scratch_busy),
            ("agent behind", self.agent_behind),
            ("undelivered", self.undelivered),
        ]
    }
}

impl Account {
    fn add(&mut self, other: &Self) {
        let Self { expected, fired, delivered, filtered, lost, throttled, not_sampled_ns } = other;
        self.expected += expected;
        self.fired += fired;
        self.delivered += delivered;
        self.throttled += throttled;
        self.not_sampled_ns += not_sampled_ns;
        self.filtered.idle += filtered.idle;
        self.filtered.asleep += filtered.asleep;
        self.filtered.pid += filtered.pid;
        self.lost.missed += lost.missed;
        self.lost.ring_full += lost.ring_full;
        self.lost.ring_contended += lost.ring_contended;
        self.lost.scratch_busy += lost.scratch_busy;
        self.lost.agent_behind += lost.agent_behind;
        self.lost.undelivered += lost.undelivered;
    }
}

/// The account of one CPU.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CpuAccount {
    /// Its number.
    pub cpu: u32,
    /// Whether its event could not be opened at some time, though it was online.
    pub refused: bool,
    /// What became of its samples.
    #[serde(flatten)]
    pub account: Account,
}

/// The account of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Ledger {
    /// All CPUs together.
    #[serde(flatten)]
    pub total: Account,
    /// Each CPU.
    pub per_cpu: Vec<CpuAccount>,
    /// Samples delivered without any stack, since the kernel could not walk it.
    pub without_stack: u64,
    /// Records of mappings that the kernel could not write, since their ring was full, or that one of the
    /// agent's threads was too far behind to be told of.
    pub sideband_lost: u64,
    /// Records of the sideband that could not be read.
    pub sideband_malformed: u64,
    /// Processes that were forgotten to make room for others: see `--max-processes`.
    pub evicted_processes: u64,
    /// How many user stacks have ended how.
    pub user_ends: BTreeMap<&'static str, u64>,
    /// What user stacks were walked by; `None` where that was not unwind information.
    pub unwinding: Option<Unwinding>,
    /// How much of the user frames has names, by file.
    pub names: Vec<FileNaming>,
    /// For how long the events were enabled.
    pub duration_ns: u64,
    /// The event's name.
    pub event: &'static str,
    /// Samples a second on each CPU, if a frequency was asked for.
    pub frequency: Option<u64>,
    /// Counts of the event a sample, if a period was asked for.
    pub period: Option<u64>,
}

impl Ledger {
    /// Settles the account of a run that has ended.
    #[must_use]
    pub fn settle(kernel: &KernelSide, delivered: &PerCpuCount, behind: &PerCpuCount) -> Self {
        let KernelSide { event, rate, duration, keep_idle, events, counters, .. } = kernel;
        let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // The clock of the events and ours drift apart, in a long run by more than a CPU may have
        // been away, so the whole is taken from one that was always there.
        let always_there = events.iter().filter(|it| it.whole).map(|it| it.count.enabled_ns).max();
        let whole_ns = always_there.unwrap_or(duration_ns);
        let mut total = Account::default();
        let mut per_cpu = Vec::with_capacity(events.len());
        let mut without_stack = 0;
        for &CpuEvent { cpu, count, events, whole, refused, throttled, idle } in events {
            let get = |counter| counters.get(cpu, counter);
            let fired = get(Counter::Fired);
            let (sum, max) = (get(Counter::PeriodSum), get(Counter::PeriodMax));
            let (missed, period) =
                missed(*event, *rate, count, events, Periods { fired, sum, max });
            let mut filtered = Filtered {
                idle: get(Counter::FilteredIdle),
                asleep: 0,
                pid: get(Counter::FilteredPid),
            };
            if *event == EventSpec::CPU_CLOCK && !keep_idle {
                let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
                let idle_periods = idle_ns.checked_div(period).unwrap_or(0);
                filtered.asleep = idle_periods.saturating_sub(filtered.idle).min(missed);
            }
            let delivered = delivered.get(cpu);
            let mut lost = Lost {
                missed: missed - filtered.asleep,
                ring_full: get(Counter::RingFull),
                ring_contended: get(Counter::RingContended),
                scratch_busy: get(Counter::ScratchBusy),
                agent_behind: behind.get(cpu),
                undelivered: 0,
            };
            let expected = fired + missed;
            let known = delivered + filtered.total() + lost.total();
            lost.undelivered = expected.saturating_sub(known);
            without_stack += get(Counter::StackFailed);
            let not_sampled_ns = if whole { 0 } else { whole_ns.saturating_sub(count.enabled_ns) };
            let account =
                Account { expected, fired, delivered, filtered, lost, throttled, not_sampled_ns };
            total.add(&account);
            per_cpu.push(CpuAccount { cpu, refused, account });
        }
        let (frequency, period) = match *rate {
            Rate::Frequency(hz) => (Some(hz), None),
            Rate::Period(period) => (None, Some(period)),
        };
        Self {
            total,
            per_cpu,
            without_stack,
            sideband_lost: kernel.sideband_lost,
            sideband_malformed: kernel.sideband_malformed,
            evicted_processes: 0,
            user_ends: BTreeMap::new(),
            unwinding: kernel.unwinding.clone(),
            names: Vec::new(),
            duration_ns,
            event: event.name,
            frequency,
            period,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: u64) -> EventCount {
        EventCount { count, enabled_ns: count, running_ns: count }
    }

    /// The ledger of a second in which the event of each CPU was enabled for so long.
    fn ledger_of(enabled: impl IntoIterator<Item = (Duration, bool)>) -> Ledger {
        let events = enabled.into_iter().zip(0..).map(|((enabled, whole), cpu)| {
            let enabled_ns = enabled.as_nanos().try_into().unwrap();
            let count = EventCount { count: 0, enabled_ns, running_ns: enabled_ns };
            let (refused, idle) = (false, Duration::ZERO);
            CpuEvent { cpu, count, events: 1, whole, refused, throttled: 0, idle }
        });
        let kernel = KernelSide {
            event: EventSpec::CYCLES,
            rate: Rate::Frequency(99),
            duration: Duration::from_secs(1),
            keep_idle: false,
            events: events.collect(),
            counters: PerCpuCounters::default(),
            sideband_lost: 0,
            sideband_malformed: 0,
            unwinding: None,
        };
        Ledger::settle(&kernel, &PerCpuCount::new(0), &PerCpuCount::new(0))
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
        assert!(table.contains("\nCPU 1 was offline, and not sampled, for 0.75 s\n"), "{table}");
        assert!(table.contains("\nCPU 2 was offline, and not sampled, for 1.00 s\n"), "{table}");
        assert!(!table.contains("CPU 0"), "{table}");

        let mut refused = ledger;
        refused.per_cpu[2].refused = true;
        let table = refused.table(false);
        assert!(table.contains("\nCPU 1 was offline, and not sampled, for 0.75 s\n"), "{table}");
        let line = "\nCPU 2 was refused an event, and not sampled, for 1.00 s\n";
        assert!(table.contains(line), "{table}");

        let table = ledger_of([ms(500, false); 40]).table(false);
        let line = "\nCPU 0-39 were offline, and not sampled, for up to 0.50 s\n";
        assert!(table.contains(line), "{table}");
    }

    #[test]
    fn every_sample_has_one_fate() {
        let delivered = PerCpuCount::new(1);
        let behind = PerCpuCount::new(1);
        (0..4).for_each(|_| delivered.add(0));
        behind.add(0);
        let mut counters = [0; Counter::COUNT];
        counters[Counter::Fired as usize] = 10;
        counters[Counter::PeriodSum as usize] = 10 * 100;
        counters[Counter::FilteredIdle as usize] = 2;
        counters[Counter::RingFull as usize] = 1;
        let kernel = KernelSide {
            event: EventSpec::CPU_CLOCK,
            rate: Rate::Period(100),
            duration: Duration::from_secs(1),
            keep_idle: false,
            events: vec![CpuEvent {
                cpu: 0,
                count: counted(12 * 100),
                events: 1,
                whole: true,
                refused: false,
                throttled: 0,
                // Three periods, of which the event has seen two.
                idle: Duration::from_nanos(300),
            }],
            counters: PerCpuCounters::from(vec![counters]),
            sideband_lost: 3,
            sideband_malformed: 2,
            unwinding: None,
        };
        let ledger = Ledger::settle(&kernel, &delivered, &behind);
        let Account { expected, fired, delivered, filtered, lost, .. } = ledger.total;
        assert_eq!((expected, fired, delivered, filtered.total()), (12, 10, 4, 3));
        assert_eq!(filtered.asleep, 1);
        let expected_loss =
            Lost { missed: 1, ring_full: 1, agent_behind: 1, undelivered: 2, ..Lost::default() };
        assert_eq!(lost, expected_loss);
        assert_eq!(expected, delivered + filtered.total() + lost.total());
        let table = ledger.table(false);
        assert!(table.contains("ring full 1"), "{table}");
        // No sample is lost by it.
        let line = "\n3 records of mappings were lost: names may be missing\n";
        assert!(table.contains(line) && ledger.sideband_lost == 3, "{table}");
        let line = "\n2 records of mappings could not be read: names may be missing\n";
        assert!(table.contains(line) && ledger.sideband_malformed == 2, "{table}");
    }
}
