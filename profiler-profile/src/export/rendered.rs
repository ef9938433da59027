//! Stacks as a format writes them, each rendered once.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use quick_cache::{Lifecycle, Weighter, unsync::Cache as Entries};
use rustc_hash::FxBuildHasher;
use serde_json::value::RawValue;

use crate::{
    ledger::memory::{Cache, count},
    stack::{Stack, StackId},
};

/// What an entry takes beside its text.
const ENTRY_BYTES: usize = 64;
/// What a rendered stack takes, about: half of the frames' names.
const TEXT_BYTES: usize = 1 << 10;

/// The text of a stack.
pub(super) trait Text: Clone {
    /// Its length.
    fn bytes(&self) -> usize;
}

impl Text for Arc<str> {
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// Text that is known to be JSON.
impl Text for Arc<RawValue> {
    fn bytes(&self) -> usize {
        self.get().len()
    }
}

/// The text of stacks, by the stack. It belongs to one exporter, since each writes them in its own way.
pub(super) struct Rendered<T> {
    entries: Entries<StackId, T, Bytes, FxBuildHasher, Evicted>,
    limit_bytes: usize,
    evicted: Arc<AtomicU64>,
}

#[derive(Clone)]
struct Bytes;

impl<T: Text> Weighter<StackId, T> for Bytes {
    fn weight(&self, _: &StackId, text: &T) -> u64 {
        count(ENTRY_BYTES + text.bytes())
    }
}

/// Counts what had to go.
struct Evicted(Arc<AtomicU64>);

impl<T> Lifecycle<StackId, T> for Evicted {
    type RequestState = ();

    fn begin_request(&self) {}

    fn on_evict(&self, (): &mut (), _: StackId, _: T) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl<T: Text> Rendered<T> {
    /// None yet, and so many bytes for all.
    pub(super) fn new(limit_bytes: usize) -> Self {
        let stacks = limit_bytes / (ENTRY_BYTES + TEXT_BYTES);
        let evicted = Arc::<AtomicU64>::default();
        let counting = Evicted(Arc::clone(&evicted));
        let entries =
            Entries::with(stacks.max(1), count(limit_bytes), Bytes, FxBuildHasher, counting);
        Self { entries, limit_bytes, evicted }
    }

    /// The text of a stack, rendered now if it is not known.
    pub(super) fn get(&mut self, stack: &Stack, render: impl FnOnce(&Stack) -> T) -> T {
        if let Some(text) = self.entries.get(&stack.id()) {
            return text.clone();
        }
        let text = render(stack);
        self.entries.insert(stack.id(), text.clone());
        text
    }

    /// What it holds.
    pub(super) fn account(&self) -> Cache {
        Cache {
            name: "rendered stacks",
            entries: count(self.entries.len()),
            bytes: self.entries.weight(),
            limit_bytes: Some(count(self.limit_bytes)),
            limit_entries: None,
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{export::tests::location, frame::Frame, store::Store};

    #[test]
    fn each_stack_is_rendered_once_while_there_is_room() {
        let mut store = Store::default();
        let mut stack = |address| store.intern(vec![location(address, &[Frame::default()])]);
        let (one, other) = (stack(1), stack(2));
        let mut rendered = Rendered::<Arc<str>>::new(64 << 10);
        assert_eq!(&*rendered.get(&one, |_| "one".into()), "one");
        assert_eq!(&*rendered.get(&other, |_| "other".into()), "other");
        assert_eq!(&*rendered.get(&one, |_| unreachable!()), "one");
        assert_eq!((rendered.account().entries, rendered.account().evicted), (2, 0));
        // What is too large is rendered each time, and costs the others nothing.
        for _ in 0..2 {
            let large = rendered.get(&stack(3), |_| "x".repeat(65 << 10).into());
            assert_eq!(large.len(), 65 << 10);
        }
        assert_eq!(&*rendered.get(&one, |_| unreachable!()), "one");
        for address in 10..1000 {
            rendered.get(&stack(address), |_| "x".repeat(1 << 10).into());
            let Cache { bytes, .. } = rendered.account();
            assert!(bytes <= 64 << 10, "{bytes}");
        }
        let Cache { entries, evicted, .. } = rendered.account();
        assert!(entries > 50 && evicted > 900, "{entries} and {evicted}");
    }
}
