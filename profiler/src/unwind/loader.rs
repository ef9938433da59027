//! The thread that puts mappings and unwind tables into the kernel, where the walk finds them.
//!
//! Mappings of every process are written as the process manager tells them, since that costs little. The table of a
//! file is made when a walk has looked for it.

use std::{
    collections::BTreeSet,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use aya::maps::MapError;
use profiler_common::unwind::{
    space::{self, BLOCK_MAPPINGS, SPACE_BLOCKS},
    table::TABLES,
};
use profiler_profile::{frame::Missing, ledger::unwinding::Unwinding};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::{
    blocks::FreeBlocks,
    builder::Builder,
    interpreters::Interpreters,
    table_slots::{Key, TableSlots},
};
use crate::{
    bpf::{memory::WalkMemory, unwind::UnwindMaps},
    error::{Error, Result},
    parser::Bars,
    process::{
        self,
        file::MappedFile,
        manager::{Change, Observer},
        space::{Mapped, Mappings, SpaceId},
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
/// Messages that may wait. Beyond, changes are told later.
const QUEUE: usize = 1024;

/// Mappings of a process that the kernel has room for: those at the lowest addresses.
const MAX_MAPPINGS: usize = (SPACE_BLOCKS * BLOCK_MAPPINGS) as usize;

/// The sending end.
#[derive(Debug)]
pub struct Loader(mpsc::SyncSender<Message>);

#[derive(Debug)]
enum Message {
    Changed(Vec<Change>),
    /// Who waits until everything told before is in the kernel.
    Written(oneshot::Sender<()>),
    /// Processes that run now, and who waits until their tables are in the kernel.
    MakeReady(Vec<u32>, oneshot::Sender<()>),
    /// Who asks what has become of the tables.
    Account(mpsc::Sender<Unwinding>),
}

impl Loader {
    /// Starts the thread, which ends when the sender is gone. It has so much of the kernel's memory for mappings and
    /// tables. Files that are given up are shared by `bars`.
    ///
    /// With `interpreters`, what they run is walked, too, and they are told of there.
    pub fn start(
        maps: UnwindMaps,
        memory: WalkMemory,
        bars: Arc<Bars>,
        interpreters: Option<Arc<process::interpreters::Interpreters>>,
    ) -> Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(QUEUE);
        let failed = |error| Error::system("cannot start a thread for unwind tables", error);
        let builder = Builder::start(bars).map_err(failed)?;
        let mut slots = TableSlots::new(builder, memory);
        let interpreters = interpreters.and_then(|shared| {
            let (questions, answers) = slots.python()?;
            Some(Interpreters::new(shared, questions, answers))
        });
        let run = move || {
            Thread {
                spaces: FxHashMap::default(),
                of_process: FxHashMap::default(),
                free: FreeBlocks::new(maps.blocks()),
                without_room: FxHashMap::default(),
                last_generation: 0,
                is_second_round: false,
                last_refused: 0,
                started_over: None,
                lacks_rules: false,
                slots,
                interpreters,
                waits_for_tables: None,
                maps,
            }
            .run(&receiver);
        };
        thread::Builder::new().name("unwind".into()).spawn(run).map_err(failed)?;
        Ok(Self(sender))
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

impl Observer for Loader {
    fn changed(&self, changes: Vec<Change>) -> bool {
        self.0.try_send(Message::Changed(changes)).is_ok()
    }
}

/// Mappings that are in the kernel.
#[derive(Debug)]
struct Written {
    mappings: Mappings,
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
    spaces: FxHashMap<SpaceId, Written>,
    /// Which of `spaces` each process has.
    of_process: FxHashMap<u32, SpaceId>,
    /// Processes whose mappings found no room in the kernel, with these.
    without_room: FxHashMap<u32, Mappings>,
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
    /// Where interpreters run, if what they run is to be walked.
    interpreters: Option<Interpreters>,
    /// Who waits until no table is being made.
    waits_for_tables: Option<oneshot::Sender<()>>,
}

impl Thread {
    fn run(mut self, messages: &mpsc::Receiver<Message>) {
        let (mut looked, mut tried_again) = (Instant::now(), Instant::now());
        let mut priority = Priority::enter(Role::Loader);
        loop {
            priority.renew();
            let is_asked = self.interpreters.as_ref().is_some_and(Interpreters::is_busy);
            let is_busy = is_asked || self.slots.is_busy();
            let wait = if is_busy { BUILT_INTERVAL } else { LOOK_INTERVAL };
            match messages.recv_timeout(wait) {
                Ok(Message::Changed(changes)) => changes.into_iter().for_each(|it| self.change(it)),
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
            self.follow_interpreters();
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
        let Self { maps, spaces, slots, interpreters, .. } = self;
        for number in maps.take_wanted().unwrap_or_default() {
            slots.ask(number, |key| spaces.values().find_map(|it| it.mappings.file(key)));
            if let Some(interpreters) = interpreters
                && let Some((key, file)) = slots.file(number)
            {
                let mapped = || spaces.values().find_map(|it| it.mappings.file(key));
                interpreters.look_at(key, || file.or_else(mapped));
            }
        }
    }

    /// Has the kernel told where interpreters have turned out to run.
    fn follow_interpreters(&mut self) {
        let Some(interpreters) = &mut self.interpreters else { return };
        let (mut told, is_new) = interpreters.go_on(&mut self.maps);
        if is_new {
            let all: Vec<(u32, SpaceId)> = self.of_process.iter().map(|(a, b)| (*a, *b)).collect();
            for (tgid, id) in all {
                if self.find_interpreter(tgid, id) {
                    told.push(tgid);
                }
            }
        }
        for tgid in told {
            let written = self.of_process.get(&tgid).and_then(|id| self.spaces.get(id));
            if let Some(space) = written.map(|it| it.space) {
                // It is there already, so there is room.
                drop(self.set_space(tgid, space));
            }
        }
    }

    /// Looks for an interpreter in what a process has mapped; whether where it is is known.
    fn find_interpreter(&mut self, tgid: u32, id: SpaceId) -> bool {
        let Self { interpreters: Some(interpreters), spaces, of_process, .. } = self else {
            return false;
        };
        let Some(written) = spaces.get(&id) else { return false };
        // The same mappings are those of a process that it was forked from, or that was forked from that one.
        let others = of_process.iter().filter(|&(other, of)| *of == id && *other != tgid);
        interpreters.changed(tgid, written.mappings.iter(), others.map(|(other, _)| *other));
        interpreters.of(tgid) != 0
    }

    fn set_space(&mut self, tgid: u32, space: space::Space) -> Result<(), MapError> {
        let interpreter = self.interpreters.as_ref().map_or(0, |it| it.of(tgid));
        self.maps.set_space(tgid, space::Space { interpreter, ..space })
    }

    /// Has the tables of these processes made before a walk looks for them.
    fn make_ready(&mut self, tgids: &[u32]) {
        let Self { of_process, spaces, slots, .. } = self;
        let written = tgids.iter().filter_map(|tgid| spaces.get(of_process.get(tgid)?));
        let numbers: BTreeSet<u32> = written.flat_map(|it| it.tables.iter().copied()).collect();
        for number in numbers.into_iter().take(READY_TABLES) {
            slots.ask(number, |key| spaces.values().find_map(|it| it.mappings.file(key)));
        }
    }

    fn change(&mut self, Change { tgid, image }: Change) {
        match image {
            Some(image) => self.write(tgid, &image.mappings),
            None => {
                self.forget(tgid);
                self.interpreters.iter_mut().for_each(|it| it.forget(tgid));
            }
        }
    }

    /// Puts a process's mappings into the kernel.
    fn write(&mut self, tgid: u32, mappings: &Mappings) {
        let id = mappings.id();
        if self.of_process.get(&tgid) == Some(&id) {
            return;
        }
        if !self.spaces.contains_key(&id) {
            let Some(written) = self.write_space(mappings) else {
                self.forget(tgid);
                self.without_room.insert(tgid, mappings.clone());
                return;
            };
            self.spaces.insert(id, written);
        }
        let Some(written) = self.spaces.get_mut(&id) else { return };
        written.processes += 1;
        let space = written.space;
        self.find_interpreter(tgid, id);
        let is_told = self.set_space(tgid, space).is_ok();
        let before = self.of_process.insert(tgid, id);
        if let Some(before) = before {
            self.release(before);
        }
        if is_told {
            self.without_room.remove(&tgid);
        } else {
            self.forget(tgid);
            self.without_room.insert(tgid, mappings.clone());
        }
    }

    fn write_space(&mut self, mappings: &Mappings) -> Option<Written> {
        let mapped = mappings.iter().take(MAX_MAPPINGS);
        let count = u32::try_from(mapped.len().div_ceil(BLOCK_MAPPINGS as usize)).ok()?;
        let first_block = self.free.take(count)?;
        let files = Files::of(mappings);
        let in_kernel: Vec<space::Mapping> = mapped.map(|it| self.mapping(it)).collect();
        let tables = in_kernel.iter().map(|it| it.table).filter(|&it| it < TABLES);
        let tables = tables.collect();
        for (number, part) in (first_block..).zip(in_kernel.chunks(BLOCK_MAPPINGS as usize)) {
            let mut block = [space::Mapping::UNUSED; BLOCK_MAPPINGS as usize];
            block.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            // A block that can't be written has what was there before; no generation leads there.
            if self.maps.set_block(number, &block).is_err() {
                self.give_back(first_block, count, tables);
                return None;
            }
        }
        let generation = self.next_generation();
        let space = space::Space { generation, first_block, blocks: count, interpreter: 0 };
        Some(Written { mappings: mappings.clone(), space, processes: 0, tables, files })
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
        let changed = |it: &&Written| it.files.lacking > 0 && it.files != Files::of(&it.mappings);
        let changed: Vec<Mappings> =
            self.spaces.values().filter(changed).map(|it| it.mappings.clone()).collect();
        for mappings in changed {
            let of_process = self.of_process.iter();
            let tgids: Vec<u32> =
                of_process.filter(|(_, id)| **id == mappings.id()).map(|(tgid, _)| *tgid).collect();
            // All that share them, before any is written: what is left would be taken again.
            for tgid in &tgids {
                self.forget(*tgid);
            }
            for tgid in tgids {
                self.write(tgid, &mappings);
            }
        }
    }

    /// Tries those again for which there was no room.
    fn look_for_room(&mut self) {
        let mut refused = 0;
        // From where the last time has ended, so that all of them have their turn.
        let mut tgids: Vec<u32> = self.without_room.keys().copied().collect();
        tgids.sort_unstable();
        let tried = tgids.partition_point(|&it| it <= self.last_refused);
        tgids.rotate_left(tried);
        for tgid in tgids {
            self.last_refused = tgid;
            let Some(mappings) = self.without_room.get(&tgid).cloned() else { continue };
            self.write(tgid, &mappings);
            // One that needs much must not keep out all others.
            refused += usize::from(self.without_room.contains_key(&tgid));
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
            let (space, mappings) = (written.space, written.mappings.clone());
            if self.set_space(tgid, space).is_err() {
                self.forget(tgid);
                self.without_room.insert(tgid, mappings);
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
    fn of(mappings: &Mappings) -> Self {
        let files = mappings.iter().filter_map(|mapping| match &mapping.backing {
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
