//! When windows end.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::{Duration, Instant},
};

/// By how many parts in a thousand a window is shorter or longer than it should be, at most.
const SPREAD: u32 = 50;
/// The shortest part of a window that the first one is, in thousandths.
const FIRST_MIN: u32 = 100;

/// When windows end. The first is a random part of one, and each of the others a little shorter or longer than asked for, so
/// that the agents of a fleet that was started at one time do not all send at one time.
#[derive(Debug)]
pub struct Schedule {
    length: Duration,
    next: Instant,
}

impl Schedule {
    /// Windows of this length, of which the first begins now.
    #[must_use]
    pub fn new(length: Duration, now: Instant) -> Self {
        Self { length, next: now + part(length, FIRST_MIN, 1000, random()) }
    }

    /// When the window ends that goes on.
    #[must_use]
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Begins the next one.
    pub fn begin(&mut self, now: Instant) {
        self.next = now + part(self.length, 1000 - SPREAD, 1000 + SPREAD, random());
    }
}

/// Between so many thousandths of a time, by a random number.
fn part(of: Duration, least: u32, most: u32, random: u64) -> Duration {
    let span = u64::from(most - least) + 1;
    let thousandths = u64::from(least).saturating_add(random.checked_rem(span).unwrap_or(0));
    of.saturating_mul(u32::try_from(thousandths).unwrap_or(most)) / 1000
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_as_long_as_asked_for_within_a_twentieth() {
        let (now, length) = (Instant::now(), Duration::from_secs(60));
        for random in [0, 1, 50, 99, 100, 101, u64::MAX] {
            let window = part(length, 1000 - SPREAD, 1000 + SPREAD, random);
            assert!((57_000..=63_000).contains(&window.as_millis()), "{window:?}");
            let first = part(length, FIRST_MIN, 1000, random);
            assert!((6_000..=60_000).contains(&first.as_millis()), "{first:?}");
        }
        let mut schedule = Schedule::new(length, now);
        assert!(schedule.next() > now && schedule.next() <= now + length);
        let later = schedule.next();
        schedule.begin(later);
        assert!(schedule.next() >= later + length / 20 * 19);
    }
}
