//! What the kernel counted and the program never saw.

use crate::perf::{attr::Rate, event::EventSpec, open::EventCount};

/// The periods that a CPU's samples stood for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Periods {
    pub(super) fired: u64,
    pub(super) sum: u64,
    pub(super) max: u64,
}

/// How many whole periods the events have counted in which the program did not run, and the period.
pub(super) fn missed(
    event: EventSpec,
    rate: Rate,
    count: EventCount,
    events: u64,
    periods: Periods,
) -> (u64, u64) {
    let is_clock = event == EventSpec::CPU_CLOCK;
    // How many events may have ended within a period beside what is left of it by division.
    let mut unfinished = events.saturating_sub(1);
    let period = match rate {
        Rate::Period(period) => period,
        // A clock's period is fixed.
        Rate::Frequency(hz) if is_clock => {
            periods.sum.checked_div(periods.fired).unwrap_or(1_000_000_000 / hz.max(1))
        }
        // Elsewhere the kernel moves the period, and only what is beyond the largest was surely
        // missed. Of an event that never fired, no period is known.
        Rate::Frequency(_) => {
            unfinished = events;
            periods.max
        }
    };
    // What may be counted without a sample being due.
    let tail = period.saturating_mul(unfinished);
    // With more events than the PMU has counters, it is counted for a part of the time only.
    let all = match count.running_ns {
        0 => count.count,
        running => {
            let scaled = u128::from(count.count) * u128::from(count.enabled_ns.max(running));
            u64::try_from(scaled / u128::from(running)).unwrap_or(u64::MAX)
        }
    };
    let rest = all.saturating_sub(periods.sum).saturating_sub(tail);
    (rest.checked_div(period).unwrap_or(0), period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: u64) -> EventCount {
        EventCount { count, enabled_ns: count, running_ns: count }
    }

    #[test]
    fn whole_periods_without_a_run_are_missed() {
        let (clock, hz) = (EventSpec::CPU_CLOCK, Rate::Frequency(100));
        let period = 10_000_000;
        let missed = |event, rate, count, fired: u64, sum: u64| {
            let max = sum.checked_div(fired).unwrap_or(0);
            missed(event, rate, count, 1, Periods { fired, sum, max }).0
        };
        assert_eq!(missed(clock, hz, counted(10 * period + 9_999_999), 10, 10 * period), 0);
        assert_eq!(missed(clock, hz, counted(13 * period), 10, 10 * period), 3);
        assert_eq!(missed(clock, hz, counted(5 * period), 0, 0), 5);
        assert_eq!(missed(clock, hz, counted(9 * period), 10, 10 * period), 0);
        // A CPU that slept counted few cycles and fired never.
        assert_eq!(missed(EventSpec::CYCLES, hz, counted(1_000_000), 0, 0), 0);
        assert_eq!(missed(EventSpec::CYCLES, Rate::Period(1000), counted(2500), 0, 0), 2);
        // The kernel may have lengthened the period since: one is not surely missed.
        assert_eq!(missed(EventSpec::CYCLES, hz, counted(1_999), 10, 1_000), 8);
        assert_eq!(missed(EventSpec::CYCLES, hz, counted(1_199), 10, 1_000), 0);
    }

    #[test]
    fn what_each_event_left_unfinished_is_not_missed() {
        let (clock, cycles, hz) = (EventSpec::CPU_CLOCK, EventSpec::CYCLES, Rate::Frequency(100));
        let missed = |event, rate, count, events, sum, max| {
            missed(event, rate, counted(count), events, Periods { fired: 10, sum, max }).0
        };
        // Three events, of which each counted 5.99 periods and fired five times or less.
        assert_eq!(missed(clock, Rate::Period(100), 3 * 599, 3, 1_500, 100), 0);
        assert_eq!(missed(clock, Rate::Period(100), 3 * 599, 3, 1_400, 100), 1);
        assert_eq!(missed(clock, hz, 1_299, 3, 1_000, 100), 0);
        assert_eq!(missed(clock, hz, 1_300, 3, 1_000, 100), 1);
        // Each may have been in the largest of the periods that the kernel has moved.
        assert_eq!(missed(cycles, hz, 1_899, 3, 1_000, 200), 1);
        assert_eq!(missed(cycles, hz, 1_799, 3, 1_000, 200), 0);
        // A CPU that was never online.
        assert_eq!(missed(clock, hz, 0, 0, 0, 0), 0);
    }
}
