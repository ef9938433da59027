//! Processes are read from `/proc` where no record has told of them, but not too often.

use std::time::{Duration, Instant};

use quick_cache::unsync::Cache;

use crate::{
    process::{table::Event, tracker::Tracker},
    time_budget::TimeBudget,
};

/// A process is looked up again at most this often.
const PAUSE: Duration = Duration::from_millis(100);
/// Processes of which we remember when that was.
const MAX_LATELY: usize = 4096;

/// Reads processes from `/proc`.
pub(super) struct Finding {
    tracker: Tracker,
    lately: Cache<u32, Instant>,
    time_budget: TimeBudget,
}

impl Finding {
    pub(super) fn new(tracker: Tracker) -> Self {
        let time_budget = TimeBudget::saving(Duration::ZERO, Instant::now());
        Self { tracker, lately: Cache::new(MAX_LATELY), time_budget }
    }

    /// What `/proc` says now; `None` also where it was asked a moment ago, or all that was read takes its share of the
    /// time.
    pub(super) fn find(&mut self, tgid: u32) -> Option<Event> {
        let start = Instant::now();
        let is_recent = |last: &Instant| start.duration_since(*last) < PAUSE;
        if !self.time_budget.is_left(start) || self.lately.get(&tgid).is_some_and(is_recent) {
            return None;
        }
        let found = self.tracker.find(tgid);
        let now = Instant::now();
        self.lately.insert(tgid, now);
        self.time_budget.take(now, now.duration_since(start));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_not_read_again_at_once() {
        let (own, mut finding) = (std::process::id(), Finding::new(Tracker::new(false)));
        assert_eq!(finding.find(own).unwrap().tgid, own);
        assert!(finding.find(own).is_none());
        // Nor is another, until what that took is a share of the time.
        finding.time_budget.take(Instant::now(), Duration::from_secs(60));
        assert!(finding.find(std::os::unix::process::parent_id()).is_none());
    }
}
