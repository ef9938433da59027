//! Samples counted by stack: what is written at the end is made from this.

use std::{
    hash::{Hash as _, Hasher as _},
    sync::Arc,
};

use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::{
    address::Address,
    frame::Frame,
    ledger::memory::{Cache, count},
    process::Metadata,
    sample::{Comm, Sample, Task},
    source::Source,
    stack::{Location, Stack, StackId},
};

/// What stands in the place of the stacks that there was no room for.
pub const BEYOND: &str = "[stacks beyond --max-memory]";
/// What a profile may take of memory by default.
pub const DEFAULT_BYTES: u64 = 256 << 20;
/// So many processes are told apart where there is no room for more stacks.
const MAX_BEYOND: usize = 1024;
/// What an id of a stack that is held takes.
const HELD_BYTES: usize = 24;

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

/// The last part tells entries apart that were counted before, of processes that are known by more than their ids; of
/// a run it is 0, and what is known last of a process counts.
type Key = (usize, u32, u32, Comm, StackId, StackId, u64);

/// Distinct stacks with what was sampled of them, in so much memory at most. Samples for whose stacks there is no
/// room are counted by source and process.
#[derive(Debug)]
pub struct Profile {
    entries: FxHashMap<Key, Entry>,
    limit_bytes: usize,
    /// The stacks of all entries, each counted once, and what is known of their processes.
    bytes: usize,
    held: FxHashSet<StackId>,
    /// By slot and process; those of no process are of the ones that there were too many of.
    beyond: FxHashMap<(usize, Option<u32>), Entry>,
    beyond_stack: Arc<Stack>,
    no_stack: Arc<Stack>,
}

impl Profile {
    /// Nothing yet, and so many bytes for all that comes.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        let symbol = Some(Arc::from(BEYOND));
        let frames = Arc::from([Frame { symbol, ..Frame::default() }]);
        let beyond = Location { address: Address::sampled(0), frames };
        Self {
            entries: FxHashMap::default(),
            limit_bytes,
            bytes: 0,
            held: FxHashSet::default(),
            beyond: FxHashMap::default(),
            beyond_stack: Arc::new(Stack::outside(0, beyond)),
            // No store gives this id to others.
            no_stack: Arc::new(Stack { id: StackId(0), locations: Box::default() }),
        }
    }

    /// Counts a sample.
    pub fn add(&mut self, sample: &Sample) {
        let Sample { source, task, kernel, user, value, .. } = sample;
        let key = (source.slot, task.tgid, task.tid, task.comm, kernel.id(), user.id(), 0);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.merge(task, 1, *value);
            return;
        }
        let (kernel, user) = (Arc::clone(kernel), Arc::clone(user));
        let (source, task) = (Arc::clone(source), task.clone());
        self.insert(key, Entry { source, task, kernel, user, count: 1, value: *value });
    }

    /// Adds samples that were counted before.
    pub fn add_entry(&mut self, entry: Entry) {
        let Entry { source, task, kernel, user, count, value } = &entry;
        let mut hasher = FxHasher::default();
        (task.main_comm, &task.process).hash(&mut hasher);
        let (stacks, who) = ((kernel.id(), user.id()), hasher.finish());
        let key = (source.slot, task.tgid, task.tid, task.comm, stacks.0, stacks.1, who);
        match self.entries.get_mut(&key) {
            Some(known) => known.merge(task, *count, *value),
            None => self.insert(key, entry),
        }
    }

    /// Adds an entry that is new, if there is room for it.
    fn insert(&mut self, key: Key, entry: Entry) {
        let mut bytes = entry.task.process.as_ref().map_or(0, Metadata::bytes);
        for half in [&entry.kernel, &entry.user] {
            if !self.held.contains(&half.id()) {
                bytes = bytes.saturating_add(half.bytes()).saturating_add(HELD_BYTES);
            }
        }
        let bytes = self.bytes.saturating_add(bytes);
        if bytes.saturating_add(table_bytes(self.entries.len() + 1)) > self.limit_bytes {
            return self.add_beyond(entry);
        }
        self.bytes = bytes;
        self.held.insert(entry.kernel.id());
        self.held.insert(entry.user.id());
        self.entries.insert(key, entry);
    }

    /// Adds an entry without its stack.
    fn add_beyond(&mut self, entry: Entry) {
        let Entry { source, task, count, value, .. } = entry;
        let key = (source.slot, Some(task.tgid));
        let has_room = self.beyond.len() < MAX_BEYOND || self.beyond.contains_key(&key);
        let (key, task) = if has_room {
            (key, task.of_process())
        } else {
            ((source.slot, None), Task::default())
        };
        let of_process = self.beyond.entry(key).or_insert_with(|| Entry {
            source,
            task: task.clone(),
            kernel: Arc::clone(&self.no_stack),
            user: Arc::clone(&self.beyond_stack),
            count: 0,
            value: 0,
        });
        of_process.merge(&task, count, value);
    }

    /// All entries, in no order. Those for which there was no room have the name [`BEYOND`] for a stack.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().chain(self.beyond.values())
    }

    /// How many distinct stacks it holds, each thread's by itself.
    #[must_use]
    pub fn distinct_stacks(&self) -> usize {
        self.entries.len()
    }

    /// Samples whose stacks came when there was no room for more.
    #[must_use]
    pub fn beyond_limit(&self) -> u64 {
        self.beyond.values().map(|it| it.count).sum()
    }

    /// What it may hold.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// What it holds.
    #[must_use]
    pub fn account(&self) -> Cache {
        Cache {
            name: "aggregated stacks",
            entries: count(self.entries.len()),
            bytes: count(self.bytes.saturating_add(table_bytes(self.entries.len()))),
            limit_bytes: Some(count(self.limit_bytes)),
            limit_entries: None,
            evicted: 0,
        }
    }
}

impl<'a> Extend<&'a Sample> for Profile {
    fn extend<T: IntoIterator<Item = &'a Sample>>(&mut self, samples: T) {
        for sample in samples {
            self.add(sample);
        }
    }
}

impl Entry {
    /// Adds samples with the same stack, of a thread of which more may be known by now.
    fn merge(&mut self, task: &Task, count: u64, value: u64) {
        self.count = self.count.saturating_add(count);
        self.value = self.value.saturating_add(value);
        if task.main_comm != Comm::default() {
            self.task.main_comm = task.main_comm;
        }
        if task.process.is_some() {
            self.task.process.clone_from(&task.process);
        }
    }
}

/// What a table of so many entries takes: its length is a power of two, and at most seven eighths are in use.
fn table_bytes(entries: usize) -> usize {
    let places = (entries.saturating_mul(8) / 7).checked_next_power_of_two().unwrap_or(usize::MAX);
    places.saturating_mul(size_of::<(Key, Entry)>() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{export::tests, frame::Frame, store::Store};

    const ENOUGH: usize = 1 << 20;

    fn sums(profile: &Profile) -> Vec<(u64, u64)> {
        let mut sums: Vec<_> = profile.entries().map(|it| (it.count, it.value)).collect();
        sums.sort_unstable();
        sums
    }

    #[test]
    fn samples_are_summed_by_task_and_stack() {
        let (mut store, mut profile) = (Store::default(), Profile::new(ENOUGH));
        for (address, value) in [(1, 10), (1, 20), (2, 5), (1, 1)] {
            let user = store.intern(vec![tests::location(address, &[Frame::default()])]);
            profile.add(&Sample { value, user, ..tests::sample() });
        }
        assert_eq!((sums(&profile), profile.beyond_limit()), (vec![(1, 5), (3, 31)], 0));
    }

    #[test]
    fn what_was_counted_before_stays_with_its_process() {
        let mut profile = Profile::new(1 << 20);
        let entry = |name: &[u8; 3], count| {
            let mut main_comm = Comm::default();
            main_comm.0[..3].copy_from_slice(name);
            let Sample { source, task, kernel, user, .. } = tests::sample();
            let task = Task { main_comm, ..task };
            Entry { source, task, kernel, user, count, value: 1 }
        };
        for (name, count) in [(b"web", 1), (b"sql", 2), (b"web", 4)] {
            profile.add_entry(entry(name, count));
        }
        let mut sums: Vec<_> =
            profile.entries().map(|it| (it.task.main_comm.text().into_owned(), it.count)).collect();
        sums.sort_unstable();
        assert_eq!(sums, [("sql".to_owned(), 2), ("web".to_owned(), 5)]);
    }

    #[test]
    fn sources_are_summed_apart() {
        let mut profile = Profile::new(ENOUGH);
        let one = tests::sample();
        let source = Source { slot: 1, name: "faults".into(), ..(*one.source).clone() };
        let other = Sample { source: Arc::new(source), ..one.clone() };
        profile.extend([&one, &other, &one]);
        let mut sums: Vec<_> = profile.entries().map(|it| (&*it.source.name, it.count)).collect();
        sums.sort_unstable();
        assert_eq!(sums, [("cycles", 2), ("faults", 1)]);
    }

    /// Samples of two threads, each with stacks of its own.
    fn many(store: &mut Store) -> Vec<Sample> {
        let one = tests::sample();
        let stack = |address: u64| {
            let tid = u32::try_from(address % 2).unwrap() + 5;
            let user = store.intern(vec![tests::location(address, &[Frame::default()])]);
            Sample { user, task: Task { tid, ..one.task.clone() }, ..one.clone() }
        };
        (0..1000).map(stack).collect()
    }

    #[test]
    fn what_there_is_no_room_for_is_counted_by_process() {
        let (mut store, limit) = (Store::default(), 20_000);
        let mut profile = Profile::new(limit);
        let samples = many(&mut store);
        profile.extend(samples.iter().chain(&samples));
        let account = profile.account();
        assert!(account.bytes > 10_000 && account.bytes <= 20_000, "{account:?}");
        let kept = 2 * account.entries;
        assert_eq!(profile.beyond_limit(), 2000 - kept);
        let names = |it: &Entry| it.user.frames().any(|(_, it)| it.name() == Some(BEYOND));
        let beyond: Vec<&Entry> = profile.entries().filter(|it| names(it)).collect();
        let [Entry { task, count, value, .. }] = beyond[..] else { panic!("{beyond:?}") };
        assert_eq!((task.tgid, task.tid, &*task.process_name()), (4, 4, "a"));
        assert_eq!((*count, *value), (2000 - kept, 3 * (2000 - kept)));
        // Nothing fits into nothing.
        let mut none = Profile::new(0);
        none.extend(&samples);
        assert_eq!((none.account().entries, none.beyond_limit()), (0, 1000));
    }

    #[test]
    fn processes_beyond_the_limit_are_bounded_too() {
        let (mut profile, one) = (Profile::new(0), tests::sample());
        for tgid in 1..3000 {
            profile.add(&Sample { task: Task { tgid, ..one.task.clone() }, ..one.clone() });
        }
        assert_eq!((profile.beyond.len(), profile.beyond_limit()), (MAX_BEYOND + 1, 2999));
    }

    #[test]
    fn a_stack_that_entries_share_is_counted_once() {
        let (mut store, mut profile, one) =
            (Store::default(), Profile::new(ENOUGH), tests::sample());
        let deep = (0..100).map(|it| tests::location(it, &[Frame::default()])).collect();
        let user = store.intern(deep);
        for tid in 0..10 {
            let (task, user) = (Task { tid, ..one.task.clone() }, Arc::clone(&user));
            profile.add(&Sample { task, user, ..one.clone() });
        }
        assert!(profile.bytes < user.bytes() + 300, "{} and {}", profile.bytes, user.bytes());
    }
}
