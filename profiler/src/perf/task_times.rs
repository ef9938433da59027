//! For how long the events of tasks were enabled on each CPU.

use std::collections::BTreeMap;

use profiler_profile::ledger::EventCount;

/// Makes the times those of each CPU.
///
/// The kernel says of an event of a task on a CPU that it is enabled while the task runs on any, and that it is running
/// while it counts. If the PMU `is_shared` with other events, and these are all the CPUs, then what was running nowhere
/// was left out for those; otherwise an event counts whenever its task runs there.
pub(super) fn settle(counts: &mut BTreeMap<u32, EventCount>, is_shared: bool) {
    let running: u128 = counts.values().map(|it| u128::from(it.running_ns)).sum();
    let enabled = counts.values().map(|it| it.enabled_ns).max().unwrap_or(0);
    for count in counts.values_mut() {
        let own = count.running_ns;
        count.enabled_ns = own;
        if is_shared && running > 0 {
            let scaled = u128::from(own) * u128::from(enabled) / running;
            count.enabled_ns = own.max(u64::try_from(scaled).unwrap_or(u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enabled(times: [(u64, u64); 2], is_shared: bool) -> [u64; 2] {
        let count = |(enabled_ns, running_ns)| EventCount { count: 1, enabled_ns, running_ns };
        let mut counts = BTreeMap::from([(0, count(times[0])), (3, count(times[1]))]);
        settle(&mut counts, is_shared);
        [counts[&0].enabled_ns, counts[&3].enabled_ns]
    }

    #[test]
    fn times_are_of_the_cpu() {
        // The task has run for 100, on one and on the other.
        assert_eq!(enabled([(100, 30), (100, 70)], true), [30, 70]);
        assert_eq!(enabled([(100, 30), (100, 70)], false), [30, 70]);
        // For half of that, others had the PMU.
        assert_eq!(enabled([(100, 15), (100, 35)], true), [30, 70]);
        // It has run on other CPUs, too.
        assert_eq!(enabled([(100, 15), (100, 35)], false), [15, 35]);
        // Read one after the other.
        assert_eq!(enabled([(99, 30), (98, 70)], true), [30, 70]);
        assert_eq!(enabled([(0, 0), (0, 0)], true), [0, 0]);
    }
}
