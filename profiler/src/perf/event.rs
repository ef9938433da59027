//! An event, as `perf` names it, that samples.

use std::{fmt, sync::Arc};

use perf_event_open_sys::bindings as sys;
use profiler_events::{Attr, Generic, syntax::Precise};
use profiler_profile::source::{Counts, Rate, Source};

/// What makes an event fire, and in what unit its period counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Event(Arc<Attr>);

impl Event {
    /// The event of these attributes.
    #[must_use]
    pub fn new(attr: Attr) -> Self {
        Self(Arc::new(attr))
    }

    /// CPU cycles, counted by the processor's PMU: the default.
    #[must_use]
    pub fn cycles() -> Self {
        Self::named("cycles", sys::PERF_TYPE_HARDWARE, sys::PERF_COUNT_HW_CPU_CYCLES)
    }

    /// A timer of the kernel: what there is on machines without a PMU.
    #[must_use]
    pub fn cpu_clock() -> Self {
        Self::named("cpu-clock", sys::PERF_TYPE_SOFTWARE, sys::PERF_COUNT_SW_CPU_CLOCK)
    }

    /// Counts nothing; carries records only.
    pub(crate) fn dummy() -> Self {
        Self::named("dummy", sys::PERF_TYPE_SOFTWARE, sys::PERF_COUNT_SW_DUMMY)
    }

    fn named(name: &str, kind: u32, config: u32) -> Self {
        Self::new(Attr { name: name.into(), ..Attr::new(kind, config.into()) })
    }

    /// What the kernel is told of it.
    pub(crate) fn attr(&self) -> &Attr {
        &self.0
    }

    /// The event as a source of samples, in the first slot.
    #[must_use]
    pub fn source(&self, rate: Rate) -> Source {
        Source { slot: 0, name: self.0.name.clone().into(), counts: self.counts(), rate }
    }

    /// How often it samples: its own rate, or else this one.
    #[must_use]
    pub fn rate(&self, default: Rate) -> Rate {
        match self.0.rate {
            Some(profiler_events::Rate::Period(period)) => Rate::Period(period),
            Some(profiler_events::Rate::Frequency(hz)) => Rate::Frequency(hz),
            None => default,
        }
    }

    /// What `PERF_EVENT_IOC_PERIOD` wants to be told, for this rate of the event while it is open.
    pub(crate) fn period(&self, rate: Rate) -> u64 {
        match rate {
            // Of a clock's frequency the kernel has made a period when it was opened.
            Rate::Frequency(hz) if self.is_clock() => 1_000_000_000 / hz.max(1),
            Rate::Frequency(value) | Rate::Period(value) => value,
        }
    }

    /// What it counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Attr { config, exclude, .. } = &*self.0;
        let clock = match u32::try_from(*config) {
            Ok(sys::PERF_COUNT_SW_CPU_CLOCK) if self.is_software() => Counts::Clock,
            // Another clock of the same kind. Of a whole CPU, both count the time that passes.
            Ok(sys::PERF_COUNT_SW_TASK_CLOCK) if self.is_software() => Counts::UnstoppedClock,
            _ => return Counts::Events,
        };
        if exclude.user || exclude.kernel || exclude.idle { Counts::ClockInPart } else { clock }
    }

    /// Whether it counts the nanoseconds that pass: see [`Counts::is_clock`].
    #[must_use]
    pub fn is_clock(&self) -> bool {
        self.counts().is_clock()
    }

    /// Whether the kernel alone can count it, on every machine.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.0.kind == sys::PERF_TYPE_SOFTWARE
    }

    /// Whether its number says which of several PMUs is meant.
    pub(crate) fn names_pmu(&self) -> bool {
        let is_generic = [sys::PERF_TYPE_HARDWARE, sys::PERF_TYPE_HW_CACHE].contains(&self.0.kind);
        is_generic && self.0.config > u32::MAX.into()
    }

    /// Whether both sample the same, whatever they are called.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let unnamed = |it: &Self| Attr { name: String::new(), ..(*it.0).clone() };
        unnamed(self) == unnamed(other)
    }

    /// The values of `precise_ip` to try, the best one first. An event of the kernel's is where it is.
    pub(crate) fn precisions(&self) -> impl Iterator<Item = u8> + use<> {
        let best = match self.0.precise {
            _ if self.is_software() => 0,
            Precise::Level(level) => level,
            Precise::Most => Precise::MAX,
        };
        (0..=best).rev()
    }

    /// The names of the events that every machine may have, for completions.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        Generic::all().filter(|it| it.counting_only().is_none()).flat_map(|it| it.names())
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_events::{Exclude, Machine, Purpose, parse};

    fn event(text: &str) -> Event {
        let mut sets = Machine::here().resolve(&parse(text).unwrap(), Purpose::Sample).unwrap();
        Event::new(sets.remove(0).attrs.remove(0))
    }

    #[test]
    fn clocks_count_the_time_that_passes() {
        for (text, counts) in [
            ("cpu-clock", Counts::Clock),
            ("task-clock", Counts::UnstoppedClock),
            ("cpu-clock:u", Counts::ClockInPart),
            ("task-clock:k", Counts::ClockInPart),
            ("page-faults:u", Counts::Events),
        ] {
            assert_eq!(event(text).counts(), counts, "{text}");
        }
        assert!(event("cpu-clock").is_same(&Event::cpu_clock()));
        assert!(event("faults").is_same(&event("page-faults")));
        assert!(!event("faults:u").is_same(&event("faults")));
    }

    #[test]
    fn an_event_has_its_own_rate() {
        let default = Rate::Frequency(99);
        assert_eq!(event("faults").rate(default), default);
        assert_eq!(event("faults/period=7/").rate(default), Rate::Period(7));
        assert_eq!(event("cpu-clock/freq=7/").rate(default), Rate::Frequency(7));
    }

    #[test]
    fn precision_goes_down_step_by_step() {
        let precise = |precise| Event::new(Attr { precise, ..Attr::new(0, 0) });
        assert!(precise(Precise::Level(2)).precisions().eq([2, 1, 0]));
        assert!(precise(Precise::Most).precisions().eq([3, 2, 1, 0]));
        assert!(Event::cycles().precisions().eq([0]));
        assert!(event("cpu-clock:pp").precisions().eq([0]));
        assert_eq!(Event::cycles().attr().exclude, Exclude::default());
    }

    #[test]
    fn what_never_fires_is_not_offered() {
        let names: Vec<&str> = Event::names().collect();
        assert!(
            names.contains(&"cycles") && names.contains(&"faults") && !names.contains(&"dummy")
        );
    }
}
