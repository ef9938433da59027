//! The file behind a mapping, opened and checked to be the one that was mapped.

use std::{
    fmt,
    fs::{File, Metadata},
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::Path,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    build_id::BuildId,
    perf::record::MappedId,
    regular_file::{self, Refusal},
};

/// Where the file may be found: in which process, at which addresses, by which name.
#[derive(Clone, Debug)]
pub struct Place {
    /// The process that maps it.
    pub tgid: u32,
    /// First address of the mapping.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// The path, as the process sees it.
    pub name: Arc<str>,
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
    /// It was asked for, and no answer has come yet.
    Unanswered,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "file gone",
            Self::Replaced => "file replaced",
            Self::Changed => "file changed",
            Self::Special => "no regular file",
            Self::TooMany => "too many open files",
            Self::Unanswered => "file system does not answer",
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

/// A file that is mapped somewhere. It may be opened only after its mapping was told.
#[derive(Debug)]
pub struct MappedFile {
    number: u64,
    /// Shared with others that have turned out to be the same file.
    opened: OnceLock<Arc<Opened>>,
    /// Why not, while it is not opened.
    missing: Mutex<Missing>,
}

/// A file that is open.
#[derive(Debug)]
pub(super) struct Opened {
    file: File,
    build_id: Option<BuildId>,
    /// The user id of its owner.
    pub(super) owner: u32,
    /// Device and inode.
    pub(super) place: (u64, u64),
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
    /// One that is not opened yet.
    pub(super) fn new(missing: Missing) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        Self { number, opened: OnceLock::new(), missing: Mutex::new(missing) }
    }

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

    pub(super) fn opened(&self) -> Option<&Arc<Opened>> {
        self.opened.get()
    }

    /// What was opened first stays.
    pub(super) fn set_opened(&self, opened: Arc<Opened>) {
        drop(self.opened.set(opened));
    }

    pub(super) fn set_missing(&self, why: Missing) {
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

#[cfg(test)]
impl MappedFile {
    /// One that is open.
    pub(crate) fn of(file: File) -> Self {
        let mapped = Self::new(Missing::Gone);
        mapped.set_opened(Arc::new(known(Ok(file)).unwrap()));
        mapped
    }
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Self { bytes: file.size(), modified: (file.mtime(), file.mtime_nsec()) }
    }
}

/// The process's own link to the mapped file always leads to the right one. When the process is
/// gone, the path may still: in its root, or in ours.
pub(super) fn open(id: MappedId, place: &Place) -> Result<Opened, Missing> {
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
        regular_file::open_below(&root, Path::new(&**name), true)
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
