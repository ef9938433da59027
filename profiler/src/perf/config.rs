//! What is sampled, how often and where.

use profiler_profile::{cpus::CpuList, source::Rate};

use super::event::Event;

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
}

/// Which event to sample.
#[derive(Clone, Debug, PartialEq)]
pub enum EventChoice {
    /// Cycles, or the CPU clock where there is no PMU.
    Default,
    /// This one or none: it was asked for by name.
    Named(Event),
}
