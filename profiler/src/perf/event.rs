//! The events that can be sampled, by the names that `perf` gives them.

use std::{fmt, str::FromStr};

use perf_event_open_sys::bindings as sys;
use profiler_profile::source::{Counts, Rate, Source};

/// What makes an event fire, and in what unit its period counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// The name we print.
    pub name: &'static str,
    /// `perf_event_attr.type`.
    pub(crate) kind: u32,
    /// `perf_event_attr.config`.
    pub(crate) config: u64,
}

impl EventSpec {
    /// CPU cycles, counted by the processor's PMU: the default.
    pub const CYCLES: Self = hardware("cycles", sys::PERF_COUNT_HW_CPU_CYCLES);
    /// A timer of the kernel: what there is on machines without a PMU.
    pub const CPU_CLOCK: Self = software("cpu-clock", sys::PERF_COUNT_SW_CPU_CLOCK);

    /// The same timer by another clock. Of a whole CPU, both count the time that passes.
    pub const TASK_CLOCK: Self = software("task-clock", sys::PERF_COUNT_SW_TASK_CLOCK);

    /// Counts nothing; carries records only.
    pub(crate) const DUMMY: Self = software("dummy", sys::PERF_COUNT_SW_DUMMY);

    /// The names of all events, the other names, too.
    pub fn names() -> impl Iterator<Item = &'static str> {
        EVENTS.iter().flat_map(|(event, other)| [Some(event.name), *other]).flatten()
    }

    /// The event as a source of samples, in the first slot.
    #[must_use]
    pub fn source(&self, rate: Rate) -> Source {
        Source { slot: 0, name: self.name.into(), counts: self.counts(), rate }
    }

    /// What it counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        match *self {
            Self::CPU_CLOCK => Counts::Clock,
            Self::TASK_CLOCK => Counts::UnstoppedClock,
            _ => Counts::Events,
        }
    }

    /// Whether it counts the nanoseconds that pass: see [`Counts::is_clock`].
    #[must_use]
    pub fn is_clock(&self) -> bool {
        self.counts().is_clock()
    }

    /// Whether the kernel alone can count it, on every machine.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.kind == sys::PERF_TYPE_SOFTWARE
    }
}

const fn hardware(name: &'static str, config: u32) -> EventSpec {
    EventSpec { name, kind: sys::PERF_TYPE_HARDWARE, config: config as u64 }
}

const fn software(name: &'static str, config: u32) -> EventSpec {
    EventSpec { name, kind: sys::PERF_TYPE_SOFTWARE, config: config as u64 }
}

/// Every event, with its other name where it has one.
const EVENTS: [(EventSpec, Option<&str>); 19] = [
    (EventSpec::CYCLES, Some("cpu-cycles")),
    (hardware("instructions", sys::PERF_COUNT_HW_INSTRUCTIONS), None),
    (hardware("cache-references", sys::PERF_COUNT_HW_CACHE_REFERENCES), None),
    (hardware("cache-misses", sys::PERF_COUNT_HW_CACHE_MISSES), None),
    (hardware("branches", sys::PERF_COUNT_HW_BRANCH_INSTRUCTIONS), Some("branch-instructions")),
    (hardware("branch-misses", sys::PERF_COUNT_HW_BRANCH_MISSES), None),
    (hardware("bus-cycles", sys::PERF_COUNT_HW_BUS_CYCLES), None),
    (
        hardware("stalled-cycles-frontend", sys::PERF_COUNT_HW_STALLED_CYCLES_FRONTEND),
        Some("idle-cycles-frontend"),
    ),
    (
        hardware("stalled-cycles-backend", sys::PERF_COUNT_HW_STALLED_CYCLES_BACKEND),
        Some("idle-cycles-backend"),
    ),
    (hardware("ref-cycles", sys::PERF_COUNT_HW_REF_CPU_CYCLES), None),
    (EventSpec::CPU_CLOCK, None),
    (EventSpec::TASK_CLOCK, None),
    (software("page-faults", sys::PERF_COUNT_SW_PAGE_FAULTS), Some("faults")),
    (software("context-switches", sys::PERF_COUNT_SW_CONTEXT_SWITCHES), Some("cs")),
    (software("cpu-migrations", sys::PERF_COUNT_SW_CPU_MIGRATIONS), Some("migrations")),
    (software("minor-faults", sys::PERF_COUNT_SW_PAGE_FAULTS_MIN), None),
    (software("major-faults", sys::PERF_COUNT_SW_PAGE_FAULTS_MAJ), None),
    (software("alignment-faults", sys::PERF_COUNT_SW_ALIGNMENT_FAULTS), None),
    (software("emulation-faults", sys::PERF_COUNT_SW_EMULATION_FAULTS), None),
];

impl FromStr for EventSpec {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = EVENTS.iter().find(|(event, other)| event.name == name || *other == Some(name));
        if let Some((event, _)) = found {
            return Ok(*event);
        }
        let mut near: Vec<_> = Self::names()
            .map(|known| (strsim::jaro_winkler(name, known), known))
            .filter(|(likeness, _)| *likeness > 0.7)
            .collect();
        near.sort_by(|a, b| b.0.total_cmp(&a.0));
        let near: Vec<_> = near.iter().take(3).map(|(_, known)| *known).collect();
        let meant = if near.is_empty() {
            let all = EVENTS.iter().map(|(event, _)| event.name).collect::<Vec<_>>();
            format!("there are {}", all.join(", "))
        } else {
            format!("did you mean {}?", near.join(" or "))
        };
        Err(format!("no such event; {meant}"))
    }
}

impl fmt::Display for EventSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_one_event() {
        for (event, other) in EVENTS {
            assert_eq!(event.name.parse(), Ok(event));
            if let Some(other) = other {
                assert_eq!(other.parse(), Ok(event));
            }
        }
    }

    #[test]
    fn a_wrong_name_gets_the_near_ones_or_all() {
        assert!("cpu-clok".parse::<EventSpec>().unwrap_err().contains("cpu-clock"));
        assert!("".parse::<EventSpec>().unwrap_err().contains("page-faults"));
        assert!("Zürich".parse::<EventSpec>().unwrap_err().contains("cycles"));
    }
}
