//! Lowers a rate that the machine can't carry.
//!
//! The kernel does so for hardware events only, and not for the timer behind the clocks:
//! <https://docs.kernel.org/admin-guide/sysctl/kernel.html#perf-cpu-time-max-percent>.

use std::time::{Duration, Instant};

use profiler_common::counter::Counter;
use profiler_profile::{
    ledger::{CpuEvent, counters::PerCpuCounters},
    source::Rate,
};

/// How often the load is looked at.
const INTERVAL: Duration = Duration::from_millis(200);
/// What an interrupt takes beside the program, at least.
const INTERRUPT_NS: u64 = 1_000;
/// Clocks of a shorter period than this miss periods because sampling itself takes too long; at longer ones
/// something else is late.
const FAST_NS: u64 = 200_000;
/// A clock that misses this share of its periods is too fast.
const MAX_MISSED_PERCENT: u64 = 25;
/// How exact a CPU's idle time is: two steps of it.
const IDLE_STEP_NS: u64 = 20_000_000;

/// What is known of a source when its rate is looked at.
pub struct Sampled {
    /// What the eBPF program has counted of it.
    pub counters: PerCpuCounters,
    /// Its events, if it is a clock that is [fast](Governor::is_fast).
    pub clocks: Vec<CpuEvent>,
    /// How often it samples.
    pub rate: Rate,
}

/// A rate was too high.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lowering {
    /// The slot of the source.
    pub source: usize,
    /// The rate to go on with.
    pub rate: Rate,
    /// How it showed.
    pub why: TooHigh,
}

/// How it shows that a rate is too high.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooHigh {
    /// Sampling took this percentage of a CPU.
    Load(u64),
    /// This percentage of the periods in which a CPU was busy passed without a sample.
    Missed(u64),
}

impl std::fmt::Display for TooHigh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Load(percent) => write!(
                f,
                "sampling took {percent} % of a CPU, more than kernel.perf_cpu_time_max_percent"
            ),
            Self::Missed(percent) => {
                write!(
                    f,
                    "{percent} % of the samples of a busy CPU were missed: they take too long"
                )
            }
        }
    }
}

/// Looks at what sampling takes of each CPU.
#[derive(Debug)]
pub struct Governor {
    /// What sampling may take of a CPU; `None` if anything.
    max_percent: Option<u64>,
    looked: Instant,
    /// What each CPU's counters were at the last look, by slot.
    before: Vec<Vec<Seen>>,
}

/// What the counters of a CPU say.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    run_ns: u64,
    fired: u64,
    /// Of these, while the CPU was not idle.
    fired_busy: u64,
    /// Of a fast clock: what it has counted, for how long the CPU was idle, and how often it was throttled.
    counted_ns: u64,
    idle_ns: u64,
    throttled: u64,
}

impl Seen {
    /// That of a source on each CPU.
    fn of_cpus(source: &Sampled) -> Vec<Self> {
        let Sampled { counters, clocks, .. } = source;
        let cpus = u32::try_from(counters.cpus()).unwrap_or(u32::MAX);
        let seen = |cpu| {
            let get = |counter| counters.get(cpu, counter);
            let fired = get(Counter::Fired);
            let idle = get(Counter::FilteredIdle) + get(Counter::Idle);
            let clock = clocks.iter().find(|it| it.cpu == cpu);
            Self {
                run_ns: get(Counter::RunNs),
                fired,
                fired_busy: fired.saturating_sub(idle),
                counted_ns: clock.map_or(0, |it| it.count.count),
                idle_ns: clock.map_or(0, |it| nanoseconds(it.idle)),
                throttled: clock.map_or(0, |it| it.throttled),
            }
        };
        (0..cpus).map(seen).collect()
    }

    fn since(self, before: Self) -> Self {
        Self {
            run_ns: self.run_ns.saturating_sub(before.run_ns),
            fired: self.fired.saturating_sub(before.fired),
            fired_busy: self.fired_busy.saturating_sub(before.fired_busy),
            counted_ns: self.counted_ns.saturating_sub(before.counted_ns),
            idle_ns: self.idle_ns.saturating_sub(before.idle_ns),
            throttled: self.throttled.saturating_sub(before.throttled),
        }
    }

    /// What sampling has taken of the CPU.
    fn load_ns(self) -> u64 {
        self.run_ns.saturating_add(self.fired.saturating_mul(INTERRUPT_NS))
    }

    /// The percentage of a busy CPU's periods in which the clock did not fire.
    fn missed_percent(self, period_ns: u64, elapsed_ns: u64) -> u64 {
        let busy_ns = self.counted_ns.saturating_sub(self.idle_ns).saturating_sub(IDLE_STEP_NS);
        // The kernel holds back a clock that is throttled, and some go on to count. Of a CPU that was mostly
        // idle, too little is known.
        if self.throttled > 0 || busy_ns < elapsed_ns / 4 {
            return 0;
        }
        let due = busy_ns.checked_div(period_ns).unwrap_or(0);
        let missed = due.saturating_sub(self.fired_busy);
        missed.saturating_mul(100).checked_div(due).unwrap_or(0)
    }
}

impl Governor {
    /// One with the kernel's limit, of which 0 and 100 mean none.
    #[must_use]
    pub fn new(max_percent: Option<i64>) -> Self {
        let max_percent = max_percent.unwrap_or(25);
        let max_percent = u64::try_from(max_percent).ok().filter(|it| (1..100).contains(it));
        Self { max_percent, looked: Instant::now(), before: Vec::new() }
    }

    /// Sampling begins now.
    pub fn begin(&mut self) {
        self.looked = Instant::now();
    }

    /// Whether it is time for another look.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.max_percent.is_some() && self.looked.elapsed() >= INTERVAL
    }

    /// Looks no more.
    pub fn give_up(&mut self) {
        self.max_percent = None;
    }

    /// Whether a clock of this rate is so fast that [`look`](Self::look) wants to know its events.
    #[must_use]
    pub fn is_fast(rate: Rate) -> bool {
        period_ns(rate) < FAST_NS
    }

    /// The rates to go on with, of sources whose rates are too high.
    pub fn look(&mut self, sources: &[Sampled]) -> Vec<Lowering> {
        let elapsed = std::mem::replace(&mut self.looked, Instant::now()).elapsed();
        self.after(elapsed, sources)
    }

    fn after(&mut self, elapsed: Duration, sources: &[Sampled]) -> Vec<Lowering> {
        let now: Vec<Vec<Seen>> = sources.iter().map(Seen::of_cpus).collect();
        let before = std::mem::replace(&mut self.before, now);
        let Some(max_percent) = self.max_percent else { return Vec::new() };
        let elapsed_ns = nanoseconds(elapsed).max(1);
        // At the first look all is new.
        let before = |slot: usize, cpu: usize| {
            before.get(slot).and_then(|cpus| cpus.get(cpu)).copied().unwrap_or_default()
        };
        let since: Vec<Vec<Seen>> = (0..)
            .zip(&self.before)
            .map(|(slot, cpus)| {
                (0..).zip(cpus).map(|(cpu, it)| it.since(before(slot, cpu))).collect()
            })
            .collect();
        let missed = (0..).zip(sources).zip(&since).filter_map(|((source, it), cpus)| {
            let period_ns = period_ns(it.rate);
            let missed = cpus.iter().map(|cpu| cpu.missed_percent(period_ns, elapsed_ns)).max()?;
            // What is carried takes all of the CPU.
            let carried = 100_u64.saturating_sub(missed).max(1);
            let rate = lowered(it.rate, carried.saturating_mul(max_percent), 100 * 100);
            (missed > MAX_MISSED_PERCENT).then_some(Lowering {
                source,
                rate,
                why: TooHigh::Missed(missed),
            })
        });
        let missed: Vec<Lowering> = missed.collect();
        if !missed.is_empty() {
            return missed;
        }
        too_much_load(sources, &since, elapsed_ns, max_percent).into_iter().collect()
    }
}

/// Lowers the source that takes most of the CPU on which all sources take most, if they take too much, to
/// what the others leave, or to its share if they leave less than that.
fn too_much_load(
    sources: &[Sampled],
    since: &[Vec<Seen>],
    elapsed_ns: u64,
    max_percent: u64,
) -> Option<Lowering> {
    let cpus = since.iter().map(Vec::len).max()?;
    let load = |cpu: usize, source: &Vec<Seen>| {
        source.get(cpu).map_or(0, |it| it.load_ns().saturating_mul(100) / elapsed_ns)
    };
    let all = |cpu: usize| since.iter().map(|source| load(cpu, source)).sum::<u64>();
    let cpu = (0..cpus).max_by_key(|cpu| all(*cpu))?;
    let total = all(cpu);
    if total <= max_percent {
        return None;
    }
    let loads = since.iter().map(|source| load(cpu, source));
    let (source, load) = loads.enumerate().max_by_key(|(_, load)| *load)?;
    let left = max_percent.saturating_sub(total - load);
    let share = max_percent / u64::try_from(since.len()).unwrap_or(1).max(1);
    let rate = lowered(sources.get(source)?.rate, left.max(share).max(1), load);
    Some(Lowering { source, rate, why: TooHigh::Load(total) })
}

/// So many parts of a rate, of so many.
fn lowered(rate: Rate, by: u64, of: u64) -> Rate {
    match rate {
        Rate::Frequency(hz) => Rate::Frequency((hz.saturating_mul(by) / of.max(1)).max(1)),
        Rate::Period(period) => Rate::Period(period.saturating_mul(of).div_ceil(by.max(1))),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The period of a clock.
fn period_ns(rate: Rate) -> u64 {
    match rate {
        Rate::Frequency(hz) => 1_000_000_000 / hz.max(1),
        Rate::Period(period) => period,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_profile::ledger::EventCount;

    fn counters(run_ns: u64, fired: u64) -> PerCpuCounters {
        let mut counters = [0; Counter::COUNT];
        counters[Counter::RunNs as usize] = run_ns;
        counters[Counter::Fired as usize] = fired;
        PerCpuCounters::from(vec![[0; Counter::COUNT], counters])
    }

    /// A look at a single source.
    fn after(
        governor: &mut Governor,
        counters: PerCpuCounters,
        clocks: &[CpuEvent],
        rate: Rate,
    ) -> Option<Lowering> {
        let source = Sampled { counters, clocks: clocks.to_vec(), rate };
        governor.after(SECOND, &[source]).pop()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rate_that_takes_too_much_is_lowered_to_what_it_may_take() {
        let hz = Rate::Frequency(100_000);
        let mut governor = Governor::new(Some(25));
        let mut after = |counters, rate| after(&mut governor, counters, &[], rate);
        assert_eq!(after(counters(0, 0), hz), None);
        // 0.9 s in the program, and 0.1 s of interrupts.
        let all = Lowering { source: 0, rate: Rate::Frequency(25_000), why: TooHigh::Load(100) };
        assert_eq!(after(counters(900_000_000, 100_000), hz), Some(all));
        // Nothing since then.
        assert_eq!(after(counters(900_000_000, 100_000), hz), None);
        let half = Lowering { source: 0, rate: Rate::Period(2000), why: TooHigh::Load(50) };
        assert_eq!(after(counters(1_400_000_000, 100_000), Rate::Period(1000)), Some(half));
    }

    #[test]
    fn of_several_sources_the_one_that_takes_most_is_lowered() {
        let look = |loads: [u64; 3]| {
            let of = |percent: u64| Sampled {
                counters: counters(percent * 10_000_000, 0),
                clocks: Vec::new(),
                rate: Rate::Frequency(1000),
            };
            Governor::new(Some(24)).after(SECOND, &loads.map(of))
        };
        assert_eq!(look([8, 8, 8]), []);
        let lowered = |source, hz, total| {
            [Lowering { source, rate: Rate::Frequency(hz), why: TooHigh::Load(total) }]
        };
        // The others leave it 14 %.
        assert_eq!(look([5, 20, 5]), lowered(1, 700, 30));
        // They leave less than its share of 8 %, which it has.
        assert_eq!(look([20, 5, 16]), lowered(0, 400, 41));
    }

    fn clock(counted: Duration, idle: Duration, throttled: u64) -> CpuEvent {
        let counted = nanoseconds(counted);
        let count = EventCount { count: counted, enabled_ns: counted, running_ns: counted };
        CpuEvent { cpu: 1, count, events: 1, whole: true, refused: false, throttled, idle }
    }

    #[test]
    fn a_clock_that_misses_periods_is_lowered_though_it_seems_to_take_little() {
        let hz = Rate::Frequency(100_000);
        let after =
            |fired, clock| after(&mut Governor::new(Some(25)), counters(0, fired), &[clock], hz);
        let busy = clock(SECOND, Duration::ZERO, 0);
        // Of 98,000, two steps of idle time left out.
        let lowered =
            Lowering { source: 0, rate: Rate::Frequency(12_500), why: TooHigh::Missed(50) };
        assert_eq!(after(49_000, busy), Some(lowered));
        assert_eq!(after(90_000, busy), None);
        // The other half may have been missed while the CPU slept.
        assert_eq!(after(49_000, clock(SECOND, SECOND / 2, 0)), None);
        assert_eq!(after(0, clock(SECOND, SECOND * 4 / 5, 0)), None);
        // The kernel has lowered the rate itself.
        assert_eq!(after(49_000, clock(SECOND, Duration::ZERO, 3)), None);
        assert_eq!(after(24_000, clock(SECOND / 4, Duration::ZERO, 0)), None);
    }

    #[test]
    fn a_clock_is_fast_below_its_period() {
        assert!(Governor::is_fast(Rate::Frequency(5_001)) && Governor::is_fast(Rate::Period(1)));
        assert!(!Governor::is_fast(Rate::Frequency(4_999)));
    }

    #[test]
    fn where_the_kernel_has_no_limit_there_is_none() {
        for none in [0, 100] {
            assert!(Governor::new(Some(none)).max_percent.is_none());
        }
        assert_eq!(Governor::new(None).max_percent, Some(25));
    }
}
