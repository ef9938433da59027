//! What the kernel has counted, and what that would have been with a counter for all the time.

use profiler_profile::ledger::EventCount;

/// The sum of what several events have counted that stand for one: on each CPU, or in each thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    /// Scaled to the time for which it was to be counted.
    pub(crate) count: u64,
    /// For how long it was to be counted, in nanoseconds.
    pub(crate) enabled_ns: u64,
    /// For how long it had a counter.
    pub(crate) running_ns: u64,
}

impl Total {
    /// What one event has counted.
    pub(crate) fn of(count: EventCount) -> Self {
        let EventCount { enabled_ns, running_ns, .. } = count;
        Self { count: scaled(count), enabled_ns, running_ns }
    }

    /// Adds that of another.
    pub(crate) fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.enabled_ns = self.enabled_ns.saturating_add(other.enabled_ns);
        self.running_ns = self.running_ns.saturating_add(other.running_ns);
    }

    /// The share of the time for which it had a counter, from 0 to 1; `None` if it never had one. Of no time it had
    /// all.
    pub(crate) fn share(&self) -> Option<f64> {
        match (self.running_ns, self.enabled_ns) {
            (0, 0) => Some(1.0),
            (0, _) => None,
            (running_ns, enabled_ns) => {
                Some((running_ns as f64 / enabled_ns.max(1) as f64).min(1.0))
            }
        }
    }
}

/// What was counted between two readings of the same event.
pub(crate) fn since(now: EventCount, before: EventCount) -> EventCount {
    EventCount {
        count: now.count.wrapping_sub(before.count),
        enabled_ns: now.enabled_ns.saturating_sub(before.enabled_ns),
        running_ns: now.running_ns.saturating_sub(before.running_ns),
    }
}

/// `count · enabled / running`, as `perf_event_open(2)` has it.
fn scaled(EventCount { count, enabled_ns, running_ns }: EventCount) -> u64 {
    if running_ns == 0 || running_ns >= enabled_ns {
        return count;
    }
    let (running, half) = (u128::from(running_ns), u128::from(running_ns / 2));
    let product = u128::from(count) * u128::from(enabled_ns) + half;
    u64::try_from(product / running).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count(count: u64, enabled_ns: u64, running_ns: u64) -> EventCount {
        EventCount { count, enabled_ns, running_ns }
    }

    #[test]
    fn a_count_is_scaled_to_the_time_it_was_enabled() {
        for (of, expected) in [
            (count(100, 1000, 1000), 100),
            (count(100, 1000, 500), 200),
            (count(100, 1000, 300), 333),
            (count(200, 1000, 300), 667),
            // It never had a counter.
            (count(0, 1000, 0), 0),
            // The kernel reads both clocks one after the other.
            (count(100, 999, 1000), 100),
            (count(u64::MAX, u64::MAX, 1), u64::MAX),
        ] {
            assert_eq!(scaled(of), expected, "{of:?}");
        }
    }

    #[test]
    fn each_is_scaled_by_its_own_time() {
        // One CPU idles, and its counter has all the time; on the other it has half.
        let mut total = Total::of(count(10, 1000, 1000));
        total.add(Total::of(count(500, 1000, 500)));
        assert_eq!(total, Total { count: 1010, enabled_ns: 2000, running_ns: 1500 });
        assert_eq!(total.share(), Some(0.75));
        assert_eq!(Total::of(count(0, 5, 0)).share(), None);
        assert_eq!(Total::default().share(), Some(1.0));
    }

    #[test]
    fn intervals_are_differences() {
        let difference = since(count(30, 200, 150), count(10, 100, 100));
        assert_eq!(difference, count(20, 100, 50));
    }

    proptest! {
        #[test]
        fn scaling_never_lowers_a_count(value: u64, enabled: u64, running: u64) {
            let total = Total::of(count(value, enabled, running));
            prop_assert!(total.count >= value);
            prop_assert!(total.share().is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }
}
