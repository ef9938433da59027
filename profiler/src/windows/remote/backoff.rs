//! When to try again.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::{Duration, Instant},
};

/// The longest wait after the first failure.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait of all.
const MAX: Duration = Duration::from_secs(300);
/// No store is taken at its word for longer.
const MAX_ASKED: Duration = Duration::from_secs(3600);

/// When to try again: after a random part of a time that doubles with each failure, so that the agents of a fleet do not all come
/// back at one time.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// When to try again, if that is not at once.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    pub(super) fn succeed(&mut self) {
        *self = Self::default();
    }

    /// Another failure. A store that asks for a time gets that, and a random part more. How long to wait.
    pub(super) fn fail(&mut self, now: Instant, asked: Option<Duration>) -> Duration {
        let random = RandomState::new().build_hasher().finish();
        let delay = delay(self.failures, asked, random);
        self.failures = self.failures.saturating_add(1);
        self.until = Some(now + delay);
        delay
    }
}

fn delay(failures: u32, asked: Option<Duration>, random: u64) -> Duration {
    let longest = FIRST.saturating_mul(2_u32.saturating_pow(failures)).min(MAX);
    let jitter = longest.mul_f64(random as f64 / u64::MAX as f64);
    asked.unwrap_or_default().min(MAX_ASKED).saturating_add(jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_five_minutes_and_are_random_within() {
        let longest: Vec<u128> = (0..12).map(|it| delay(it, None, u64::MAX).as_millis()).collect();
        assert_eq!(longest[..4], [500, 1000, 2000, 4000]);
        assert_eq!((longest[9], longest[11]), (256_000, 300_000));
        assert_eq!(delay(u32::MAX, None, u64::MAX), MAX);
        assert_eq!(delay(3, None, 0), Duration::ZERO);
        let half = delay(3, None, u64::MAX / 2).as_millis();
        assert!((1999..=2001).contains(&half), "{half}");
    }

    #[test]
    fn a_store_that_asks_for_a_time_gets_it() {
        let asked = Some(Duration::from_secs(7));
        assert_eq!(delay(0, asked, 0), Duration::from_secs(7));
        assert_eq!(delay(0, asked, u64::MAX), Duration::from_millis(7500));
        assert_eq!(delay(0, Some(Duration::MAX), 0), MAX_ASKED);
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        assert_eq!(backoff.until(), None);
        backoff.fail(now, asked);
        assert!(backoff.until().unwrap() >= now + Duration::from_secs(7));
        backoff.succeed();
        assert_eq!(backoff.until(), None);
    }
}
