//! The account of one source of samples: `expected = delivered + filtered + lost` on each CPU.

use profiler_common::counter::Counter;
use serde::Serialize;

use super::{
    Account, CpuAccount, CpuEvent, Filtered, Lost, Lowered, PerCpuCount,
    counters::PerCpuCounters,
    missed::{Missed, Periods, missed},
};
use crate::source::{Counts, Rate, Source};

/// What the kernel side has counted of one source.
#[derive(Debug)]
pub struct SourceSide {
    /// The event that was sampled, and how often.
    pub source: Source,
    /// How often the kernel has left the program out at a hit of a tracepoint or probe, as far as it tells.
    pub skipped: u64,
    /// Whether the sampling times were moved.
    pub dithered: bool,
    /// How the rate was lowered, if it was.
    pub lowered: Option<Lowered>,
    /// The events of each CPU.
    pub events: Vec<CpuEvent>,
    /// What the eBPF program counted.
    pub counters: PerCpuCounters,
}

/// The account of one source.
#[derive(Clone, Debug, Serialize)]
pub struct SourceAccount {
    /// The event's name.
    pub event: String,
    /// What it counts.
    #[serde(skip)]
    pub counts: Counts,
    /// Samples a second on each CPU, if a frequency was asked for.
    pub frequency: Option<u64>,
    /// Counts of the event a sample, if a period was asked for.
    pub period: Option<u64>,
    /// Whether the sampling times were moved, so that no program keeps step with them.
    pub dithered: bool,
    /// How the rate was lowered, if the machine could not carry it.
    pub lowered: Option<Lowered>,
    /// All CPUs together.
    #[serde(flatten)]
    pub total: Account,
    /// Each CPU.
    pub per_cpu: Vec<CpuAccount>,
    /// Samples delivered without any stack, since the kernel could not walk it.
    pub without_stack: u64,
    /// Hits that are no samples, since the kernel ran no program for them: another one ran on the CPU, or a map was in
    /// use there. Nobody knows whose they were.
    #[serde(skip_serializing_if = "is_zero")]
    pub skipped: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What the agent has counted, by source and CPU.
pub(super) struct ByAgent<'a> {
    pub(super) delivered: &'a PerCpuCount,
    pub(super) behind: &'a PerCpuCount,
    pub(super) strangers: &'a PerCpuCount,
}

impl SourceAccount {
    /// Settles the account of the source in this slot.
    pub(super) fn settle(
        slot: usize,
        side: &SourceSide,
        duration_ns: u64,
        by_agent: &ByAgent<'_>,
    ) -> Self {
        let SourceSide { source, events, counters, .. } = side;
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
            let periods = Periods { fired, sum, max };
            let (Missed { missed, throttled: held_back }, period) =
                missed(source, count, events, periods);
            let mut filtered = Filtered {
                idle: get(Counter::FilteredIdle),
                asleep: 0,
                excluded: 0,
                pid: get(Counter::FilteredPid) + by_agent.strangers.get(slot, cpu),
                tid: get(Counter::FilteredTid),
                uid: get(Counter::FilteredUid),
                comm: get(Counter::FilteredComm),
                cgroup: get(Counter::FilteredCgroup),
                own: get(Counter::FilteredSelf),
                user_mode: get(Counter::FilteredUserMode),
            };
            if source.counts.is_whole_clock() {
                let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
                let idle_periods = idle_ns.checked_div(period).unwrap_or(0);
                let fired_idle = filtered.idle + get(Counter::Idle);
                filtered.asleep = idle_periods.saturating_sub(fired_idle).min(missed);
            }
            let delivered = by_agent.delivered.get(slot, cpu);
            let mut missed_awake = missed - filtered.asleep;
            if source.counts == Counts::ClockInPart {
                filtered.excluded = std::mem::take(&mut missed_awake);
            }
            let mut lost = Lost { missed: missed_awake, throttled: held_back, ..Lost::default() };
            if source.counts == Counts::UnstoppedClock && throttled > 0 {
                // It goes on to count while it is throttled.
                lost.throttled += std::mem::take(&mut lost.missed);
            }
            lost = Lost {
                ring_full: get(Counter::RingFull),
                ring_contended: get(Counter::RingContended),
                scratch_busy: get(Counter::ScratchBusy),
                agent_behind: by_agent.behind.get(slot, cpu),
                ..lost
            };
            let expected = fired + missed + held_back;
            let known = delivered + filtered.total() + lost.total();
            lost.undelivered = expected.saturating_sub(known);
            without_stack += get(Counter::StackFailed);
            let not_sampled_ns = if whole { 0 } else { whole_ns.saturating_sub(count.enabled_ns) };
            let account =
                Account { expected, fired, delivered, filtered, lost, throttled, not_sampled_ns };
            total.add(&account);
            per_cpu.push(CpuAccount { cpu, refused, events, account });
        }
        let (frequency, period) = match source.rate {
            Rate::Frequency(hz) => (Some(hz), None),
            Rate::Period(period) => (None, Some(period)),
        };
        Self {
            event: source.name.clone().into_owned(),
            counts: source.counts,
            frequency,
            period,
            dithered: side.dithered,
            lowered: side.lowered,
            total,
            per_cpu,
            without_stack,
            skipped: side.skipped,
        }
    }
}
