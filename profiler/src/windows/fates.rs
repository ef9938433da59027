//! What becomes of windows.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::kernel;

/// What has become of the windows at a destination. `ended = written + dropped + refused` when all are settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Whether they are sent over the network, and not written here.
    pub is_remote: bool,
    /// Those that are there.
    pub written: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that wait in the spool, those of earlier runs among them.
    pub spooled: u64,
    /// Their bytes.
    pub spooled_bytes: u64,
    /// Those that nobody has refused, and that are nowhere: by reason.
    pub dropped: Dropped,
    /// Those that it could not take.
    pub refused: u64,
    /// What of windows that it has taken it has left out: profiles.
    pub rejected: u64,
    /// Attempts to send that failed, and are made again.
    pub retries: u64,
}

/// Why windows were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The queue had no room for them, since the destination is slower than windows come.
    pub queue_full: u64,
    /// They were the oldest in the spool, or it had no room for one.
    pub spool_full: u64,
    /// What was read back from the spool is not what was written.
    pub spool_damaged: u64,
}

impl Dropped {
    /// All of them.
    #[must_use]
    pub fn total(self) -> u64 {
        self.by_reason().iter().map(|(_, count)| count).sum()
    }

    /// Each reason, by the word that metrics have for it.
    #[must_use]
    pub fn by_reason(self) -> [(&'static str, u64); 3] {
        [
            ("queue_full", self.queue_full),
            ("spool_full", self.spool_full),
            ("spool_damaged", self.spool_damaged),
        ]
    }
}

/// The same while they are counted.
#[derive(Debug, Default)]
pub struct Counts {
    pub(super) written: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) spooled: AtomicU64,
    pub(super) spooled_bytes: AtomicU64,
    pub(super) queue_full: AtomicU64,
    pub(super) spool_full: AtomicU64,
    pub(super) spool_damaged: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) retries: AtomicU64,
    /// The memory of those that wait.
    pub(super) waiting_bytes: AtomicU64,
    /// Handed over, and not settled.
    pub(super) waiting: AtomicU64,
    /// Since when a window is being taken; CLOCK_MONOTONIC, 0 while none is.
    pub(super) busy_since_ns: AtomicU64,
}

/// Counts so many more.
pub(super) fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

impl Counts {
    pub(super) fn read(&self, is_remote: bool) -> Fates {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Fates {
            is_remote,
            written: read(&self.written),
            bytes: read(&self.bytes),
            spooled: read(&self.spooled),
            spooled_bytes: read(&self.spooled_bytes),
            dropped: Dropped {
                queue_full: read(&self.queue_full),
                spool_full: read(&self.spool_full),
                spool_damaged: read(&self.spool_damaged),
            },
            refused: read(&self.refused),
            rejected: read(&self.rejected),
            retries: read(&self.retries),
        }
    }

    pub(super) fn busy_for(&self) -> Duration {
        match self.busy_since_ns.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since_ns => Duration::from_nanos(kernel::monotonic_ns().saturating_sub(since_ns)),
        }
    }
}

/// `12 written (1200 KiB), 0 dropped, 0 refused`
impl fmt::Display for Fates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { written, bytes, dropped, refused, spooled, rejected, .. } = self;
        let (kib, dropped) = (bytes.div_ceil(1 << 10), dropped.total());
        if !self.is_remote {
            return write!(
                f,
                "{written} written ({kib} KiB), {dropped} dropped, {refused} refused"
            );
        }
        write!(
            f,
            "{written} sent ({kib} KiB), {spooled} spooled, {dropped} dropped, {refused} refused"
        )?;
        if *rejected > 0 {
            write!(f, "; {rejected} profiles were left out")?;
        }
        Ok(())
    }
}
