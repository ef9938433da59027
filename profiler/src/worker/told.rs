//! What the naming thread has counted so far, for whoever watches over the run.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// What it tells, after each batch of samples. Asking for it waits for nobody.
#[derive(Debug, Default)]
pub struct Told(Mutex<Named>);

/// How it went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// How many user stacks have ended how.
    pub user_ends: BTreeMap<&'static str, u64>,
    /// How many frames of user stacks have a name, and why the others have none.
    pub user_frames: BTreeMap<String, u64>,
    /// Processes that were evicted to make room for others.
    pub evicted_processes: u64,
    /// Samples for whose stacks there was no room.
    pub beyond_memory: u64,
}

impl Told {
    pub(super) fn tell(&self, named: Named) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = named;
    }

    /// What was told last.
    #[must_use]
    pub fn read(&self) -> Named {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
