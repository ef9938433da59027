//! The files behind all mappings: each opened once, as early as possible, whoever maps it.
//!
//! A process may be gone a moment after it has mapped a file, and a path may lead to another file by
//! the time a name is looked up. So a file is opened when it is first seen mapped, and stays open
//! while a process has it. To open one may take long, so that is done apart: [`Files`] only says what
//! is to be [opened](Opening).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;

use super::file::{self, MappedFile, Missing, Opened, Place};
use crate::{kernel, perf::record::MappedId};

const ROOT: u32 = 0;
/// Files held open, at most; half of them for the processes of one user who is not root.
const LIMIT: usize = 2048;
/// A file that could not be opened is tried again after this long, when another process maps it.
const RETRY: Duration = Duration::from_millis(100);

/// All files that are mapped by a process we know.
#[derive(Debug, Default)]
pub struct Files {
    by_id: FxHashMap<MappedId, Known>,
}

#[derive(Debug)]
struct Known {
    file: Arc<MappedFile>,
    /// Whose process was the first to map it; `None` if it was gone.
    user: Option<u32>,
    /// Whether its opening is under way.
    opening: bool,
    /// When to try again.
    retry: Instant,
}

/// A file that is to be opened.
#[derive(Debug)]
pub struct Opening {
    id: MappedId,
    place: Place,
    file: Arc<MappedFile>,
}

impl Files {
    /// Held for moments only: nothing is opened meanwhile.
    pub(super) fn lock(files: &Mutex<Self>) -> MutexGuard<'_, Self> {
        files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file with this identity, and what has to be done so that it is open.
    pub fn get(&mut self, id: MappedId, place: Place) -> (Arc<MappedFile>, Option<Opening>) {
        let is_new = !self.by_id.contains_key(&id);
        let user = if is_new { kernel::user_of(place.tgid) } else { None };
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
            let known = Known { file: Arc::clone(&file), user, opening: true, retry };
            self.by_id.insert(id, known);
            return (Arc::clone(&file), Some(Opening { id, place, file }));
        };
        let is_sure = match known.file.opened() {
            Some(opened) => is_sure(id, opened),
            None => !known.opening || matches!(id, MappedId::Inode { .. }),
        };
        let file = if is_sure {
            let is_due = !known.opening && Instant::now() >= known.retry;
            if known.file.opened().is_some() || !is_due {
                return (Arc::clone(&known.file), None);
            }
            known.opening = true;
            Arc::clone(&known.file)
        } else {
            Arc::new(MappedFile::new(Missing::Unanswered))
        };
        (Arc::clone(&file), Some(Opening { id, place, file }))
    }

    /// Whether there is no room for a file of this user's process.
    fn is_full_for(&self, user: Option<u32>) -> bool {
        let own = || self.by_id.values().filter(|known| known.user == user).count();
        self.by_id.len() >= LIMIT || (user != Some(ROOT) && own() >= LIMIT / 2)
    }

    /// Takes what came of an opening, also if it comes late.
    fn settle(&mut self, opening: Opening, result: Result<Opened, Missing>) {
        let Opening { id, file, .. } = opening;
        // It may have been forgotten meanwhile.
        let Some(known) = self.by_id.get_mut(&id) else {
            match result {
                Ok(opened) => file.set_opened(opened.into()),
                Err(why) => file.set_missing(why),
            }
            return;
        };
        if Arc::ptr_eq(&known.file, &file) {
            known.opening = false;
        }
        match (result, known.file.opened()) {
            // Held open once.
            (Ok(opened), Some(before)) if opened.place == before.place => {
                file.set_opened(Arc::clone(before));
            }
            (Ok(opened), _) => {
                file.set_opened(opened.into());
                known.file = file;
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

/// Whether whatever has this identity is this file. That it contains the same says nothing of who may
/// change it: only root's files are taken to be one without a look.
fn is_sure(id: MappedId, opened: &Opened) -> bool {
    matches!(id, MappedId::Inode { .. }) || opened.owner == ROOT
}

impl Opening {
    /// Of which process it is.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Opens the file; this may take long.
    pub(super) fn open(self, files: &Mutex<Files>) {
        // Another opening of it may have been before this one.
        let known = Files::lock(files).by_id.get(&self.id).map(|known| Arc::clone(&known.file));
        if let Some(opened) = known.as_ref().and_then(|it| it.opened())
            && is_sure(self.id, opened)
        {
            return self.file.set_opened(Arc::clone(opened));
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
    use crate::{build_id::BuildId, elf::tests::with_build_id};
    use std::{fs, io::Write as _, os::unix::fs::MetadataExt as _, path::Path};

    /// A process that is not there, so that only the path is left.
    fn place(name: &Path) -> Place {
        Place { tgid: u32::MAX, start: 0, end: 1, name: name.to_str().unwrap().into() }
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
        MappedId::Inode { major, minor, inode: file.ino(), generation: 0 }
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
        let unknown = MappedId::BuildId(BuildId::from_slice(&[1; 20]).unwrap());
        assert_eq!(missing(&files, unknown, &path), Some(Missing::Replaced));
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
    fn another_file_of_the_same_content_is_another_while_both_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let own = BuildId::from_slice(&[1; 20]).unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        for path in &paths {
            fs::write(path, with_build_id(own.as_bytes())).unwrap();
            // Where the test is root, root's files are all trusted.
            let _ = std::os::unix::fs::chown(path, Some(1), None);
        }
        let (id, files) = (MappedId::BuildId(own), Mutex::default());
        let asked = paths.each_ref().map(|path| Files::lock(&files).get(id, place(path)));
        let [first, second] = asked.map(|(file, opening)| {
            opening.unwrap().open(&files);
            file
        });
        let inode = |file: &MappedFile| file.unchanged().unwrap().metadata().unwrap().ino();
        assert_ne!(inode(&first), inode(&second));
        // A third process has the second one, which is held open once.
        let third = get(&files, id, place(&paths[1]));
        assert!(Arc::ptr_eq(third.opened().unwrap(), second.opened().unwrap()));
    }

    #[test]
    fn the_files_are_bounded() {
        let path = Path::new("/proc/self/exe");
        let id = |number| MappedId::Inode { major: 0, minor: 0, inode: number, generation: 0 };
        let known = |user| Known {
            file: Arc::new(MappedFile::new(Missing::Gone)),
            user,
            opening: false,
            retry: Instant::now() + RETRY,
        };
        let files_of = |users: &[(Option<u32>, usize)]| {
            let users = users.iter().flat_map(|&(user, count)| std::iter::repeat_n(user, count));
            Files { by_id: (0..).map(id).zip(users.map(known)).collect() }
        };
        let full_for = |users: &[_]| {
            [Some(ROOT), Some(1000), None].map(|user| files_of(users).is_full_for(user))
        };
        assert_eq!(full_for(&[(Some(ROOT), LIMIT - 1)]), [false, false, false]);
        assert_eq!(full_for(&[(Some(ROOT), LIMIT)]), [true, true, true]);
        assert_eq!(full_for(&[(Some(1000), LIMIT / 2)]), [false, true, false]);
        assert_eq!(full_for(&[(None, LIMIT / 2), (Some(1000), 1)]), [false, false, true]);
        // What nothing is mapped from any more makes room.
        let files = Mutex::new(files_of(&[(None, LIMIT / 2)]));
        let held: Vec<_> =
            Files::lock(&files).by_id.values().map(|known| Arc::clone(&known.file)).collect();
        assert_eq!(missing(&files, id(u64::MAX), path), Some(Missing::TooMany));
        drop(held);
        assert_ne!(missing(&files, id(u64::MAX), path), Some(Missing::TooMany));
        assert_eq!(Files::lock(&files).by_id.len(), 1);
    }
}
