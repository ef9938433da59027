//! Which table is where in the kernel's array of tables.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak, mpsc},
    time::{Duration, Instant},
};

use profiler_common::unwind::table::{RULES, TABLES};
use profiler_profile::ledger::unwinding::Unwinding;
use profiler_unwind::{NoTable, Standalone};
use rustc_hash::FxHashMap;

use super::{
    builder::{Builder, Built, Code, Job},
    eviction::{Candidate, to_evict},
    interpreters::Answer,
};
use crate::{
    bpf::{
        memory::{WalkMemory, table_bytes},
        unwind::UnwindMaps,
    },
    process::file::{FileKey, MappedFile},
};

/// A table that could not be had is tried again after this long.
const RETRY: Duration = Duration::from_secs(1);

/// What a table is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    File(FileKey),
    /// The same in every process.
    Vdso,
}

/// A slot of the array.
#[derive(Debug)]
struct TableSlot {
    key: Key,
    /// Tells it from one that was here before.
    id: u64,
    /// The file that was last mapped, of all with the same build id; never one for the vDSO.
    file: Weak<MappedFile>,
    state: State,
    /// How many mappings refer to it.
    users: usize,
    /// When a walk has last looked for it.
    used: Instant,
}

#[derive(Debug)]
enum State {
    /// Nobody has looked for it.
    Empty,
    /// It is being made.
    Asked,
    /// It could not be had at this time.
    Failed(Instant, Failure),
    /// The file says nothing of its frames, for this reason.
    Nothing(NoTable),
    /// It takes so many bytes.
    Loaded(u64),
}

#[derive(Clone, Copy, Debug)]
enum Failure {
    /// The file could not be read.
    Unreadable,
    /// The kernel did not take it.
    Refused,
    /// It takes so many bytes, and there are not so many.
    NoRoom(u64),
}

impl Failure {
    fn why(self) -> &'static str {
        match self {
            Self::Unreadable => "the file can't be read",
            Self::Refused => "the kernel refused it",
            Self::NoRoom(_) => NO_ROOM,
        }
    }
}

/// In the account.
const NO_ROOM: &str = "does not fit within --max-unwind-memory";

/// The slots, and the tables that are being made for them.
pub(super) struct TableSlots {
    in_order: Vec<Option<TableSlot>>,
    by_key: FxHashMap<Key, u32>,
    builder: Builder,
    last_id: u64,
    bytes: u64,
    memory: WalkMemory,
    rules: usize,
    evicted: u64,
    rebuilt: u64,
    /// How many mappings have come when all slots were taken.
    no_slot: u64,
}

impl TableSlots {
    /// No table yet, and so much memory for all.
    pub(super) fn new(builder: Builder, memory: WalkMemory) -> Self {
        Self {
            in_order: (0..TABLES).map(|_| None).collect(),
            by_key: FxHashMap::default(),
            builder,
            last_id: 0,
            bytes: 0,
            memory,
            rules: 0,
            evicted: 0,
            rebuilt: 0,
            no_slot: 0,
        }
    }

    /// What the run is to tell of the tables; `unknown` processes are not in the kernel.
    pub(super) fn account(&self, unknown: usize) -> Unwinding {
        let (mut tables, mut without_table) = (0, BTreeMap::new());
        for slot in self.in_order.iter().flatten() {
            let why = match slot.state {
                State::Empty | State::Asked => continue,
                State::Loaded(_) => {
                    tables += 1;
                    continue;
                }
                State::Nothing(why) => why.to_string(),
                State::Failed(_, failure) => failure.why().to_owned(),
            };
            *without_table.entry(why).or_insert(0) += 1;
        }
        Unwinding {
            tables,
            table_bytes: self.bytes,
            other_bytes: self.memory.other_bytes(),
            limit_bytes: self.memory.limit,
            evicted: self.evicted,
            no_room: without_table.get(NO_ROOM).copied().unwrap_or(0),
            no_slot: self.no_slot,
            without_table,
            rules: self.rules as u64,
            max_rules: u64::from(RULES),
            rebuilt: self.rebuilt,
            unknown_processes: unknown as u64,
            walked_from_snapshots: 0,
            python_appended: 0,
        }
    }

    /// What a slot is for, unless that is the vDSO: its file, if some process still has it mapped.
    pub(super) fn file(&self, number: u32) -> Option<(FileKey, Option<Arc<MappedFile>>)> {
        match self.in_order.get(number as usize)?.as_ref()? {
            TableSlot { key: Key::File(key), file, .. } => Some((*key, file.upgrade())),
            _ => None,
        }
    }

    /// Who answers questions about Python: see [`Builder::python`].
    pub(super) fn python(&mut self) -> Option<(mpsc::SyncSender<Job>, mpsc::Receiver<Answer>)> {
        self.builder.python()
    }

    /// Whether a table is being made.
    pub(super) fn is_busy(&self) -> bool {
        self.builder.is_busy()
    }

    /// The slot of a table, the one that it has or a new one, for one more mapping. `None` if all are
    /// in use.
    pub(super) fn take(
        &mut self,
        key: Key,
        file: Option<&Arc<MappedFile>>,
        maps: &mut UnwindMaps,
    ) -> Option<u32> {
        let file = file.map_or_else(Weak::new, Arc::downgrade);
        if let Some(&number) = self.by_key.get(&key) {
            let slot = self.get_mut(number)?;
            slot.users += 1;
            let is_another = !slot.file.ptr_eq(&file);
            slot.file = file;
            // Of two files with the same key, the other one may be as it was.
            if is_another && matches!(slot.state, State::Nothing(NoTable::Changed)) {
                slot.state = State::Empty;
                // It fails only for a number that there is no slot for.
                drop(maps.take_table_out(number));
            }
            return Some(number);
        }
        let free = self.in_order.iter().position(Option::is_none);
        let Some(at) = free.or_else(|| self.evict(maps)) else {
            self.no_slot += 1;
            return None;
        };
        let number = u32::try_from(at).ok()?;
        self.last_id += 1;
        let (id, used) = (self.last_id, Instant::now());
        let slot = TableSlot { key, id, file, state: State::Empty, users: 1, used };
        *self.in_order.get_mut(at)? = Some(slot);
        self.by_key.insert(key, number);
        Some(number)
    }

    /// A mapping is gone.
    pub(super) fn give_back(&mut self, number: u32) {
        if let Some(slot) = self.get_mut(number) {
            slot.users = slot.users.saturating_sub(1);
        }
    }

    /// A walk has looked for a table: has it made if it is not there. `mapped` looks for a file with
    /// this key among those that are mapped now.
    pub(super) fn ask(
        &mut self,
        number: u32,
        mapped: impl FnOnce(FileKey) -> Option<Arc<MappedFile>>,
    ) {
        let now = Instant::now();
        let Some(slot) = self.get_mut(number) else { return };
        slot.used = now;
        let is_due = match slot.state {
            State::Empty => true,
            State::Failed(when, _) => now.duration_since(when) >= RETRY,
            State::Asked | State::Nothing(_) | State::Loaded(_) => false,
        };
        if !is_due {
            return;
        }
        if let State::Failed(when, Failure::NoRoom(bytes)) = &mut slot.state {
            // To make it again takes long, to see that there still is no room does not.
            let bytes = *bytes;
            *when = now;
            if self.room_for(bytes, now).is_none() {
                return;
            }
        }
        let Some(Some(slot)) = self.in_order.get_mut(number as usize) else { return };
        let code = match slot.key {
            Key::Vdso => Code::Vdso,
            Key::File(key) => {
                // The process that has mapped it last may have ended before others that map it.
                let Some(file) = slot.file.upgrade().or_else(|| mapped(key)) else { return };
                slot.file = Arc::downgrade(&file);
                Code::File(file)
            }
        };
        if self.builder.ask((number, slot.id), code) {
            slot.state = State::Asked;
        }
    }

    /// Puts the tables that were made meanwhile in their slots; whether one of them lacks rules.
    pub(super) fn put_built(&mut self, maps: &mut UnwindMaps) -> bool {
        let mut lacks_rules = false;
        while let Some(built) = self.builder.built() {
            let Built { ticket: (number, id), first_rule, rules, table, .. } = built;
            lacks_rules |= built.lacks_rules;
            self.rules = built.rules_in_all;
            // First, since the table refers to them.
            let has_rules = maps.set_rules(first_rule, &rules).is_ok();
            let is_asked =
                |slot: &mut TableSlot| slot.id == id && matches!(slot.state, State::Asked);
            if !self.get_mut(number).is_some_and(is_asked) {
                continue;
            }
            let failed = |why| State::Failed(Instant::now(), why);
            let state = match table {
                None => failed(Failure::Unreadable),
                Some(_) if !has_rules => failed(Failure::Refused),
                // The walk is to know that there is nothing.
                Some(Err(_)) if maps.set_nothing(number).is_err() => failed(Failure::Refused),
                Some(Err(why)) => State::Nothing(why),
                Some(Ok(table)) => match self.load(number, &table, maps) {
                    Ok(bytes) => State::Loaded(bytes),
                    Err(why) => failed(why),
                },
            };
            if let Some(slot) = self.get_mut(number) {
                slot.state = state;
            }
        }
        lacks_rules
    }

    /// Puts a table into the kernel; gives what it takes there.
    fn load(
        &mut self,
        number: u32,
        table: &Standalone,
        maps: &mut UnwindMaps,
    ) -> Result<u64, Failure> {
        let bytes = table_bytes(table.chunks());
        let out = self.room_for(bytes, Instant::now()).ok_or(Failure::NoRoom(bytes))?;
        for number in out {
            self.take_out(number, maps);
        }
        maps.set_table(number, table.chunks()).map_err(|_| Failure::Refused)?;
        self.bytes += bytes;
        Ok(bytes)
    }

    /// What has to be evicted so that there is room for so many bytes; `None` if that is in use.
    fn room_for(&self, bytes: u64, now: Instant) -> Option<Vec<u32>> {
        let missing = self.bytes.saturating_add(bytes).saturating_sub(self.memory.tables);
        if missing == 0 {
            return Some(Vec::new());
        }
        let candidate = |(number, slot): (u32, &Option<TableSlot>)| {
            let slot = slot.as_ref()?;
            let State::Loaded(bytes) = slot.state else { return None };
            Some(Candidate { number, bytes, is_mapped: slot.users > 0, used: slot.used })
        };
        to_evict((0..).zip(&self.in_order).filter_map(candidate).collect(), missing, now)
    }

    /// Frees a slot that no mapping refers to.
    fn evict(&mut self, maps: &mut UnwindMaps) -> Option<usize> {
        let unused = |(number, slot): (u32, &Option<TableSlot>)| {
            slot.as_ref().filter(|slot| slot.users == 0).map(|slot| (slot.used, number))
        };
        let (_, number) = (0..).zip(&self.in_order).filter_map(unused).min()?;
        if matches!(self.get_mut(number)?.state, State::Loaded(_)) {
            self.take_out(number, maps);
        }
        // Whatever else is there, the next table is to be asked for.
        maps.take_table_out(number).ok()?;
        let slot = self.in_order.get_mut(number as usize)?.take()?;
        self.by_key.remove(&slot.key);
        Some(number as usize)
    }

    /// Takes all tables out, and begins their rules anew; whether that could be done. What walks have
    /// kept of before must not be used from here on.
    pub(super) fn start_over(&mut self, maps: &mut UnwindMaps) -> bool {
        if !self.builder.start_over() {
            return false;
        }
        self.rebuilt += 1;
        self.rules = 0;
        for number in (0..).zip(&self.in_order).map(|(number, _)| number).collect::<Vec<_>>() {
            self.forget(number, maps);
        }
        true
    }

    fn take_out(&mut self, number: u32, maps: &mut UnwindMaps) {
        self.evicted += 1;
        self.forget(number, maps);
    }

    /// A walk that looks for this one has it made again.
    fn forget(&mut self, number: u32, maps: &mut UnwindMaps) {
        let Some(slot) = self.get_mut(number) else { return };
        match slot.state {
            State::Empty | State::Failed(..) | State::Nothing(_) => {}
            State::Asked => slot.state = State::Empty,
            State::Loaded(bytes) => {
                slot.state = State::Empty;
                self.bytes = self.bytes.saturating_sub(bytes);
                // It fails only for a number that there is no slot for.
                drop(maps.take_table_out(number));
            }
        }
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut TableSlot> {
        self.in_order.get_mut(number as usize)?.as_mut()
    }
}
