//! A map within a limit of bytes that keeps what is used.

use std::{fmt, hash::Hash};

use profiler_profile::ledger::memory::{Cache, count};
use quick_cache::{
    Equivalent, Weighter,
    unsync::{Cache as Entries, DefaultLifecycle},
};
use rustc_hash::FxBuildHasher;

/// What the map takes for an entry beside key and value.
const ENTRY_BYTES: usize = 24;
/// What a value takes on the heap, about: by this, as many keys are remembered of what was evicted as were kept, which
/// tells what is asked for again and again from what comes once.
const VALUE_BYTES: usize = 128;
const MAX_TYPICAL: usize = 1 << 20;

/// A map that evicts what is not asked for when there is no more room.
pub(crate) struct Bounded<K, V> {
    entries: Entries<K, V, Weigh<V>, FxBuildHasher>,
    limit_bytes: usize,
    /// What a value takes on the heap.
    weigh: fn(&V) -> usize,
    /// Entries that are there or were evicted.
    added: u64,
}

impl<K: Eq + Hash, V: Clone> Bounded<K, V> {
    /// At most so many bytes of entries, with what each value takes on the heap. A value that alone takes more is kept
    /// in place of nearly all others, since making it anew each time would cost more.
    pub(crate) fn new(limit_bytes: usize, weigh: fn(&V) -> usize) -> Self {
        let typical = limit_bytes / (size_of::<(K, V)>() + ENTRY_BYTES + VALUE_BYTES);
        let most = count(limit_bytes / 10 * 9);
        let weigher = Weigh { value: weigh, entry: size_of::<(K, V)>() + ENTRY_BYTES, most };
        let lifecycle = DefaultLifecycle::default();
        let entries = Entries::with(
            typical.clamp(1, MAX_TYPICAL),
            count(limit_bytes),
            weigher,
            FxBuildHasher,
            lifecycle,
        );
        Self { entries, limit_bytes, weigh, added: 0 }
    }

    /// The value of the key.
    pub(crate) fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<V> {
        self.entries.get(key).cloned()
    }

    /// Sets the value of the key.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.added += u64::from(!self.entries.contains_key(&key));
        self.entries.insert(key, value);
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.added = self.evicted();
        self.entries.clear();
    }

    fn evicted(&self) -> u64 {
        self.added.saturating_sub(count(self.entries.len()))
    }

    /// What it holds.
    pub(crate) fn account(&self, name: &'static str) -> Cache {
        let bytes = |(_, value)| size_of::<(K, V)>() + ENTRY_BYTES + (self.weigh)(value);
        Cache {
            name,
            entries: count(self.entries.len()),
            bytes: count(self.entries.iter().map(bytes).sum()),
            limit_bytes: Some(count(self.limit_bytes)),
            limit_entries: None,
            evicted: self.evicted(),
        }
    }
}

impl<K, V> fmt::Debug for Bounded<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounded").field("limit_bytes", &self.limit_bytes).finish_non_exhaustive()
    }
}

/// What an entry takes.
struct Weigh<V> {
    /// What a value takes on the heap.
    value: fn(&V) -> usize,
    /// Beside what is on the heap.
    entry: usize,
    /// What a value counts at most.
    most: u64,
}

impl<V> Clone for Weigh<V> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<K, V> Weighter<K, V> for Weigh<V> {
    fn weight(&self, _: &K, value: &V) -> u64 {
        count(self.entry.saturating_add((self.value)(value))).min(self.most).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_used_within_the_limit() {
        let entry = size_of::<(u64, u64)>() + ENTRY_BYTES + 10;
        let mut cache = Bounded::new(10 * entry, |_| 10);
        for n in 0..100_u64 {
            cache.insert(n, n);
            assert_eq!(cache.get(&0), Some(0), "after {n}");
            let Cache { entries, bytes, evicted, .. } = cache.account("");
            assert!(bytes <= 10 * entry as u64, "{bytes} after {n}");
            assert_eq!((bytes, entries + evicted), (entries * entry as u64, n + 1));
        }
        // Full, and not cleared now and then.
        assert!(cache.account("").entries >= 9, "{cache:?}");
        cache.insert(0, 1);
        let Cache { entries, evicted, .. } = cache.account("");
        assert_eq!((cache.get(&0), entries + evicted), (Some(1), 100));
        cache.clear();
        let Cache { bytes, evicted: then, .. } = cache.account("");
        assert_eq!((cache.get(&0), bytes, then), (None, 0, evicted));
    }

    #[test]
    fn what_is_larger_than_all_is_kept_for_now() {
        let mut cache = Bounded::new(1000, |bytes| *bytes);
        cache.insert('a', 100);
        cache.insert('b', 5000);
        assert_eq!(cache.get(&'b'), Some(5000));
        assert!(cache.account("").bytes > 5000);
        for small in 'c'..'z' {
            cache.insert(small, 100);
        }
        assert!(cache.account("").bytes <= 1000, "{:?}", cache.account(""));
    }
}
