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
/// Stacks are told apart by what was sampled: the task's name, the mappings, and the addresses. Two
/// processes that run the same program give two, which are added up when they are written.
pub(super) struct Profile {
    entries: FxHashMap<Box<[u8]>, Entry>,
    key: Vec<u8>,
    limit: usize,
    /// Samples whose stacks came when the limit was reached.
    pub(super) beyond_limit: u64,
}

impl Profile {
    pub(super) fn new(limit: usize) -> Self {
        Self { entries: FxHashMap::default(), key: Vec::new(), limit, beyond_limit: 0 }
    }

    pub(super) fn add(&mut self, sample: &NamedSample<'_>) {
        let NamedSample { raw, space, kernel, user, .. } = sample;
        self.key.clear();
        self.key.extend(raw.comm);
        self.key.extend(space.to_bytes());
        self.key.extend(raw.kernel.iter().len().to_ne_bytes());
        self.key.extend(raw.kernel.as_bytes());
        self.key.extend(raw.user.as_bytes());
        let room = self.entries.len() < self.limit;
        match self.entries.get_mut(self.key.as_slice()) {
            Some(entry) => entry.count += 1,
            None if room => {
                let (kernel, user) = (Rc::clone(kernel), Rc::clone(user));
                let entry = Entry { comm: raw.comm, kernel, user, count: 1 };
                self.entries.insert(self.key.as_slice().into(), entry);
            }
            None => self.beyond_limit += 1,
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }
}
