//! Every sample's fate: `expected = delivered + filtered + lost`, on each CPU and in total.
//!
//! Three parties count, each on its own: the kernel how often the event should have fired, the eBPF
//! program what it did with each run, the agent what it printed. What does not add up shows as
//! [`Lost::missed`] or [`Lost::undelivered`].

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use profiler_common::counter::Counter;
use serde::Serialize;

use crate::{
    bpf::counters::PerCpuCounters,
    perf::{attr::Rate, cpus::CpuList, event::EventSpec, open::EventCount},
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

    fn get(&self, cpu: u32) -> u64 {
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
}

/// What one CPU's events have done: one, unless the CPU was offline.
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
    /// For how long the CPU had no event, since it was offline.
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
    /// For how long the events were enabled.
    pub duration_ns: u64,
    /// The event's name.
    pub event: &'static str,
    /// Samples a second on each CPU, if a frequency was asked for.
    pub frequency: Option<u64>,
    /// Counts of the event a sample, if a period was asked for.
    pub period: Option<u64>,
}

/// More CPUs, a line each, would push what matters off the screen.
const MANY: usize = 16;

impl Ledger {
    /// Settles the account of a run that has ended.
    #[must_use]
    pub fn settle(kernel: &KernelSide, delivered: &PerCpuCount, behind: &PerCpuCount) -> Self {
        let KernelSide { event, rate, duration, keep_idle, events, counters } = kernel;
        let duration_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // The clock of the events and ours drift apart, in a long run by more than a CPU may have
        // been away, so the whole is taken from one that was always there.
        let always_there = events.iter().filter(|it| it.whole).map(|it| it.count.enabled_ns).max();
        let whole_ns = always_there.unwrap_or(duration_ns);
        let mut total = Account::default();
        let mut per_cpu = Vec::with_capacity(events.len());
        let mut without_stack = 0;
        for &CpuEvent { cpu, count, events, whole, throttled, idle } in events {
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
            per_cpu.push(CpuAccount { cpu, account });
        }
        let (frequency, period) = match *rate {
            Rate::Frequency(hz) => (Some(hz), None),
            Rate::Period(period) => (None, Some(period)),
        };
        Self { total, per_cpu, without_stack, duration_ns, event: event.name, frequency, period }
    }

    /// The table for people. With many CPUs only those that lost something, unless `all` is asked
    /// for.
    #[must_use]
    pub fn table(&self, all: bool) -> String {
        let rate = match (self.frequency, self.period) {
            (Some(hz), _) => format!("at {hz} Hz"),
            (_, period) => format!("every {}", period.unwrap_or_default()),
        };
        let seconds = self.duration_ns as f64 / 1e9;
        let mut text = format!(
            "\n{} {rate} for {seconds:.2} s on {} CPUs\n{:>5} {:>10} {:>10} {:>10} {:>10}\n",
            self.event,
            self.per_cpu.len(),
            "CPU",
            "expected",
            "delivered",
            "filtered",
            "lost"
        );
        let mut row = |name: &str, account: &Account| {
            let _ = writeln!(
                text,
                "{name:>5} {:>10} {:>10} {:>10} {:>10}",
                account.expected,
                account.delivered,
                account.filtered.total(),
                account.lost.total()
            );
        };
        let shown =
            |cpu: &&CpuAccount| all || self.per_cpu.len() <= MANY || cpu.account.lost.total() > 0;
        for cpu in self.per_cpu.iter().filter(shown) {
            row(&cpu.cpu.to_string(), &cpu.account);
        }
        row("total", &self.total);
        reasons(&mut text, "filtered", &self.total.filtered.reasons());
        reasons(&mut text, "lost", &self.total.lost.reasons());
        if self.total.throttled > 0 {
            let _ = writeln!(
                text,
                "throttled {} times by the kernel, to keep the load of sampling low",
                self.total.throttled
            );
        }
        self.not_sampled(&mut text);
        if self.without_stack > 0 {
            let _ = writeln!(text, "delivered without a stack: {}", self.without_stack);
        }
        text
    }

    /// A line for each CPU that was offline, or one for many.
    fn not_sampled(&self, text: &mut String) {
        let not_sampled = |it: &&CpuAccount| it.account.not_sampled_ns > 0;
        let absent: Vec<&CpuAccount> = self.per_cpu.iter().filter(not_sampled).collect();
        let seconds = |it: &CpuAccount| it.account.not_sampled_ns as f64 / 1e9;
        if absent.len() <= MANY {
            for it in absent {
                let (cpu, seconds) = (it.cpu, seconds(it));
                let _ =
                    writeln!(text, "CPU {cpu} was offline, and not sampled, for {seconds:.2} s");
            }
        } else {
            let cpus: CpuList = absent.iter().map(|it| it.cpu).collect();
            let longest = absent.into_iter().map(seconds).fold(0.0, f64::max);
            let _ = writeln!(
                text,
                "CPU {cpus} were offline, and not sampled, for up to {longest:.2} s"
            );
        }
    }
}

fn reasons(text: &mut String, what: &str, reasons: &[(&str, u64)]) {
    let some: Vec<String> = reasons
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    if !some.is_empty() {
        let _ = writeln!(text, "{what}: {}", some.join(", "));
    }
}

/// The periods that a CPU's samples stood for.
#[derive(Clone, Copy, Debug, Default)]
struct Periods {
    fired: u64,
    sum: u64,
    max: u64,
}

/// How many whole periods the events have counted in which the program did not run, and the period.
fn missed(
    event: EventSpec,
    rate: Rate,
    count: EventCount,
    events: u64,
    periods: Periods,
) -> (u64, u64) {
    let is_clock = event == EventSpec::CPU_CLOCK;
    // How many events may have ended within a period beside what is left of it by division.
    let mut unfinished = events.saturating_sub(1);
    let period = match rate {
        Rate::Period(period) => period,
        // A clock's period is fixed.
        Rate::Frequency(hz) if is_clock => {
            periods.sum.checked_div(periods.fired).unwrap_or(1_000_000_000 / hz.max(1))
        }
        // Elsewhere the kernel moves the period, and only what is beyond the largest was surely
        // missed. Of an event that never fired, no period is known.
        Rate::Frequency(_) => {
            unfinished = events;
            periods.max
        }
    };
    // What may be counted without a sample being due.
    let tail = period.saturating_mul(unfinished);
    // With more events than the PMU has counters, it is counted for a part of the time only.
    let all = match count.running_ns {
        0 => count.count,
        running => {
            let scaled = u128::from(count.count) * u128::from(count.enabled_ns.max(running));
            u64::try_from(scaled / u128::from(running)).unwrap_or(u64::MAX)
        }
    };
    let rest = all.saturating_sub(periods.sum).saturating_sub(tail);
    (rest.checked_div(period).unwrap_or(0), period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: u64) -> EventCount {
        EventCount { count, enabled_ns: count, running_ns: count }
    }

    #[test]
    fn whole_periods_without_a_run_are_missed() {
        let (clock, hz) = (EventSpec::CPU_CLOCK, Rate::Frequency(100));
        let period = 10_000_000;
        let missed = |event, rate, count, fired: u64, sum: u64| {
            let max = sum.checked_div(fired).unwrap_or(0);
            missed(event, rate, count, 1, Periods { fired, sum, max }).0
        };
        assert_eq!(missed(clock, hz, counted(10 * period + 9_999_999), 10, 10 * period), 0);
        assert_eq!(missed(clock, hz, counted(13 * period), 10, 10 * period), 3);
        assert_eq!(missed(clock, hz, counted(5 * period), 0, 0), 5);
        assert_eq!(missed(clock, hz, counted(9 * period), 10, 10 * period), 0);
        // A CPU that slept counted few cycles and fired never.
        assert_eq!(missed(EventSpec::CYCLES, hz, counted(1_000_000), 0, 0), 0);
        assert_eq!(missed(EventSpec::CYCLES, Rate::Period(1000), counted(2500), 0, 0), 2);
        // The kernel may have lengthened the period since: one is not surely missed.
        assert_eq!(missed(EventSpec::CYCLES, hz, counted(1_999), 10, 1_000), 8);
        assert_eq!(missed(EventSpec::CYCLES, hz, counted(1_199), 10, 1_000), 0);
    }

    #[test]
    fn what_each_event_left_unfinished_is_not_missed() {
        let (clock, cycles, hz) = (EventSpec::CPU_CLOCK, EventSpec::CYCLES, Rate::Frequency(100));
        let missed = |event, rate, count, events, sum, max| {
            missed(event, rate, counted(count), events, Periods { fired: 10, sum, max }).0
        };
        // Three events, of which each counted 5.99 periods and fired five times or less.
        assert_eq!(missed(clock, Rate::Period(100), 3 * 599, 3, 1_500, 100), 0);
        assert_eq!(missed(clock, Rate::Period(100), 3 * 599, 3, 1_400, 100), 1);
        assert_eq!(missed(clock, hz, 1_299, 3, 1_000, 100), 0);
        assert_eq!(missed(clock, hz, 1_300, 3, 1_000, 100), 1);
        // Each may have been in the largest of the periods that the kernel has moved.
        assert_eq!(missed(cycles, hz, 1_899, 3, 1_000, 200), 1);
        assert_eq!(missed(cycles, hz, 1_799, 3, 1_000, 200), 0);
        // A CPU that was never online.
        assert_eq!(missed(clock, hz, 0, 0, 0, 0), 0);
    }

    /// The ledger of a second in which the event of each CPU was enabled for so long.
    fn ledger_of(enabled: impl IntoIterator<Item = (Duration, bool)>) -> Ledger {
        let events = enabled.into_iter().zip(0..).map(|((enabled, whole), cpu)| {
            let enabled_ns = enabled.as_nanos().try_into().unwrap();
            let count = EventCount { count: 0, enabled_ns, running_ns: enabled_ns };
            CpuEvent { cpu, count, events: 1, whole, throttled: 0, idle: Duration::ZERO }
        });
        let kernel = KernelSide {
            event: EventSpec::CYCLES,
            rate: Rate::Frequency(99),
            duration: Duration::from_secs(1),
            keep_idle: false,
            events: events.collect(),
            counters: PerCpuCounters::default(),
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
                throttled: 0,
                // Three periods, of which the event has seen two.
                idle: Duration::from_nanos(300),
            }],
            counters: PerCpuCounters::from(vec![counters]),
        };
        let ledger = Ledger::settle(&kernel, &delivered, &behind);
        let Account { expected, fired, delivered, filtered, lost, .. } = ledger.total;
        assert_eq!((expected, fired, delivered, filtered.total()), (12, 10, 4, 3));
        assert_eq!(filtered.asleep, 1);
        let expected_loss =
            Lost { missed: 1, ring_full: 1, agent_behind: 1, undelivered: 2, ..Lost::default() };
        assert_eq!(lost, expected_loss);
        assert_eq!(expected, delivered + filtered.total() + lost.total());
        assert!(ledger.table(false).contains("ring full 1"), "{}", ledger.table(false));
    }
}
