//! What is mapped where in a process, now and a moment ago.

use std::{
    collections::VecDeque,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::file::{FileKey, MappedFile};
use crate::procfs::maps::{self, Backing, Mapping};

/// A mapping whose file is known.
pub type Mapped = Mapping<Arc<MappedFile>>;

/// Mappings of a process, at most: unmapping is not told, so one that maps and unmaps for long would
/// have any number. Beyond it all are forgotten, and what is still there is read from `/proc`.
const LIMIT: usize = 16 << 10;
/// Mappings that were replaced and are still remembered, at most.
const REPLACED: usize = 64;

/// Which mappings an address belongs to: another number when they have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceId(u64);

impl SpaceId {
    /// The kernel's addresses.
    pub const KERNEL: Self = Self(0);

    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(SpaceId::KERNEL.0 + 1);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// Mappings in the order of their addresses, none over another. Clones share them.
#[derive(Clone, Debug)]
pub struct Mappings {
    id: SpaceId,
    list: Arc<Vec<Mapped>>,
}

impl Mappings {
    fn new(mut list: Vec<Mapped>) -> Self {
        list.sort_by_key(|mapping| mapping.start);
        Self { id: SpaceId::next(), list: Arc::new(list) }
    }

    /// Which these are: others have another number.
    #[must_use]
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// A file that is mapped, by what its symbols are cached by.
    #[must_use]
    pub fn file(&self, key: FileKey) -> Option<Arc<MappedFile>> {
        let file = |it: &Mapped| match &it.backing {
            Backing::File(file) if file.key() == Some(key) => Some(Arc::clone(file)),
            _ => None,
        };
        self.list.iter().find_map(file)
    }
}

impl Deref for Mappings {
    type Target = [Mapped];

    fn deref(&self) -> &[Mapped] {
        &self.list
    }
}

/// The address space of a process: its executable mappings. Its children have the same ones until they change.
#[derive(Clone, Debug)]
pub struct Space {
    /// When the last change was made; CLOCK_MONOTONIC.
    changed_ns: u64,
    mappings: Mappings,
    /// What was there before, with when it ended; oldest first.
    replaced: VecDeque<(u64, Mapped)>,
}

impl Space {
    /// These mappings, in any order, known since a time.
    #[must_use]
    pub fn new(mappings: Vec<Mapped>, since_ns: u64) -> Self {
        let replaced = VecDeque::new();
        Self { changed_ns: since_ns, mappings: Mappings::new(mappings), replaced }
    }

    /// What an address in these mappings is cached by.
    #[must_use]
    pub fn id(&self) -> SpaceId {
        self.mappings.id
    }

    /// When the last change was made. What was found for an earlier time holds for that time only.
    #[must_use]
    pub fn changed_ns(&self) -> u64 {
        self.changed_ns
    }

    /// The current mappings.
    #[must_use]
    pub fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    /// What it takes of the heap. Names of files are shared by all who map them, and not counted.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.mappings.list.capacity() * size_of::<Mapped>()
            + self.replaced.capacity() * size_of::<(u64, Mapped)>()
    }

    /// The mapping that held the address at a time.
    #[must_use]
    pub fn find(&self, address: u64, time_ns: u64) -> Option<&Mapped> {
        if time_ns < self.changed_ns {
            let holds = |mapping: &Mapped| mapping.start <= address && address < mapping.end;
            let mut before = self.replaced.iter().filter(|(until_ns, _)| time_ns < *until_ns);
            if let Some((_, mapping)) = before.find(|(_, mapping)| holds(mapping)) {
                return Some(mapping);
            }
        }
        // A mapping that was made only later is as good as none, and far more often the time of the
        // sample is that of the interrupt that came while the mapping was made.
        maps::find(&self.mappings, address)
    }

    /// Whether exactly this is mapped already.
    #[must_use]
    pub fn has(&self, mapping: &Mapped) -> bool {
        maps::find(&self.mappings, mapping.start) == Some(mapping)
    }

    /// Maps something, in place of what was there.
    pub fn map(&mut self, mapping: Mapped, time_ns: u64) {
        let first = self.mappings.partition_point(|it| it.end <= mapping.start);
        let behind = self.mappings.partition_point(|it| it.start < mapping.end);
        let mut new = Vec::with_capacity(3);
        for old in self.mappings.get(first..behind).unwrap_or_default() {
            // What sticks out on either side stays.
            if old.start < mapping.start {
                new.push(Mapped { end: mapping.start, ..old.clone() });
            }
            if old.end > mapping.end {
                let file_offset = old.file_offset_of(mapping.end);
                new.push(Mapped { start: mapping.end, file_offset, ..old.clone() });
            }
            self.replaced.push_back((time_ns, old.clone()));
        }
        while self.replaced.len() > REPLACED {
            self.replaced.pop_front();
        }
        // Who has them elsewhere keeps what was.
        let list = Arc::make_mut(&mut self.mappings.list);
        if list.len() >= LIMIT {
            list.clear();
            list.push(mapping);
            return self.changed(time_ns);
        }
        new.push(mapping);
        new.sort_by_key(|mapping| mapping.start);
        list.splice(first..behind.max(first), new);
        self.changed(time_ns);
    }

    /// Takes what `/proc` says now, in place of all that was known.
    pub fn replace(&mut self, mappings: Vec<Mapped>, time_ns: u64) {
        let mappings = Mappings::new(mappings);
        if *mappings == *self.mappings {
            return;
        }
        let before = std::mem::replace(&mut self.mappings, mappings);
        let gone = before.iter().filter(|it| !self.has(it)).take(REPLACED);
        let gone: Vec<_> = gone.map(|it| (time_ns, it.clone())).collect();
        self.replaced.extend(gone);
        while self.replaced.len() > REPLACED {
            self.replaced.pop_front();
        }
        self.changed(time_ns);
    }

    fn changed(&mut self, time_ns: u64) {
        self.mappings.id = SpaceId::next();
        self.changed_ns = self.changed_ns.max(time_ns);
    }

    /// Forgets what ended before a time: no sample from then will come any more.
    pub fn forget_before(&mut self, time_ns: u64) {
        while self.replaced.front().is_some_and(|(until_ns, _)| *until_ns < time_ns) {
            self.replaced.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mapping(start: u64, end: u64, name: &str) -> Mapped {
        let (backing, name) = (Backing::Anonymous, name.into());
        Mapping { start, end, file_offset: start, backing, name }
    }

    fn names(space: &Space) -> Vec<(u64, u64, &str)> {
        space.mappings().iter().map(|it| (it.start, it.end, &*it.name)).collect()
    }

    #[test]
    fn a_mapping_takes_the_place_of_what_was_there() {
        let mut space = Space::new(vec![mapping(10, 50, "a"), mapping(50, 60, "b")], 0);
        let before = space.id();
        space.map(mapping(20, 30, "c"), 5);
        assert_eq!(names(&space), [(10, 20, "a"), (20, 30, "c"), (30, 50, "a"), (50, 60, "b")]);
        assert_eq!(space.mappings()[2].file_offset_of(35), 35);
        assert_ne!(space.id(), before);
        space.map(mapping(0, 100, "d"), 6);
        assert_eq!(names(&space), [(0, 100, "d")]);
        assert!(space.has(&mapping(0, 100, "d")) && !space.has(&mapping(0, 99, "d")));
    }

    #[test]
    fn what_was_there_is_found_at_its_time() {
        let mut space = Space::new(vec![mapping(10, 50, "a")], 0);
        space.map(mapping(10, 50, "b"), 100);
        space.map(mapping(20, 30, "c"), 200);
        let name = |space: &Space, time| space.find(25, time).map(|it| it.name.to_string());
        let found = [99, 100, 199, 200].map(|time| name(&space, time).unwrap());
        assert_eq!(found, ["a", "b", "b", "c"]);
        space.forget_before(150);
        assert_eq!(name(&space, 199).unwrap(), "b");
        space.forget_before(201);
        assert_eq!(name(&space, 199).unwrap(), "c");
    }

    #[test]
    fn what_proc_replaces_is_found_at_its_time() {
        let mut space = Space::new(vec![mapping(10, 50, "a"), mapping(60, 70, "b")], 0);
        space.replace(vec![mapping(10, 50, "c"), mapping(60, 70, "b")], 100);
        let name = |time| space.find(25, time).map(|it| it.name.to_string());
        assert_eq!((name(99).as_deref(), name(100).as_deref()), (Some("a"), Some("c")));
        assert_eq!(space.replaced.len(), 1);
    }

    #[test]
    fn the_mappings_are_bounded() {
        let mut space = Space::new(Vec::new(), 0);
        for number in 0..3 * LIMIT as u64 {
            space.map(mapping(2 * number, 2 * number + 1, ""), number);
            assert!(space.mappings().len() <= LIMIT);
            assert!(space.find(2 * number, number).is_some());
        }
    }

    proptest! {
        /// Against a list of which mapping each address has.
        #[test]
        fn any_order_of_mappings(ranges in prop::collection::vec((0_u64..60, 1_u64..20), 0..40)) {
            let mut space = Space::new(Vec::new(), 0);
            let mut model = [None; 80];
            for (time, (start, bytes)) in (1..).zip(ranges) {
                let name = format!("{time}");
                space.map(mapping(start, start + bytes, &name), time);
                for address in start..start + bytes {
                    model[usize::try_from(address).unwrap()] = Some(time);
                }
                let mut end = 0;
                for mapping in space.mappings().iter() {
                    prop_assert!(end <= mapping.start && mapping.start < mapping.end);
                    end = mapping.end;
                }
            }
            for (address, expected) in (0..).zip(model) {
                let found = space.find(address, u64::MAX).map(|it| it.name.parse().unwrap());
                prop_assert_eq!(found, expected);
            }
        }
    }
}
