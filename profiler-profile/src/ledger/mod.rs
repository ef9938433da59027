//! Every sample's fate: `expected = delivered + filtered + lost`, on each CPU and in total.
//!
//! Three parties count, each on its own: the kernel how often the event should have fired, the eBPF
//! program what it did with each run, the agent what it printed. What does not add up shows as
//! [`Lost::missed`] or [`Lost::undelivered`].

mod account;
pub mod counters;
mod event_count;
mod kernel_side;
pub mod memory;
mod missed;
pub mod naming;
pub mod parsing;
mod per_cpu_count;
mod since;
mod source_account;
mod table;
pub mod unwinding;
pub mod watch;

use std::{collections::BTreeMap, path::PathBuf};

use serde::Serialize;

use self::{
    memory::Memory, naming::FileNaming, parsing::Parsing, source_account::ByAgent,
    unwinding::Unwinding,
};

pub use self::{
    account::{Account, CpuAccount, Filtered, Lost},
    event_count::EventCount,
    kernel_side::{Children, CpuEvent, KernelSide, Lowered, Scope},
    per_cpu_count::PerCpuCount,
    source_account::{SourceAccount, SourceSide},
};

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
    /// Records of mappings that the kernel could not write, since their ring was full; and those of the kernel's code,
    /// or for a screen, for which the naming thread had no room.
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
pub(crate) mod tests;
