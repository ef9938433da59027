//! Tracepoints and probes, each hit of which is a sample.
//!
//! The kernel runs a program at each hit on any CPU from the moment it is attached to one perf event of the tracepoint or
//! probe, whatever that event counts and whether it is enabled: `perf_trace_run_bpf_submit` in
//! <https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c>. So there is one event for each, on any
//! CPU, and [`Gate`](crate::bpf::gate::Gate) says when hits count, on which CPUs, and how many a sample stands for.

mod point;
mod source;

use std::fmt;

use profiler_events::{Attr, abi::PERF_TYPE_TRACEPOINT};
use profiler_profile::source::Rate;

pub use self::source::TraceSource;
use super::probe::ProbePoint;
use crate::{
    bpf::{hit_filter::HitFilter, load::SlotSettings},
    error::Result,
};

/// Tracepoints that a pattern may match: each takes a file, and the kernel some milliseconds to take it out at the end.
pub const MAX_POINTS: usize = 512;

/// A tracepoint or probe, and where it goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// What to open.
    pub attr: Attr,
    /// Of a probe.
    place: Option<ProbePoint>,
}

impl Site {
    /// The site of a tracepoint or probe. A function of a file is looked for in the file.
    ///
    /// # Errors
    ///
    /// The file has no such function, or no code there.
    pub fn find(attr: Attr) -> Result<Self> {
        Ok(Self { place: ProbePoint::of(&attr)?, attr })
    }
}

/// What is traced as one source: a tracepoint or all that a pattern matches, or a probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// As it was typed.
    pub name: String,
    /// There is at least one, and several only of tracepoints.
    pub sites: Vec<Site>,
    /// How many hits a sample stands for, if it says so itself.
    pub period: Option<u64>,
    /// Which hits of tracepoints count.
    pub filter: Option<HitFilter>,
}

impl Traced {
    /// How many hits a sample stands for: one, unless a period was asked for. A frequency is for other events.
    #[must_use]
    pub fn period(&self, default: Rate) -> u64 {
        match (self.period, default) {
            (Some(period), _) | (None, Rate::Period(period)) => period,
            (None, Rate::Frequency(_)) => 1,
        }
    }

    /// Whether both trace the same hits, whatever they are called.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let place = |it: &Site| (it.attr.kind, it.attr.config, it.attr.probe.clone());
        self.filter == other.filter
            && self.sites.iter().map(place).eq(other.sites.iter().map(place))
    }

    /// What the program of its slot has to know.
    #[must_use]
    pub fn settings(&self) -> SlotSettings {
        match self.sites.first().map(|it| &it.attr) {
            Some(Attr { kind: PERF_TYPE_TRACEPOINT, .. }) | None => {
                SlotSettings::Tracepoints(self.filter.clone())
            }
            Some(Attr { probe: Some(probe), .. }) if probe.path.is_some() => {
                SlotSettings::UserProbe
            }
            Some(_) => SlotSettings::KernelProbe,
        }
    }
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
