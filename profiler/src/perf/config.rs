//! What is sampled, how often and where.

use std::{fmt, path::PathBuf};

use profiler_profile::{cpus::CpuList, source::Rate};

use super::{event::Event, trace::Traced};

/// The events of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The events, each of which is a source of samples.
    pub events: Vec<EventChoice>,
    /// How often those sample that don't say it themselves.
    pub rate: Rate,
    /// Move the sampling times of clocks.
    pub dither: bool,
    /// The CPUs that are sampled from the start.
    pub cpus: CpuList,
    /// Whether the CPUs were named, and so no other is sampled when it comes online.
    pub cpus_named: bool,
    /// What the events are opened on.
    pub target: Target,
}

/// What events are opened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// CPUs: the eBPF program filters.
    Cpus,
    /// Tasks, and what they start.
    Tasks(Tasks),
    /// The cgroups with these folders, on each CPU, and what is below them.
    Cgroups(Vec<PathBuf>),
}

/// The tasks that events are opened on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Processes, with all their threads.
    pub pids: Vec<u32>,
    /// And their descendants.
    pub children: bool,
    /// Threads. If there are any, only they are meant, and nothing that they start.
    pub tids: Vec<u32>,
    /// The processes have yet to execute what is sampled: events are enabled when they do.
    pub enable_on_exec: bool,
}

/// What to sample.
#[derive(Clone, Debug, PartialEq)]
pub enum EventChoice {
    /// An event that fires after so many counts.
    Counted(CountedEvent),
    /// Hits of tracepoints, or of a probe.
    Traced(Traced),
}

/// Which event to sample of those that count.
#[derive(Clone, Debug, PartialEq)]
pub enum CountedEvent {
    /// Cycles, or the CPU clock where there is no PMU.
    Default,
    /// This one or none: it was asked for by name.
    Named(Event),
}

impl fmt::Display for EventChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counted(event) => event.fmt(f),
            Self::Traced(traced) => traced.fmt(f),
        }
    }
}

impl fmt::Display for CountedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => Event::cycles().fmt(f),
            Self::Named(event) => event.fmt(f),
        }
    }
}
