//! The files behind all mappings: each opened once, as early as possible, whoever maps it.
//!
//! A process may be gone a moment after it has mapped a file, and a path may lead to another file by
//! the time a name is looked up. So a file is opened when it is first seen mapped, and stays open
//! while a process has it. To open one may take long, so that is done apart: [`Files`] only says what
//! is to be [opened](Opening).

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use profiler_profile::frame::Missing;
use rustc_hash::FxHashMap;

use super::file::{self, FileKey, MappedAt, MappedFile, Opened};
use crate::{
    limits,
    procfs::{maps::MappedId, status},
};

const ROOT: u32 = 0;
/// Files known at most, with those that share what is open with others.
const MAX_IDS: usize = 8 * limits::MAX_MAPPED_FILES;
/// A file that could not be opened is tried again after this long, when another process maps it.
const RETRY: Duration = Duration::from_millis(100);
/// Where a file is mapped again, it is checked this often whether it was written to.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// A leased file is tried again after this long, and so often: for longer than the kernel lets its owner keep
/// the lease (`fs.lease-break-time`, 45 s).
const RETRY_LEASED: Duration = Duration::from_secs(1);
const TRIES_LEASED: u32 = 60;
/// Leased files that are tried again, in all and of one user's processes.
const LIMIT_LEASED: usize = 256;
const LIMIT_LEASED_USER: usize = 32;

/// All files that are mapped by a process we know.
#[derive(Debug)]
pub struct Files {
    /// How many may be held open: half of them for the processes of one user who is not root, three quarters
    /// for those of all such users.
    max_open: usize,
    by_id: FxHashMap<MappedId, Known>,
    /// Files of root, by their contents: each container may have its own copy of them, and one is enough.
    of_root: FxHashMap<FileKey, Weak<Opened>>,
    /// Leased files and when to try them again, the first to try first.
    leased: VecDeque<(Instant, Opening)>,
    /// What files were before they were written to and opened again, and whose they are. Mappings from before may
    /// still hold these.
    outdated: Vec<(Option<u32>, Weak<Opened>)>,
}

impl Default for Files {
    /// As many as the limit of open files has room for.
    fn default() -> Self {
        Self {
            max_open: limits::max_mapped_files(),
            by_id: FxHashMap::default(),
            of_root: FxHashMap::default(),
            leased: VecDeque::new(),
            outdated: Vec::new(),
        }
    }
}

#[derive(Debug)]
struct Known {
    file: Arc<MappedFile>,
    /// Whose process was the first to map it; `None` if it was gone.
    user: Option<u32>,
    /// By which name it was first mapped.
    name: Arc<str>,
    /// Whether it has no descriptor of its own, since another file has the same contents.
    is_shared: bool,
    /// Whether its opening is under way.
    opening: bool,
    /// When to try again.
    retry: Instant,
    /// When it was last checked for having been written to.
    checked: Instant,
}

/// A file that is to be opened.
#[derive(Debug)]
pub struct Opening {
    id: MappedId,
    place: MappedAt,
    file: Arc<MappedFile>,
    /// How often it was tried, and was leased.
    tries: u32,
}

impl Files {
    /// Held for moments only: nothing is opened meanwhile.
    pub(super) fn lock(files: &Mutex<Self>) -> MutexGuard<'_, Self> {
        files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file with this identity, and what has to be done so that it is open.
    pub fn get(&mut self, id: MappedId, place: MappedAt) -> (Arc<MappedFile>, Option<Opening>) {
        let is_new = !self.by_id.contains_key(&id);
        let name = Arc::clone(&place.name);
        let user = if is_new { status::user_of(place.tgid) } else { None };
        if is_new && self.is_full_for(user) {
            // Those that no mapping refers to any more.
            self.by_id.retain(|_, known| Arc::strong_count(&known.file) > 1);
        }
        let is_full = is_new && self.is_full_for(user);
        let Some(known) = self.by_id.get_mut(&id) else {
            if is_full {
                return (Arc::new(MappedFile::new(Missing::TooMany)), None);
            }
            let file = Arc::new(MappedFile::new(Missing::Unanswered));
            let retry = Instant::now();
            let (own, is_shared) = (Arc::clone(&file), false);
            let checked = retry;
            let known = Known { file: own, user, name, is_shared, opening: true, retry, checked };
            self.by_id.insert(id, known);
            return (Arc::clone(&file), Some(Opening { id, place, file, tries: 0 }));
        };
        let now = Instant::now();
        if place.is_new && now.duration_since(known.checked) >= CHECK_INTERVAL {
            known.checked = now;
            // It remembers what came of it.
            let _ = known.file.unchanged();
        }
        let is_one = known.file.opened().is_none_or(|it| is_sure(id, it, known, &place));
        let file = if is_one {
            let is_due = !known.opening && now >= known.retry;
            if known.file.opened().is_some() || !is_due {
                return (Arc::clone(&known.file), None);
            }
            known.opening = true;
            Arc::clone(&known.file)
        } else {
            let user = known.user;
            self.outdated.retain(|(_, opened)| opened.strong_count() > 0);
            if self.is_full_for(user) {
                return (Arc::new(MappedFile::new(Missing::TooMany)), None);
            }
            Arc::new(MappedFile::new(Missing::Unanswered))
        };
        (Arc::clone(&file), Some(Opening { id, place, file, tries: 0 }))
    }

    /// Whether there is no room for a file of this user's process.
    fn is_full_for(&self, user: Option<u32>) -> bool {
        if self.by_id.len() + self.outdated.len() < self.max_open / 2 {
            return false;
        }
        let current = self.by_id.values().filter(|known| !known.is_shared).map(|known| known.user);
        let outdated = self.outdated.iter().filter(|(_, opened)| opened.strong_count() > 0);
        let (mut all, mut own, mut not_root) = (0, 0, 0);
        for of in current.chain(outdated.map(|(user, _)| *user)) {
            all += 1;
            own += usize::from(of == user);
            not_root += usize::from(of != Some(ROOT));
        }
        self.by_id.len() >= MAX_IDS
            || all >= self.max_open
            || user != Some(ROOT) && (own >= self.max_open / 2 || not_root >= self.max_open / 4 * 3)
    }

    /// What is open already of the same contents, if both are root's, or this; and whether it is another.
    fn share(&mut self, opened: Opened) -> (Arc<Opened>, bool) {
        let opened = Arc::new(opened);
        let Some(key) = opened.key().filter(|_| opened.owner == ROOT) else {
            return (opened, false);
        };
        if let Some(other) = self.of_root.get(&key).and_then(Weak::upgrade) {
            let is_copy =
                opened.is_copy_of(&other) && opened.identity.place() != other.identity.place();
            return if is_copy { (other, true) } else { (opened, false) };
        }
        if self.of_root.len() >= MAX_IDS {
            self.of_root.retain(|_, it| it.strong_count() > 0);
        }
        self.of_root.insert(key, Arc::downgrade(&opened));
        (opened, false)
    }

    /// Leased files that are to be tried again now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Opening> {
        let due = self.leased.partition_point(|(at, _)| *at <= now);
        self.leased.drain(..due).map(|(_, opening)| opening).collect()
    }

    /// Keeps a leased file to be tried again, if there is room; gives it back if not.
    fn try_again(&mut self, opening: Opening) -> Option<Opening> {
        let user_of = |opening: &Opening| self.by_id.get(&opening.id).map(|known| known.user);
        let user = user_of(&opening);
        let is_of_user = |(_, other): &&(Instant, Opening)| user_of(other) == user;
        let is_full = self.leased.len() >= LIMIT_LEASED
            || self.leased.iter().filter(is_of_user).count() >= LIMIT_LEASED_USER;
        if is_full || opening.tries >= TRIES_LEASED {
            return Some(opening);
        }
        opening.file.set_missing(Missing::Leased);
        let opening = Opening { tries: opening.tries + 1, ..opening };
        self.leased.push_back((Instant::now() + RETRY_LEASED, opening));
        None
    }

    /// Takes what came of an opening, also if it comes late.
    fn settle(&mut self, mut opening: Opening, result: Result<Opened, Missing>) {
        if matches!(result, Err(Missing::Leased)) {
            match self.try_again(opening) {
                Some(refused) => opening = refused,
                None => return,
            }
        }
        let Opening { id, place, file, .. } = opening;
        let result = result.map(|opened| self.share(opened));
        // It may have been forgotten meanwhile.
        let Some(known) = self.by_id.get_mut(&id) else {
            match result {
                Ok((opened, _)) => file.set_opened(opened),
                Err(why) => file.set_missing(why),
            }
            return;
        };
        if Arc::ptr_eq(&known.file, &file) {
            known.opening = false;
        }
        match (result, known.file.opened()) {
            // Held open once.
            (Ok((opened, _)), Some(before)) if opened.is_same_as(before) => {
                file.set_opened(Arc::clone(before));
            }
            (Ok((opened, is_shared)), before) => {
                self.outdated.extend(before.map(|it| (known.user, Arc::downgrade(it))));
                file.set_opened(opened);
                known.file = file;
                known.name = place.name;
                known.is_shared = is_shared;
            }
            (Err(why), Some(before)) if why != Missing::Unanswered => {
                file.set_opened(Arc::clone(before));
            }
            (Err(why), _) => {
                file.set_missing(why);
                // What was not tried may be at any time.
                let pause = if why == Missing::Unanswered { Duration::ZERO } else { RETRY };
                known.retry = Instant::now() + pause;
            }
        }
    }
}

/// Whether whatever has this identity is this file. In an overlay or on btrfs two files may have one
/// inode number, as in a snapshot: of these only root's files are taken to be one without a look, if they
/// have one name. A file that was written to is opened again for each new mapping, which has the contents of
/// that time.
fn is_sure(id: MappedId, opened: &Opened, known: &Known, place: &MappedAt) -> bool {
    if place.is_new && opened.is_outdated() {
        return false;
    }
    opened.identity.is_on_device_of(id) || (opened.owner == ROOT && known.name == place.name)
}

impl Opening {
    /// Of which process it is.
    pub(super) fn place(&self) -> &MappedAt {
        &self.place
    }

    /// Opens the file; this may take long.
    pub(super) fn open(self, files: &Mutex<Files>) {
        // Another opening of it may have been before this one.
        let before = {
            let files = Files::lock(files);
            let known = files.by_id.get(&self.id);
            let known = known.and_then(|it| Some((it, it.file.opened()?)));
            let known = known.filter(|(it, opened)| is_sure(self.id, opened, it, &self.place));
            known.map(|(_, opened)| Arc::clone(opened))
        };
        if let Some(opened) = before {
            return self.file.set_opened(opened);
        }
        let result = file::open(self.id, &self.place);
        Files::lock(files).settle(self, result);
    }

    /// It is not opened now.
    pub(super) fn refuse(self, files: &Mutex<Files>) {
        Files::lock(files).settle(self, Err(Missing::Unanswered));
    }
}

#[cfg(test)]
mod tests;
