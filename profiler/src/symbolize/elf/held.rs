//! Which files the parser process holds, what they take there, and which are evicted when that is too much.

use std::sync::{Arc, Weak};

use profiler_common::build_id::BuildId;
use profiler_profile::ledger::memory::{Cache, count};
use rustc_hash::FxHashMap;

use crate::process::file::{CodeKey, FileKey, MappedFile};

/// Files whose symbols are kept, at most.
pub(super) const MAX_FILES: usize = 512;
/// Files with the same code that are asked for names which a file does not have.
const MAX_TWINS: usize = 8;

/// The files whose symbols were asked for lately.
#[derive(Debug)]
pub(super) struct Held {
    files: FxHashMap<FileKey, Known>,
    /// Which parser process holds them.
    generation: u64,
    /// What all of them may take there, and what they do.
    limit_bytes: u64,
    bytes: u64,
    /// How often any of them was used.
    clock: u64,
    evicted: u64,
}

/// A file that was read, or can't be.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) state: State,
    pub(super) file: Weak<MappedFile>,
    /// Which process has mapped it, by which name.
    pub(super) place: (u32, Box<str>),
    /// What other files with the same code have, too.
    pub(super) code: Option<CodeKey>,
    pub(super) has_debug_file: bool,
    /// Whether its debug information is read.
    pub(super) has_lines: bool,
    /// In the parser process.
    pub(super) bytes: u64,
    pub(super) used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The parser process holds it by this number.
    Loaded(u64),
    /// One that has ended did, or it is to be read anew.
    Gone,
    Malformed,
}

/// Another file with the same code, which has its key and is mapped by this process by this name.
pub(super) struct Twin {
    pub(super) key: FileKey,
    pub(super) file: Arc<MappedFile>,
    pub(super) place: (u32, Box<str>),
}

impl Held {
    /// No file yet.
    pub(super) fn new(limit_bytes: u64) -> Self {
        let files = FxHashMap::default();
        Self { files, generation: 0, limit_bytes, bytes: 0, clock: 0, evicted: 0 }
    }

    /// What the parser process holds.
    pub(super) fn account(&self) -> Cache {
        Cache {
            name: "symbols of files",
            entries: count(self.files.len()),
            bytes: self.bytes,
            limit_bytes: Some(self.limit_bytes),
            limit_entries: Some(count(MAX_FILES)),
            evicted: self.evicted,
        }
    }

    /// The time by the clock of uses.
    pub(super) fn now(&self) -> u64 {
        self.clock
    }

    pub(super) fn get(&self, key: FileKey) -> Option<&Known> {
        self.files.get(&key)
    }

    /// Counts a use of a file; whether it is known, and need not be read.
    pub(super) fn is_ready(&mut self, key: FileKey) -> bool {
        self.clock += 1;
        let known = self.files.get_mut(&key).filter(|it| it.state != State::Gone);
        known.map(|it| it.used = self.clock).is_some()
    }

    /// Takes in a file that was read; whether it is the twin of one that was read before it.
    pub(super) fn insert(&mut self, key: FileKey, read: Known) -> bool {
        let before = self.files.remove(&key);
        self.bytes = self.bytes.saturating_sub(before.as_ref().map_or(0, |it| it.bytes));
        self.bytes = self.bytes.saturating_add(read.bytes);
        let code = read.code.filter(|_| before.is_none());
        let is_twin = code.is_some() && self.files.values().any(|it| it.code == code);
        self.files.insert(key, Known { used: self.clock, ..read });
        is_twin
    }

    /// Takes note of which parser process runs: another one holds nothing yet.
    pub(super) fn follow(&mut self, generation: u64) {
        if std::mem::replace(&mut self.generation, generation) == generation {
            return;
        }
        self.bytes = 0;
        for known in self.files.values_mut() {
            known.bytes = 0;
            if known.state != State::Malformed {
                known.state = State::Gone;
            }
        }
    }

    /// Takes note of what a file takes now.
    pub(super) fn set_bytes(&mut self, key: FileKey, bytes: u64) {
        if let Some(known) = self.files.get_mut(&key) {
            self.bytes = self.bytes.saturating_sub(known.bytes).saturating_add(bytes);
            known.bytes = bytes;
        }
    }

    /// Has a file read anew when it is used again.
    pub(super) fn lose(&mut self, key: FileKey) {
        if let Some(known) = self.files.get_mut(&key) {
            known.state = State::Gone;
        }
    }

    /// The same with all files of a build id; by which numbers they are held. `None` if there is no such file.
    pub(super) fn lose_all_of(&mut self, id: BuildId) -> Option<Vec<u64>> {
        let is_of_id = |key: &FileKey| matches!(key, FileKey::BuildId { id: of, .. } if *of == id);
        let mut numbers = None;
        for (_, known) in self.files.iter_mut().filter(|(key, _)| is_of_id(key)) {
            let numbers = numbers.get_or_insert_with(Vec::new);
            if let State::Loaded(number) = known.state {
                numbers.push(number);
            }
            self.bytes = self.bytes.saturating_sub(known.bytes);
            (known.state, known.bytes) = (State::Gone, 0);
        }
        numbers
    }

    /// Some of the files with the same code.
    pub(super) fn twins_of(&self, key: FileKey) -> Vec<Twin> {
        let Some(code) = self.get(key).and_then(|it| it.code) else { return Vec::new() };
        let others = self.files.iter().filter(|(of, it)| **of != key && it.code == Some(code));
        let twin = |(&key, it): (_, &Known)| {
            Some(Twin { key, file: it.file.upgrade()?, place: it.place.clone() })
        };
        others.filter_map(twin).take(MAX_TWINS).collect()
    }

    /// Evicts the files used least recently, down to three quarters of the limits, if there are too many; by which
    /// numbers they are held. Those used after `begin` stay, however large: they would be read again at once.
    pub(super) fn evict(&mut self, begin: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        if self.bytes <= self.limit_bytes && self.files.len() <= MAX_FILES {
            return numbers;
        }
        let mut by_use: Vec<(u64, FileKey)> =
            self.files.iter().map(|(key, known)| (known.used, *key)).collect();
        by_use.sort_unstable_by_key(|(used, _)| *used);
        for (_, key) in by_use.into_iter().take_while(|(used, _)| *used <= begin) {
            if self.bytes <= self.limit_bytes / 4 * 3 && self.files.len() <= MAX_FILES / 4 * 3 {
                break;
            }
            if let Some(known) = self.files.remove(&key) {
                self.bytes = self.bytes.saturating_sub(known.bytes);
                self.evicted += 1;
                if let State::Loaded(number) = known.state {
                    numbers.push(number);
                }
            }
        }
        numbers
    }

    /// Which files are known.
    #[cfg(test)]
    pub(super) fn keys(&self) -> Vec<FileKey> {
        self.files.keys().copied().collect()
    }
}
