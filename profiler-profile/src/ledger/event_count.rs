//! What the kernel has counted of an event.

use std::ops::AddAssign;

/// What an event has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCount {
    /// In the event's unit.
    pub count: u64,
    /// For how long the event was enabled.
    pub enabled_ns: u64,
    /// For how much of that it was on the PMU.
    pub running_ns: u64,
}

impl AddAssign for EventCount {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.enabled_ns += other.enabled_ns;
        self.running_ns += other.running_ns;
    }
}
