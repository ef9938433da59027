//! Which table is where in the kernel's array of tables, and which one makes room for another.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use profiler_common::unwind::table::{self, Chunk, TABLES};
use rustc_hash::FxHashMap;

use super::{
    Table,
    builder::{Builder, Built, Code},
};
use crate::{
    bpf::unwind::UnwindMaps,
    process::file::{FileKey, MappedFile},
};

/// A file that could not be read is tried again after this long.
const RETRY: Duration = Duration::from_secs(1);

/// What a table is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    File(FileKey),
    /// The same in every process.
    Vdso,
}

/// A place in the array.
#[derive(Debug)]
struct Place {
    key: Key,
    /// Tells it from one that was here before.
    id: u64,
    /// `None` of the vDSO.
    file: Option<Weak<MappedFile>>,
    state: State,
    /// How many mappings refer to it.
    users: usize,
    /// When it was last looked for.
    wanted: Instant,
}

#[derive(Debug)]
enum State {
    /// Nobody has looked for it.
    Empty,
    /// It is being made.
    Asked,
    /// It could not be read, or not be written, at this time.
    Failed(Instant),
    /// It takes so many bytes.
    Loaded(usize),
}

/// The places, and the tables that are being made for them.
pub(super) struct Places {
    in_order: Vec<Option<Place>>,
    by_key: FxHashMap<Key, u32>,
    builder: Builder,
    last_id: u64,
    bytes: usize,
    most_bytes: usize,
}

impl Places {
    /// No table yet, and so many bytes for all.
    pub(super) fn new(builder: Builder, most_bytes: usize) -> Self {
        let in_order = (0..TABLES).map(|_| None).collect();
        let by_key = FxHashMap::default();
        Self { in_order, by_key, builder, last_id: 0, bytes: 0, most_bytes }
    }

    /// Whether a table is being made.
    pub(super) fn is_busy(&self) -> bool {
        self.builder.is_busy()
    }

    /// The place of a table, the one that it has or a new one, for one more mapping. `None` if all are
    /// in use.
    pub(super) fn take(
        &mut self,
        key: Key,
        file: Option<&Arc<MappedFile>>,
        maps: &mut UnwindMaps,
    ) -> Option<u32> {
        let file = file.map(Arc::downgrade);
        if let Some(&number) = self.by_key.get(&key) {
            let place = self.get_mut(number)?;
            place.users += 1;
            // Another file with the same build id: the one before may be gone.
            place.file = file;
            return Some(number);
        }
        let free = self.in_order.iter().position(Option::is_none);
        let at = free.or_else(|| self.evict(maps))?;
        let number = u32::try_from(at).ok()?;
        self.last_id += 1;
        let (id, wanted) = (self.last_id, Instant::now());
        let place = Place { key, id, file, state: State::Empty, users: 1, wanted };
        *self.in_order.get_mut(at)? = Some(place);
        self.by_key.insert(key, number);
        Some(number)
    }

    /// A mapping is gone.
    pub(super) fn give_back(&mut self, number: u32) {
        if let Some(place) = self.get_mut(number) {
            place.users = place.users.saturating_sub(1);
        }
    }

    /// Has a table made that a walk has looked for.
    pub(super) fn ask(&mut self, number: u32) {
        let Some(Some(place)) = self.in_order.get_mut(number as usize) else { return };
        place.wanted = Instant::now();
        let is_due = match place.state {
            State::Empty => true,
            State::Failed(when) => when.elapsed() >= RETRY,
            State::Asked | State::Loaded(_) => false,
        };
        let code = match place.file.as_ref().map(Weak::upgrade) {
            None => Code::Vdso,
            Some(Some(file)) => Code::File(file),
            Some(None) => return,
        };
        if is_due && self.builder.ask((number, place.id), code) {
            place.state = State::Asked;
        }
    }

    /// Puts the tables that were made meanwhile in their places.
    pub(super) fn put_built(&mut self, maps: &mut UnwindMaps) {
        while let Some(built) = self.builder.built() {
            let Built { ticket: (number, id), first_rule, rules, table } = built;
            // First, since the table refers to them.
            let has_rules = maps.set_rules(first_rule, &rules).is_ok();
            if self.get_mut(number).is_none_or(|place| place.id != id) {
                continue;
            }
            let mut state = State::Failed(Instant::now());
            if let Some(table) = table.filter(|_| has_rules) {
                // Where there is nothing, the walk is to know that.
                let nothing = [EMPTY];
                let chunks = table.as_ref().map_or(&nothing[..], Table::chunks);
                let bytes = size_of_val(chunks);
                self.make_room(bytes, maps);
                if maps.set_table(number, chunks).is_ok() {
                    state = State::Loaded(bytes);
                    self.bytes += bytes;
                }
            }
            if let Some(place) = self.get_mut(number) {
                place.state = state;
            }
        }
    }

    /// Takes tables out until there is room for so many bytes: first those that no mapping refers to,
    /// and of these the ones that were looked for longest ago. A walk that misses one has it made again.
    fn make_room(&mut self, bytes: usize, maps: &mut UnwindMaps) {
        while self.bytes + bytes > self.most_bytes {
            let loaded = self.in_order.iter().enumerate().filter_map(|(at, place)| {
                let place = place.as_ref().filter(|it| matches!(it.state, State::Loaded(_)))?;
                Some((place.users > 0, place.wanted, at))
            });
            let Some((_, _, at)) = loaded.min() else { return };
            self.take_out(at, maps);
        }
    }

    /// Frees a place that no mapping refers to.
    fn evict(&mut self, maps: &mut UnwindMaps) -> Option<usize> {
        let unused = |(at, place): (usize, &Option<Place>)| {
            place.as_ref().filter(|place| place.users == 0).map(|place| (place.wanted, at))
        };
        let (_, at) = self.in_order.iter().enumerate().filter_map(unused).min()?;
        self.take_out(at, maps);
        let place = self.in_order.get_mut(at)?.take()?;
        self.by_key.remove(&place.key);
        Some(at)
    }

    fn take_out(&mut self, at: usize, maps: &mut UnwindMaps) {
        let Some(Some(place)) = self.in_order.get_mut(at) else { return };
        let State::Loaded(bytes) = std::mem::replace(&mut place.state, State::Empty) else {
            return;
        };
        self.bytes -= bytes;
        if let Ok(number) = u32::try_from(at) {
            // Should it fail, the table stays where it is, and is right.
            drop(maps.set_table(number, &[TAKEN_OUT]));
        }
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut Place> {
        self.in_order.get_mut(number as usize)?.as_mut()
    }
}

/// A table of no pages.
const EMPTY: Chunk = [0; size_of::<Chunk>() / 4];
/// What stands in the place of a table that was taken out.
const TAKEN_OUT: Chunk = {
    let mut chunk = EMPTY;
    let [first_page, ..] = &mut chunk;
    *first_page = table::TAKEN_OUT;
    chunk
};
