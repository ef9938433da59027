//! Whether the run is well: its threads go round, and samples are taken.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::Run;
use crate::windows::Progress;

/// The reader wakes every 50 ms, but at too high a rate once around the ring takes seconds.
const READER_WITHIN: Duration = Duration::from_secs(10);
/// Debug information of a large program takes seconds to read.
const NAMING_WITHIN: Duration = Duration::from_secs(60);
/// A disk may be slow.
const WRITER_WITHIN: Duration = Duration::from_secs(60);

/// What is known of that.
pub(super) struct Health {
    pub(super) run: Run,
    /// When the reader went round last; CLOCK_MONOTONIC.
    reader_ns: AtomicU64,
    is_sampling: AtomicBool,
    naming: Mutex<Naming>,
}

/// How far the naming thread is, and since when: looked at by the reader each time that it goes round.
#[derive(Clone, Copy, Debug, Default)]
struct Naming {
    done: u64,
    since_ns: u64,
}

impl Naming {
    fn follow(&mut self, sent: u64, done: u64, now_ns: u64) {
        // Who has nothing to do does not stand still.
        if self.done != done || sent == done {
            *self = Self { done, since_ns: now_ns };
        }
    }
}

impl Health {
    pub(super) fn new(run: Run, now_ns: u64) -> Self {
        let naming = Mutex::new(Naming { done: 0, since_ns: now_ns });
        let (reader_ns, is_sampling) = (AtomicU64::new(now_ns), AtomicBool::new(false));
        Self { run, reader_ns, is_sampling, naming }
    }

    pub(super) fn went_round(&self, now_ns: u64) {
        self.reader_ns.store(now_ns, Ordering::Relaxed);
        let (done, sent) = (self.run.depth.done(), self.run.depth.sent());
        self.naming.lock().unwrap_or_else(PoisonError::into_inner).follow(sent, done, now_ns);
    }

    pub(super) fn is_sampling(&self) {
        self.is_sampling.store(true, Ordering::Relaxed);
    }

    /// Why no samples are taken yet, if that is so.
    pub(super) fn ready(&self) -> Result<(), String> {
        if self.is_sampling.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err("sampling has not begun yet".into())
        }
    }

    /// Which thread stands still, and for how long, if one does.
    pub(super) fn well(&self, now_ns: u64) -> Result<(), String> {
        let naming = *self.naming.lock().unwrap_or_else(PoisonError::into_inner);
        let windows = self.run.windows.as_ref().map(|it| it.progress()).unwrap_or_default();
        judge(self.reader_ns.load(Ordering::Relaxed), naming.since_ns, &windows, now_ns)
    }
}

fn judge(reader_ns: u64, naming_ns: u64, windows: &[Progress], now_ns: u64) -> Result<(), String> {
    let since = |then_ns: u64| Duration::from_nanos(now_ns.saturating_sub(then_ns));
    let reader = since(reader_ns);
    if reader > READER_WITHIN {
        return Err(format!("the ring was last read {} s ago", reader.as_secs()));
    }
    let naming = since(naming_ns);
    if naming > NAMING_WITHIN {
        return Err(format!("samples have waited for their names for {} s", naming.as_secs()));
    }
    match windows.iter().find(|it| it.busy_for > WRITER_WITHIN) {
        Some(it) => {
            Err(format!("{} has been taking a window for {} s", it.name, it.busy_for.as_secs()))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::windows::Fates;

    const S: u64 = 1_000_000_000;

    #[test]
    fn who_stands_still_is_named() {
        let window = |s| Progress {
            name: "/var/lib/x".into(),
            fates: Fates::default(),
            waiting: 1,
            busy_for: Duration::from_secs(s),
        };
        let judge = |reader, naming, s| judge(reader * S, naming * S, &[window(s)], 100 * S);
        assert_eq!(judge(100, 100, 0), Ok(()));
        assert_eq!(judge(90, 40, 60), Ok(()));
        assert_eq!(judge(89, 100, 0), Err("the ring was last read 11 s ago".into()));
        let naming = "samples have waited for their names for 61 s";
        assert_eq!(judge(100, 39, 0), Err(naming.into()));
        assert_eq!(judge(100, 100, 61), Err("/var/lib/x has been taking a window for 61 s".into()));
        // The clocks of two threads may be read out of order.
        assert_eq!(judge(101, 101, 0), Ok(()));
    }

    #[test]
    fn who_has_nothing_to_do_does_not_stand_still() {
        let mut naming = Naming::default();
        naming.follow(5, 5, 10);
        assert_eq!(naming.since_ns, 10);
        naming.follow(6, 5, 20);
        naming.follow(9, 5, 30);
        assert_eq!(naming.since_ns, 10);
        naming.follow(9, 6, 40);
        assert_eq!(naming.since_ns, 40);
    }
}
