//! Stacks, each kept once.

use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;

use crate::stack::{Location, Stack, StackId, digest};

/// The table is looked through for stacks that are gone when it has grown to at least so many.
const MIN_SWEEP: usize = 1024;

/// Keeps stacks apart by what is in them: two that have the same addresses and names are one.
///
/// It holds no stack. Whoever does, such as a cache or an exporter, bounds how many there are; the store
/// forgets what nobody holds any more, and takes a few words for each of the others.
#[derive(Debug)]
pub struct Store {
    stacks: FxHashMap<u64, Weak<Stack>>,
    sweep_at: usize,
    next_id: u64,
    empty: Arc<Stack>,
}

impl Default for Store {
    fn default() -> Self {
        let empty = Arc::new(Stack { id: StackId(0), locations: Box::default() });
        Self { stacks: FxHashMap::default(), sweep_at: MIN_SWEEP, next_id: 1, empty }
    }
}

impl Store {
    /// The stack without an address.
    #[must_use]
    pub fn empty(&self) -> Arc<Stack> {
        Arc::clone(&self.empty)
    }

    /// The stack with these locations, innermost first: the one that someone holds, or else a new one.
    pub fn intern(&mut self, locations: Vec<Location>) -> Arc<Stack> {
        if locations.is_empty() {
            return self.empty();
        }
        let digest = digest(&locations);
        if let Some(known) = self.stacks.get(&digest).and_then(Weak::upgrade)
            && *known.locations == *locations
        {
            return known;
        }
        if self.stacks.len() >= self.sweep_at {
            self.stacks.retain(|_, stack| stack.strong_count() > 0);
            self.sweep_at = (2 * self.stacks.len()).max(MIN_SWEEP);
        }
        let stack = Arc::new(Stack { id: StackId(self.next_id), locations: locations.into() });
        self.next_id += 1;
        // One with the same digest loses its place here, and is made again when it is wanted.
        self.stacks.insert(digest, Arc::downgrade(&stack));
        stack
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{address::Address, frame::Frame};

    fn location(address: u64, name: &str) -> Location {
        let frame = Frame { symbol: Some(Arc::from(name)), ..Frame::default() };
        Location { address: Address::sampled(address), frames: Arc::from([frame]) }
    }

    #[test]
    fn a_stack_is_one_for_as_long_as_it_is_held() {
        let mut store = Store::default();
        let one = store.intern(vec![location(1, "a"), location(2, "b")]);
        let same = store.intern(vec![location(1, "a"), location(2, "b")]);
        assert!(Arc::ptr_eq(&one, &same));
        let others = [
            vec![location(1, "a")],
            vec![location(1, "a"), location(3, "b")],
            // Of the same digest.
            vec![location(1, "a"), location(2, "c")],
        ];
        for other in others {
            assert_ne!(store.intern(other).id(), one.id());
        }
        let id = one.id();
        drop((one, same));
        assert_ne!(store.intern(vec![location(1, "a"), location(2, "b")]).id(), id);
        assert!(Arc::ptr_eq(&store.intern(Vec::new()), &store.empty()));
    }

    #[test]
    fn what_nobody_holds_is_forgotten() {
        let mut store = Store::default();
        let held: Vec<_> = (0..100).map(|it| store.intern(vec![location(it, "a")])).collect();
        for address in 100..100_000 {
            store.intern(vec![location(address, "a")]);
        }
        assert!(store.stacks.len() <= 2 * MIN_SWEEP, "{}", store.stacks.len());
        for (address, stack) in (0..).zip(&held) {
            assert!(Arc::ptr_eq(&store.intern(vec![location(address, "a")]), stack));
        }
    }
}
