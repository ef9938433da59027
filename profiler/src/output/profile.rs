//! Samples counted by stack: what is printed at the end is written from this.

use std::rc::Rc;

use profiler_common::sample::COMM_LEN;
use rustc_hash::FxHashMap;

use super::NamedSample;
use crate::symbolize::frame::Stack;

/// One distinct stack of one task name.
pub(super) struct Entry {
    pub(super) comm: [u8; COMM_LEN],
    pub(super) kernel: Rc<Stack>,
    pub(super) user: Rc<Stack>,
    pub(super) count: u64,
}

/// Distinct stacks with their counts, up to a limit.
///
/// Stacks are told apart by identity: the same one is interned once while it is sampled often, and a
/// stack that was forgotten in between gets a second entry, which is added up when written.
pub(super) struct Profile {
    entries: FxHashMap<([u8; COMM_LEN], *const Stack, *const Stack), Entry>,
    limit: usize,
    /// Samples whose stacks came when the limit was reached.
    pub(super) beyond_limit: u64,
}

impl Profile {
    pub(super) fn new(limit: usize) -> Self {
        Self { entries: FxHashMap::default(), limit, beyond_limit: 0 }
    }

    pub(super) fn add(&mut self, sample: &NamedSample<'_>) {
        let NamedSample { raw, kernel, user } = sample;
        // The entry holds both stacks, so their addresses stay theirs.
        let key = (raw.comm, Rc::as_ptr(kernel), Rc::as_ptr(user));
        let room = self.entries.len() < self.limit;
        match self.entries.get_mut(&key) {
            Some(entry) => entry.count += 1,
            None if room => {
                let (kernel, user) = (Rc::clone(kernel), Rc::clone(user));
                self.entries.insert(key, Entry { comm: raw.comm, kernel, user, count: 1 });
            }
            None => self.beyond_limit += 1,
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }
}
