//! A map of bounded size that keeps what is used.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Two generations: what is new or found goes to the young one; when that holds half the limit, it
/// becomes the old one, and what was in the old one and not asked for since is forgotten. Close to
/// least-recently-used, at the price of one map.
#[derive(Debug)]
pub(crate) struct Generations<K, V> {
    young: FxHashMap<K, V>,
    old: FxHashMap<K, V>,
    limit: usize,
}

impl<K: Eq + Hash, V: Clone> Generations<K, V> {
    /// At most `limit` entries.
    pub(crate) fn new(limit: usize) -> Self {
        Self { young: FxHashMap::default(), old: FxHashMap::default(), limit }
    }

    /// The value of the key.
    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    /// Sets the value of the key.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.limit / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_used_within_the_limit() {
        let mut cache = Generations::new(10);
        for n in 0..100 {
            cache.insert(n, n);
            assert_eq!(cache.get(&0), Some(0), "after {n}");
            assert!(cache.young.len() + cache.old.len() <= 11);
        }
        assert_eq!(cache.get(&1), None);
        assert_eq!(cache.get(&99), Some(99));
    }
}
