//! The sources of a run, each in its slot.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Weak},
};

use profiler_common::counter::Counter;
use profiler_profile::{
    ledger::{Lost, Lowered, PerCpuCount, SourceSide},
    source::{self, Rate},
};

use crate::{
    bpf::{
        counters::CounterMap,
        gate::Gate,
        load::{Slot, SlotSettings},
    },
    error::{Error, Result},
    kernel,
    perf::{
        cgroups::CgroupSet,
        config::{Config, EventChoice, Target},
        governor::{Governor, Lowering, Sampled},
        set::EventSet,
        tasks::TaskSet,
        trace::TraceSource,
    },
    source::Source,
};

/// All of them, and what keeps their rates within what the machine can carry.
pub(super) struct Sources {
    slots: Vec<Running>,
    governor: Governor,
}

struct Running {
    source: Box<dyn Source>,
    /// How often it was to sample.
    asked: Rate,
    /// How often its rate was lowered.
    lowered: u64,
}

impl Running {
    fn as_asked(&self, slot: usize) -> source::Source {
        source::Source { slot, rate: self.asked, ..self.source.describe() }
    }
}

impl Sources {
    /// Opens a source for each event that was asked for.
    pub(super) fn open(config: &Config) -> Result<Self> {
        let Config { rate, ref cpus, cpus_named, .. } = *config;
        let open = |event: &EventChoice| -> Result<Running> {
            let source: Box<dyn Source> = match event {
                EventChoice::Traced(it) => Box::new(TraceSource::open(it, rate, cpus, cpus_named)?),
                EventChoice::Counted(it) => match &config.target {
                    Target::Cpus => Box::new(EventSet::open(it, rate, cpus, cpus_named)?),
                    Target::Tasks(tasks) => {
                        Box::new(TaskSet::open(it, rate, tasks, cpus, cpus_named)?)
                    }
                    Target::Cgroups(folders) => {
                        Box::new(CgroupSet::open(it, rate, folders, cpus, cpus_named)?)
                    }
                },
            };
            let asked = source.describe().rate;
            Ok(Running { source, asked, lowered: 0 })
        };
        Ok(Self {
            slots: config.events.iter().map(open).collect::<Result<_>>()?,
            governor: Governor::new(kernel::sysctl_number("kernel.perf_cpu_time_max_percent")),
        })
    }

    /// What the eBPF program has to know of each.
    pub(super) fn settings(&self) -> Vec<SlotSettings> {
        self.slots.iter().map(|it| it.source.settings()).collect()
    }

    /// A count for each source on each CPU that there can be.
    pub(super) fn count_by_cpu(&self) -> Result<Arc<PerCpuCount>> {
        let cpus = kernel::cpus("possible")?.iter().max().map_or(1, |last| last as usize + 1);
        Ok(Arc::new(PerCpuCount::new(self.slots.len(), cpus)))
    }

    /// Each as it was asked for, by slot.
    pub(super) fn describe(&self) -> Vec<Arc<source::Source>> {
        (0..).zip(&self.slots).map(|(slot, it)| Arc::new(it.as_asked(slot))).collect()
    }

    /// What the user should know of how they were opened.
    pub(super) fn notices(&self) -> Vec<String> {
        once_each(self.slots.iter().flat_map(|it| it.source.notices().iter().cloned()))
    }

    /// Has each run the program of its slot.
    pub(super) fn attach(&mut self, slots: Vec<Slot>, dither: bool) -> Result<()> {
        let mut both = self.slots.iter_mut().zip(slots);
        both.try_for_each(|(it, slot)| it.source.attach(slot, dither))
    }

    /// Starts sampling.
    pub(super) fn enable(&mut self) -> Result<()> {
        self.governor.begin();
        self.slots.iter_mut().try_for_each(|it| it.source.enable())
    }

    /// Stops sampling. Of failures the first is returned.
    pub(super) fn disable(&mut self) -> Result<()> {
        self.slots.iter_mut().map(|it| it.source.disable()).fold(Ok(()), Result::and)
    }

    /// Follows the CPUs that have come and gone since the last call, or were away for a moment; what the user should
    /// know of that.
    pub(super) fn follow_cpus(&mut self, revived: &[u32]) -> Vec<String> {
        once_each(self.slots.iter_mut().flat_map(|it| it.source.follow_cpus(revived)))
    }

    /// Takes what the kernel has recorded of them.
    pub(super) fn poll(&mut self) {
        self.slots.iter_mut().for_each(|it| it.source.poll());
    }

    /// What is to be disabled at the deadline.
    pub(super) fn descriptors(&self) -> Vec<Weak<OwnedFd>> {
        self.slots.iter().flat_map(|it| it.source.descriptors()).collect()
    }

    /// What is to be closed then.
    pub(super) fn gates(&self) -> Vec<Weak<Gate>> {
        self.slots.iter().filter_map(|it| it.source.gate()).collect()
    }

    /// What was counted of each, with the first error of what can't be read.
    pub(super) fn account(&mut self, counters: &CounterMap) -> (Vec<SourceSide>, Option<Error>) {
        let mut failed = None;
        let sides = (0_u32..).zip(self.slots.iter_mut().enumerate()).map(|(number, (slot, it))| {
            // Before the program's counters, or what fires in between would be missed.
            let (events, unread) = it.source.account();
            let counters = counters.read(number);
            let now = it.source.describe().rate;
            let side = SourceSide {
                skipped: it.source.skipped(),
                dithered: it.source.is_dithered(),
                lowered: (it.lowered > 0).then(|| Lowered::new(it.lowered, now)),
                source: it.as_asked(slot),
                events,
                counters: counters.as_ref().map(Clone::clone).unwrap_or_default(),
            };
            let error = unread.or(counters.err());
            if failed.is_none() {
                failed = error;
            }
            side
        });
        (sides.collect(), failed)
    }

    /// What was lost so far, as far as the program has counted it.
    pub(super) fn lost(&self, counters: &CounterMap) -> Result<Lost> {
        let mut lost = Lost::default();
        for (slot, _) in (0..).zip(&self.slots) {
            let counters = counters.read(slot)?;
            lost.ring_full += counters.sum(Counter::RingFull);
            lost.ring_contended += counters.sum(Counter::RingContended);
            lost.scratch_busy += counters.sum(Counter::ScratchBusy);
        }
        Ok(lost)
    }

    /// Lowers rates at which sampling takes more of a CPU than the kernel allows; what the user should know
    /// of that.
    pub(super) fn govern(&mut self, counters: &CounterMap) -> Vec<String> {
        if !self.governor.is_due() {
            return Vec::new();
        }
        let sampled = (0..).zip(&mut self.slots).map(|(slot, it)| {
            let now = it.source.describe();
            // Of a clock in part, nobody knows how many samples are missing.
            let is_known = now.counts.is_whole_clock() && !it.source.is_of_tasks();
            let is_fast = is_known && Governor::is_fast(now.rate);
            // One that can't be read tells nothing.
            let clocks = if is_fast { it.source.account().0 } else { Vec::new() };
            Ok(Sampled { counters: counters.read(slot)?, clocks, rate: now.rate })
        });
        let Ok(sampled) = sampled.collect::<Result<Vec<_>>>() else { return Vec::new() };
        let lowered = self.governor.look(&sampled);
        lowered.into_iter().filter_map(|lowering| self.lower(lowering)).collect()
    }

    fn lower(&mut self, Lowering { source, rate, why }: Lowering) -> Option<String> {
        let has_others = self.slots.len() > 1;
        let it = self.slots.get_mut(source)?;
        if let Err(error) = it.source.set_rate(rate) {
            self.governor.give_up();
            return Some(format!("{why}; to lower the rate: {error}"));
        }
        it.lowered += 1;
        if it.lowered > 1 {
            return None;
        }
        let to = match rate {
            Rate::Frequency(hz) => format!("{hz} Hz"),
            Rate::Period(period) => format!("one sample every {period}"),
        };
        let of =
            if has_others { format!(" of {}", it.source.describe().name) } else { String::new() };
        Some(format!(
            "{why}; the rate{of} is lowered to {to}, and further where that is not enough"
        ))
    }
}

/// The lines without those that were there before.
fn once_each(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for line in lines {
        if !kept.contains(&line) {
            kept.push(line);
        }
    }
    kept
}
