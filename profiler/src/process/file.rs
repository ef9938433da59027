//! The files behind mappings: each opened once, as early as possible, whoever maps it.
//!
//! A process may be gone a moment after it has mapped a file, and a path may lead to another file by
//! the time a name is looked up. So a file is opened when it is first seen mapped, is checked to be
//! the one that was mapped, and stays open while a process has it.

use std::{
    fmt,
    fs::{File, Metadata},
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::Path,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;

use crate::{
    build_id::BuildId,
    kernel,
    perf::record::MappedId,
    regular_file::{self, Refusal},
};

const ROOT: u32 = 0;
/// Files held open, at most; half of them for the processes of one user who is not root.
const LIMIT: usize = 2048;
/// A file that could not be opened is tried again after this long, when another process maps it.
const RETRY: Duration = Duration::from_millis(100);

/// Where the file may be found: in which process, at which addresses, by which name.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The process that maps it.
    pub tgid: u32,
    /// First address of the mapping.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// The path, as the process sees it.
    pub name: &'a str,
}

/// Why a file can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Missing {
    /// The process is gone, and no file is at the path.
    Gone,
    /// Another file is at the path now.
    Replaced,
    /// It was written to since it was mapped.
    Changed,
    /// Not a regular file, such as a device.
    Special,
    /// Too many files are open.
    TooMany,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "file gone",
            Self::Replaced => "file replaced",
            Self::Changed => "file changed",
            Self::Special => "no regular file",
            Self::TooMany => "too many open files",
        })
    }
}

/// What symbols are cached by: the same for two files with the same build id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKey {
    /// Of a file that has one, and its owner: anyone can write a file with the build id of another,
    /// and must not name that one's functions.
    BuildId {
        /// What it contains.
        id: BuildId,
        /// The user id of its owner.
        owner: u32,
    },
    /// Of one that has none: unique in this run.
    Number(u64),
}

/// A file that is mapped somewhere.
#[derive(Debug)]
pub struct MappedFile {
    number: u64,
    opened: OnceLock<Opened>,
    /// Why not, while it is not opened.
    missing: Mutex<Missing>,
}

#[derive(Debug)]
struct Opened {
    file: File,
    build_id: Option<BuildId>,
    owner: u32,
    /// Device and inode.
    place: (u64, u64),
    stamp: Stamp,
}

/// What changes when a file is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: (i64, i64),
}

/// The same file, also when the kernel has named it in two ways.
impl PartialEq for MappedFile {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number || (self.key().is_some() && self.key() == other.key())
    }
}

impl Eq for MappedFile {}

impl MappedFile {
    /// What its symbols are cached by; `None` while it can't be opened.
    #[must_use]
    pub fn key(&self) -> Option<FileKey> {
        let opened = self.opened.get()?;
        let owner = opened.owner;
        Some(
            opened
                .build_id
                .map_or(FileKey::Number(self.number), |id| FileKey::BuildId { id, owner }),
        )
    }

    /// Its build id, where it could be opened and has one.
    #[must_use]
    pub fn build_id(&self) -> Option<BuildId> {
        self.opened.get()?.build_id
    }

    /// Why it can't be read, where it could not be opened.
    pub(crate) fn missing(&self) -> Missing {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_missing(&self, why: Missing) {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// The file, where it could be opened.
    pub(crate) fn file(&self) -> Option<&File> {
        Some(&self.opened.get()?.file)
    }

    /// The file, or why it can't be used: also if it was written to since it was first seen mapped.
    pub(crate) fn unchanged(&self) -> Result<&File, Missing> {
        let opened = self.opened.get().ok_or_else(|| self.missing())?;
        let now = opened.file.metadata().map_err(|_| Missing::Gone)?;
        if Stamp::of(&now) == opened.stamp { Ok(&opened.file) } else { Err(Missing::Changed) }
    }
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Self { bytes: file.size(), modified: (file.mtime(), file.mtime_nsec()) }
    }
}

/// All files that are mapped by a process we know.
#[derive(Debug, Default)]
pub struct Files {
    by_id: FxHashMap<MappedId, Known>,
    last_number: u64,
}

#[derive(Debug)]
struct Known {
    file: Arc<MappedFile>,
    /// Whose process was the first to map it; `None` if it was gone.
    user: Option<u32>,
    /// When to try again.
    retry: Instant,
}

impl Files {
    /// The file with this identity, opened if it can be.
    pub fn get(&mut self, id: MappedId, place: Place<'_>) -> Arc<MappedFile> {
        let is_new = !self.by_id.contains_key(&id);
        let user = if is_new { kernel::user_of(place.tgid) } else { None };
        if is_new && self.is_full_for(user) {
            // Those that no mapping refers to any more.
            self.by_id.retain(|_, known| Arc::strong_count(&known.file) > 1);
        }
        let is_full = is_new && self.is_full_for(user);
        let now = Instant::now();
        let last_number = &mut self.last_number;
        let mut new = || {
            *last_number += 1;
            let missing = Mutex::new(if is_full { Missing::TooMany } else { Missing::Gone });
            Arc::new(MappedFile { number: *last_number, opened: OnceLock::new(), missing })
        };
        if is_full {
            return new();
        }
        let known = self.by_id.entry(id).or_insert_with(|| Known { file: new(), user, retry: now });
        // That it contains the same says nothing of who may change it: only root's files are taken
        // to be one without a look.
        if let (MappedId::BuildId(_), Some(before)) = (id, known.file.opened.get())
            && before.owner != ROOT
            && let Ok(opened) = open(id, place)
            && opened.place != before.place
        {
            known.file = new();
            drop(known.file.opened.set(opened));
        }
        if known.file.opened.get().is_none() && now >= known.retry {
            match open(id, place) {
                // Nobody else sets it: `self` is borrowed.
                Ok(opened) => drop(known.file.opened.set(opened)),
                Err(why) => {
                    known.file.set_missing(why);
                    known.retry = now + RETRY;
                }
            }
        }
        Arc::clone(&known.file)
    }

    /// Whether there is no room for a file of this user's process.
    fn is_full_for(&self, user: Option<u32>) -> bool {
        let own = || self.by_id.values().filter(|known| known.user == user).count();
        self.by_id.len() >= LIMIT || (user != Some(ROOT) && own() >= LIMIT / 2)
    }
}

/// The process's own link to the mapped file always leads to the right one. When the process is
/// gone, the path may still: in its root, or in ours.
fn open(id: MappedId, place: Place<'_>) -> Result<Opened, Missing> {
    let Place { tgid, start, end, name } = place;
    let link = format!("/proc/{tgid}/map_files/{start:x}-{end:x}");
    // Another process may have the pid by now, and a file at the same addresses.
    if let Ok(opened) = known(regular_file::open(Path::new(&link)))
        && opened.is(id, |_, _| true)
    {
        return Ok(opened);
    }
    let mut why = Missing::Gone;
    let in_root = |root: &str| {
        let root = File::open(root).map_err(Refusal::Failed)?;
        regular_file::open_below(&root, Path::new(name), true)
    };
    for root in [&*format!("/proc/{tgid}/root"), "/"] {
        match known(in_root(root)) {
            Ok(opened) if opened.is(id, is_on_device) => return Ok(opened),
            Ok(_) => why = Missing::Replaced,
            Err(Missing::Gone) => {}
            Err(other) => why = other,
        }
    }
    Err(why)
}

impl Opened {
    /// Whether this is the file that was mapped; `on_device` says whether it is on this device.
    fn is(&self, id: MappedId, on_device: impl Fn(&File, (u32, u32)) -> bool) -> bool {
        match id {
            MappedId::BuildId(id) => self.build_id == Some(id),
            MappedId::Inode { major, minor, inode, .. } => {
                self.file.metadata().is_ok_and(|found| found.ino() == inode)
                    && on_device(&self.file, (major, minor))
            }
        }
    }
}

/// Whether the file's device is this one. Overlays and subvolumes have a device of their own in what
/// stat(2) says, and another one in mappings: there the inode has to be enough.
fn is_on_device(file: &File, device: (u32, u32)) -> bool {
    let dev = file.metadata().map(|found| found.dev()).unwrap_or_default();
    if (libc::major(dev), libc::minor(dev)) == device {
        return true;
    }
    // SAFETY: all zero bytes are a valid `statfs`.
    let mut filesystem: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `filesystem` outlives the call.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut filesystem) };
    result == 0
        && [libc::OVERLAYFS_SUPER_MAGIC, libc::BTRFS_SUPER_MAGIC].contains(&filesystem.f_type)
}

fn known(file: Result<File, Refusal>) -> Result<Opened, Missing> {
    let file = file.map_err(|refusal| match refusal {
        Refusal::Special => Missing::Special,
        Refusal::Failed(error) => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Missing::TooMany,
            _ => Missing::Gone,
        },
    })?;
    let metadata = file.metadata().map_err(|_| Missing::Gone)?;
    let (build_id, owner) = (BuildId::of_elf(&file), metadata.uid());
    let place = (metadata.dev(), metadata.ino());
    Ok(Opened { file, build_id, owner, place, stamp: Stamp::of(&metadata) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write as _};

    /// A process that is not there, so that only the path is left.
    fn place(name: &Path) -> Place<'_> {
        Place { tgid: u32::MAX, start: 0, end: 1, name: name.to_str().unwrap() }
    }

    fn id_of(path: &Path) -> MappedId {
        let file = fs::metadata(path).unwrap();
        let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
        MappedId::Inode { major, minor, inode: file.ino(), generation: 0 }
    }

    fn missing(files: &mut Files, id: MappedId, path: &Path) -> Option<Missing> {
        files.get(id, place(path)).unchanged().err()
    }

    #[test]
    fn a_file_is_the_one_that_was_mapped_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&path, "code").unwrap();
        fs::write(&other, "code").unwrap();
        let mut files = Files::default();
        let (id, other_id) = (id_of(&path), id_of(&other));
        assert_eq!(missing(&mut files, id, &path), None);
        // Held open, it is the one, whatever becomes of its path.
        fs::remove_file(&path).unwrap();
        assert_eq!(missing(&mut files, id, &path), None);
        assert_eq!(missing(&mut files, other_id, &path), Some(Missing::Gone));
        fs::rename(&other, &path).unwrap();
        let third = dir.path().join("c");
        fs::write(&third, "code").unwrap();
        let mut files = Files::default();
        assert_eq!(missing(&mut files, id_of(&third), &path), Some(Missing::Replaced));
        let unknown = MappedId::BuildId(BuildId::from_slice(&[1; 20]).unwrap());
        assert_eq!(missing(&mut files, unknown, &path), Some(Missing::Replaced));
    }

    #[test]
    fn a_file_that_was_written_to_is_not_used() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut files = Files::default();
        let mapped = files.get(id_of(file.path()), place(file.path()));
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
        let mut files = Files::default();
        assert_eq!(missing(&mut files, id_of(&fifo), &fifo), Some(Missing::Special));
    }

    #[test]
    fn a_file_that_could_not_be_opened_is_when_another_process_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "code").unwrap();
        let (id, mut files) = (id_of(&path), Files::default());
        let first = files.get(id, place(&dir.path().join("elsewhere")));
        assert_eq!(first.unchanged().err(), Some(Missing::Gone));
        while first.unchanged().is_err() {
            files.get(id, place(&path));
        }
        assert!(files.by_id.len() == 1 && first.key().is_some());
    }

    #[test]
    fn the_files_are_bounded() {
        let path = Path::new("/proc/self/exe");
        let id = |number| MappedId::Inode { major: 0, minor: 0, inode: number, generation: 0 };
        let known = |user| Known {
            file: Arc::new(MappedFile {
                number: 0,
                opened: OnceLock::new(),
                missing: Mutex::new(Missing::Gone),
            }),
            user,
            retry: Instant::now() + RETRY,
        };
        let files_of = |users: &[(Option<u32>, usize)]| {
            let users = users.iter().flat_map(|&(user, count)| std::iter::repeat_n(user, count));
            let by_id = (0..).map(id).zip(users.map(known)).collect();
            Files { by_id, last_number: 0 }
        };
        let full_for = |users: &[_]| {
            [Some(ROOT), Some(1000), None].map(|user| files_of(users).is_full_for(user))
        };
        assert_eq!(full_for(&[(Some(ROOT), LIMIT - 1)]), [false, false, false]);
        assert_eq!(full_for(&[(Some(ROOT), LIMIT)]), [true, true, true]);
        assert_eq!(full_for(&[(Some(1000), LIMIT / 2)]), [false, true, false]);
        assert_eq!(full_for(&[(None, LIMIT / 2), (Some(1000), 1)]), [false, false, true]);
        // What nothing is mapped from any more makes room.
        let mut files = files_of(&[(None, LIMIT / 2)]);
        let held: Vec<_> = files.by_id.values().map(|known| Arc::clone(&known.file)).collect();
        assert_eq!(missing(&mut files, id(u64::MAX), path), Some(Missing::TooMany));
        drop(held);
        assert_ne!(missing(&mut files, id(u64::MAX), path), Some(Missing::TooMany));
        assert_eq!(files.by_id.len(), 1);
    }
}
