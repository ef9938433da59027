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

use super::file::{self, FileKey, MappedFile, Opened, Place};
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
    place: Place,
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
    pub fn get(&mut self, id: MappedId, place: Place) -> (Arc<MappedFile>, Option<Opening>) {
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
fn is_sure(id: MappedId, opened: &Opened, known: &Known, place: &Place) -> bool {
    if place.is_new && opened.is_outdated() {
        return false;
    }
    opened.identity.is_on_device_of(id) || (opened.owner == ROOT && known.name == place.name)
}

impl Opening {
    /// Of which process it is.
    pub(super) fn place(&self) -> &Place {
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
mod tests {
    use super::*;
    use crate::{kernel, stderr};
    use profiler_testing::elf::with_build_id;
    use std::{
        fs::{self, File},
        io::Write as _,
        os::unix::fs::MetadataExt as _,
        path::Path,
        thread,
        time::SystemTime,
    };

    /// A process that is not there, so that only the path is left.
    fn place(name: &Path) -> Place {
        let (name, since_ns) = (name.to_str().unwrap().into(), kernel::monotonic_ns());
        Place { tgid: u32::MAX, start: 0, end: 1, name, since_ns, is_new: true }
    }

    fn get(files: &Mutex<Files>, id: MappedId, place: Place) -> Arc<MappedFile> {
        let (file, opening) = Files::lock(files).get(id, place);
        if let Some(opening) = opening {
            opening.open(files);
        }
        file
    }

    fn id_of(path: &Path) -> MappedId {
        let file = fs::metadata(path).unwrap();
        let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
        MappedId { major, minor, inode: file.ino(), generation: None }
    }

    fn missing(files: &Mutex<Files>, id: MappedId, path: &Path) -> Option<Missing> {
        get(files, id, place(path)).unchanged().err()
    }

    #[test]
    fn a_file_is_the_one_that_was_mapped_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&path, "code").unwrap();
        fs::write(&other, "code").unwrap();
        let files = Mutex::default();
        let (id, other_id) = (id_of(&path), id_of(&other));
        assert_eq!(missing(&files, id, &path), None);
        // Held open, it is the one, whatever becomes of its path.
        fs::remove_file(&path).unwrap();
        assert_eq!(missing(&files, id, &path), None);
        assert_eq!(missing(&files, other_id, &path), Some(Missing::Gone));
        fs::rename(&other, &path).unwrap();
        let third = dir.path().join("c");
        fs::write(&third, "code").unwrap();
        let files = Mutex::default();
        assert_eq!(missing(&files, id_of(&third), &path), Some(Missing::Replaced));
    }

    #[test]
    fn a_file_that_was_written_to_is_not_used() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let files = Mutex::default();
        let mapped = get(&files, id_of(file.path()), place(file.path()));
        assert!(mapped.unchanged().is_ok() && mapped.key().is_some());
        file.write_all(b"more").unwrap();
        assert_eq!(mapped.unchanged().err(), Some(Missing::Changed));
    }

    #[test]
    fn a_new_mapping_of_a_file_that_was_written_to_is_another_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let files = Mutex::default();
        let id = id_of(file.path());
        let first = get(&files, id, place(file.path()));
        // Times of files may be those of the last tick.
        thread::sleep(Duration::from_millis(20));
        file.write_all(b"more").unwrap();
        assert_eq!(first.unchanged().err(), Some(Missing::Changed));
        let found = get(&files, id, Place { is_new: false, ..place(file.path()) });
        assert!(Arc::ptr_eq(&first, &found), "what /proc shows was mapped before");
        let second = get(&files, id, place(file.path()));
        assert!(second.unchanged().is_ok() && second.key() != first.key());
        let third = get(&files, id, place(file.path()));
        assert!(Arc::ptr_eq(&second, &third));
        // What was mapped before stays what it was.
        assert_eq!(first.unchanged().err(), Some(Missing::Changed));
    }

    #[test]
    fn who_maps_a_file_after_a_while_has_it_checked() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let files = Mutex::default();
        let id = id_of(file.path());
        let first = get(&files, id, place(file.path()));
        let wait = || {
            let mut files = Files::lock(&files);
            let known = files.by_id.get_mut(&id).unwrap();
            known.checked = known.checked.checked_sub(CHECK_INTERVAL).unwrap();
        };
        wait();
        let second = get(&files, id, place(file.path()));
        assert!(second.key().is_some() && second.key() == first.key());
        thread::sleep(Duration::from_millis(20));
        file.write_all(b"more").unwrap();
        // Nobody has read it since.
        wait();
        let third = get(&files, id, place(file.path()));
        assert!(third.unchanged().is_ok() && third.key() != first.key());
    }

    #[test]
    fn a_file_in_memory_is_one_file_however_often_it_is_written_and_mapped() {
        let name = c"code";
        // SAFETY: the name ends in a zero, and outlives the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), 0) };
        assert!(fd >= 0);
        // SAFETY: the descriptor was just made, and nobody else has it.
        let mut file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        file.write_all(b"code").unwrap();
        // SAFETY: an address that the kernel chooses, of a descriptor that is open.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        let start = at as u64;
        let place = Place {
            tgid: std::process::id(),
            start,
            end: start + 4096,
            name: "/memfd:code (deleted)".into(),
            since_ns: kernel::monotonic_ns(),
            is_new: true,
        };
        let metadata = file.metadata().unwrap();
        let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
        let id = MappedId { major, minor, inode: metadata.ino(), generation: None };
        let files = Mutex::default();
        let first = get(&files, id, place.clone());
        if first.missing() == Missing::Gone && first.key().is_none() {
            return stderr::say("skipped: /proc/PID/map_files needs privileges");
        }
        thread::sleep(Duration::from_millis(20));
        file.write_all(b"more").unwrap();
        assert_eq!(first.unchanged().err(), Some(Missing::Changed));
        assert!(first.is_memory() && Arc::ptr_eq(&first, &get(&files, id, place)));
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: the name ends in a zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let files = Mutex::default();
        assert_eq!(missing(&files, id_of(&fifo), &fifo), Some(Missing::Special));
    }

    #[test]
    fn a_file_that_could_not_be_opened_is_when_another_process_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "code").unwrap();
        let (id, files) = (id_of(&path), Mutex::default());
        let first = get(&files, id, place(&dir.path().join("elsewhere")));
        assert_eq!(first.unchanged().err(), Some(Missing::Gone));
        while first.unchanged().is_err() {
            get(&files, id, place(&path));
        }
        assert!(Files::lock(&files).by_id.len() == 1 && first.key().is_some());
    }

    #[test]
    fn a_file_that_is_opened_late_is_known_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "code").unwrap();
        let (id, files) = (id_of(&path), Mutex::default());
        let ask = || Files::lock(&files).get(id, place(&path));
        let (file, opening) = ask();
        assert_eq!(file.unchanged().err(), Some(Missing::Unanswered));
        let (other, none) = ask();
        assert!(Arc::ptr_eq(&file, &other) && none.is_none(), "it is under way");
        opening.unwrap().refuse(&files);
        assert_eq!(file.unchanged().err(), Some(Missing::Unanswered));
        let (other, again) = ask();
        again.unwrap().open(&files);
        assert!(other.unchanged().is_ok() && file.unchanged().is_ok());
    }

    #[test]
    fn a_leased_file_is_tried_again_and_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "code").unwrap();
        let (id, files) = (id_of(&path), Mutex::default());
        let (file, mut opening) = Files::lock(&files).get(id, place(&path));
        let leased = |opening: Opening| {
            let mut files = Files::lock(&files);
            files.settle(opening, Err(Missing::Leased));
            assert_eq!(file.missing(), Missing::Leased);
            assert!(files.due(Instant::now()).is_empty(), "not at once");
            let due = files.due(Instant::now() + RETRY_LEASED);
            assert!(due.len() <= 1);
            due.into_iter().next()
        };
        for _ in 0..TRIES_LEASED {
            opening = leased(opening.unwrap());
            assert!(files.lock().unwrap().get(id, place(&path)).1.is_none(), "it is under way");
        }
        assert!(leased(opening.unwrap()).is_none());
        // It is open at the next try, which another mapping of it brings.
        while file.unchanged().is_err() {
            get(&files, id, place(&path));
        }
    }

    #[test]
    fn leased_files_of_one_user_leave_room_for_others() {
        let mut files = Files::default();
        let opening = |number, user| {
            let id = MappedId { major: 0, minor: 0, inode: number, generation: None };
            let file = Arc::new(MappedFile::new(Missing::Unanswered));
            let retry = Instant::now();
            let (name, is_shared) = ("/a".into(), false);
            let own = Arc::clone(&file);
            let known = Known {
                file: own,
                user: Some(user),
                name,
                is_shared,
                opening: true,
                retry,
                checked: retry,
            };
            (id, known, Opening { id, place: place(Path::new("/a")), file, tries: 0 })
        };
        for number in 0..100 {
            let (id, known, opening) = opening(number, 1000);
            files.by_id.insert(id, known);
            files.settle(opening, Err(Missing::Leased));
        }
        assert_eq!(files.leased.len(), LIMIT_LEASED_USER);
        let (id, known, opening) = opening(1000, 0);
        files.by_id.insert(id, known);
        files.settle(opening, Err(Missing::Leased));
        assert_eq!(files.leased.len(), LIMIT_LEASED_USER + 1);
    }

    #[test]
    fn a_file_that_was_changed_after_it_was_mapped_is_not_the_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "code").unwrap();
        let (id, files) = (id_of(&path), Mutex::default());
        let place = place(&path);
        // Times of files may be those of the last tick.
        thread::sleep(Duration::from_millis(20));
        fs::write(&path, "other").unwrap();
        assert_eq!(get(&files, id, place).unchanged().err(), Some(Missing::Replaced));
    }

    #[test]
    fn an_inode_number_of_two_files_is_one_only_for_root_by_one_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "code").unwrap();
        let id = id_of(&path);
        let elsewhere = MappedId { major: id.major + 1, ..id };
        let sure = |owner, id| {
            // Where the test is not root, files belong to who runs it.
            let mut opened = file::open(id_of(&path), &place(&path)).unwrap();
            opened.owner = owner;
            let known = Known {
                file: Arc::new(MappedFile::new(Missing::Gone)),
                user: None,
                name: path.to_str().unwrap().into(),
                is_shared: false,
                opening: false,
                retry: Instant::now(),
                checked: Instant::now(),
            };
            [&path, &dir.path().join("b")].map(|it| is_sure(id, &opened, &known, &place(it)))
        };
        assert_eq!(sure(1, id), [true, true]);
        assert_eq!(sure(ROOT, elsewhere), [true, false]);
        assert_eq!(sure(1, elsewhere), [false, false]);
    }

    #[test]
    fn copies_of_a_file_of_root_are_held_open_once() {
        let dir = tempfile::tempdir().unwrap();
        if fs::metadata(dir.path()).unwrap().uid() != ROOT {
            return stderr::say("skipped: needs files of root");
        }
        let write = |name, tail: &[u8], modified: SystemTime| {
            let path = dir.path().join(name);
            fs::write(&path, [&with_build_id(&[1; 20]), tail].concat()).unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
            path
        };
        let (old, new) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + RETRY);
        let [first, copy, other, later, owned] = [
            write("first", b"", old),
            write("copy", b"", old),
            write("other", b"more", old),
            write("later", b"", new),
            write("owned", b"", old),
        ];
        std::os::unix::fs::chown(&owned, Some(1), None).unwrap();
        let files = Mutex::default();
        let [first, copy, other, later, owned] =
            [first, copy, other, later, owned].map(|path| get(&files, id_of(&path), place(&path)));
        let is_shared =
            |file: &MappedFile| Arc::ptr_eq(first.opened().unwrap(), file.opened().unwrap());
        assert!(is_shared(&copy));
        assert_eq!([other, later, owned].map(|it| is_shared(&it)), [false; 3]);
        let shared = Files::lock(&files).by_id.values().filter(|it| it.is_shared).count();
        assert_eq!(shared, 1);
    }

    #[test]
    fn what_a_file_was_before_it_was_written_to_counts_while_it_is_mapped() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let files = Mutex::new(Files { max_open: 4, ..Files::default() });
        let id = id_of(file.path());
        let mut held = Vec::new();
        let mut write_and_map = || {
            // Times of files may be those of the last tick.
            thread::sleep(Duration::from_millis(20));
            file.write_all(b"more").unwrap();
            let mapped = get(&files, id, place(file.path()));
            let _ = mapped.unchanged();
            let known = Files::lock(&files).by_id.get(&id).map(|it| Arc::clone(&it.file));
            // As it is found by who reads it.
            let _ = known.is_some_and(|it| it.unchanged().is_ok());
            held.push(mapped);
            held.last().map(|it| it.missing())
        };
        let missing: Vec<_> = (0..8).map(|_| write_and_map()).collect();
        assert!(missing.contains(&Some(Missing::TooMany)), "{missing:?}");
        let open = held.iter().filter_map(|it| it.opened()).map(Arc::as_ptr);
        let open: std::collections::BTreeSet<_> = open.collect();
        assert!(open.len() <= 4, "{}", open.len());
        // When they are unmapped, there is room.
        held.clear();
        thread::sleep(Duration::from_millis(20));
        file.write_all(b"more").unwrap();
        let known = Files::lock(&files).by_id.get(&id).map(|it| Arc::clone(&it.file)).unwrap();
        assert_eq!(known.unchanged().err(), Some(Missing::Changed));
        drop(known);
        assert!(get(&files, id, place(file.path())).unchanged().is_ok());
    }

    #[test]
    fn the_files_are_bounded() {
        const MAX_OPEN: usize = 200;
        let path = Path::new("/proc/self/exe");
        let id = |number| MappedId { major: 0, minor: 0, inode: number, generation: None };
        let known = |user| Known {
            file: Arc::new(MappedFile::new(Missing::Gone)),
            user,
            name: "".into(),
            is_shared: false,
            opening: false,
            retry: Instant::now() + RETRY,
            checked: Instant::now(),
        };
        let files_of = |users: &[(Option<u32>, usize)]| {
            let users = users.iter().flat_map(|&(user, count)| std::iter::repeat_n(user, count));
            let by_id = (0..).map(id).zip(users.map(known)).collect();
            Files { by_id, max_open: MAX_OPEN, ..Files::default() }
        };
        let full_for = |users: &[_]| {
            [Some(ROOT), Some(1000), None].map(|user| files_of(users).is_full_for(user))
        };
        assert_eq!(full_for(&[(Some(ROOT), MAX_OPEN - 1)]), [false, false, false]);
        assert_eq!(full_for(&[(Some(ROOT), MAX_OPEN)]), [true, true, true]);
        assert_eq!(full_for(&[(Some(1000), MAX_OPEN / 2)]), [false, true, false]);
        assert_eq!(full_for(&[(None, MAX_OPEN / 2), (Some(1000), 1)]), [false, false, true]);
        // However many users somebody can be, some are left for root.
        assert_eq!(full_for(&[(Some(1), 100), (Some(2), 49)]), [false, false, false]);
        assert_eq!(full_for(&[(Some(1), 50), (Some(2), 50), (Some(3), 50)]), [false, true, true]);
        // What nothing is mapped from any more makes room.
        let files = Mutex::new(files_of(&[(None, MAX_OPEN / 2)]));
        let held: Vec<_> =
            Files::lock(&files).by_id.values().map(|known| Arc::clone(&known.file)).collect();
        assert_eq!(missing(&files, id(u64::MAX), path), Some(Missing::TooMany));
        drop(held);
        assert_ne!(missing(&files, id(u64::MAX), path), Some(Missing::TooMany));
        assert_eq!(Files::lock(&files).by_id.len(), 1);
    }
}
