//! Halves of stacks with their names, within a limit of bytes.

use std::sync::Arc;

use profiler_profile::{
    ledger::memory::{Cache, count},
    stack::Stack,
};
use rustc_hash::FxHashMap;

use crate::{process::space::SpaceId, sample::Addresses};

/// What the maps take for a stack, beside its addresses and itself.
const ENTRY_BYTES: usize = 2 * size_of::<(Box<[u8]>, Arc<Stack>)>();
/// What the first stack of a process takes: the smallest map, and its place.
const SPACE_BYTES: usize = 256;

/// Resolved halves of stacks, by the mappings they were resolved in and their bytes.
///
/// Two generations: what is new or found again goes to the young one. When that holds half the limit it becomes
/// the old one, and what was in the old one is evicted: stacks of processes that have ended go by themselves.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    young: Generation,
    old: Generation,
    limit_bytes: usize,
    evicted: u64,
}

#[derive(Debug, Default)]
struct Generation {
    spaces: FxHashMap<SpaceId, FxHashMap<Box<[u8]>, Arc<Stack>>>,
    stacks: usize,
    bytes: usize,
}

impl Generation {
    fn insert(&mut self, space: SpaceId, addresses: Box<[u8]>, stack: Arc<Stack>) {
        let bytes = bytes_of(&addresses, &stack);
        let stacks = self.spaces.entry(space).or_insert_with(|| {
            self.bytes += SPACE_BYTES;
            FxHashMap::default()
        });
        if stacks.insert(addresses, stack).is_none() {
            self.stacks += 1;
            self.bytes += bytes;
        }
    }

    fn remove_space(&mut self, space: SpaceId) {
        let Some(stacks) = self.spaces.remove(&space) else { return };
        let bytes: usize = stacks.iter().map(|(addresses, it)| bytes_of(addresses, it)).sum();
        self.stacks -= stacks.len();
        self.bytes = self.bytes.saturating_sub(bytes + SPACE_BYTES);
    }
}

fn bytes_of(addresses: &[u8], stack: &Stack) -> usize {
    addresses.len() + ENTRY_BYTES + stack.bytes()
}

impl Stacks {
    /// None yet, and so many bytes for all.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, ..Self::default() }
    }

    /// The stack with these addresses.
    pub(crate) fn get(&mut self, space: SpaceId, addresses: Addresses<'_>) -> Option<Arc<Stack>> {
        let bytes = addresses.as_bytes();
        if let Some(stack) = self.young.spaces.get(&space).and_then(|it| it.get(bytes)) {
            return Some(Arc::clone(stack));
        }
        let (bytes, stack) = self.old.spaces.get_mut(&space)?.remove_entry(bytes)?;
        self.old.stacks -= 1;
        self.old.bytes = self.old.bytes.saturating_sub(bytes_of(&bytes, &stack));
        self.put(space, bytes, Arc::clone(&stack));
        Some(stack)
    }

    fn put(&mut self, space: SpaceId, addresses: Box<[u8]>, stack: Arc<Stack>) {
        let bytes = bytes_of(&addresses, &stack) + SPACE_BYTES;
        if self.young.bytes + bytes > self.limit_bytes / 2 {
            self.evicted += count(self.old.stacks);
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(space, addresses, stack);
    }

    /// Keeps a stack.
    pub(crate) fn keep(&mut self, space: SpaceId, addresses: Addresses<'_>, stack: &Arc<Stack>) {
        self.put(space, addresses.as_bytes().into(), Arc::clone(stack));
    }

    /// Forgets all stacks of these mappings.
    pub(crate) fn remove(&mut self, space: SpaceId) {
        self.young.remove_space(space);
        self.old.remove_space(space);
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        (self.young, self.old) = Default::default();
    }

    /// What it holds.
    pub(crate) fn account(&self) -> Cache {
        Cache {
            name: "named stacks",
            entries: count(self.young.stacks + self.old.stacks),
            bytes: count(self.young.bytes + self.old.bytes),
            limit_bytes: Some(count(self.limit_bytes)),
            limit_entries: None,
            evicted: self.evicted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_profile::{address::Address, frame::Frame, stack::Location, store::Store};

    /// A stack of so many frames.
    fn stack(store: &mut Store, address: u64) -> Arc<Stack> {
        let frames = Arc::from([Frame::default()]);
        let location = Location { address: Address::sampled(address), frames };
        store.intern(vec![location; 30])
    }

    #[test]
    fn stacks_are_kept_within_the_limit_by_use() {
        let limit = 64 << 10;
        let mut stacks = Stacks::new(limit);
        let space = SpaceId::KERNEL;
        let (mut store, mut seen) = (Store::default(), 0);
        for number in 0..1000_u64 {
            let bytes = number.to_ne_bytes();
            let addresses = Addresses::new(&bytes);
            assert!(stacks.get(space, addresses).is_none());
            stacks.keep(space, addresses, &stack(&mut store, number));
            assert!(stacks.get(space, addresses).is_some());
            // One that is used stays.
            seen += usize::from(stacks.get(space, Addresses::new(&0_u64.to_ne_bytes())).is_some());
            let Cache { bytes, entries, evicted, .. } = stacks.account();
            assert!(bytes <= limit as u64 && bytes >= entries * 900, "{bytes} of {entries}");
            assert_eq!(entries + evicted, number + 1);
        }
        assert_eq!(seen, 1000);
        assert!(stacks.account().evicted > 900);
        stacks.remove(space);
        let Cache { bytes, entries, .. } = stacks.account();
        assert_eq!((bytes, entries), (0, 0));
    }
}
