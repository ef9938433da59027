//! Profiles of some time of a run that goes on, for those who ask for them: of what is sampled anyway.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use profiler_profile::{profile::Profile, sample::Sample};

/// How many there are at once. Each may take as much of memory as this part of the run's own profile.
const MAX: usize = 4;
const SHARE: usize = 8;

/// Those that are being taken.
#[derive(Debug)]
pub struct Captures {
    limit_bytes: usize,
    next: AtomicU64,
    active: Mutex<Vec<(u64, Active)>>,
}

#[derive(Debug)]
struct Active {
    wanted: Wanted,
    profile: Profile,
}

/// Which samples are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Those from this time on; CLOCK_MONOTONIC.
    pub from_ns: u64,
    /// Those before this time.
    pub until_ns: u64,
    /// Those of this process; of all if `None`.
    pub tgid: Option<u32>,
}

impl Wanted {
    fn has(&self, sample: &Sample) -> bool {
        (self.from_ns..self.until_ns).contains(&sample.time_ns)
            && self.tgid.is_none_or(|it| it == sample.task.tgid)
    }
}

/// A profile that is being taken; it is given up when this is dropped.
#[derive(Debug)]
pub struct Capture {
    all: Arc<Captures>,
    id: u64,
}

impl Captures {
    /// None yet, beside a profile of so many bytes.
    #[must_use]
    pub fn new(profile_bytes: usize) -> Self {
        let (next, active) = (AtomicU64::new(0), Mutex::default());
        Self { limit_bytes: profile_bytes / SHARE, next, active }
    }

    /// Begins one; `None` if there are as many as there may be.
    #[must_use]
    pub fn begin(self: &Arc<Self>, wanted: Wanted) -> Option<Capture> {
        let mut active = self.active();
        if active.len() >= MAX {
            return None;
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        active.push((id, Active { wanted, profile: Profile::new(self.limit_bytes) }));
        Some(Capture { all: Arc::clone(self), id })
    }

    /// Gives samples to each.
    pub(super) fn add(&self, samples: &[Sample]) {
        for (_, Active { wanted, profile }) in &mut *self.active() {
            profile.extend(samples.iter().filter(|it| wanted.has(it)));
        }
    }

    /// Each change is whole as soon as it can be seen.
    fn active(&self) -> std::sync::MutexGuard<'_, Vec<(u64, Active)>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, id: u64) -> Option<Profile> {
        let mut active = self.active();
        let at = active.iter().position(|(it, _)| *it == id)?;
        Some(active.swap_remove(at).1.profile)
    }
}

impl Capture {
    /// Ends it: what was sampled.
    #[must_use]
    pub fn end(self) -> Profile {
        self.all.remove(self.id).unwrap_or_else(|| Profile::new(0))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // What was ended is gone already.
        drop(self.all.remove(self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::samples;

    #[test]
    fn a_profile_has_the_samples_of_its_time_and_process() {
        let captures = Arc::new(Captures::new(8 << 20));
        let wanted = Wanted { from_ns: 1, until_ns: 3, tgid: None };
        let all = captures.begin(wanted).unwrap();
        let of_seven = captures.begin(Wanted { tgid: Some(7), ..wanted }).unwrap();
        let of_other = captures.begin(Wanted { tgid: Some(8), ..wanted }).unwrap();
        let earlier = captures.begin(Wanted { until_ns: 1, ..wanted }).unwrap();
        assert!(captures.begin(wanted).is_none());
        // Four of process 7, all at one time.
        captures.add(&samples());
        let count = |it: Capture| it.end().entries().map(|it| it.count).sum::<u64>();
        assert_eq!([all, of_seven, of_other, earlier].map(count), [4, 4, 0, 0]);
        // Who has gone leaves room.
        drop(captures.begin(wanted).unwrap());
        let four: Vec<_> = (0..4).map(|_| captures.begin(wanted).unwrap()).collect();
        assert!(captures.begin(wanted).is_none());
        drop(four);
        assert!(captures.active().is_empty());
    }
}
