//! Half a stack: the kernel's or the user's.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::{
    address::Address,
    frame::{COUNTS_BYTES, Frame, frames_bytes},
};

/// One address of a stack and the functions there: those inlined first, innermost first, then the
/// one they were inlined into.
#[derive(Clone, Debug)]
pub struct Location {
    /// The address.
    pub address: Address,
    /// At least one frame.
    pub frames: Arc<[Frame]>,
}

impl PartialEq for Location {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
            && (Arc::ptr_eq(&self.frames, &other.frames) || self.frames == other.frames)
    }
}

/// Names a stack for as long as it is held anywhere. No two stacks of a run have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StackId(pub(crate) u64);

/// Half a stack, innermost address first. A [`Store`](crate::store::Store) makes it.
#[derive(Debug)]
pub struct Stack {
    pub(crate) id: StackId,
    pub(crate) locations: Box<[Location]>,
}

impl Stack {
    /// One of this address only that stands beside those of stores, of which none gives it its id: the number tells it from
    /// others that do.
    pub(crate) fn outside(number: u64, location: Location) -> Self {
        Self { id: StackId(u64::MAX - number), locations: [location].into() }
    }

    /// Tells it from all others.
    #[must_use]
    pub fn id(&self) -> StackId {
        self.id
    }

    /// Its addresses, innermost first.
    #[must_use]
    pub fn locations(&self) -> &[Location] {
        &self.locations
    }

    /// Whether it has no address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locations.is_empty()
    }

    /// All frames, innermost first, with their addresses.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = (u64, &Frame)> {
        self.locations.iter().flat_map(|location| {
            location.frames.iter().map(|frame| (location.address.value, frame))
        })
    }

    /// Whether the outermost function is one that nothing calls: a program's or a thread's entry.
    #[must_use]
    pub fn reaches_entry(&self) -> bool {
        const ENTRIES: [&str; 4] = ["_start", "_dl_start_user", "thread_start", "runtime.goexit"];
        // Threads begin in them, but they are also called: by whom is missing where they are all there is.
        const CLONES: [&str; 4] = ["__clone", "clone", "__clone3", "clone3"];
        let mut frames = self.frames();
        let outermost = frames.next_back().and_then(|(_, frame)| frame.symbol.as_deref());
        let has_callees = frames.next().is_some();
        outermost
            .map(|name| name.trim_end_matches(".abi0"))
            .is_some_and(|name| ENTRIES.contains(&name) || (has_callees && CLONES.contains(&name)))
    }

    /// Whether this half, the kernel's, is within the calls that replace the process's memory or free it.
    #[must_use]
    pub fn is_in_exec_or_exit(&self) -> bool {
        // Compilers add what they have split off, as in `do_execveat_common.isra.0`.
        const CALLS: [&str; 3] = ["do_exit", "bprm_execve", "do_execveat_common"];
        let name = |frame: &Frame| {
            frame.symbol.as_deref()?.split('.').next().map(|it| CALLS.contains(&it))
        };
        self.frames().any(|(_, frame)| name(frame) == Some(true))
    }

    /// Bytes of the heap that it takes, with its share of the frames that other stacks use, too.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let frames =
            |it: &Location| frames_bytes(&it.frames) / Arc::strong_count(&it.frames).max(1);
        let frames: usize = self.locations.iter().map(frames).sum();
        size_of::<Self>() + COUNTS_BYTES + size_of_val(&*self.locations) + frames
    }
}

/// A digest of what is in a stack, which tells nearly all stacks apart.
pub(crate) fn digest(locations: &[Location]) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    for Location { address, frames } in locations {
        address.hash(&mut hasher);
        for frame in frames.iter() {
            frame.offset.hash(&mut hasher);
        }
    }
    hasher.finish()
}
