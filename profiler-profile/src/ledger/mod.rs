//! Every sample's fate: `expected = delivered + filtered + lost`, on each CPU and in total.
//!
//! Three parties count, each on its own: the kernel how often the event should have fired, the eBPF
//! program what it did with each run, the agent what it printed. What does not add up shows as
//! [`Lost::missed`] or [`Lost::undelivered`].

pub mod counters;
mod event_count;
pub mod memory;
mod missed;
pub mod naming;
pub mod parsing;
mod source_account;
mod table;
pub mod unwinding;
pub mod watch;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::Serialize;

use self::{
    memory::Memory, naming::FileNaming, parsing::Parsing, source_account::ByAgent,
    unwinding::Unwinding,
};
use crate::source::Rate;

pub use self::{
    event_count::EventCount,
    source_account::{SourceAccount, SourceSide},
};

/// Samples counted by source and CPU number, from any thread.
#[derive(Debug)]
pub struct PerCpuCount {
    /// By source, and then by CPU.
    counts: Vec<AtomicU64>,
    cpus: usize,
}

impl PerCpuCount {
    /// Zero for each source with a slot below `sources`, on each CPU below `cpus`.
    #[must_use]
    pub fn new(sources: usize, cpus: usize) -> Self {
        let counts = (0..sources.saturating_mul(cpus)).map(|_| AtomicU64::new(0)).collect();
        Self { counts, cpus }
    }

    /// Counts one sample of the source in this slot, on a CPU.
    pub fn add(&self, slot: usize, cpu: u32) {
        if let Some(count) = self.at(slot, cpu) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Subtracts what was counted too much.
    pub fn take_back(&self, other: &Self) {
        for (count, other) in self.counts.iter().zip(&other.counts) {
            count.fetch_sub(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Zero for each source and CPU that this one counts.
    #[must_use]
    pub fn zeroed(&self) -> Self {
        let counts = self.counts.iter().map(|_| AtomicU64::new(0)).collect();
        Self { counts, cpus: self.cpus }
    }

    /// The samples of all sources and CPUs.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The samples of the source in this slot, on a CPU.
    #[must_use]
    pub fn get(&self, slot: usize, cpu: u32) -> u64 {
        self.at(slot, cpu).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    fn at(&self, slot: usize, cpu: u32) -> Option<&AtomicU64> {
        let cpu = usize::try_from(cpu).ok().filter(|cpu| *cpu < self.cpus)?;
        self.counts.get(slot.checked_mul(self.cpus)?.checked_add(cpu)?)
    }
}

/// What the events were opened on, and so what the accounts are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// CPUs: all that runs there.
    #[default]
    Machine,
    /// Tasks: nothing else fires.
    Tasks,
    /// Cgroups: as of tasks.
    Cgroups,
}

impl Scope {
    /// Whether it is the whole machine.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
    fn is_machine(&self) -> bool {
        *self == Self::Machine
    }
}

/// What the kernel side has counted when the events are disabled and the ring is empty.
#[derive(Debug)]
pub struct KernelSide {
    /// Each source of samples, by slot.
    pub sources: Vec<SourceSide>,
    /// What they were opened on.
    pub scope: Scope,
    /// For how long the events were enabled.
    pub duration: Duration,
    /// The processes that were asked for; all if empty.
    pub pids: Vec<u32>,
    /// And their descendants, if these were asked for.
    pub children: Option<Children>,
    /// What else a sample had to be of, as it was typed.
    pub filters: Vec<String>,
    /// Samples of other processes that the agent has dropped.
    pub strangers: Arc<PerCpuCount>,
    /// Records of mappings that did not fit into their rings, or that a thread was too far behind to be
    /// told of.
    pub sideband_lost: u64,
    /// Records of the sideband that could not be read.
    pub sideband_malformed: u64,
    /// What the walk by unwind information had; `None` without such a walk.
    pub unwinding: Option<Unwinding>,
    /// What the agent and its parser processes have in RAM.
    pub memory: Memory,
}

/// The descendants of the processes that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Children {
    /// How many were sampled whenever they ran.
    pub followed: u64,
    /// How many were not, since there were too many at a time: see `--max-processes`.
    pub not_followed: u64,
}

/// A rate that the machine could not carry was lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lowered {
    /// How often.
    pub times: u64,
    /// Samples a second on each CPU at the end, if a frequency was asked for.
    pub frequency: Option<u64>,
    /// Counts of the event a sample at the end, if a period was asked for.
    pub period: Option<u64>,
}

impl Lowered {
    /// Lowered so often, at last to this.
    #[must_use]
    pub fn new(times: u64, rate: Rate) -> Self {
        match rate {
            Rate::Frequency(hz) => Self { times, frequency: Some(hz), period: None },
            Rate::Period(period) => Self { times, frequency: None, period: Some(period) },
        }
    }
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
    /// The event was due while the CPU ran what it was not asked for, as with `cpu-clock:u`; some of these may have
    /// been missed by the kernel, which nobody can tell.
    pub excluded: u64,
    /// Another process than the ones asked for.
    pub pid: u64,
    /// Another thread than the ones asked for.
    pub tid: u64,
    /// A thread of another user than the ones asked for.
    pub uid: u64,
    /// A thread of another name than the ones asked for.
    pub comm: u64,
    /// Another cgroup than the ones asked for, and those below.
    pub cgroup: u64,
    /// The profiler itself.
    #[serde(rename = "self")]
    pub own: u64,
    /// User code, where only what hits the kernel was asked for.
    pub user_mode: u64,
}

/// Samples that should be there and are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Whole periods of the event passed in which the program never ran: its timer was late, the event
    /// was not on the PMU, or another eBPF program was running.
    pub missed: u64,
    /// The kernel held the event back for so many periods, to keep the load of sampling low. Other events
    /// than clocks count nothing of that time.
    pub throttled: u64,
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

    pub(crate) fn reasons(&self) -> [(&'static str, u64); 10] {
        [
            ("idle", self.idle),
            ("asleep", self.asleep),
            ("excluded", self.excluded),
            ("other process", self.pid),
            ("other thread", self.tid),
            ("other user", self.uid),
            ("other name", self.comm),
            ("other cgroup", self.cgroup),
            ("self", self.own),
            ("user mode", self.user_mode),
        ]
    }
}

impl Lost {
    /// All reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.reasons().iter().map(|(_, count)| count).sum()
    }

    /// What was lost on the way from the eBPF program to the output.
    #[must_use]
    pub fn by_us(&self) -> u64 {
        self.total() - self.missed - self.throttled
    }

    /// How many were lost for each reason, by its name.
    #[must_use]
    pub fn reasons(&self) -> [(&'static str, u64); 7] {
        [
            ("missed by the kernel", self.missed),
            ("throttled", self.throttled),
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
        self.filtered.excluded += filtered.excluded;
        self.filtered.pid += filtered.pid;
        self.filtered.tid += filtered.tid;
        self.filtered.uid += filtered.uid;
        self.filtered.comm += filtered.comm;
        self.filtered.cgroup += filtered.cgroup;
        self.filtered.own += filtered.own;
        self.filtered.user_mode += filtered.user_mode;
        self.lost.missed += lost.missed;
        self.lost.throttled += lost.throttled;
        self.lost.ring_full += lost.ring_full;
        self.lost.ring_contended += lost.ring_contended;
        self.lost.scratch_busy += lost.scratch_busy;
        self.lost.agent_behind += lost.agent_behind;
        self.lost.undelivered += lost.undelivered;
    }
}

impl CpuAccount {
    /// Adds that of another source on the same CPU.
    fn add(&mut self, other: &Self) {
        let not_sampled_ns = self.account.not_sampled_ns.max(other.account.not_sampled_ns);
        self.account.add(&other.account);
        self.account.not_sampled_ns = not_sampled_ns;
        self.refused |= other.refused;
        self.events += other.events;
    }
}

/// The account of one CPU.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CpuAccount {
    /// Its number.
    pub cpu: u32,
    /// Whether its event could not be opened at some time, though it was online.
    pub refused: bool,
    /// How many events it has had: one, unless it was offline meanwhile.
    #[serde(skip)]
    pub events: u64,
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
    /// Hits of tracepoints and probes that are no samples, since the kernel ran no program for them.
    #[serde(skip_serializing_if = "source_account::is_zero")]
    pub skipped: u64,
    /// Records of mappings that the kernel could not write, since their ring was full, or that one of the
    /// agent's threads was too far behind to be told of.
    pub sideband_lost: u64,
    /// Records of the sideband that could not be read.
    pub sideband_malformed: u64,
    /// Processes that were evicted to make room for others: see `--max-processes`.
    pub evicted_processes: u64,
    /// Samples that were delivered without their stack, since the profile had no room for it: see `--max-memory`.
    pub beyond_memory: u64,
    /// How many user stacks have ended how.
    pub user_ends: BTreeMap<&'static str, u64>,
    /// What user stacks were walked by; `None` where that was not unwind information.
    pub unwinding: Option<Unwinding>,
    /// What has become of the parser processes, and which files were given up.
    pub parsing: Parsing,
    /// What the profiler has in RAM, and which cache holds what.
    pub memory: Memory,
    /// How much of the user frames has names, by file.
    pub names: Vec<FileNaming>,
    /// Samples that wait to be named and written; `None` when the run has ended.
    #[serde(skip)]
    pub waiting: Option<u64>,
    /// What the user calls the outputs that could not be written, which are written after the ledger is made.
    #[serde(skip)]
    pub unwritten: Vec<PathBuf>,
    /// For how long the events were enabled.
    pub duration_ns: u64,
    /// The event's name; with several sources those of all, with commas between.
    pub event: String,
    /// Samples a second on each CPU, if a frequency was asked for, the same for all sources.
    pub frequency: Option<u64>,
    /// Counts of the event a sample, if a period was asked for, the same for all sources.
    pub period: Option<u64>,
    /// Whether the sampling times of a source were moved, so that no program keeps step with them.
    pub dithered: bool,
    /// What the events were opened on; serialized only if that is not the machine.
    #[serde(skip_serializing_if = "Scope::is_machine")]
    pub scope: Scope,
    /// The processes that were asked for; all if empty.
    pub pids: Vec<u32>,
    /// And their descendants, if these were asked for.
    pub children: Option<Children>,
    /// What else a sample had to be of, as it was typed.
    pub filters: Vec<String>,
    /// How the rate was lowered, if the machine could not carry it; with several sources see there.
    pub lowered: Option<Lowered>,
    /// Each source by itself; serialized only if there are several.
    #[serde(skip_serializing_if = "is_one")]
    pub sources: Vec<SourceAccount>,
}

fn is_one(sources: &[SourceAccount]) -> bool {
    sources.len() < 2
}

impl Ledger {
    /// Samples that the profiler itself lost.
    #[must_use]
    pub fn lost_by_us(&self) -> u64 {
        self.total.lost.by_us()
    }

    /// Samples that the profiler lost, or the kernel: it missed or throttled them. One period of each event is
    /// tolerated, since a run begins and ends within one.
    #[must_use]
    pub fn lost_in_all(&self) -> u64 {
        let by_kernel = |it: &CpuAccount| {
            let lost = it.account.lost;
            (lost.total() - lost.by_us()).saturating_sub(it.events.max(1))
        };
        self.lost_by_us() + self.per_cpu.iter().map(by_kernel).sum::<u64>()
    }

    /// The account of a run that goes on. What has no other fate yet waits, and is not lost.
    #[must_use]
    pub fn so_far(kernel: &KernelSide, delivered: &PerCpuCount, behind: &PerCpuCount) -> Self {
        let mut ledger = Self::settle(kernel, delivered, behind);
        ledger.waiting = Some(std::mem::take(&mut ledger.total.lost.undelivered));
        let of_sources = ledger.sources.iter_mut();
        for cpu in ledger.per_cpu.iter_mut().chain(of_sources.flat_map(|it| &mut it.per_cpu)) {
            cpu.account.lost.undelivered = 0;
        }
        for source in &mut ledger.sources {
            source.total.lost.undelivered = 0;
        }
        ledger
    }

    /// Settles the account of a run that has ended.
    #[must_use]
    pub fn settle(kernel: &KernelSide, delivered: &PerCpuCount, behind: &PerCpuCount) -> Self {
        let duration_ns = u64::try_from(kernel.duration.as_nanos()).unwrap_or(u64::MAX);
        let by_agent = ByAgent { delivered, behind, strangers: &kernel.strangers };
        let sources: Vec<SourceAccount> = kernel
            .sources
            .iter()
            .enumerate()
            .map(|(slot, source)| SourceAccount::settle(slot, source, duration_ns, &by_agent))
            .collect();
        let mut per_cpu: BTreeMap<u32, CpuAccount> = BTreeMap::new();
        for it in sources.iter().flat_map(|source| &source.per_cpu) {
            per_cpu.entry(it.cpu).and_modify(|all| all.add(it)).or_insert(*it);
        }
        let per_cpu: Vec<CpuAccount> = per_cpu.into_values().collect();
        let mut total = Account::default();
        for it in &per_cpu {
            total.add(&it.account);
        }
        let names: Vec<&str> = sources.iter().map(|it| it.event.as_str()).collect();
        let lowered = match sources.as_slice() {
            [one] => one.lowered,
            _ => None,
        };
        Self {
            total,
            per_cpu,
            without_stack: sources.iter().map(|it| it.without_stack).sum(),
            skipped: sources.iter().map(|it| it.skipped).sum(),
            sideband_lost: kernel.sideband_lost,
            sideband_malformed: kernel.sideband_malformed,
            evicted_processes: 0,
            beyond_memory: 0,
            user_ends: BTreeMap::new(),
            unwinding: kernel.unwinding.clone(),
            parsing: Parsing::default(),
            memory: kernel.memory.clone(),
            names: Vec::new(),
            waiting: None,
            unwritten: Vec::new(),
            duration_ns,
            event: names.join(","),
            frequency: same(sources.iter().map(|it| it.frequency)),
            period: same(sources.iter().map(|it| it.period)),
            dithered: sources.iter().any(|it| it.dithered),
            pids: kernel.pids.clone(),
            children: kernel.children,
            scope: kernel.scope,
            filters: kernel.filters.clone(),
            lowered,
            sources,
        }
    }
}

/// What all of them say; `None` if they differ.
fn same(mut numbers: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    let first = numbers.next().flatten();
    first.filter(|_| numbers.all(|it| it == first))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{counters::PerCpuCounters, *};
    use crate::source::{Counts, Source};
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
        assert_eq!(
            table.matches("\ntotal").count() + table.matches("\n  total").count(),
            2,
            "{table}"
        );
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
}
