//! When the sideband's records are read.
//!
//! A program that begins maps its files one soon after another. What it has mapped has to be in the kernel soon, so that
//! its first stacks can be walked, but each reading costs something.

use std::time::{Duration, Instant};

/// For how long records are gathered from the first on.
const GATHERING: Duration = Duration::from_millis(1);
/// The least time between two such readings, for when many programs begin.
const PAUSE: Duration = Duration::from_millis(4);

/// Whether records are being gathered.
#[derive(Debug)]
pub(super) struct Gathering {
    until: Option<Instant>,
    ended: Instant,
}

impl Gathering {
    pub(super) fn new() -> Self {
        Self { until: None, ended: Instant::now() }
    }

    /// There is a record.
    pub(super) fn begin(&mut self) {
        let due = (Instant::now() + GATHERING).max(self.ended + PAUSE);
        self.until.get_or_insert(due);
    }

    /// When they are to be read, if there are any.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// They are read now.
    pub(super) fn end(&mut self) {
        (self.until, self.ended) = (None, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_gathered_from_the_first_on_and_not_too_often() {
        let mut gathering = Gathering::new();
        assert_eq!(gathering.until(), None);
        gathering.begin();
        let first = gathering.until().unwrap();
        gathering.begin();
        assert_eq!(gathering.until(), Some(first), "the second record changes nothing");
        let before = Instant::now();
        gathering.end();
        assert_eq!(gathering.until(), None);
        gathering.begin();
        assert!(gathering.until().unwrap() >= before + PAUSE);
    }
}
