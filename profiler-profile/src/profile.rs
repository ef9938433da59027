//! Samples counted by stack: what is written at the end is made from this.

use std::{collections::BTreeMap, sync::Arc};

use rustc_hash::FxHashMap;

use crate::{
    ledger::memory::{Cache, count},
    sample::{Comm, Sample, Task},
    source::Source,
    stack::{Stack, StackId},
};

/// What the map takes for an entry beside it.
const ENTRY_BYTES: usize = 32;

/// The samples of one source and of one thread, under one name, that have the same stack.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What took them.
    pub source: Arc<Source>,
    /// The thread, with what was last known of its process.
    pub task: Task,
    /// The kernel half.
    pub kernel: Arc<Stack>,
    /// The user half.
    pub user: Arc<Stack>,
    /// How many samples.
    pub count: u64,
    /// What they stand for together, in the unit of their source.
    pub value: u64,
}

type Key = (usize, u32, u32, Comm, StackId, StackId);

/// Distinct stacks with what was sampled of them, up to a limit.
#[derive(Debug)]
pub struct Profile {
    entries: FxHashMap<Key, Entry>,
    limit: usize,
    bytes: usize,
    /// By slot.
    beyond_limit: BTreeMap<usize, Beyond>,
}

/// Samples that there was no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beyond {
    /// How many.
    pub count: u64,
    /// What they stand for together, in the unit of their source.
    pub value: u64,
}

impl Profile {
    /// Nothing yet, and so many entries at most.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { entries: FxHashMap::default(), limit, bytes: 0, beyond_limit: BTreeMap::new() }
    }

    /// Counts a sample.
    pub fn add(&mut self, sample: &Sample) {
        let Sample { source, task, kernel, user, value, .. } = sample;
        let key = (source.slot, task.tgid, task.tid, task.comm, kernel.id(), user.id());
        let has_room = self.entries.len() < self.limit;
        match self.entries.get_mut(&key) {
            Some(entry) => {
                entry.count += 1;
                entry.value = entry.value.saturating_add(*value);
                if task.main_comm != Comm::default() {
                    entry.task.main_comm = task.main_comm;
                }
                if task.process.is_some() {
                    entry.task.process.clone_from(&task.process);
                }
            }
            None if has_room => {
                self.bytes += size_of::<(Key, Entry)>() + ENTRY_BYTES;
                self.bytes += kernel.bytes() + user.bytes();
                let (kernel, user) = (Arc::clone(kernel), Arc::clone(user));
                let source = Arc::clone(source);
                let task = task.clone();
                let entry = Entry { source, task, kernel, user, count: 1, value: *value };
                self.entries.insert(key, entry);
            }
            None => {
                let beyond = self.beyond_limit.entry(source.slot).or_default();
                beyond.count += 1;
                beyond.value = beyond.value.saturating_add(*value);
            }
        }
    }

    /// All entries, in no order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Samples whose stacks came when there was no room for more.
    #[must_use]
    pub fn beyond_limit(&self) -> u64 {
        self.beyond_limit.values().map(|it| it.count).sum()
    }

    /// Those of the source in this slot.
    #[must_use]
    pub fn beyond_limit_of(&self, slot: usize) -> u64 {
        self.beyond_limit.get(&slot).map_or(0, |it| it.count)
    }

    /// Those of each source that has some, by slot.
    pub fn beyond_limit_by_slot(&self) -> impl Iterator<Item = (usize, Beyond)> {
        self.beyond_limit.iter().map(|(slot, beyond)| (*slot, *beyond))
    }

    /// What it holds. Stacks that entries share count for each.
    #[must_use]
    pub fn account(&self) -> Cache {
        Cache {
            name: "aggregated stacks",
            entries: count(self.entries.len()),
            bytes: count(self.bytes),
            limit_bytes: None,
            limit_entries: Some(count(self.limit)),
            evicted: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{export::tests, frame::Frame, store::Store};

    #[test]
    fn samples_are_summed_by_task_and_stack_up_to_the_limit() {
        let mut store = Store::default();
        let mut profile = Profile::new(2);
        for (address, value) in [(1, 10), (1, 20), (2, 5), (3, 7), (1, 1), (3, 7)] {
            let user = store.intern(vec![tests::location(address, &[Frame::default()])]);
            profile.add(&Sample { value, user, ..tests::sample() });
        }
        let mut sums: Vec<_> = profile.entries().map(|it| (it.count, it.value)).collect();
        sums.sort_unstable();
        assert_eq!((sums, profile.beyond_limit()), (vec![(1, 5), (3, 31)], 2));
        let beyond: Vec<_> = profile.beyond_limit_by_slot().collect();
        assert_eq!(beyond, [(0, Beyond { count: 2, value: 14 })]);
    }

    #[test]
    fn sources_are_summed_apart() {
        let mut profile = Profile::new(9);
        let one = tests::sample();
        let source = Source { slot: 1, name: "faults".into(), ..(*one.source).clone() };
        let other = Sample { source: Arc::new(source), ..one.clone() };
        for sample in [&one, &other, &one] {
            profile.add(sample);
        }
        let mut sums: Vec<_> = profile.entries().map(|it| (&*it.source.name, it.count)).collect();
        sums.sort_unstable();
        assert_eq!(sums, [("cycles", 2), ("faults", 1)]);
    }
}
