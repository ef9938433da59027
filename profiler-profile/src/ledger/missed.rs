//! What the kernel counted and the program never saw.

use super::EventCount;
use crate::source::{Rate, Source};

/// The periods that a CPU's samples stood for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Periods {
    pub(super) fired: u64,
    pub(super) sum: u64,
    pub(super) max: u64,
}

/// Whole periods in which the program did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    /// Though the event was counted.
    pub(super) missed: u64,
    /// The kernel held the event back.
    pub(super) throttled: u64,
}

/// Samples whose mean period is that of the clock.
const MIN_FIRED: u64 = 8;

/// How many whole periods have passed in which the program did not run, and the period.
pub(super) fn missed(
    source: &Source,
    count: EventCount,
    events: u64,
    periods: Periods,
) -> (Missed, u64) {
    let is_clock = source.counts.is_clock();
    // How many events may have ended within a period beside what is left of it by division.
    let mut unfinished = events.saturating_sub(1);
    let period = match source.rate {
        Rate::Period(period) => period,
        // A clock's period is fixed, or moved evenly up and down. A few samples don't tell it: the first has a phase of
        // its own.
        Rate::Frequency(hz) if is_clock && periods.fired < MIN_FIRED => 1_000_000_000 / hz.max(1),
        Rate::Frequency(_) if is_clock => periods.sum / periods.fired,
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
    // A clock stands still while it is throttled, but the time for which it is enabled goes on.
    let (all, held_back) = if is_clock {
        (count.enabled_ns, count.enabled_ns.saturating_sub(count.count))
    } else {
        (all, 0)
    };
    let rest = all.saturating_sub(periods.sum).saturating_sub(tail);
    let in_periods = |part: u64| part.checked_div(period).unwrap_or(0);
    let both = in_periods(rest);
    let throttled = in_periods(held_back).min(both);
    (Missed { missed: both - throttled, throttled }, period)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Counts;

    fn missed(
        counts: Counts,
        rate: Rate,
        count: EventCount,
        events: u64,
        periods: Periods,
    ) -> (Missed, u64) {
        super::missed(
            &Source { slot: 0, name: "event".into(), counts, rate },
            count,
            events,
            periods,
        )
    }

    fn counted(count: u64) -> EventCount {
        EventCount { count, enabled_ns: count, running_ns: count }
    }

    #[test]
    fn whole_periods_without_a_run_are_missed() {
        let (clock, hz) = (Counts::Clock, Rate::Frequency(100));
        let period = 10_000_000;
        let missed = |event, rate, count, fired: u64, sum: u64| {
            let max = sum.checked_div(fired).unwrap_or(0);
            missed(event, rate, count, 1, Periods { fired, sum, max }).0.missed
        };
        assert_eq!(missed(clock, hz, counted(10 * period + 9_999_999), 10, 10 * period), 0);
        assert_eq!(missed(clock, hz, counted(13 * period), 10, 10 * period), 3);
        assert_eq!(missed(clock, hz, counted(5 * period), 0, 0), 5);
        assert_eq!(missed(clock, hz, counted(9 * period), 10, 10 * period), 0);
        // A CPU that slept nearly all the time, with a first sample that came early.
        assert_eq!(missed(clock, hz, counted(200 * period), 1, period / 2), 199);
        // A CPU that slept counted few cycles and fired never.
        assert_eq!(missed(Counts::Events, hz, counted(1_000_000), 0, 0), 0);
        assert_eq!(missed(Counts::Events, Rate::Period(1000), counted(2500), 0, 0), 2);
        // The kernel may have lengthened the period since: one is not surely missed.
        assert_eq!(missed(Counts::Events, hz, counted(1_999), 10, 1_000), 8);
        assert_eq!(missed(Counts::Events, hz, counted(1_199), 10, 1_000), 0);
    }

    #[test]
    fn a_clock_that_was_held_back_is_expected_by_the_time() {
        let period = 100_000;
        // It counted as if a tenth of the time had passed.
        let count =
            EventCount { count: 10 * period, enabled_ns: 100 * period, running_ns: 100 * period };
        let periods = Periods { fired: 9, sum: 9 * period, max: period };
        for event in [Counts::Clock, Counts::UnstoppedClock] {
            let (missed, _) = missed(event, Rate::Frequency(10_000), count, 1, periods);
            assert_eq!(missed, Missed { missed: 1, throttled: 90 });
        }
        // Of cycles, nobody knows how many there would have been.
        let (missed, _) = missed(Counts::Events, Rate::Period(period), count, 1, periods);
        assert_eq!(missed, Missed { missed: 1, throttled: 0 });
    }

    #[test]
    fn what_each_event_left_unfinished_is_not_missed() {
        let (clock, cycles, hz) = (Counts::Clock, Counts::Events, Rate::Frequency(100));
        let missed = |event, rate, count, events, sum, max| {
            missed(event, rate, counted(count), events, Periods { fired: 10, sum, max }).0.missed
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
