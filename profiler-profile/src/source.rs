//! Where samples come from.

use std::borrow::Cow;

/// How often the event samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// So many samples a second on each CPU; the kernel adapts the period.
    Frequency(u64),
    /// One sample every so many counts of the event.
    Period(u64),
}

/// What an event counts, which says how many samples are due in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Nanoseconds that pass; it stops while the kernel throttles it (`cpu-clock`).
    Clock,
    /// Nanoseconds that pass; it goes on while the kernel throttles it (`task-clock`).
    UnstoppedClock,
    /// Nanoseconds that pass, but it fires only in user mode, only in the kernel, or only while the CPU is not idle
    /// (`cpu-clock:u`).
    ClockInPart,
    /// Anything else, such as cycles or page faults.
    Events,
}

impl Counts {
    /// Whether it counts the nanoseconds that pass, and so fires at a fixed period also where a frequency was
    /// asked for.
    #[must_use]
    pub fn is_clock(self) -> bool {
        self != Self::Events
    }

    /// Whether it is a clock that fires whatever the CPU does, so that each period without a sample tells something.
    #[must_use]
    pub fn is_whole_clock(self) -> bool {
        matches!(self, Self::Clock | Self::UnstoppedClock)
    }
}

/// One source of samples: an event, and how often it is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Which of the run's sources it is, from 0 on.
    pub slot: usize,
    /// The event's name, as the user and `perf` write it.
    pub name: Cow<'static, str>,
    /// What it counts.
    pub counts: Counts,
    /// How often a sample is taken.
    pub rate: Rate,
}
