//! From a profile to bytes: one file a format.

pub mod about;
pub mod change;
pub mod compact;
pub mod firefox;
pub mod folded;
pub mod format;
pub mod html;
pub mod json;
mod json_text;
pub mod lines;
mod numbered;
pub mod output;
pub mod perf_script;
pub mod pprof;
pub mod push;
mod rendered;
pub mod root;
pub mod speedscope;
pub mod svg;
mod tables;
pub mod text;
mod tree;

use std::{
    io::{self, Write},
    sync::Arc,
};

use self::about::About;
use crate::{
    ledger::memory::Cache,
    profile::{Entry, Profile},
    sample::{Sample, Task},
    source::Source,
    stack::Stack,
    stack_end::StackEnd,
};

/// Samples that are alike in all that a format shows of them.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// What took them.
    pub source: &'a Source,
    /// Who ran.
    pub task: &'a Task,
    /// The kernel half of the stack.
    pub kernel: &'a Arc<Stack>,
    /// The user half.
    pub user: &'a Arc<Stack>,
    /// How many there are.
    pub count: u64,
    /// What they stand for together, in the unit of their source.
    pub value: u64,
    /// What is known of one sample, and not of many.
    pub moment: Option<Moment>,
}

/// When and where a sample was taken, and how.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// When; CLOCK_MONOTONIC, in nanoseconds.
    pub time_ns: u64,
    /// The CPU that was sampled.
    pub cpu: u32,
    /// How the user half ended.
    pub user_end: StackEnd,
    /// Whether the agent walked the user half, from a snapshot of the stack.
    pub from_snapshot: bool,
}

impl<'a> From<&'a Sample> for Row<'a> {
    fn from(sample: &'a Sample) -> Self {
        let Sample { source, task, kernel, user, value, .. } = sample;
        let Sample { time_ns, cpu, user_end, from_snapshot, .. } = *sample;
        let moment = Some(Moment { time_ns, cpu, user_end, from_snapshot });
        Self { source, task, kernel, user, count: 1, value: *value, moment }
    }
}

impl<'a> From<&'a Entry> for Row<'a> {
    fn from(entry: &'a Entry) -> Self {
        let Entry { source, task, kernel, user, count, value } = entry;
        Self { source, task, kernel, user, count: *count, value: *value, moment: None }
    }
}

/// What writes a format that takes samples one by one.
///
/// It gets all of them, in the order of their delivery, and always the same place to write to. An error is final:
/// nothing is given to an exporter that has returned one.
pub trait Exporter {
    /// Takes samples, and writes them if the format allows that before the end.
    fn add(&mut self, row: Row<'_>, to: &mut dyn Write) -> io::Result<()>;

    /// Writes the rest. No sample comes any more.
    fn finish(&mut self, about: &About<'_>, to: &mut dyn Write) -> io::Result<()> {
        let _ = (about, to);
        Ok(())
    }

    /// What it keeps in memory.
    fn account(&self) -> Vec<Cache> {
        Vec::new()
    }
}

/// Writes a format that is a function of the whole profile. The same profile gives the same bytes.
pub type WriteProfile = fn(&Profile, &About<'_>, &mut dyn Write) -> io::Result<()>;

#[cfg(test)]
pub(crate) mod tests {
    use std::{sync::Arc, time::Duration};

    use jiff::tz::TimeZone;
    use profiler_common::counter::Counter;

    use super::{WriteProfile, about::About, format::Options, root::Root};

    use crate::{
        address::Address,
        frame::{Frame, Origin},
        ledger::{
            CpuEvent, EventCount, KernelSide, Ledger, PerCpuCount, Scope, SourceSide,
            counters::PerCpuCounters, memory::Memory,
        },
        profile::Profile,
        sample::{Comm, Sample, Task},
        source::{Counts, Rate, Source},
        stack::Location,
        stack_end::StackEnd,
        store::Store,
    };

    /// A sample without frames.
    pub(crate) fn sample() -> Sample {
        let mut comm = Comm::default();
        comm.0[0] = b'a';
        let empty = Store::default().empty();
        let (slot, name) = (0, "cycles".into());
        let source = Source { slot, name, counts: Counts::Events, rate: Rate::Frequency(99) };
        Sample {
            source: Arc::new(source),
            time_ns: 1,
            value: 3,
            cpu: 6,
            task: Task {
                tgid: 4,
                tid: 5,
                comm,
                main_comm: Comm::default(),
                cgroup_id: 2,
                process: None,
            },
            kernel: Arc::clone(&empty),
            user: empty,
            user_end: StackEnd::NotCaptured,
            from_snapshot: false,
        }
    }

    /// An address with these functions.
    pub(crate) fn python_frame(name: &str, file: &str) -> Frame {
        Frame {
            symbol: Some(name.into()),
            module: Some(file.into()),
            source: Some((file.into(), Some(7))),
            origin: Origin::Cpython,
            ..Frame::default()
        }
    }

    pub(crate) fn location(address: u64, frames: &[Frame]) -> Location {
        Location { address: Address::returned_to(address), frames: Arc::from(frames) }
    }

    /// What is the same for all formats.
    pub(crate) fn options() -> Options {
        Options {
            kernel_stacks: true,
            user_stacks: true,
            names_events: false,
            begun_ns: 1_000_000_000,
            producer: "profiler 1",
            real_time_ahead_ns: 1_700_000_000_000_000_000,
            zone: TimeZone::UTC,
            rendered_bytes: 1 << 20,
            timeline_bytes: 1 << 20,
            root: Root::default(),
        }
    }

    /// What a format writes of these samples, whose sources are these.
    pub(crate) fn written(
        write: WriteProfile,
        samples: &[Sample],
        sources: &[Source],
        limit_bytes: usize,
    ) -> Vec<u8> {
        let mut profile = Profile::new(limit_bytes);
        profile.extend(samples);
        let mut bytes = Vec::new();
        write(&profile, &About::of_run(&ledger(sources), &options()), &mut bytes).unwrap();
        bytes
    }

    /// What a profile of these samples takes.
    pub(crate) fn bytes_of(samples: &[Sample]) -> usize {
        let mut profile = Profile::new(usize::MAX);
        profile.extend(samples);
        usize::try_from(profile.account().bytes).unwrap()
    }

    /// The ledger of a second on one CPU, in which these events have fired a hundred times each.
    pub(crate) fn ledger(sources: &[Source]) -> Ledger {
        let mut counters = [0; Counter::COUNT];
        counters[Counter::Fired as usize] = 100;
        let event = CpuEvent {
            cpu: 0,
            count: EventCount::default(),
            events: 1,
            whole: true,
            refused: false,
            throttled: 0,
            idle: Duration::ZERO,
        };
        let side = |source: &Source| SourceSide {
            source: source.clone(),
            skipped: 0,
            dithered: false,
            lowered: None,
            events: vec![event],
            counters: PerCpuCounters::from(vec![counters]),
        };
        let kernel = KernelSide {
            sources: sources.iter().map(side).collect(),
            duration: Duration::from_secs(1),
            pids: Vec::new(),
            children: None,
            filters: Vec::new(),
            scope: Scope::default(),
            strangers: Arc::new(PerCpuCount::new(sources.len(), 1)),
            sideband_lost: 0,
            sideband_malformed: 0,
            unwinding: None,
            memory: Memory::default(),
        };
        let delivered = PerCpuCount::new(sources.len(), 1);
        (0..sources.len()).for_each(|slot| (0..100).for_each(|_| delivered.add(slot, 0)));
        Ledger::settle(&kernel, &delivered, &PerCpuCount::new(sources.len(), 1))
    }
}
