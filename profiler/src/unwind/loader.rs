//! The thread that puts mappings and unwind tables into the kernel, where the walk finds them.
//!
//! Mappings of every process are written as they are told, since that costs little. The table of a
//! file is made when a walk has looked for it.

use std::{
    collections::BTreeSet,
    rc::Rc,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use profiler_common::unwind::{
    space::{self, BLOCK_MAPPINGS, SPACE_BLOCKS},
    table::TABLES,
};
use profiler_profile::{frame::Missing, ledger::unwinding::Unwinding};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::oneshot;

use super::{
    blocks::FreeBlocks,
    builder::Builder,
    table_slots::{Key, TableSlots},
};
use crate::{
    bpf::{memory::WalkMemory, unwind::UnwindMaps},
    error::{Error, Result},
    kernel,
    parser::Bars,
    process::{
        file::MappedFile,
        space::{Mapped, Space, SpaceId},
        table::{Event, Processes},
    },
    procfs::maps::Backing,
    realtime::{Priority, Role},
};

/// How often the thread looks which tables are wanted.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The same while a table is being made, to have it in the kernel soon.
const BUILT_INTERVAL: Duration = Duration::from_millis(2);
/// How often files are looked at again that could not be opened when they were mapped, and processes
/// for which there was no room.
const AGAIN_INTERVAL: Duration = Duration::from_secs(1);
/// The rules of all tables are begun anew at most this often: each table is made again for that.
const START_OVER_INTERVAL: Duration = Duration::from_secs(60);
/// For how long the end of a run waits for the account of this thread.
const ACCOUNT_DEADLINE: Duration = Duration::from_secs(1);
/// Processes that may find no room each time until the rest is not tried.
const MAX_REFUSED: usize = 16;
/// Tables that are made before the start for what runs then. Most libraries of a process are never sampled.
const READY_TABLES: usize = 48;
/// Messages that may wait; beyond, they are lost, and the walk does not know these mappings.
const QUEUE: usize = 1024;

/// Mappings of a process that the kernel has room for: those at the lowest addresses.
const MAX_MAPPINGS: usize = (SPACE_BLOCKS * BLOCK_MAPPINGS) as usize;

/// The sending end.
#[derive(Debug)]
pub struct Loader(mpsc::SyncSender<Message>);

#[derive(Debug)]
enum Message {
    Happened(Vec<Event>),
    /// Who waits until everything told before is in the kernel.
    Written(oneshot::Sender<()>),
    /// Processes that run now, and who waits until their tables are in the kernel.
    MakeReady(Vec<u32>, oneshot::Sender<()>),
    /// Who asks what has become of the tables.
    Account(mpsc::Sender<Unwinding>),
}

impl Loader {
    /// Starts the thread, which ends when the sender is gone. It remembers so many processes, and has
    /// so much of the kernel's memory for their mappings and tables. Files that are given up are shared by
    /// `bars`.
    pub fn start(
        maps: UnwindMaps,
        processes: usize,
        memory: WalkMemory,
        bars: Arc<Bars>,
    ) -> Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(QUEUE);
        let failed = |error| Error::system("cannot start a thread for unwind tables", error);
        let builder = Builder::start(bars).map_err(failed)?;
        let run = move || {
            Thread {
                processes: Processes::new(processes),
                spaces: FxHashMap::default(),
                of_process: FxHashMap::default(),
                free: FreeBlocks::new(maps.blocks()),
                without_room: FxHashSet::default(),
                last_generation: 0,
                is_second_round: false,
                last_refused: 0,
                started_over: None,
                lacks_rules: false,
                slots: TableSlots::new(builder, memory),
                waits_for_tables: None,
                maps,
            }
            .run(&receiver);
        };
        thread::Builder::new().name("unwind".into()).spawn(run).map_err(failed)?;
        Ok(Self(sender))
    }

    /// Tells what has happened to processes; whether there was room.
    #[must_use]
    pub fn tell(&self, events: Vec<Event>) -> bool {
        self.0.try_send(Message::Happened(events)).is_ok()
    }

    /// Waits until everything told before is in the kernel, as far as there is room for it.
    pub async fn written(&self) {
        let (sender, receiver) = oneshot::channel();
        if self.0.try_send(Message::Written(sender)).is_ok() {
            // If the thread has ended, there is nothing to wait for.
            let _ = receiver.await;
        }
    }

    /// Has the tables made of what these processes have mapped, as far as they can be told of at once, and
    /// waits until they are in the kernel.
    pub async fn make_ready(&self, tgids: Vec<u32>) {
        let (sender, receiver) = oneshot::channel();
        if self.0.try_send(Message::MakeReady(tgids, sender)).is_ok() {
            // If the thread has ended, there is nothing to wait for.
            let _ = receiver.await;
        }
    }

    /// What has become of the tables; `None` if the thread does not answer in time.
    #[must_use]
    pub fn account(&self) -> Option<Unwinding> {
        let (sender, receiver) = mpsc::channel();
        self.0.try_send(Message::Account(sender)).ok()?;
        receiver.recv_timeout(ACCOUNT_DEADLINE).ok()
    }
}

/// A space whose mappings are in the kernel.
#[derive(Debug)]
struct Written {
    space: space::Space,
    /// How many processes have it.
    processes: usize,
    /// The table of each mapping that has one.
    tables: Vec<u32>,
    /// What its files were.
    files: Files,
}

struct Thread {
    maps: UnwindMaps,
    processes: Processes,
    spaces: FxHashMap<SpaceId, Written>,
    /// Which of `spaces` each process has.
    of_process: FxHashMap<u32, SpaceId>,
    /// Processes whose mappings found no room in the kernel.
    without_room: FxHashSet<u32>,
    /// The last of these that was tried again.
    last_refused: u32,
    free: FreeBlocks,
    last_generation: u32,
    /// Whether all generations were used once.
    is_second_round: bool,
    /// When the rules were last begun anew.
    started_over: Option<Instant>,
    /// Whether that is to be done as soon as it may.
    lacks_rules: bool,
    slots: TableSlots,
    /// Who waits until no table is being made.
    waits_for_tables: Option<oneshot::Sender<()>>,
}

impl Thread {
    fn run(mut self, messages: &mpsc::Receiver<Message>) {
        let (mut looked, mut tried_again) = (Instant::now(), Instant::now());
        let mut priority = Priority::enter(Role::Loader);
        loop {
            priority.renew();
            let wait = if self.slots.is_busy() { BUILT_INTERVAL } else { LOOK_INTERVAL };
            match messages.recv_timeout(wait) {
                Ok(Message::Happened(events)) => self.happened(events),
                // Whoever waits may wait no longer.
                Ok(Message::Written(to)) => drop(to.send(())),
                Ok(Message::MakeReady(tgids, to)) => {
                    self.make_ready(&tgids);
                    self.waits_for_tables = Some(to);
                }
                // Whoever asks may have waited long enough.
                Ok(Message::Account(to)) => {
                    drop(to.send(self.slots.account(self.without_room.len())));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
            self.lacks_rules |= self.slots.put_built(&mut self.maps);
            if self.lacks_rules {
                self.lacks_rules = !self.start_over();
            }
            if !self.slots.is_busy() {
                // Whoever waits may wait no longer.
                self.waits_for_tables.take().map(|to| to.send(()));
            }
            if looked.elapsed() >= LOOK_INTERVAL {
                looked = Instant::now();
                self.ask();
            }
            if tried_again.elapsed() >= AGAIN_INTERVAL {
                tried_again = Instant::now();
                self.look_for_files();
                self.look_for_room();
            }
        }
    }

    /// Has those tables made that walks have looked for.
    fn ask(&mut self) {
        let Self { maps, processes, of_process, slots, .. } = self;
        for number in maps.take_wanted().unwrap_or_default() {
            slots.ask(number, |key| {
                of_process.keys().find_map(|&tgid| processes.now(tgid)?.file(key))
            });
        }
    }

    /// Has the tables of these processes made before a walk looks for them.
    fn make_ready(&mut self, tgids: &[u32]) {
        let Self { processes, of_process, spaces, slots, .. } = self;
        let written = tgids.iter().filter_map(|tgid| spaces.get(of_process.get(tgid)?));
        let numbers: BTreeSet<u32> = written.flat_map(|it| it.tables.iter().copied()).collect();
        for number in numbers.into_iter().take(READY_TABLES) {
            slots.ask(number, |key| {
                of_process.keys().find_map(|&tgid| processes.now(tgid)?.file(key))
            });
        }
    }

    fn happened(&mut self, events: Vec<Event>) {
        let mut tgids: Vec<u32> = events.iter().map(|event| event.tgid).collect();
        for event in events {
            self.processes.apply(event);
        }
        for tgid in self.processes.forget_before(kernel::monotonic_ns()) {
            self.forget(tgid);
        }
        tgids.sort_unstable();
        tgids.dedup();
        for tgid in tgids {
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
            let Some(written) = self.write_space(space) else {
                self.forget(tgid);
                self.without_room.insert(tgid);
                return;
            };
            self.spaces.insert(id, written);
        }
        let Some(written) = self.spaces.get_mut(&id) else { return };
        written.processes += 1;
        let is_told = self.maps.set_space(tgid, written.space).is_ok();
        let before = self.of_process.insert(tgid, id);
        if let Some(before) = before {
            self.release(before);
        }
        if is_told {
            self.without_room.remove(&tgid);
        } else {
            self.forget(tgid);
            self.without_room.insert(tgid);
        }
    }

    fn write_space(&mut self, space: &Space) -> Option<Written> {
        let mapped = space.mappings().iter().take(MAX_MAPPINGS);
        let count = u32::try_from(mapped.len().div_ceil(BLOCK_MAPPINGS as usize)).ok()?;
        let first_block = self.free.take(count)?;
        let files = Files::of(space);
        let mappings: Vec<space::Mapping> = mapped.map(|it| self.mapping(it)).collect();
        let tables = mappings.iter().map(|it| it.table).filter(|&it| it < TABLES);
        let tables = tables.collect();
        for (number, part) in (first_block..).zip(mappings.chunks(BLOCK_MAPPINGS as usize)) {
            let mut block = [space::Mapping::UNUSED; BLOCK_MAPPINGS as usize];
            block.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            // A block that can't be written has what was there before; no generation leads there.
            if self.maps.set_block(number, &block).is_err() {
                self.give_back(first_block, count, tables);
                return None;
            }
        }
        let generation = self.next_generation();
        let space = space::Space { generation, first_block, blocks: count, reserved: 0 };
        Some(Written { space, processes: 0, tables, files })
    }

    /// A number that no space has. They last for weeks; then those of spaces that still are there must not
    /// come again.
    fn next_generation(&mut self) -> u32 {
        loop {
            let next = self.last_generation.checked_add(1);
            self.is_second_round |= next.is_none();
            self.last_generation = next.unwrap_or(1);
            let is_taken = |it: &Written| it.space.generation == self.last_generation;
            if !self.is_second_round || !self.spaces.values().any(is_taken) {
                return self.last_generation;
            }
        }
    }

    fn mapping(&mut self, mapping: &Mapped) -> space::Mapping {
        let (key, file, file_offset) = match &mapping.backing {
            // The kernel gives its address for its offset.
            Backing::Vdso => (Some(Key::Vdso), None, 0),
            Backing::File(file) => (file.key().map(Key::File), Some(file), mapping.file_offset),
            Backing::Anonymous => (None, None, 0),
        };
        let table = match key {
            Some(key) => self.slots.take(key, file, &mut self.maps),
            // Not code that is made at run time, which keeps frame pointers.
            None => file.filter(|it| may_come(it)).map(|_| space::NOT_OPEN),
        };
        let pages = mapping.end.saturating_sub(mapping.start).div_ceil(4096);
        space::Mapping {
            start: mapping.start,
            file_offset,
            pages: u32::try_from(pages).unwrap_or(u32::MAX),
            table: table.unwrap_or(space::NO_TABLE),
        }
    }

    /// Writes those again of which a file has been opened meanwhile, or will not be.
    fn look_for_files(&mut self) {
        let lacking: Vec<(u32, SpaceId)> = self
            .of_process
            .iter()
            .filter(|(_, id)| self.spaces.get(id).is_some_and(|written| written.files.lacking > 0))
            .map(|(tgid, id)| (*tgid, *id))
            .collect();
        let now = lacking.into_iter().filter_map(|(tgid, id)| {
            let space = self.processes.now(tgid).filter(|space| space.id() == id)?;
            (self.spaces.get(&id)?.files != Files::of(&space)).then_some((tgid, space))
        });
        let now: Vec<_> = now.collect();
        // All that share one, before any is written: what is left of it would be taken again.
        for (tgid, _) in &now {
            self.forget(*tgid);
        }
        for (tgid, space) in now {
            self.write(tgid, &space);
        }
    }

    /// Tries those again for which there was no room.
    fn look_for_room(&mut self) {
        let mut refused = 0;
        // From where the last time has ended, so that all of them have their turn.
        let mut tgids: Vec<u32> = self.without_room.iter().copied().collect();
        tgids.sort_unstable();
        let tried = tgids.partition_point(|&it| it <= self.last_refused);
        tgids.rotate_left(tried);
        for tgid in tgids {
            self.last_refused = tgid;
            let Some(space) = self.processes.now(tgid) else {
                self.without_room.remove(&tgid);
                continue;
            };
            self.write(tgid, &space);
            // One that needs much must not keep out all others.
            refused += usize::from(self.without_room.contains(&tgid));
            if refused == MAX_REFUSED {
                break;
            }
        }
    }

    /// Has the rules of all tables begun anew, since files that are gone have used them up, unless that
    /// was done a moment ago; whether it has. Numbers of rules then mean others, but not at once, since a table takes
    /// longer to make than a walk does, and what walks keep of them is of mappings of another generation.
    fn start_over(&mut self) -> bool {
        let is_due = self.started_over.is_none_or(|it| it.elapsed() >= START_OVER_INTERVAL);
        if !is_due || !self.slots.start_over(&mut self.maps) {
            return false;
        }
        self.started_over = Some(Instant::now());
        for id in self.spaces.keys().copied().collect::<Vec<_>>() {
            let generation = self.next_generation();
            if let Some(written) = self.spaces.get_mut(&id) {
                written.space.generation = generation;
            }
        }
        for (tgid, id) in self.of_process.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>() {
            let Some(written) = self.spaces.get(&id) else { continue };
            if self.maps.set_space(tgid, written.space).is_err() {
                self.forget(tgid);
                self.without_room.insert(tgid);
            }
        }
        true
    }

    fn forget(&mut self, tgid: u32) {
        self.without_room.remove(&tgid);
        if let Some(id) = self.of_process.remove(&tgid) {
            // It is not there if it could not be told.
            drop(self.maps.forget_space(tgid));
            self.release(id);
        }
    }

    fn release(&mut self, id: SpaceId) {
        let Some(written) = self.spaces.get_mut(&id) else { return };
        written.processes = written.processes.saturating_sub(1);
        if written.processes == 0
            && let Some(Written { space, tables, .. }) = self.spaces.remove(&id)
        {
            self.give_back(space.first_block, space.blocks, tables);
        }
    }

    fn give_back(&mut self, first_block: u32, blocks: u32, tables: Vec<u32>) {
        self.free.give_back(first_block, blocks);
        for table in tables {
            self.slots.give_back(table);
        }
    }
}

/// How many files of a space are open or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Files {
    lacking: usize,
    /// Of those that are lacking, how many are still being opened.
    to_come: usize,
}

impl Files {
    fn of(space: &Space) -> Self {
        let files = space.mappings().iter().filter_map(|mapping| match &mapping.backing {
            Backing::File(file) if file.key().is_none() => Some(file),
            _ => None,
        });
        files.fold(Self::default(), |sum, file| Self {
            lacking: sum.lacking + 1,
            to_come: sum.to_come + usize::from(may_come(file)),
        })
    }
}

/// Whether a file that is not open may be soon.
fn may_come(file: &MappedFile) -> bool {
    matches!(file.missing(), Missing::Unanswered | Missing::Leased)
}
