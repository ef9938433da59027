//! The thread that puts mappings and unwind tables into the kernel, where the walk finds them.
//!
//! Mappings of every process are written as they are told, since that costs little. The table of a
//! file is made when a walk has looked for it.

use std::{
    rc::Rc,
    sync::{Arc, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

use profiler_common::unwind::{
    space::{self, BLOCK_MAPPINGS, SPACE_BLOCKS},
    table::{self, Chunk, TABLES},
};
use rustc_hash::FxHashMap;

use super::{
    Table,
    blocks::FreeBlocks,
    builder::{self, Builder, Built},
};
use crate::{
    bpf::unwind::UnwindMaps,
    error::{Error, Result},
    kernel,
    process::{
        file::{FileKey, MappedFile},
        maps::Backing,
        space::{Mapped, Space, SpaceId},
        table::{Event, Kind, Processes},
    },
};

/// How often the thread looks which tables are wanted.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The same while a table is being made, to have it in the kernel soon.
const BUILT_INTERVAL: Duration = Duration::from_millis(2);
/// A file that could not be read is tried again after this long.
const RETRY: Duration = Duration::from_secs(1);
/// Messages that may wait; beyond, they are lost, and counted.
const QUEUE: usize = 256;

/// The sending end.
#[derive(Debug)]
pub struct Loader(mpsc::SyncSender<Vec<Event>>);

impl Loader {
    /// Starts the thread, which ends when the last sender is gone. It remembers so many processes, and
    /// lets tables take so many bytes of the kernel's memory.
    pub fn start(maps: UnwindMaps, processes: usize, table_bytes: usize) -> Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(QUEUE);
        let failed = |error| Error::system("cannot start a thread for unwind tables", error);
        let builder = Builder::start().map_err(failed)?;
        let run = move || Thread::new(maps, builder, processes, table_bytes).run(&receiver);
        thread::Builder::new().name("unwind".into()).spawn(run).map_err(failed)?;
        Ok(Self(sender))
    }

    /// Tells what has happened to processes; whether there was room.
    #[must_use]
    pub fn tell(&self, events: Vec<Event>) -> bool {
        self.0.try_send(events).is_ok()
    }
}

/// What a table is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Code {
    File(FileKey),
    /// The same in every process.
    Vdso,
}

/// A place in the kernel's array of tables.
#[derive(Debug)]
struct Place {
    code: Code,
    /// `None` of the vDSO.
    file: Option<Weak<MappedFile>>,
    state: State,
    /// Mappings of how many spaces refer to it.
    users: usize,
    /// When it was last looked for.
    wanted: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Nobody has looked for it.
    Empty,
    /// It could not be read, or not be written, at this time.
    Failed(Instant),
    /// It is being made.
    Asked,
    /// It takes so many bytes.
    Loaded(usize),
}

/// A space whose mappings are in the kernel.
#[derive(Debug)]
struct Written {
    space: space::Space,
    /// How many processes have it.
    processes: usize,
    tables: Vec<u32>,
}

struct Thread {
    maps: UnwindMaps,
    processes: Processes,
    spaces: FxHashMap<SpaceId, Written>,
    /// What of `spaces` each process has.
    of_process: FxHashMap<u32, SpaceId>,
    free: FreeBlocks,
    last_generation: u32,
    places: Vec<Option<Place>>,
    by_code: FxHashMap<Code, u32>,
    builder: Builder,
    table_bytes: usize,
    table_limit: usize,
}

impl Thread {
    fn new(maps: UnwindMaps, builder: Builder, processes: usize, table_limit: usize) -> Self {
        let free = FreeBlocks::new(maps.blocks());
        Self {
            maps,
            processes: Processes::new(processes),
            spaces: FxHashMap::default(),
            of_process: FxHashMap::default(),
            free,
            last_generation: 0,
            places: (0..TABLES).map(|_| None).collect(),
            by_code: FxHashMap::default(),
            builder,
            table_bytes: 0,
            table_limit,
        }
    }

    fn run(mut self, events: &mpsc::Receiver<Vec<Event>>) {
        let mut looked = Instant::now();
        loop {
            let wait = if self.builder.is_busy() { BUILT_INTERVAL } else { LOOK_INTERVAL };
            match events.recv_timeout(wait) {
                Ok(events) => self.happened(events),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
            while let Some(built) = self.builder.built() {
                self.built(built);
            }
            if looked.elapsed() >= LOOK_INTERVAL {
                looked = Instant::now();
                for number in self.maps.take_wanted().unwrap_or_default() {
                    self.ask(number);
                }
            }
        }
    }

    fn happened(&mut self, events: Vec<Event>) {
        let mut changed: Vec<u32> = Vec::new();
        for event in events {
            if !matches!(event.kind, Kind::Ended) {
                changed.push(event.tgid);
            }
            self.processes.apply(event);
        }
        let forgotten = self.processes.forget_before(kernel::monotonic_ns());
        changed.sort_unstable();
        changed.dedup();
        for tgid in forgotten {
            self.forget(tgid);
        }
        for tgid in changed {
            if let Some(space) = self.processes.now(tgid) {
                self.write(tgid, &space);
            }
        }
    }

    /// Puts a process's mappings into the kernel.
    fn write(&mut self, tgid: u32, space: &Rc<Space>) {
        let id = space.id();
        if self.of_process.get(&tgid) == Some(&id) {
            return;
        }
        if !self.spaces.contains_key(&id) {
            let Some(written) = self.write_space(space) else { return self.forget(tgid) };
            self.spaces.insert(id, written);
        }
        let Some(written) = self.spaces.get_mut(&id) else { return };
        if self.maps.set_space(tgid, written.space).is_ok() {
            written.processes += 1;
            let before = self.of_process.insert(tgid, id);
            if let Some(before) = before {
                self.release(before);
            }
        } else {
            self.forget(tgid);
        }
    }

    fn write_space(&mut self, space: &Space) -> Option<Written> {
        let most = (SPACE_BLOCKS * BLOCK_MAPPINGS) as usize;
        let mut mappings = Vec::with_capacity(space.mappings().len().min(most));
        for mapping in space.mappings().iter().take(most) {
            mappings.push(self.mapping(mapping)?);
        }
        let tables = mappings.iter().map(|it| it.table).filter(|&it| it != space::NO_TABLE);
        let mut tables: Vec<u32> = tables.collect();
        tables.sort_unstable();
        tables.dedup();
        let blocks: Vec<space::Block> = mappings
            .chunks(BLOCK_MAPPINGS as usize)
            .map(|part| {
                let mut block = [space::Mapping::UNUSED; BLOCK_MAPPINGS as usize];
                block.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
                block
            })
            .collect();
        let count = u32::try_from(blocks.len()).ok()?;
        let first_block = self.free.take(count)?;
        for (number, block) in (first_block..).zip(&blocks) {
            self.maps.set_block(number, block).ok()?;
        }
        for &table in &tables {
            if let Some(Some(place)) = self.places.get_mut(table as usize) {
                place.users += 1;
            }
        }
        self.last_generation = self.last_generation.checked_add(1).unwrap_or(1);
        let space = space::Space {
            generation: self.last_generation,
            first_block,
            blocks: count,
            reserved: 0,
        };
        Some(Written { space, processes: 0, tables })
    }

    fn mapping(&mut self, mapping: &Mapped) -> Option<space::Mapping> {
        let (code, file, file_offset) = match &mapping.backing {
            // What it is at is not always what the kernel says of its offset.
            Backing::Vdso => (Some(Code::Vdso), None, 0),
            Backing::File(file) => (file.key().map(Code::File), Some(file), mapping.file_offset),
            Backing::Anonymous => (None, None, 0),
        };
        let table = code.and_then(|code| self.place(code, file)).unwrap_or(space::NO_TABLE);
        let pages = mapping.end.checked_sub(mapping.start)?.div_ceil(4096);
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        Some(space::Mapping { start: mapping.start, file_offset, pages, table })
    }

    /// The place of a table: the one that it has, or a new one.
    fn place(&mut self, code: Code, file: Option<&Arc<MappedFile>>) -> Option<u32> {
        let file = file.map(Arc::downgrade);
        if let Some(&number) = self.by_code.get(&code) {
            if let Some(Some(place)) = self.places.get_mut(number as usize)
                && place.file.as_ref().is_some_and(|file| file.strong_count() == 0)
            {
                place.file = file;
            }
            return Some(number);
        }
        let free = self.places.iter().position(Option::is_none).or_else(|| {
            let unused = |(at, place): (usize, &Option<Place>)| {
                place.as_ref().filter(|place| place.users == 0).map(|place| (place.wanted, at))
            };
            let (_, at) = self.places.iter().enumerate().filter_map(unused).min()?;
            self.unload(at);
            Some(at)
        })?;
        let number = u32::try_from(free).ok()?;
        let wanted = Instant::now();
        let place = Place { code, file, state: State::Empty, users: 0, wanted };
        *self.places.get_mut(free)? = Some(place);
        self.by_code.insert(code, number);
        Some(number)
    }

    /// Takes a table out of the kernel, and its place.
    fn unload(&mut self, at: usize) {
        let Some(place) = self.places.get_mut(at).and_then(Option::take) else { return };
        self.by_code.remove(&place.code);
        if let State::Loaded(bytes) = place.state {
            self.table_bytes -= bytes;
            if let Ok(number) = u32::try_from(at) {
                drop(self.maps.set_table(number, &[TAKEN_OUT]));
            }
        }
    }

    /// Has a table made that a walk has looked for.
    fn ask(&mut self, number: u32) {
        let Some(Some(place)) = self.places.get_mut(number as usize) else { return };
        place.wanted = Instant::now();
        let code = match &place.file {
            None => builder::Code::Vdso,
            Some(file) => match file.upgrade() {
                Some(file) => builder::Code::File(file),
                None => return,
            },
        };
        let is_due = match place.state {
            State::Empty => true,
            State::Failed(when) => when.elapsed() >= RETRY,
            State::Asked | State::Loaded(_) => false,
        };
        if is_due && self.builder.ask(number, code) {
            place.state = State::Asked;
        }
    }

    /// Puts a table in its place.
    fn built(&mut self, built: Built) {
        let Built { number, first_rule, rules, table } = built;
        // First, since the table refers to them.
        let has_rules = self.maps.set_rules(first_rule, &rules).is_ok();
        let mut state = State::Failed(Instant::now());
        if let Some(table) = table.filter(|_| has_rules) {
            // Where there is nothing, the walk is to know that.
            let nothing = [EMPTY];
            let chunks = table.as_ref().map_or(&nothing[..], Table::chunks);
            let bytes = size_of_val(chunks);
            self.make_room(bytes, number);
            if self.maps.set_table(number, chunks).is_ok() {
                state = State::Loaded(bytes);
                self.table_bytes += bytes;
            }
        }
        if let Some(Some(place)) = self.places.get_mut(number as usize) {
            place.state = state;
        }
    }

    /// Takes tables out until there is room for so many bytes: those that were looked for longest ago.
    fn make_room(&mut self, bytes: usize, except: u32) {
        while self.table_bytes + bytes > self.table_limit {
            let loaded = self.places.iter().enumerate().filter_map(|(at, place)| {
                let place = place.as_ref().filter(|it| matches!(it.state, State::Loaded(_)))?;
                (at != except as usize).then_some((place.users > 0, place.wanted, at))
            });
            let Some((_, _, at)) = loaded.min() else { return };
            if let Some(Some(place)) = self.places.get_mut(at)
                && let State::Loaded(bytes) = std::mem::replace(&mut place.state, State::Empty)
            {
                self.table_bytes -= bytes;
                if let Ok(number) = u32::try_from(at) {
                    drop(self.maps.set_table(number, &[TAKEN_OUT]));
                }
            }
        }
    }

    fn forget(&mut self, tgid: u32) {
        if let Some(id) = self.of_process.remove(&tgid) {
            drop(self.maps.forget_space(tgid));
            self.release(id);
        }
    }

    fn release(&mut self, id: SpaceId) {
        let Some(written) = self.spaces.get_mut(&id) else { return };
        written.processes -= 1;
        if written.processes > 0 {
            return;
        }
        let Some(Written { space, tables, .. }) = self.spaces.remove(&id) else { return };
        self.free.give_back(space.first_block, space.blocks);
        for table in tables {
            if let Some(Some(place)) = self.places.get_mut(table as usize) {
                place.users -= 1;
            }
        }
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
