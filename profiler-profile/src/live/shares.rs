//! What several lines have together, so that its bytes count once.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// By key, how many have it, and its bytes.
#[derive(Debug)]
pub(super) struct Shares<K>(FxHashMap<K, (usize, usize)>);

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<K: Eq + Hash> Shares<K> {
    /// One more has it; the bytes that come with that.
    pub(super) fn hold(&mut self, key: K, bytes: impl FnOnce() -> usize) -> usize {
        let mut more = 0;
        let (holders, _) = self.0.entry(key).or_insert_with(|| {
            more = bytes();
            (0, more)
        });
        *holders += 1;
        more
    }

    /// One has it no more; the bytes that go with that.
    pub(super) fn release(&mut self, key: &K) -> usize {
        let Some((holders, bytes)) = self.0.get_mut(key) else { return 0 };
        *holders = holders.saturating_sub(1);
        if *holders > 0 {
            return 0;
        }
        let bytes = *bytes;
        self.0.remove(key);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_counts_once() {
        let mut shares = Shares::default();
        assert_eq!(
            (shares.hold(7, || 40), shares.hold(7, || 99), shares.hold(8, || 2)),
            (40, 0, 2)
        );
        assert_eq!((shares.release(&7), shares.release(&7), shares.release(&7)), (0, 40, 0));
        assert_eq!(shares.hold(7, || 5), 5);
    }
}
