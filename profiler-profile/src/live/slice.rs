//! What was sampled in a short time.

use std::time::Duration;

use rustc_hash::FxHashMap;

use super::snapshot::Sampled;
use crate::stack_end::StackEnd;

/// What a slice lasts: the window moves in steps of it.
pub const SLICE: Duration = Duration::from_millis(500);
pub(super) const SLICE_NS: u64 = 500_000_000;
/// The most sources that are told apart.
const MAX_SOURCES: usize = 64;

/// So many samples, and what they stand for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) count: u64,
    pub(super) value: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.value = self.value.saturating_add(other.value);
    }

    pub(super) fn take(&mut self, other: Self) {
        self.count = self.count.saturating_sub(other.count);
        self.value = self.value.saturating_sub(other.value);
    }
}

/// What was sampled in [`SLICE`].
#[derive(Debug, Default)]
pub(super) struct Slice {
    /// Its number: the time of the machine, in slices.
    pub(super) at: u64,
    pub(super) counts: FxHashMap<usize, Counts>,
    /// By slot.
    pub(super) sources: Vec<Sampled>,
}

impl Slice {
    /// What was sampled of a source; `None` if there can be none.
    pub(super) fn of_source(&mut self, slot: usize) -> Option<&mut Sampled> {
        // There are few.
        if slot < MAX_SOURCES && self.sources.len() <= slot {
            self.sources.resize_with(slot + 1, Sampled::default);
        }
        self.sources.get_mut(slot)
    }
}

/// Whether a user stack misses callers.
pub(super) fn is_cut(end: StackEnd) -> bool {
    !matches!(
        end,
        StackEnd::Complete | StackEnd::NotCaptured | StackEnd::NoUserMemory | StackEnd::MemoryGone
    )
}
