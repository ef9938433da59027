//! How much of the time something may take.

use std::time::{Duration, Instant};

/// One part in so many of the time.
const SHARE: u32 = 20;
/// What has not been used of so much time may be used at once.
const SAVED: Duration = Duration::from_secs(5);

/// A share of the time.
#[derive(Clone, Debug)]
pub(crate) struct TimeBudget {
    /// One part in so many.
    share: u32,
    /// Until when the time that was taken has used up the share.
    used_until: Instant,
    saved: Duration,
}

impl TimeBudget {
    /// All that can be saved is there.
    pub(crate) fn new(now: Instant) -> Self {
        Self::saving(SAVED, now)
    }

    /// One of which so much time's share may be saved. All of it is there.
    pub(crate) fn saving(saved: Duration, now: Instant) -> Self {
        Self { share: SHARE, used_until: now.checked_sub(saved).unwrap_or(now), saved }
    }

    /// One part in so many of the time, of which so much may be used at once. All of it is there.
    pub(crate) fn sharing(share: u32, at_once: Duration, now: Instant) -> Self {
        Self { share, ..Self::saving(at_once.saturating_mul(share), now) }
    }

    /// Whether there is some left.
    pub(crate) fn is_left(&self, now: Instant) -> bool {
        self.used_until <= now
    }

    /// Takes time, also more than was left.
    pub(crate) fn take(&mut self, now: Instant, time: Duration) {
        let saved_since = now.checked_sub(self.saved).unwrap_or(now);
        self.used_until = self.used_until.max(saved_since) + time.saturating_mul(self.share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_share_of_the_time() {
        let start = Instant::now() + Duration::from_secs(1000);
        let mut time_budget = TimeBudget::new(start);
        let (step, mut taken) = (Duration::from_millis(10), Duration::ZERO);
        for ms in 0..100_000 {
            let now = start + Duration::from_millis(ms);
            if time_budget.is_left(now) {
                time_budget.take(now, step);
                taken += step;
            }
        }
        let share = (Duration::from_secs(100) + SAVED) / SHARE;
        assert!(taken >= share && taken <= share + step, "{taken:?}");
    }

    #[test]
    fn any_share_can_be_given_out() {
        let start = Instant::now() + Duration::from_secs(1000);
        let second = Duration::from_secs(1);
        let mut time_budget = TimeBudget::sharing(40, 3 * second, start);
        time_budget.take(start, 3 * second);
        assert!(time_budget.is_left(start));
        time_budget.take(start, second);
        assert!(!time_budget.is_left(start + 39 * second));
        assert!(time_budget.is_left(start + 40 * second));
    }

    #[test]
    fn what_is_saved_is_bounded() {
        let start = Instant::now() + Duration::from_secs(1000);
        let mut time_budget = TimeBudget::new(start);
        let later = start + Duration::from_secs(1_000_000);
        time_budget.take(later, SAVED / SHARE);
        assert!(time_budget.is_left(later));
        time_budget.take(later, Duration::from_nanos(1));
        assert!(!time_budget.is_left(later));
        // A debt is paid off.
        time_budget.take(later, Duration::from_secs(1));
        assert!(!time_budget.is_left(later + Duration::from_secs(20)));
        assert!(time_budget.is_left(later + Duration::from_secs(21)));
    }
}
